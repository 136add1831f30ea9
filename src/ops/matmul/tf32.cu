/* Products of f32 by the tensor cores of Ampere and later: y = activation(a b + bias), any sizes
 * and alignment. TERMS 1: what is multiplied is rounded to tf32. 3: each number is the sum of two
 * of tf32, and three of their four products count, which leaves no larger error than f32 has.
 *
 * Grid: x counts tiles of TILE_M x TILE_N of y, y the matrices of a batch; 8 warps, 2 along m and 4
 * along n. Tiles of 32 of k travel to shared memory by asynchronous copies of A_VEC and B_VEC
 * elements, STAGES of them at a time, in 16-byte pieces mixed by their line, so that what a warp
 * reads at a time lies in 32 banks. Tensor cores cut sums off towards zero: with three terms the
 * products of the leading parts are added up outside for each tile of k. An element that is NaN
 * then is summed again without tensor cores, as infinities have met zeros. */
#ifndef CUP_T
#define CUP_T 0
#endif
#include "product.cuh"
#include "ptx.cuh"

#ifndef TERMS
#define TERMS 1
#endif
#ifndef TILE_M
#define TILE_M 128
#endif
#ifndef TILE_N
#define TILE_N 128
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef A_VEC
#define A_VEC 4
#endif
#ifndef B_VEC
#define B_VEC 4
#endif

#define DEPTH 32
#define A_BYTES (TILE_M * DEPTH * 4)
#define B_BYTES (TILE_N * DEPTH * 4)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define BLOCKS_M (TILE_M / 2 / 16)
#define BLOCKS_N (TILE_N / 4 / 8)

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

/* One operand: TILE of m or n by DEPTH of k. */
template <int Tile, int Along, int Vec> struct operand {
    enum { length = Along == PRODUCT_ALONG_K ? DEPTH : Tile, lines = Tile * DEPTH / length };
    const float *from;
    long long step; /* of lines */
    long long mn0, mn_end;

    /* Where element `x` of line `line` lies. */
    static __device__ __forceinline__ uint32_t place(int line, int x)
    {
        int mix = Along == PRODUCT_ALONG_K ? line & 7 : (line & 3) * 2;
        return (uint32_t)(line * length * 4 + ((x / 4 ^ mix) << 4) + x % 4 * 4);
    }

    /* Orders the copies of the part of k that begins at k0. */
    __device__ __forceinline__ void bring(uint32_t to, long long k0, long long k_end) const
    {
#pragma unroll
        for (int i = 0; i < Tile * DEPTH / Vec / PRODUCT_THREADS; i++) {
            int piece = (int)threadIdx.x + i * PRODUCT_THREADS;
            int x = piece % (length / Vec) * Vec, line = piece / (length / Vec);
            long long mn = mn0 + (Along == PRODUCT_ALONG_K ? line : x);
            long long k = k0 + (Along == PRODUCT_ALONG_K ? x : line);
            bool valid = mn < mn_end && k < k_end;
            const float *at = from + (Along == PRODUCT_ALONG_K ? mn * step + k : k * step + mn);
            if (Vec == 4)
                copy_async16(to + place(line, x), valid ? at : from, valid);
            else if (Vec == 2)
                copy_async8(to + place(line, x), valid ? at : from, valid);
            else
                copy_async4(to + place(line, x), valid ? at : from, valid);
        }
    }

    /* Four blocks of 8 of m or n by 4 of k: the second and fourth lie 8 further along m or n when
     * `mn_first`, else 4 along k. */
    static __device__ __forceinline__ void read(float (&r)[4], uint32_t tile, int mn, int k,
                                                bool mn_first)
    {
        int lane = threadIdx.x % 32;
        if (Along == PRODUCT_ALONG_K) {
            int block = lane / 8, near = block & 1, far = block >> 1;
            int mn_at = mn + (mn_first ? near : far) * 8 + lane % 8;
            uint32_t words[4];
            load_matrices(words, tile + place(mn_at, k + (mn_first ? far : near) * 4));
#pragma unroll
            for (int i = 0; i < 4; i++)
                r[i] = __uint_as_float(words[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int mn_at = mn + (mn_first ? i & 1 : i >> 1) * 8 + lane / 4;
                int k_at = k + (mn_first ? i >> 1 : i & 1) * 4 + lane % 4;
                asm volatile("ld.shared.f32 %0, [%1];"
                             : "=f"(r[i])
                             : "r"(tile + place(k_at, mn_at))
                             : "memory");
            }
        }
    }
};

typedef operand<TILE_M, A_ALONG, A_VEC> operand_a;
typedef operand<TILE_N, B_ALONG, B_VEC> operand_b;
typedef float sums[BLOCKS_M][BLOCKS_N][4];

/* The leading part of four numbers, and what is left. */
DEVICE void part(const float (&x)[4], uint32_t (&high)[4], uint32_t (&low)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        high[i] = to_tf32(x[i]);
        if (TERMS > 1)
            low[i] = to_tf32(x[i] - __uint_as_float(high[i]));
    }
}

