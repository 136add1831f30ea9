/* Packs a and b into panels that lie in cache in the order they are read, and multiplies panels
 * by a kernel that keeps its piece of y in registers. */
#include "ops/matmul/product_cpu_kernel.h"

#include <string.h>

#include "base/divide.h"
#include "ops/elementwise/pointwise.h"
#include "tensor/floats.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define DEPTH 256   /* of k in one panel */
#define FEW_ROWS 4
#define RUN 2048    /* of k or n at a time, where there are few rows */

/* Adds a panel of a times a panel of b to `sums`: ROWS rows by VECTORS vectors of columns. A panel
 * has its own sum, since one along all of k rounds the more the longer it is. */
#define KERNEL(name, attribute, real, vector, ROWS, VECTORS, load, store, splat, multiply_add)     \
    attribute static void name(int64_t k, const void *left, const void *right, void *sums,         \
                               int64_t distance)                                                   \
    {                                                                                              \
        enum { LANES = sizeof(vector) / sizeof(real) };                                            \
        const real *a = left, *b = right;                                                          \
        real *y = sums;                                                                            \
        vector sum[ROWS][VECTORS];                                                                 \
        UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++)             \
            sum[i][j] = splat(0);                                                                  \
        for (; k > 0; k--, a += ROWS, b += VECTORS * LANES) {                                      \
            vector row[VECTORS];                                                                   \
            UNROLL for (int j = 0; j < VECTORS; j++)                                               \
                row[j] = load(b + j * LANES);                                                      \
            UNROLL for (int i = 0; i < ROWS; i++) {                                                \
                vector one = splat(a[i]);                                                          \
                UNROLL for (int j = 0; j < VECTORS; j++)                                           \
                    sum[i][j] = multiply_add(one, row[j], sum[i][j]);                              \
            }                                                                                      \
        }                                                                                          \
        UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++)             \
            store(y + i * distance + j * LANES,                                                    \
                  load(y + i * distance + j * LANES) + sum[i][j]);                                 \
    }
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Plain vectors of 16 bytes, which every machine has in some form. */
typedef float float4 __attribute__((vector_size(16), aligned(4)));
typedef double double2 __attribute__((vector_size(16), aligned(8)));
#define LOAD4(p) (*(const float4 *)(const void *)(p))
#define STORE4(p, v) (*(float4 *)(void *)(p) = (v))
#define SPLAT4(x) ((float4){x, x, x, x})
#define LOAD2(p) (*(const double2 *)(const void *)(p))
#define STORE2(p, v) (*(double2 *)(void *)(p) = (v))
#define SPLAT2(x) ((double2){x, x})
#define PLAIN(a, b, c) ((a) * (b) + (c))
KERNEL(plain_f32, , float, float4, 4, 2, LOAD4, STORE4, SPLAT4, PLAIN)
KERNEL(plain_f64, , double, double2, 4, 2, LOAD2, STORE2, SPLAT2, PLAIN)

typedef void (*kernel)(int64_t k, const void *left, const void *right, void *sums,
                       int64_t distance);
typedef struct kernels {
    int rows, bytes; /* of a piece of y in registers: rows, and bytes of one row */
    kernel f32, f64;
} kernels;

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f")))
KERNEL(avx2_f32, AVX2, float, __m256, 6, 2, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps,
       _mm256_fmadd_ps)
KERNEL(avx2_f64, AVX2, double, __m256d, 6, 2, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_set1_pd,
       _mm256_fmadd_pd)
KERNEL(avx512_f32, AVX512, float, __m512, 12, 2, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps,
       _mm512_fmadd_ps)
KERNEL(avx512_f64, AVX512, double, __m512d, 12, 2, _mm512_loadu_pd, _mm512_storeu_pd,
       _mm512_set1_pd, _mm512_fmadd_pd)
#endif

static kernels best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return (kernels){12, 128, avx512_f32, avx512_f64};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (kernels){6, 64, avx2_f32, avx2_f64};
#endif
    return (kernels){4, 32, plain_f32, plain_f64};
}

/* Scratch: a block as gathered, the packed block of a, that of b, the sums. */
static size_t largest_block(int64_t rows, int64_t columns, int64_t k)
{
    int64_t side = rows > columns ? rows : columns, depth = k < DEPTH ? k : DEPTH;
    return (size_t)round_up(side, 192) * (size_t)depth * 8;
}

size_t cup__kernel_space(int64_t rows, int64_t columns, int64_t k)
{
    return 3 * largest_block(rows, columns, k) +
           (size_t)round_up(rows, 12) * (size_t)round_up(columns, 32) * 8 + 256;
}

/* Cuts a block of `count` lines of `k` elements, `line` and `step` apart, into panels of `width`
 * lines; inside a panel element k of all its lines lies together. Missing lines become 0. */
#define PACK(name, real)                                                                           \
    static void name(real *to, const real *from, int64_t line, int64_t step, int64_t count,        \
                     int64_t k, int64_t width)                                                     \
    {                                                                                              \
        for (int64_t at = 0; at < count; at += width) {                                            \
            int64_t now = count - at < width ? count - at : width;                                 \
            for (int64_t i = 0; i < k; i++, to += width) {                                         \
                const real *source = from + at * line + i * step;                                  \
                for (int64_t l = 0; l < now; l++)                                                  \
                    to[l] = source[l * line];                                                      \
                for (int64_t l = now; l < width; l++)                                              \
                    to[l] = 0;                                                                     \
            }                                                                                      \
        }                                                                                          \
    }
PACK(pack_f32, float)
PACK(pack_f64, double)

