/* Products of codes of 8 bits by the tensor cores of every card from Turing on: y = a b^T + bias,
 * where a code stands for its number times its scale. Any sizes and alignment.
 *
 * Grid: x counts tiles of TILE_M x TILE_N of y; mma_tile.cuh says what a block does, mma_codes.cuh
 * how codes are multiplied. 2 m n k operations. */
/* Knobs: Y_T, B_T, TILE_M, TILE_N, STAGES, SCALES, FAST, A_VEC, B_VEC. */
#include "product.cuh"

#define DEPTH 64
#define ELEMENT uint8_t
#include "mma_codes.cuh"
#include "mma_tile.cuh"

typedef dtype_of<Y_T>::type result;

typedef product products[BLOCKS_M][BLOCKS_N][4];

DEVICE float scale_of(const product_scale &s, long long line, long long lines, long long block)
{
    return s.data && line < lines ? __ldg(s.data + (line >> s.shift) * s.line + block * s.k) : 1.0f;
}

/* Adds products, scaled with what counts for a block of k, and begins new ones. Row 0 of the group
 * is row `first` of a. */
DEVICE void take_over(const product_call &c, const product_scale &a, const product_scale &b,
                      long long first, long long row0, long long column0, long long block,
                      products &from, sums &to)
{
    float columns[BLOCKS_N][2];
#pragma unroll
    for (int j = 0; j < 2 * BLOCKS_N; j++)
        columns[j / 2][j % 2] = scale_of(b, column_of(column0, j / 2, j % 2), c.n, block) *
                                (WIDENED(CUP_T) * WIDENED(B_T));
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int l = 0; l < 4; l += 2) {
            float row = scale_of(a, first + row_of(row0, i, l), first + c.m, block);
#pragma unroll
            for (int j = 0; j < 2 * BLOCKS_N; j++) {
                product &one = from[i][j / 2][l + j % 2];
                to[i][j / 2][l + j % 2] += (float)one * (row * columns[j / 2][j % 2]);
                one = 0;
            }
        }
}

DEVICE void put(const product_call &c, long long row, long long column, float sum, product raw)
{
    if (row >= c.m || column >= c.n)
        return;
#if Y_T == CUP_I32
    ((result *)c.y)[row * c.y_row + column] = (result)raw;
#else
    const result *bias = (const result *)c.bias;
    float v = sum + (bias ? to_real(bias[column]) : 0.0f);
    ((result *)c.y)[row * c.y_row + column] = from_real<result>(v);
#endif
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    scaled_matmul(const __grid_constant__ product_call all,
                  const __grid_constant__ product_scale a_scale,
                  const __grid_constant__ product_scale b_scales)
{
    extern __shared__ __align__(128) char shared[];
    product_call c = all;
    const float *scales = b_scales.data;
    long long first = 0;
    if (GROUPS) {
        one_matrix one = matrix_at(all, blockIdx.y);
        first = all.groups[blockIdx.y];
        c.m = one.m;
        c.a = (const uint8_t *)all.a + one.a;
        c.b = (const uint8_t *)all.b + one.b;
        c.y = (result *)all.y + one.y;
        if (b_scales.data)
            scales = b_scales.data + blockIdx.y * b_scales.group;
        if ((long long)blockIdx.x >=
            (c.m + TILE_M - 1) / TILE_M * ((c.n + TILE_N - 1) / TILE_N))
            return;
    }
    product_scale b_scale = {scales, b_scales.line, b_scales.k, 0, b_scales.shift};
    long long tile_m, tile_n;
    tile_place(blockIdx.x, (c.m + TILE_M - 1) / TILE_M, (c.n + TILE_N - 1) / TILE_N, &tile_m,
               &tile_n);
    long long row0 = tile_m * TILE_M, column0 = tile_n * TILE_N;
    operand_a a = operand_a_of(c, c.a, row0, c.m);
    operand_b b = operand_b_of(c, c.b, column0);
    products sum = {};
    sums total = {};
    k_walk walk(a, b, c.k, shared_address(shared));
    for (long long k = 0; k < c.k; k += DEPTH, walk.leave()) {
        multiply<whole_words>(walk.come(),
                              [&](int i, int j, whole_words &x, whole_words &w, int at) {
                                  multiply_add_codes(sum[i][j], x.at, w.at[at], w.at[at + 1]);
                              });
        if (SCALES == PRODUCT_SCALE_BLOCKS &&
            (k + DEPTH >= c.k || (k + DEPTH) % PRODUCT_SCALE_DEPTH == 0))
            take_over(c, a_scale, b_scale, first, row0, column0, k / PRODUCT_SCALE_DEPTH, sum,
                      total);
    }
    copies_wait<0>();
    if (SCALES != PRODUCT_SCALE_BLOCKS && SCALES != PRODUCT_SCALE_NONE)
        take_over(c, a_scale, b_scale, first, row0, column0, 0, sum, total);
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
            for (int l = 0; l < 4; l++)
                put(c, row_of(row0, i, l), column_of(column0, j, l), total[i][j][l], sum[i][j][l]);
}
