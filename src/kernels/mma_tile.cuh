/* What the products by the tensor cores of every card share: tiles of TILE_M x TILE_N of y by 8
 * warps, WARPS_M along m and the others along n, which share the tile evenly. Tiles of DEPTH of k
 * travel to shared memory by asynchronous copies of A_VEC and B_VEC elements, STAGES of them at a
 * time, in 16-byte pieces whose places are mixed by their line, so that eight lines can be read at
 * once. Uses those knobs of a kernel, and its ELEMENT, of which a and b consist. */
#ifndef CUP_MMA_TILE_CUH
#define CUP_MMA_TILE_CUH

#include "product.cuh"
#include "ptx.cuh"

#ifndef WARPS_M
#define WARPS_M 2
#endif
#define WARPS_N (PRODUCT_THREADS / 32 / WARPS_M)
#define ROWS_EACH (TILE_M / WARPS_M) /* of a warp */
#define COLUMNS_EACH (TILE_N / WARPS_N)

#define A_BYTES (TILE_M * DEPTH * (int)sizeof(ELEMENT))
#define B_BYTES (TILE_N * DEPTH * (int)sizeof(ELEMENT))
#define BLOCKS_M (ROWS_EACH / 16)
#define BLOCKS_N (COLUMNS_EACH / 8)

/* Copies some bytes to shared memory, or sets them to 0 when not `valid`. */
template <int Bytes> DEVICE void copy_async(uint32_t to, const void *at, bool valid)
{
    if (Bytes == 16)
        copy_async16(to, at, valid);
    else if (Bytes == 8)
        copy_async8(to, at, valid);
    else if (Bytes == 4)
        copy_async4(to, at, valid);
    else if (Bytes == 2)
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to),
                     "h"(valid ? *(const uint16_t *)at : (uint16_t)0)
                     : "memory");
    else
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(to),
                     "r"(valid ? (uint32_t)*(const uint8_t *)at : 0u)
                     : "memory");
}

/* One operand: Tile of m or n by DEPTH of k. */
template <int Tile, int Along, int Vec> struct operand {
    enum {
        size = sizeof(ELEMENT),
        length = Along == PRODUCT_ALONG_K ? DEPTH : Tile, /* of a line */
        piece = 16 / size                                 /* elements of one */
    };
    const ELEMENT *from;
    long long step; /* of lines */
    long long mn0, mn_end;

    /* Where element `x` of line `line` lies. */
    static __device__ __forceinline__ uint32_t place(int line, int x)
    {
        int mix = length * size == 32                        ? line >> 2 & 1
                  : length * size == 64                      ? line >> 1 & 3
                  : Along == PRODUCT_ALONG_MN && size == 4 ? (line & 3) * 2
                                                             : line & 7;
        return (uint32_t)(line * length * size + ((x / piece ^ mix) << 4) + x % piece * size);
    }

    /* Orders the copies of the part of k that begins at k0. */
    __device__ __forceinline__ void bring(uint32_t to, long long k0, long long k_end) const
    {
#pragma unroll
        for (int i = 0; i < Tile * DEPTH / Vec / PRODUCT_THREADS; i++) {
            int part = (int)threadIdx.x + i * PRODUCT_THREADS;
            int x = part % (length / Vec) * Vec, line = part / (length / Vec);
            long long mn = mn0 + (Along == PRODUCT_ALONG_K ? line : x);
            long long k = k0 + (Along == PRODUCT_ALONG_K ? x : line);
            bool valid = mn < mn_end && k < k_end;
            const ELEMENT *at = from + (Along == PRODUCT_ALONG_K ? mn * step + k : k * step + mn);
            copy_async<Vec * size>(to + place(line, x), size == 4 && !valid ? from : at, valid);
        }
    }

    /* Four blocks of 8 of m or n by 16 bytes of k: `mn` and `k` begin them, the second and fourth
     * lie further along m or n when `mn_first`, else along k. */
    static __device__ __forceinline__ void read(uint32_t (&r)[4], uint32_t tile, int mn, int k,
                                                bool mn_first)
    {
        int lane = threadIdx.x % 32, block = lane / 8, row = lane % 8;
        if (Along == PRODUCT_ALONG_MN && size == 4) { /* whose elements no instruction turns */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int mn_at = mn + (mn_first ? i & 1 : i >> 1) * 8 + lane / 4;
                int k_at = k + (mn_first ? i >> 1 : i & 1) * piece + lane % 4;
                r[i] = load_shared4(tile + place(k_at, mn_at));
            }
            return;
        }
        int near = block & 1, far = block >> 1;
        int mn_at = mn + (mn_first ? near : far) * 8, k_at = k + (mn_first ? far : near) * piece;
        if (Along == PRODUCT_ALONG_K)
            load_matrices(r, tile + place(mn_at + row, k_at));
        else
            load_matrices_turned(r, tile + place(k_at + row, mn_at));
    }
};