/* One block of an operand, packed. Where the memory is of another type it is gathered first. */
static void pack(const cup__product *p, const cup__matrix *m, int64_t batch, cup__tile at,
                 bool by_rows, int64_t width, void *gathered, void *to)
{
    int64_t row = m->row, column = m->column, size = cup_dtype_size(p->dtype);
    int64_t offset = cup__product_offset(p, m, batch) + at.row * row + at.column * column;
    const void *from = m->data + offset * size;
    if (p->dtype != CUP_F32 && p->dtype != CUP_F64) {
        cup__product_gather(p, m, batch, &at, gathered);
        from = gathered;
        row = at.columns;
        column = 1;
    }
    int64_t line = by_rows ? row : column, step = by_rows ? column : row;
    int64_t count = by_rows ? at.rows : at.columns, k = by_rows ? at.columns : at.rows;
    if (p->dtype == CUP_F64)
        pack_f64(to, from, line, step, count, k, width);
    else
        pack_f32(to, from, line, step, count, k, width);
}

static void multiply(const kernels *by, const cup__product *p, const cup__tile *tile, int64_t k,
                     const char *left, const char *right, char *sums, int64_t distance)
{
    int64_t size = p->dtype == CUP_F64 ? 8 : 4, wide = by->bytes / size;
    kernel run = size == 8 ? by->f64 : by->f32;
    for (int64_t j = 0; j < tile->columns; j += wide)
        for (int64_t i = 0; i < tile->rows; i += by->rows)
            run(k, left + i * k * size, right + j * k * size, sums + (i * distance + j) * size,
                distance);
}

#define LANES 32 /* partial sums of a dot product, so that it vectorises */

CUP__WIDE static float dot(const float *a, const float *b, int64_t count)
{
    float sum[LANES] = {0}, total = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int l = 0; l < LANES; l++)
            sum[l] += a[i + l] * b[i + l];
    for (; i < count; i++)
        sum[0] += a[i] * b[i];
    for (int l = 0; l < LANES; l++)
        total += sum[l];
    return total;
}

/* For a handful of rows every element of b is used so seldom that packing it would cost more than
 * the product; b is read once, in the order it lies in memory. */
static const float *run_of_b(const cup__product *p, int64_t batch, cup__tile part, float *space)
{
    const cup__matrix *b = &p->b;
    if (p->dtype == CUP_F32 && (part.rows == 1 ? b->column == 1 : b->row == 1))
        return (const float *)(const void *)b->data + cup__product_offset(p, b, batch) +
               part.row * b->row + part.column * b->column;
    cup__product_gather(p, b, batch, &part, space);
    return space;
}

/* sums += left times `now` lines of b from k on, added up apart like a panel's. */
static void add_lines(const cup__product *p, int64_t batch, const cup__tile *tile, int64_t k,
                      int64_t now, const float *left, float *apart, float *sums)
{
    float line[RUN];
    int64_t columns = tile->columns;
    memset(apart, 0, (size_t)(tile->rows * columns) * sizeof *apart);
    for (int64_t l = 0; l < now; l++)
        for (int64_t j = 0; j < columns; j += RUN) {
            int64_t wide = columns - j < RUN ? columns - j : RUN;
            cup__tile part = {k + l, 1, tile->column + j, wide};
            const float *b = run_of_b(p, batch, part, line);
            for (int64_t i = 0; i < tile->rows; i++)
                cup__floats_add_scaled(apart + i * columns + j, b, left[i * now + l], wide);
        }
    cup__floats_add_scaled(sums, apart, 1, tile->rows * columns);
}

static void few_rows(const cup__product *p, int64_t batch, const cup__tile *tile, void *space)
{
    float left[FEW_ROWS * RUN], line[RUN], *sums = space;
    int64_t columns = tile->columns, run = p->b.row == 1 ? RUN : DEPTH;
    memset(sums, 0, (size_t)(tile->rows * columns) * sizeof *sums);
    for (int64_t k = 0; k < p->k; k += run) {
        int64_t now = p->k - k < run ? p->k - k : run;
        cup__product_gather(p, &p->a, batch, &(cup__tile){tile->row, tile->rows, k, now}, left);
        for (int64_t j = 0; p->b.row == 1 && j < columns; j++) {
            const float *b =
                run_of_b(p, batch, (cup__tile){k, now, tile->column + j, 1}, line);
            for (int64_t i = 0; i < tile->rows; i++)
                sums[i * columns + j] += dot(left + i * now, b, now);
        }
        if (p->b.row != 1)
            add_lines(p, batch, tile, k, now, left, sums + tile->rows * columns, sums);
    }
    cup__product_finish(p, batch, tile, sums, columns);
}

void cup__kernel_tile(const cup__product *p, int64_t batch, const cup__tile *tile, void *space)
{
    if (p->m <= FEW_ROWS && p->dtype != CUP_F64) {
        few_rows(p, batch, tile, space);
        return;
    }
    kernels by = best();
    int64_t size = p->dtype == CUP_F64 ? 8 : 4, wide = by.bytes / size;
    size_t block = largest_block(tile->rows, tile->columns, p->k);
    char *gathered = (char *)(((uintptr_t)space + 63) / 64 * 64);
    char *left = gathered + block, *right = left + block, *sums = right + block;
    int64_t distance = round_up(tile->columns, wide);
    memset(sums, 0, (size_t)(round_up(tile->rows, by.rows) * distance * size));
    for (int64_t k = 0; k < p->k; k += DEPTH) {
        int64_t now = p->k - k < DEPTH ? p->k - k : DEPTH;
        pack(p, &p->a, batch, (cup__tile){tile->row, tile->rows, k, now}, true, by.rows, gathered,
             left);
        pack(p, &p->b, batch, (cup__tile){k, now, tile->column, tile->columns}, false, wide,
             gathered, right);
        multiply(&by, p, tile, now, left, right, sums, distance);
    }
    cup__product_finish(p, batch, tile, sums, distance);
}
