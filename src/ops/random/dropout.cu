/* y = x / (1 - p) where kept, else 0, plus a residual with ADD, and a bit an element of what was
 * kept with SAVE; with GRAD, the bits decide and x is dy. Which random bits an element takes is
 * said in dropout.h. A thread has UNROLL units of 8 elements, one Philox block and one byte of the
 * mask each, in accesses of WIDTH elements. Grid: pieces of 256 * UNROLL units. Bytes: x and y (and
 * residual) once and an eighth of a byte an element; some 50 integer operations a unit. */
#include "dropout.cuh"
#include "vec.cuh"

#ifndef CUP_T
#error "CUP_T is the dtype of x and y"
#endif
/* Knobs: UNROLL, ADD, SAVE, WIDTH; PARTS where sequences lie in parts, as dropout.h says. */

#define THREADS 256

/* As the host has it. */
struct dropout_parts {
    uint64_t stretch, whole, place[2];
};

/* The number of a unit in the whole. */
DEVICE uint64_t whole_unit(const dropout_parts &p, uint64_t number)
{
#ifdef PARTS
    uint64_t at = number / p.stretch;
    return at / 2 * p.whole + (at % 2 ? p.place[1] : p.place[0]) + number % p.stretch;
#else
    return number;
#endif
}

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

DEVICE real one(unsigned kept, int i, T x, real scale)
{
    return kept >> i & 1 ? to_real(x) * scale : (real)0;
}

DEVICE void write_unit(T *to, const unit &x, const unit &other, unsigned kept, real scale)
{
#pragma unroll
    for (int i = 0; i < 8 / WIDTH; i++) {
        real out[WIDTH];
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            out[k] = one(kept, i * WIDTH + k, x.piece[i].at[k], scale);
            if (ADD)
                out[k] += to_real(other.piece[i].at[k]);
        }
        store(to + i * WIDTH, from_reals<T, WIDTH>(out));
    }
}

/* The last elements, where no whole unit is left. */
DEVICE void write_few(T *y, const T *x, const T *residual, unsigned kept, int count, real scale)
{
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        real value = one(kept, i, x[i], scale);
        y[i] = from_real<T>(ADD ? value + to_real(residual[i]) : value);
    }
}

/* The units of one thread, from `start` on; Whole says that all of them exist and are whole. */
template <bool Whole>
DEVICE void dropout(T *y, uint8_t *mask, const T *x, const T *residual, const uint64_t *state,
                    uint32_t sequence, uint32_t threshold, uint32_t rest, real scale, int64_t count,
                    const dropout_parts &parts, int64_t start)
{
    unit in[UNROLL], other[UNROLL];
    unsigned kept[UNROLL];
    uint64_t seed = 0;
    uint32_t step = 0;
#ifndef GRAD
    seed = state[0];
    step = (uint32_t)state[1];
#endif
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t number = start + u * THREADS;
        if (Whole || number * 8 + 8 <= count) {
            in[u] = read_unit(x + number * 8);
            if (ADD)
                other[u] = read_unit(residual + number * 8);
        }
#ifdef GRAD
        kept[u] = Whole || number * 8 < count ? mask[number] : 0;
#endif
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t number = start + u * THREADS, left = Whole ? 8 : count - number * 8;
        if (!Whole && left <= 0)
            return;
#ifndef GRAD
        kept[u] = dropout_kept(seed, step, sequence, whole_unit(parts, (uint64_t)number), threshold,
                               rest);
        if (SAVE)
            mask[number] = (uint8_t)(left < 8 ? kept[u] & ((1u << left) - 1) : kept[u]);
#endif
        if (Whole || left >= 8)
            write_unit(y + number * 8, in[u], other[u], kept[u], scale);
        else
            write_few(y + number * 8, x + number * 8, residual + number * 8, kept[u], (int)left,
                      scale);
    }
}

#ifdef GRAD
#define NAME dropout_bwd
#else
#define NAME dropout_fwd
#endif
extern "C" __global__ void __launch_bounds__(THREADS)
    NAME(T *y, uint8_t *mask, const T *x, const T *residual, const uint64_t *state,
         uint32_t sequence, uint32_t threshold, uint32_t rest, double scale, int64_t count,
         const dropout_parts parts)
{
    int64_t begin = (int64_t)blockIdx.x * (THREADS * UNROLL), start = begin + threadIdx.x;
    if ((begin + THREADS * UNROLL) * 8 <= count)
        dropout<true>(y, mask, x, residual, state, sequence, threshold, rest, (real)scale, count,
                      parts, start);
    else
        dropout<false>(y, mask, x, residual, state, sequence, threshold, rest, (real)scale, count,
                       parts, start);
}