typedef operand<TILE_M, A_ALONG, A_VEC> operand_a;
typedef operand<TILE_N, B_ALONG, B_VEC> operand_b;
typedef float sums[BLOCKS_M][BLOCKS_N][4];

/* A tile of `a` and `b` of one matrix. */
DEVICE operand_a operand_a_of(const product_call &c, const void *a, long long row0, long long m)
{
    return {(const ELEMENT *)a, A_ALONG == PRODUCT_ALONG_K ? c.a_mn : c.a_k, row0, m};
}

DEVICE operand_b operand_b_of(const product_call &c, const void *b, long long column0)
{
    return {(const ELEMENT *)b, B_ALONG == PRODUCT_ALONG_K ? c.b_mn : c.b_k, column0, c.n};
}

/* The row or column of element l of this thread's block i or j. */
DEVICE long long row_of(long long row0, int i, int l)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return row0 + warp / WARPS_N * ROWS_EACH + 16 * i + lane / 4 + l / 2 * 8;
}

DEVICE long long column_of(long long column0, int j, int l)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return column0 + warp % WARPS_N * COLUMNS_EACH + 8 * j + lane % 4 * 2 + l % 2;
}

/* A stage, in steps of 32 bytes of k: what is read becomes a Fragment, and `add(i, j, a, b, at)`
 * adds block (i, j), to which the registers of b from `at` on belong. */
template <typename Fragment, typename Add>
DEVICE void multiply(uint32_t stage, Add add)
{
    int warp = threadIdx.x / 32, m0 = warp / WARPS_N * ROWS_EACH;
    int n0 = warp % WARPS_N * COLUMNS_EACH;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 32 / (int)sizeof(ELEMENT)) {
        Fragment a[BLOCKS_M], b[BLOCKS_N / 2];
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++) {
            operand_a::read(words, stage, m0 + 16 * i, k, true);
            a[i].take(words);
        }
#pragma unroll
        for (int j = 0; j < BLOCKS_N / 2; j++) {
            operand_b::read(words, stage + A_BYTES, n0 + 16 * j, k, false);
            b[j].take(words);
        }
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
            for (int j = 0; j < BLOCKS_N; j++)
                add(i, j, a[i], b[j / 2], j % 2 * 2);
    }
}

/* What goes to the tensor cores as it was read. */
struct whole_words {
    uint32_t at[4];

    __device__ __forceinline__ void take(const uint32_t (&words)[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            at[i] = words[i];
    }
};

/* A walk along k: stages up to `ahead` of it are there or on their way. What brings the operands
 * may be of the caller's own, with places as operand_a and operand_b have them. */
template <typename A, typename B> struct k_walk {
    const A &a;
    const B &b;
    long long k_end, ahead;
    uint32_t shared;
    int now, next;

    __device__ __forceinline__ void bring(int place) const
    {
        uint32_t stage = shared + place * (A_BYTES + B_BYTES);
        if (ahead < k_end) {
            a.bring(stage, ahead, k_end);
            b.bring(stage + A_BYTES, ahead, k_end);
        }
        copies_end();
    }

    __device__ __forceinline__ k_walk(const A &a, const B &b, long long k_end, uint32_t shared,
                                      long long begin = 0)
        : a(a), b(b), k_end(k_end), ahead(begin), shared(shared), now(0), next(STAGES - 1)
    {
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++, ahead += DEPTH)
            bring(i);
    }

    /* The stage that is next, which stays until `leave`. */
    __device__ __forceinline__ uint32_t come() const
    {
        copies_wait<STAGES - 2>();
        __syncthreads();
        bring(next);
        return shared + now * (A_BYTES + B_BYTES);
    }

    __device__ __forceinline__ void leave()
    {
        now = now == STAGES - 1 ? 0 : now + 1;
        next = next == STAGES - 1 ? 0 : next + 1;
        ahead += DEPTH;
    }
};

/* Sums become elements of y, and of what is saved before the activation, after `mend(sum, row,
 * column)`, which may change one. */
template <typename Mend>
DEVICE void finish(const product_call &c, long long y0, long long row0, long long m,
                   long long column0, const sums &sum, Mend mend)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T *bias = (const T *)c.bias;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
            for (int l = 0; l < 4; l++) {
                long long row = row0 + warp / WARPS_N * ROWS_EACH + 16 * i + lane / 4 + l / 2 * 8;
                long long column =
                    column0 + warp % WARPS_N * COLUMNS_EACH + 8 * j + lane % 4 * 2 + l % 2;
                if (row >= m || column >= c.n)
                    continue;
                float v = sum[i][j][l];
                mend(v, row, column);
                v += bias ? to_real(bias[column]) : 0.0f;
                long long at = y0 + row * c.y_row + column;
                if (c.pre)
                    ((T *)c.pre)[at] = from_real<T>(v);
                ((T *)c.y)[at] = from_real<T>(activated(v));
            }
}

#endif
