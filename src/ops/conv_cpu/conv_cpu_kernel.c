#include "ops/conv_cpu/conv_cpu_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define ROWS CUP__CONV_ROWS
#define LINE 16 /* floats of a line of a cache */

/* One step of the sums: a row of the second operand, times a number for each row of sums. */
#define ADD_ROW(vector, VECTORS, load, splat, multiply_add, from, number)                          \
    do {                                                                                           \
        vector row[VECTORS];                                                                       \
        UNROLL for (int j = 0; j < VECTORS; j++) row[j] = load(from + j * LANES);                  \
        UNROLL for (int i = 0; i < ROWS; i++)                                                      \
        {                                                                                          \
            vector one = splat(number);                                                            \
            UNROLL for (int j = 0; j < VECTORS; j++)                                               \
                sum[i][j] = multiply_add(one, row[j], sum[i][j]);                                  \
        }                                                                                          \
    } while (0)

/* Each call has its own sums, since one over everything rounds the more the longer it is. */
#define BEGIN_SUMS(vector, VECTORS, splat)                                                         \
    enum { LANES = sizeof(vector) / sizeof(float) };                                               \
    vector sum[ROWS][VECTORS];                                                                     \
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++)                 \
        sum[i][j] = splat(0)

#define END_SUMS(vector, VECTORS, load, store, to, distance, add)                                  \
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++)                 \
    {                                                                                              \
        float *at = to + i * distance + j * LANES;                                                 \
        vector all = sum[i][j];                                                                    \
        if (add)                                                                                   \
            all += load(at);                                                                       \
        store(at, all);                                                                            \
    }

#define KERNELS(name, attribute, vector, VECTORS, load, store, splat, multiply_add)                \
    attribute static void gather_##name(const cup__conv_gather *g)                                 \
    {                                                                                              \
        const float *w = g->weight;                                                                \
        BEGIN_SUMS(vector, VECTORS, splat);                                                        \
        for (int64_t t = 0; t < g->tap_count; t++) {                                               \
            const float *x[ROWS];                                                                  \
            UNROLL for (int i = 0; i < ROWS; i++) x[i] = g->x[i] + g->taps[t];                     \
            for (int64_t c = 0; c < g->channels; c++, w += VECTORS * LANES)                        \
                ADD_ROW(vector, VECTORS, load, splat, multiply_add, w, x[i][c]);                   \
        }                                                                                          \
        END_SUMS(vector, VECTORS, load, store, g->sums, g->distance, g->add)                       \
    }                                                                                              \
    attribute static void outer_##name(const cup__conv_outer *o)                                   \
    {                                                                                              \
        const float *dy = o->dy;                                                                   \
        BEGIN_SUMS(vector, VECTORS, splat);                                                        \
        for (int64_t l = 0; l < o->line_count; l++) {                                              \
            const float *x = o->x + o->lines[l];                                                   \
            for (int64_t p = 0; p < o->places; p++, x += o->step, dy += VECTORS * LANES)           \
                ADD_ROW(vector, VECTORS, load, splat, multiply_add, dy, x[i]);                     \
        }                                                                                          \
        END_SUMS(vector, VECTORS, load, store, o->sums, o->distance, o->add)                       \
    }

/* Plain vectors of 16 bytes, which every machine has in some form. */
typedef float float4 __attribute__((vector_size(16), aligned(4)));
#define LOAD4(p) (*(const float4 *)(const void *)(p))
#define STORE4(p, v) (*(float4 *)(void *)(p) = (v))
#define SPLAT4(x) ((float4){x, x, x, x})
#define PLAIN(a, b, c) ((a) * (b) + (c))
KERNELS(plain1, , float4, 1, LOAD4, STORE4, SPLAT4, PLAIN)
KERNELS(plain2, , float4, 2, LOAD4, STORE4, SPLAT4, PLAIN)

#if defined(__x86_64__)
#define AVX2(name, VECTORS)                                                                        \
    KERNELS(name, __attribute__((target("avx2,fma"))), __m256, VECTORS, _mm256_loadu_ps,           \
            _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps)
#define AVX512(name, VECTORS)                                                                      \
    KERNELS(name, __attribute__((target("avx512f"))), __m512, VECTORS, _mm512_loadu_ps,            \
            _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps)
AVX2(avx2_1, 1)
AVX2(avx2_2, 2)
AVX512(avx512_1, 1)
AVX512(avx512_2, 2)
AVX512(avx512_3, 3)
AVX512(avx512_4, 4)
#endif

cup__conv_kernels cup__conv_kernels_best(int64_t columns)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && columns > (int64_t)(sizeof(__m256) / sizeof(float)))
        return (cup__conv_kernels){
            16, 4, {gather_avx512_1, gather_avx512_2, gather_avx512_3, gather_avx512_4},
            {outer_avx512_1, outer_avx512_2, outer_avx512_3, outer_avx512_4}};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (cup__conv_kernels){
            8, 2, {gather_avx2_1, gather_avx2_2}, {outer_avx2_1, outer_avx2_2}};
#endif
    return (cup__conv_kernels){
        4, 2, {gather_plain1, gather_plain2}, {outer_plain1, outer_plain2}};
}

#if defined(__clang__)
#define MIX(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int int4 __attribute__((vector_size(16)));
#define MIX(a, b, i, j, k, l) __builtin_shuffle(a, b, (int4){i, j, k, l})
#endif

static void turn_four(float *to, int64_t to_distance, const float *from, int64_t from_distance)
{
    float4 a = LOAD4(from), b = LOAD4(from + from_distance);
    float4 c = LOAD4(from + 2 * from_distance), d = LOAD4(from + 3 * from_distance);
    float4 ab = MIX(a, b, 0, 4, 1, 5), cd = MIX(c, d, 0, 4, 1, 5);
    STORE4(to, MIX(ab, cd, 0, 1, 4, 5));
    STORE4(to + to_distance, MIX(ab, cd, 2, 3, 6, 7));
    ab = MIX(a, b, 2, 6, 3, 7);
    cd = MIX(c, d, 2, 6, 3, 7);
    STORE4(to + 2 * to_distance, MIX(ab, cd, 0, 1, 4, 5));
    STORE4(to + 3 * to_distance, MIX(ab, cd, 2, 3, 6, 7));
}

/* Asks for elements of the rows that are turned next: they lie far apart, and each is short. */
static void ask_ahead(const float *from, int64_t distance, int64_t row, int64_t rows)
{
    for (int64_t r = row; r < row + 4 && r < rows; r++)
        __builtin_prefetch(from + r * distance);
}

/* Pieces of four by four; the last of a line overlaps the one before where they do not fit. */
void cup__conv_turn(float *to, int64_t to_distance, const float *from, int64_t from_distance,
                    int64_t rows, int64_t columns)
{
    if (rows < 4 || columns < 4) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++)
                to[c * to_distance + r] = from[r * from_distance + c];
        return;
    }
    for (int64_t r = 0; r < rows; r += 4) {
        int64_t row = r < rows - 4 ? r : rows - 4;
        for (int64_t c = 0; c < columns; c += 4) {
            int64_t column = c < columns - 4 ? c : columns - 4;
            if (c % LINE == 0)
                ask_ahead(from + c, from_distance, r + 4, rows);
            turn_four(to + column * to_distance + row, to_distance,
                      from + row * from_distance + column, from_distance);
        }
    }
}
