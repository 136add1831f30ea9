/* Codes of 8 bits of a matrix, the same turned, and their scales, one for 128 rows of 128 columns,
 * from one reading; of gelu(x), or of x times the slope of gelu at pre, where that is asked, and
 * the sums of a tile's columns before rounding.
 *
 * Grid: one block of 256 threads a tile, tiles across fastest. A thread holds 8 rows of 8 columns,
 * so that it has whole words of both results: bytes change places in registers, and 8 of a column
 * at a time in shared memory, where each column lies in another order, so that neither writing nor
 * reading meets a bank twice. VEC is 8 where rows and columns come in eights, else 1. Bytes: x
 * once, pre once, both results once. */
/* Knobs: Y_T, VEC, GELU, SUMS. */
#include "real_math.cuh"
#include "reduce.cuh"
#include "vec.cuh"

#define THREADS 256
#define SIDE 128
#define PART 8              /* rows and columns of a thread */
#define PARTS (SIDE / PART) /* in a tile, across and down */
#define GELU_OF_X 1
#define GELU_SLOPE 2

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

/* Eight numbers of a row, of which `count` are there; the others are 0. */
DEVICE void take(const T *from, int count, float (&to)[PART])
{
    vec<T, PART> v = {};
    if (VEC == PART && count > 0)
        v = load_once<PART>(from);
#pragma unroll
    for (int i = 0; i < PART && VEC == 1; i++)
        if (i < count)
            v.at[i] = from[i];
    to_reals(v, to);
}

/* Eight codes in two words, of which `count` have a place. */
DEVICE void put(uint8_t *to, int count, uint2 codes)
{
    if (VEC == PART && count > 0)
        *(uint2 *)to = codes;
#pragma unroll
    for (int i = 0; i < PART && VEC == 1; i++)
        if (i < count)
            to[i] = (uint8_t)((i < 4 ? codes.x : codes.y) >> i % 4 * 8);
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

/* A thread's part: how many of its rows and columns are there. */
struct part {
    int across, down, rows, columns;
};

DEVICE int left(long long all, long long before)
{
    return all < before ? 0 : all - before < PART ? (int)(all - before) : PART;
}

/* The numbers of a part, and the largest of their sizes; NaN does not count. */
DEVICE float take_part(const T *x, const T *pre, part p, long long pitch, float (&v)[PART][PART])
{
    float most = 0;
#pragma unroll
    for (int i = 0; i < PART; i++)
        take(x + i * pitch, i < p.rows ? p.columns : 0, v[i]);
#pragma unroll
    for (int i = 0; i < PART; i++) {
        float before[PART];
        if (GELU == GELU_SLOPE)
            take(pre + i * pitch, i < p.rows ? p.columns : 0, before);
#pragma unroll
        for (int j = 0; j < PART; j++) {
            float &one = v[i][j];
            one = GELU == GELU_OF_X    ? gelu_of(one)
                  : GELU == GELU_SLOPE ? one * gelu_slope_of(before[j])
                                       : one;
            most = fmaxf(most, fabsf(one));
        }
    }
    return most;
}

DEVICE void keep_sums(const float (&v)[PART][PART], float *to)
{
#pragma unroll
    for (int j = 0; j < PART; j++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < PART; i++)
            sum += v[i][j];
        to[j] = sum;
    }
}

/* The codes of a part to y, and turned to shared memory. */
DEVICE void put_part(uint8_t *y, part p, long long pitch, const float (&v)[PART][PART],
                     float factor, uint2 *turned)
{
    uint32_t w[2][PART]; /* halves of rows; then, by fours, of columns */
#pragma unroll
    for (int i = 0; i < PART; i++) {
        const float(&r)[PART] = v[i];
        w[0][i] = codes_of(r[0] * factor, r[1] * factor, r[2] * factor, r[3] * factor);
        w[1][i] = codes_of(r[4] * factor, r[5] * factor, r[6] * factor, r[7] * factor);
        put(y + i * pitch, i < p.rows ? p.columns : 0, make_uint2(w[0][i], w[1][i]));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t upper[4] = {w[h][0], w[h][1], w[h][2], w[h][3]};
        uint32_t lower[4] = {w[h][4], w[h][5], w[h][6], w[h][7]};
        turn(upper);
        turn(lower);
#pragma unroll
        for (int j = 0; j < 4; j++)
            turned[place_of(p.across * PART + h * 4 + j, p.down)] = make_uint2(upper[j], lower[j]);
    }
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

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    quantize_turned(const T *x, const T *pre, uint8_t *y, uint8_t *turned, float *scale,
                    scales of_rows, scales of_columns, float *sums, long long rows,
                    long long columns)
{
    __shared__ uint2 tile[SIDE * PARTS];
    __shared__ float kept[SUMS ? PARTS : 1][SIDE];
    long long wide = (columns + SIDE - 1) / SIDE, row0 = blockIdx.x / wide,
              column0 = blockIdx.x - row0 * wide;
    of_rows.at += column0 * of_rows.tile + row0 * SIDE * of_rows.step;
    of_columns.at += row0 * of_columns.tile + column0 * SIDE * of_columns.step;
    sums += row0 * columns + column0 * SIDE;
    row0 *= SIDE;
    column0 *= SIDE;
    int t = (int)threadIdx.x;
    part p = {t % PARTS, t / PARTS, 0, 0};
    p.rows = left(rows, row0 + p.down * PART);
    p.columns = left(columns, column0 + p.across * PART);
    long long at = (row0 + p.down * PART) * columns + column0 + p.across * PART;
    float v[PART][PART];
    float most = take_part(x + at, pre + at, p, columns, v);
    if (SUMS)
        keep_sums(v, &kept[p.down][p.across * PART]);
    most = block_max(most); /* behind which what is kept is seen */
    float s = most == 0 ? 1.0f : fmaxf(__fdiv_rn(most, MOST), 0x1p-126f);
    put_part(y + at, p, columns, v, __fdiv_rn(1.0f, s), tile);
    put_rest(s, scale + blockIdx.x, of_rows, of_columns, sums, kept, rows - row0,
             columns - column0);
    __syncthreads();
    int count = left(rows, row0 + p.across * PART);
    turned += (column0 + p.down) * rows + row0 + p.across * PART;
#pragma unroll
    for (int i = 0; i < SIDE; i += PARTS)
        put(turned + i * rows, column0 + p.down + i < columns ? count : 0,
            tile[place_of(p.down + i, p.across)]);
}
