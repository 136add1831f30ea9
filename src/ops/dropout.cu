/* y = x / (1 - p) where kept, else 0, plus a residual with ADD, and a bit an element of what was
 * kept with SAVE; with GRAD, the bits decide and x is dy. Which random bits an element takes is
 * said in dropout.h. A thread has UNROLL units of 8 elements, one Philox block and one byte of the
 * mask each, in accesses of WIDTH elements. Grid: pieces of 256 * UNROLL units. Bytes: x and y (and
 * residual) once and an eighth of a byte an element; some 50 integer operations a unit. */
#include "philox.cuh"
#include "vec.cuh"

#ifndef CUP_T
#error "CUP_T is the dtype of x and y"
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef ADD
#define ADD 0
#endif
#ifndef SAVE
#define SAVE 1
#endif
#ifndef WIDTH
#define WIDTH (sizeof(T) > 2 ? 16 / sizeof(T) : 8)
#endif

#define THREADS 256

struct unit {
    vec<T, WIDTH> piece[8 / WIDTH];
};

DEVICE unit read_unit(const T *from)
{
    unit u;
#pragma unroll
    for (int i = 0; i < 8 / WIDTH; i++)
        u.piece[i] = load<WIDTH>(from + i * WIDTH);
    return u;
}

/* Bit i is set where element i of the unit is kept. */
DEVICE unsigned draw(const uint64_t *state, uint32_t sequence, int64_t number, uint32_t threshold)
{
    philox_words w = philox_block(state, sequence, (uint64_t)number);
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        kept |= (unsigned)((w.at[i] & 0xffff) >= threshold) << (2 * i);
        kept |= (unsigned)(w.at[i] >> 16 >= threshold) << (2 * i + 1);
    }
    return kept;
}

DEVICE real one(unsigned kept, int i, T x, real scale)
{
    return kept >> i & 1 ? to_real(x) * scale : (real)0;
}

/* The last elements, where no whole unit is left. */
DEVICE void finish(T *y, const T *x, const T *residual, unsigned kept, int count, real scale)
{
    for (int i = 0; i < count; i++) {
        real value = one(kept, i, x[i], scale);
        y[i] = from_real<T>(ADD ? value + to_real(residual[i]) : value);
    }
}

DEVICE void dropout(T *y, uint8_t *mask, const T *x, const T *residual, const uint64_t *state,
                    uint32_t sequence, uint32_t threshold, real scale, int64_t count)
{
    int64_t start = (int64_t)blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
    unit in[UNROLL], rest[ADD ? UNROLL : 1];
    unsigned kept[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t number = start + u * THREADS;
        if (number * 8 + 8 <= count) {
            in[u] = read_unit(x + number * 8);
            if (ADD)
                rest[ADD ? u : 0] = read_unit(residual + number * 8);
        }
#ifdef GRAD
        kept[u] = number * 8 < count ? mask[number] : 0;
#endif
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t number = start + u * THREADS;
        int64_t left = count - number * 8;
        if (left <= 0)
            return;
#ifndef GRAD
        kept[u] = draw(state, sequence, number, threshold);
        if (SAVE)
            mask[number] = (uint8_t)(left < 8 ? kept[u] & ((1u << left) - 1) : kept[u]);
#endif
        if (left < 8) {
            finish(y + number * 8, x + number * 8, residual + number * 8, kept[u], (int)left,
                   scale);
            return;
        }
#pragma unroll
        for (int i = 0; i < 8 / WIDTH; i++) {
            real out[WIDTH];
#pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                out[k] = one(kept[u], i * WIDTH + k, in[u].piece[i].at[k], scale);
                if (ADD)
                    out[k] += to_real(rest[ADD ? u : 0].piece[i].at[k]);
            }
            store(y + number * 8 + i * WIDTH, from_reals<T, WIDTH>(out));
        }
    }
}

#ifdef GRAD
#define NAME dropout_bwd
#else
#define NAME dropout_fwd
#endif
extern "C" __global__ void __launch_bounds__(THREADS)
    NAME(T *y, uint8_t *mask, const T *x, const T *residual, const uint64_t *state,
         uint32_t sequence, uint32_t threshold, double scale, int64_t count)
{
    dropout(y, mask, x, residual, state, sequence, threshold, (real)scale, count);
}
