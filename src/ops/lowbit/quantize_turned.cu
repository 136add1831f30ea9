/* Codes of 8 bits of a matrix, the same turned, and their scales, one for 128 rows of 128 columns,
 * from one reading; of gelu(x), or of x times the slope of gelu at pre, where that is asked, and
 * the sums of a tile's columns before rounding.
 *
 * Grid: one block of 256 threads a tile, tiles across fastest. A thread holds 8 rows of 8 columns,
 * so that it has whole words of both results: bytes change places in registers, and 8 of a column
 * at a time in shared memory, where each column lies in another order, so that neither writing nor
 * reading meets a bank twice. VEC is 8 where rows and columns come in eights, else 1. Bytes: x
 * once, pre once, both results once.
 *
 * Blocks beside each other hide the way to memory, and registers say how many fit. So x is held as
 * it was read, two elements of 16 bits to a register, until its codes are made, and gelu is taken
 * once: from where it exceeds GELU_DIP on it grows, so that the largest x has the largest result.
 * Products with slopes are held as floats, since their largest is known when all are made. */
/* Knobs: Y_T, VEC, GELU, SUMS. */
#include "dependent.cuh"
#include "real_math.cuh"
#include "reduce.cuh"

#define THREADS 256
#define SIDE 128
#define PART 8              /* rows and columns of a thread */
#define PARTS (SIDE / PART) /* in a tile, across and down */
#define GELU_OF_X 1
#define GELU_SLOPE 2
#define GELU_DIP 0.17f /* no gelu of a negative number is as large */

/* Blocks that the registers of a multiprocessor are shared by. */
#define BLOCKS (VEC == 1 ? 1 : sizeof(T) == 4 || !CUP_HAS_FP8 ? 2 : AS_READ ? 4 : 3)

#include "quantize_held.cuh"

#if Y_T == CUP_F8E4M3
#define MOST 448.0f
#else
#define MOST 57344.0f
#endif

/* Four codes in a word, the first in the lowest byte. NaN stays NaN. */
DEVICE uint32_t codes_of(float a, float b, float c, float d)
{
#if CUP_HAS_FP8
    uint16_t low, high;
#if Y_T == CUP_F8E4M3
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
#else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
#endif
    return low | (uint32_t)high << 16;
#else
    const float all[4] = {a, b, c, d};
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        dtype_of<Y_T>::type one;
        from_float(all[i] > MOST ? MOST : all[i] < -MOST ? -MOST : all[i], &one);
        word |= (uint32_t)one.bits << 8 * i;
    }
    return word;
#endif
}

/* Eight lines of eight codes, `pitch` apart, of which the first `lines` have a place, and of each
 * the first `count`. */
DEVICE void put(uint8_t *to, long long pitch, int lines, int count, const uint2 (&codes)[PART])
{
    if (VEC == PART && lines >= PART && count > 0) {
#pragma unroll
        for (int i = 0; i < PART; i++, to += pitch)
            *(uint2 *)to = codes[i];
        return;
    }
#pragma unroll
    for (int i = 0; i < PART; i++, to += pitch) {
        if (VEC == PART && i < lines && count > 0)
            *(uint2 *)to = codes[i];
#pragma unroll
        for (int j = 0; j < PART && VEC == 1; j++)
            if (i < lines && j < count)
                to[j] = (uint8_t)((j < 4 ? codes[i].x : codes[i].y) >> j % 4 * 8);
    }
}

/* Four rows of four bytes become four columns. */
DEVICE void turn(uint32_t (&w)[4])
{
    uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
    uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, b, 0x5410);
    w[1] = __byte_perm(a, b, 0x7632);
    w[2] = __byte_perm(c, d, 0x5410);
    w[3] = __byte_perm(c, d, 0x7632);
}

/* Where 8 codes of a column lie in shared memory; the columns of a part have one order. */
DEVICE int place_of(int column, int part)
{
    return column * PARTS + (part ^ column / PART);
}

/* One barrier, behind which all of `partial` is seen. */
DEVICE float most_of_block(float most, float (&partial)[THREADS / 32])
{
    most = warp_max(most);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++)
        most = fmaxf(most, partial[i]);
    return most;
}

DEVICE void keep_sums(const held (&v)[PART], float *to)
{
    numbers sums = {};
#pragma unroll
    for (int i = 0; i < PART; i++) {
        numbers n = numbers_of(v[i]);
#pragma unroll
        for (int j = 0; j < PART; j++)
            sums.at[j] += n.at[j];
    }
#pragma unroll
    for (int j = 0; j < PART; j++)
        to[j] = sums.at[j];
}

