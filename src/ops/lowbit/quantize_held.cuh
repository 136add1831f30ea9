/* What a thread of quantize_turned.cu holds of a tile: how it is read, what it stands for, and the
 * largest of it. Uses that file's knobs and sizes. */
#ifndef CUP_OPS_LOWBIT_QUANTIZE_HELD_CUH
#define CUP_OPS_LOWBIT_QUANTIZE_HELD_CUH

#include "real_math.cuh"

/* Whether elements stay as they were read until their codes are made. */
#define AS_READ (GELU == 0 || (GELU == GELU_OF_X && !SUMS))

/* A thread's part: how many of its rows and columns are there. */
struct part {
    int across, down, rows, columns;
};

DEVICE int left(long long all, long long before)
{
    return all < before ? 0 : all - before < PART ? (int)(all - before) : PART;
}

/* Rows of a part as words of memory, which the compiler does not take apart before it must, and as
 * what their codes are made of. */
#define WORDS (PART * (int)sizeof(T) / 4)
struct elements {
    uint32_t at[WORDS];
};
struct numbers {
    float at[PART];
};
#if AS_READ
typedef elements held;
#else
typedef numbers held;
#endif

DEVICE float gelu_short(float x)
{
    return x * gelu_sigmoid_short(x);
}

DEVICE numbers unpacked(const elements &row)
{
    numbers n;
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        uint32_t word = row.at[j];
#if CUP_T == CUP_F32
        n.at[j] = __uint_as_float(word);
#elif CUP_T == CUP_BF16
        n.at[2 * j] = __uint_as_float(word << 16);
        n.at[2 * j + 1] = __uint_as_float(word & 0xffff0000u);
#else
        n.at[2 * j] = to_real(f16{(uint16_t)word});
        n.at[2 * j + 1] = to_real(f16{(uint16_t)(word >> 16)});
#endif
    }
    return n;
}

DEVICE numbers numbers_of(const elements &row)
{
    numbers n = unpacked(row);
#pragma unroll
    for (int j = 0; j < PART && GELU == GELU_OF_X; j++)
        n.at[j] = gelu_short(n.at[j]);
    return n;
}

DEVICE const numbers &numbers_of(const numbers &row)
{
    return row;
}

/* The first rows of a part. What is not there is 0. */
template <int Rows>
DEVICE void take(const T *from, part p, long long pitch, elements (&to)[Rows])
{
#pragma unroll
    for (int i = 0; i < Rows; i++)
        to[i] = {};
    if (VEC == PART && p.rows > 0 && p.columns > 0) {
#pragma unroll
        for (int i = 0; i < Rows; i++, from += pitch)
#pragma unroll
            for (int j = 0; j < WORDS / 4; j++) {
                uint4 four = __ldcs((const uint4 *)from + j);
                to[i].at[4 * j] = four.x;
                to[i].at[4 * j + 1] = four.y;
                to[i].at[4 * j + 2] = four.z;
                to[i].at[4 * j + 3] = four.w;
            }
    }
#pragma unroll
    for (int i = 0; i < Rows * PART && VEC == 1; i++)
        if (i / PART < p.rows && i % PART < p.columns) {
            T one = from[i / PART * pitch + i % PART];
            uint32_t bits = sizeof(T) == 4 ? *(const uint32_t *)&one : *(const uint16_t *)&one;
            to[i / PART].at[i % PART * WORDS / PART] |= bits << (WORDS < PART ? i % 2 * 16 : 0);
        }
}

/* L2 is asked for the tile of the block that comes after this one: a line of 128 bytes for each
 * thread and two bytes of an element. It is so late that what waits in L2 stays small. */
DEVICE void ask_ahead(const T *x, const T *pre, unsigned tile, unsigned wide, long long rows,
                      long long columns)
{
    const unsigned lines = SIDE * sizeof(T) / 128, across = 128 / sizeof(T);
    long long down = tile / wide, row0 = down * SIDE, column0 = (tile - down * wide) * SIDE;
#pragma unroll
    for (int i = 0; i < (int)lines / 2; i++) {
        unsigned line = threadIdx.x + i * THREADS;
        long long row = row0 + line / lines, column = column0 + line % lines * across;
        if (row >= rows || column >= columns)
            continue;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(x + row * columns + column));
        if (GELU == GELU_SLOPE)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(pre + row * columns + column));
    }
}

DEVICE void hold(const T *x, const T *, part p, long long pitch, elements (&v)[PART])
{
    take(x, p, pitch, v);
}

/* Half of the rows at a time, so that registers hold no more than the numbers there will be. */
DEVICE void hold(const T *x, const T *pre, part p, long long pitch, numbers (&v)[PART])
{
    elements of_x[PART / 2], of_pre[PART / 2];
#pragma unroll
    for (int i = 0; i < PART; i++) {
        if (i % (PART / 2) == 0) {
            part half = {p.across, p.down, p.rows - i, p.columns};
            take(x + i * pitch, half, pitch, of_x);
            if (GELU == GELU_SLOPE)
                take(pre + i * pitch, half, pitch, of_pre);
        }
        v[i] = numbers_of(of_x[i % (PART / 2)]);
        if (GELU != GELU_SLOPE)
            continue;
        numbers before = unpacked(of_pre[i % (PART / 2)]);
#pragma unroll
        for (int j = 0; j < PART; j++)
            v[i].at[j] *= gelu_slope_short(before.at[j]);
    }
}

/* The largest size among the numbers of a part, here and below; NaN does not count. */
template <typename Row> DEVICE float most_of_numbers(const Row (&v)[PART])
{
    float most = 0;
#pragma unroll
    for (int i = 0; i < PART; i++) {
        numbers n = numbers_of(v[i]);
#pragma unroll
        for (int j = 0; j < PART; j++)
            most = fmaxf(most, fabsf(n.at[j]));
    }
    return most;
}

DEVICE float most_of(const numbers (&v)[PART])
{
    return most_of_numbers(v);
}

/* Of elements that gelu is to be taken of the largest that is above 0. Two of 16 bits have a word
 * and are compared together where cards can. */
#define PAIRED (sizeof(T) == 2 && CUP_HAS_BF16)

DEVICE uint32_t larger(uint32_t a, uint32_t b)
{
    uint32_t c = 0;
#if CUP_HAS_BF16 && CUP_T == CUP_BF16
    asm("max.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
#elif CUP_HAS_BF16
    asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
#endif
    return c;
}

DEVICE float most_of(const elements (&v)[PART])
{
    float most = 0;
    elements pair = {};
#pragma unroll
    for (int i = 0; i < PART; i++) {
        numbers n = unpacked(v[i]);
#pragma unroll
        for (int j = 0; j < WORDS && PAIRED; j++)
            pair.at[0] = larger(pair.at[0], GELU ? v[i].at[j] : v[i].at[j] & 0x7fff7fff);
#pragma unroll
        for (int j = 0; j < PART && !PAIRED; j++)
            most = fmaxf(most, GELU ? n.at[j] : fabsf(n.at[j]));
    }
    numbers two = unpacked(pair);
    return PAIRED ? fmaxf(two.at[0], two.at[1]) : most;
}

/* Behind this the compiler unpacks elements anew, rather than hold what it made of them before. */
DEVICE void pack_again(elements (&v)[PART])
{
#pragma unroll
    for (int i = 0; i < PART * WORDS; i++)
        asm volatile("" : "+r"(v[i / WORDS].at[i % WORDS]));
}

DEVICE void pack_again(numbers (&)[PART])
{
}

#endif