DEVICE void multiply(uint32_t a_tile, uint32_t b_tile, sums &sum, sums &rest)
{
    int warp = threadIdx.x / 32, m0 = warp / 4 * (TILE_M / 2), n0 = warp % 4 * (TILE_N / 4);
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
        uint32_t a[BLOCKS_M][4], b[BLOCKS_N / 2][4], a_low[BLOCKS_M][4], b_low[BLOCKS_N / 2][4];
        float x[4];
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++) {
            operand_a::read(x, a_tile, m0 + 16 * i, k, true);
            part(x, a[i], a_low[i]);
        }
#pragma unroll
        for (int j = 0; j < BLOCKS_N / 2; j++) {
            operand_b::read(x, b_tile, n0 + 16 * j, k, false);
            part(x, b[j], b_low[j]);
        }
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
            for (int j = 0; j < BLOCKS_N; j++) {
                int at = j % 2 * 2;
                multiply_add_tf32(sum[i][j], a[i], b[j / 2][at], b[j / 2][at + 1]);
                if (TERMS > 1) {
                    multiply_add_tf32(rest[i][j], a_low[i], b[j / 2][at], b[j / 2][at + 1]);
                    multiply_add_tf32(rest[i][j], a[i], b_low[j / 2][at], b_low[j / 2][at + 1]);
                }
            }
    }
}

DEVICE float sum_plainly(const product_call &c, const operand_a &a, const operand_b &b,
                         long long row, long long column)
{
    float total = 0;
#pragma unroll 1
    for (long long k = 0; k < c.k; k++)
        total += __ldg(a.from + row * c.a_mn + k * c.a_k) *
                 __ldg(b.from + column * c.b_mn + k * c.b_k);
    return total;
}

DEVICE void finish(const product_call &c, long long y0, const operand_a &a, const operand_b &b,
                   const sums &sum)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *bias = (const float *)c.bias;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
            for (int l = 0; l < 4; l++) {
                long long row = a.mn0 + warp / 4 * (TILE_M / 2) + 16 * i + lane / 4 + l / 2 * 8;
                long long column = b.mn0 + warp % 4 * (TILE_N / 4) + 8 * j + lane % 4 * 2 + l % 2;
                if (row >= c.m || column >= c.n)
                    continue;
                float v = sum[i][j][l];
                if (v != v)
                    v = sum_plainly(c, a, b, row, column);
                v += bias ? bias[column] : 0.0f;
                long long at = y0 + row * c.y_row + column;
                if (c.pre)
                    ((float *)c.pre)[at] = v;
                ((float *)c.y)[at] = activated(v);
            }
}

DEVICE void add_to(sums &sum, const sums &more)
{
#pragma unroll
    for (int i = 0; i < BLOCKS_M * BLOCKS_N * 4; i++)
        (&sum[0][0][0])[i] += (&more[0][0][0])[i];
}

DEVICE void one_tile(const product_call &c, long long batch, uint32_t shared)
{
    long long tile_m, tile_n;
    tile_place(blockIdx.x, (c.m + TILE_M - 1) / TILE_M, (c.n + TILE_N - 1) / TILE_N, &tile_m,
               &tile_n);
    operand_a a = {(const float *)c.a + batch_offset(c, c.a_batch, batch),
                   A_ALONG == PRODUCT_ALONG_K ? c.a_mn : c.a_k, tile_m * TILE_M, c.m};
    operand_b b = {(const float *)c.b + batch_offset(c, c.b_batch, batch),
                   B_ALONG == PRODUCT_ALONG_K ? c.b_mn : c.b_k, tile_n * TILE_N, c.n};
    sums sum = {}, rest = {};
    long long ahead = 0;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++, ahead += DEPTH) {
        uint32_t stage = shared + i * STAGE_BYTES;
        if (ahead < c.k) {
            a.bring(stage, ahead, c.k);
            b.bring(stage + A_BYTES, ahead, c.k);
        }
        copies_end();
    }
    int now = 0, next = STAGES - 1;
    for (long long k = 0; k < c.k; k += DEPTH, ahead += DEPTH) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (ahead < c.k) {
            uint32_t stage = shared + next * STAGE_BYTES;
            a.bring(stage, ahead, c.k);
            b.bring(stage + A_BYTES, ahead, c.k);
        }
        copies_end();
        uint32_t stage = shared + now * STAGE_BYTES;
        if (TERMS == 1) {
            multiply(stage, stage + A_BYTES, sum, rest);
        } else {
            sums leading = {};
            multiply(stage, stage + A_BYTES, leading, rest);
            add_to(sum, leading);
        }
        now = now == STAGES - 1 ? 0 : now + 1;
        next = next == STAGES - 1 ? 0 : next + 1;
    }
    copies_wait<0>();
    if (TERMS > 1)
        add_to(sum, rest);
    finish(c, batch_offset(c, c.y_batch, batch), a, b, sum);
}

#endif

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    matmul_tf32(const __grid_constant__ product_call c)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) char shared[];
    for (long long batch = blockIdx.y; batch < c.batch_count; batch += gridDim.y) {
        one_tile(c, batch, shared_address(shared));
        __syncthreads();
    }
#endif
}