/* The codes of a part to y, and turned to shared memory. */
DEVICE void put_part(uint8_t *y, part p, long long pitch, const held (&v)[PART], float factor,
                     uint2 *turned)
{
    uint2 w[PART];
#pragma unroll
    for (int i = 0; i < PART; i++) {
        numbers n = numbers_of(v[i]);
        const float(&r)[PART] = n.at;
        w[i].x = codes_of(r[0] * factor, r[1] * factor, r[2] * factor, r[3] * factor);
        w[i].y = codes_of(r[4] * factor, r[5] * factor, r[6] * factor, r[7] * factor);
    }
    put(y, pitch, VEC == 1 ? p.rows : p.rows > 0 ? PART : 0, p.columns, w);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t all[PART];
#pragma unroll
        for (int i = 0; i < PART; i++)
            all[i] = h ? w[i].y : w[i].x;
        uint32_t upper[4] = {all[0], all[1], all[2], all[3]};
        uint32_t lower[4] = {all[4], all[5], all[6], all[7]};
        turn(upper);
        turn(lower);
#pragma unroll
        for (int j = 0; j < 4; j++)
            turned[place_of(p.across * PART + h * 4 + j, p.down)] = make_uint2(upper[j], lower[j]);
    }
}

/* From shared memory to memory: 8 columns of a thread, 16 apart. */
DEVICE void put_turned(uint8_t *to, part p, long long rows, int count, int columns,
                       const uint2 *turned)
{
    uint2 w[PART];
#pragma unroll
    for (int i = 0; i < PART; i++)
        w[i] = turned[place_of(p.down + i * PARTS, p.across)];
    put(to, PARTS * rows, (columns + PARTS - 1) / PARTS, count, w);
}

/* Scales of rows or columns, which lie `step` apart, those of the next tile `tile`. */
struct scales {
    float *at;
    long long step, tile;
};

/* A scale to all who ask for it, and the sums of the columns, in the order of their rows. */
DEVICE void put_rest(float s, float *scale, const scales &of_rows, const scales &of_columns,
                     float *sums, const float (*kept)[SIDE], long long rows, long long columns)
{
    int t = (int)threadIdx.x % SIDE;
    if (threadIdx.x == 0)
        *scale = s;
    if (threadIdx.x < SIDE && t < rows)
        of_rows.at[t * of_rows.step] = s;
    if (threadIdx.x < SIDE || t >= columns)
        return;
    of_columns.at[t * of_columns.step] = s;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PARTS && SUMS; i++)
        sum += kept[i][t];
    if (SUMS)
        sums[t] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    quantize_turned(const T *x, const T *pre, uint8_t *y, uint8_t *turned, float *scale,
                    scales of_rows, scales of_columns, float *sums, long long rows,
                    long long columns, unsigned multiprocessors)
{
    __shared__ uint2 tile[SIDE * PARTS];
    __shared__ float kept[SUMS ? PARTS : 1][SIDE], partial[2][THREADS / 32];
    wait_for_previous_kernel();
    let_next_kernel_start();
    unsigned wide = (unsigned)((columns + SIDE - 1) / SIDE), down = blockIdx.x / wide,
             across = blockIdx.x - down * wide;
    long long row0 = (long long)down * SIDE, column0 = (long long)across * SIDE;
    part p = {(int)(threadIdx.x % PARTS), (int)(threadIdx.x / PARTS), 0, 0};
    p.rows = left(rows, row0 + p.down * PART);
    p.columns = left(columns, column0 + p.across * PART);
    long long at = (row0 + p.down * PART) * columns + column0 + p.across * PART;
    held v[PART];
    hold(x + at, pre + at, p, columns, v);
    if (SUMS)
        keep_sums(v, &kept[p.down][p.across * PART]);
    float most = most_of_block(most_of(v), partial[0]); /* behind which what is kept is seen */
    ask_ahead(x, pre, blockIdx.x + BLOCKS * multiprocessors, wide, rows, columns);
    if (AS_READ && GELU) {
        most = gelu_short(most);
        if (most < GELU_DIP)
            most = most_of_block(most_of_numbers(v), partial[1]);
    }
    float s = most == 0 ? 1.0f : fmaxf(__fdiv_rn(most, MOST), 0x1p-126f);
    pack_again(v);
    put_part(y + at, p, columns, v, __fdiv_rn(1.0f, s), tile);
    of_rows.at += across * of_rows.tile + row0 * of_rows.step;
    of_columns.at += down * of_columns.tile + column0 * of_columns.step;
    put_rest(s, scale + blockIdx.x, of_rows, of_columns, sums + down * columns + column0, kept,
             rows - row0, columns - column0);
    __syncthreads();
    long long columns_left = columns - column0 - p.down;
    put_turned(turned + (column0 + p.down) * rows + row0 + p.across * PART, p, rows,
               left(rows, row0 + p.across * PART),
               columns_left < SIDE ? (int)columns_left : SIDE, tile);
}
