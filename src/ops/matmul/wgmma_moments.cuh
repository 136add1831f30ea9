/* The moments of y's columns while wgmma.cu writes it, with MOMENTS, as the batchnorm behind it
 * wants them: of the ROWS rows of a tile that a warpgroup owns the mean of each column and the
 * squared distances from it, of y as it is rounded. They are merged without loss (Chan), always in
 * the same order. Rows are whole lines of so many. Uses that file's knobs and sizes. */
#ifndef CUP_OPS_MATMUL_WGMMA_MOMENTS_CUH
#define CUP_OPS_MATMUL_WGMMA_MOMENTS_CUH

#include "hopper.cuh"
#include "tma.cuh"
#include "wgmma_other.cuh"

#ifndef MOMENTS
#define MOMENTS 0
#endif

#if MOMENTS

#define OWN (STAGE_COLUMNS / 4) /* columns that a thread has of those staged at a time */
#define LEFT (OWN / 8)          /* and that are left to it of a warp's */

/* The sum of some numbers, and their squared distances from the mean. */
struct moments {
    float sum, squares;
};

/* Those of `a` and of `b` numbers in one. */
DEVICE moments merged(const moments &x, const moments &y, float a, float b)
{
    float apart = a == b ? x.sum - y.sum : x.sum / a - y.sum / b;
    float weight = a == b ? 1 / (2 * a) : a * b / (a + b);
    return {x.sum + y.sum, fmaf(apart * weight, apart, x.squares + y.squares)};
}

/* A thread's columns of what is staged at a time. */
struct column_moments {
    moments of[OWN];
    int block; /* of 64 rows, whose two of the thread come next */

    /* Rounds two rows of sixteen columns, from `column` of those staged on, and takes them in. */
    __device__ __forceinline__ void take(int column, float (&v)[8])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t word = pack(v[2 * i], v[2 * i + 1], result());
            const result *two = (const result *)&word;
            v[2 * i] = to_real(two[0]);
            v[2 * i + 1] = to_real(two[1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float upper = v[i / 2 * 4 + i % 2], lower = v[i / 2 * 4 + i % 2 + 2];
            moments pair = merged({upper, 0}, {lower, 0}, 1, 1), &to = of[column / 4 + i];
            to = block ? merged(to, pair, 2.0f * block, 2) : pair;
        }
    }

    /* Keeps half of Count columns, of which the lane `mask` away has as many rows, and hands it
     * the others. */
    template <int Count> __device__ __forceinline__ void halve(int mask, float rows)
    {
        bool upper = lane() & mask;
#pragma unroll
        for (int i = 0; i < Count / 2; i++) {
            moments low = of[i], high = of[i + Count / 2];
            moments mine = upper ? high : low, given = upper ? low : high;
            given.sum = __shfl_xor_sync(0xffffffff, given.sum, mask);
            given.squares = __shfl_xor_sync(0xffffffff, given.squares, mask);
            of[i] = merged(mine, given, rows, rows);
        }
    }

    /* Those of the warp's rows: each lane is left with LEFT neighbours. Gives the first. */
    __device__ __forceinline__ int join_lanes()
    {
        halve<OWN>(16, 2 * BLOCKS_M);
        halve<OWN / 2>(8, 4 * BLOCKS_M);
        halve<OWN / 4>(4, 8 * BLOCKS_M);
        int first = (lane() >> 4 & 1) * (OWN / 2) + (lane() >> 3 & 1) * (OWN / 4) +
                    (lane() >> 2 & 1) * LEFT;
        return first / 4 * 16 + first / 2 % 2 * 8 + lane() % 4 * 2 + first % 2;
    }
};

/* Those of the warpgroup's rows, of the columns from u.column + `column` on, go to memory. Warps
 * tell each other theirs where results are staged, in the buffer that each takes next. */
DEVICE void put_moments(const wgmma_call &c, const unit &u, const layout &at, const crew &w,
                        int column, column_moments &own, int turn)
{
    const int rows = 16 * BLOCKS_M, apart = STAGING_BUFFERS * STAGE_PIECE;
    uint32_t first = at.staging + 4 * w.group * apart + turn * STAGE_PIECE;
    int mine = own.join_lanes();
    if (lane() == 0)
        tma_store_wait<STAGING_BUFFERS - 1>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < LEFT; i++)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(first + w.warp * apart +
                                                                8 * (mine + i)),
                     "f"(own.of[i].sum), "f"(own.of[i].squares)
                     : "memory");
    meet(1 + w.group, 128);
    int row = u.row + (PINGPONG ? 0 : w.group * ROWS);
    if (w.thread < STAGE_COLUMNS) {
        moments part[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(part[i].sum), "=f"(part[i].squares)
                         : "r"(first + i * apart + 8 * w.thread)
                         : "memory");
        moments all = merged(merged(part[0], part[1], rows, rows),
                             merged(part[2], part[3], rows, rows), 2 * rows, 2 * rows);
        column += u.column + w.thread;
        if (row < c.m && column < c.n)
            ((float2 *)c.moments)[(long long)(row / ROWS) * c.n + column] =
                make_float2(all.sum / ROWS, all.squares);
    }
    meet(1 + w.group, 128);
}

#else

struct column_moments {};

#endif

#endif
