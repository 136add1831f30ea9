/* A handful of rows times weights of few bits: y [m,n] = activation(x w^T + bias), where reading w
 * [n,k] is most of what it costs. w = scale (number - zero), a scale for each group of a row; the
 * numbers of 8 or 4 BITS become 16-bit floats on their way to the tensor cores.
 *
 * linear_packed: 16-bit x. A block of 8 warps takes 16 TILES rows of w and up to TOKENS rows of x
 * (blockIdx.z counts those). The warps take runs of 64 STEPS bytes of rows in turn, each lane 16
 * bytes of a row at a time, copied ahead into a ring of STAGES in shared memory that only the lane
 * itself reads. As the order of k is free, the bytes serve as they come, if x is read in the same
 * order. blockIdx.y counts the parts k is cut into; the part that comes last adds all, in order.
 * linear_packed_plain: any floats, a warp a row of w. */
#include "packed.cuh"
#include "reduce.cuh"

#ifndef TOKENS /* rows of x at a time, a multiple of 8 for linear_packed */
#define TOKENS 8
#endif
#ifndef TILES
#define TILES 4
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef STEPS
#define STEPS 1
#endif

#define WARPS 8
#define STEP_K (4 * LANE_K) /* of k that a warp multiplies at a time */
#define RUN (STEPS * STEP_K)
#define OCTETS (TOKENS / 8)
#define ROWS (16 * TILES)
#define SLOTS (2 * TILES)

#if (CUP_T == CUP_F16 || CUP_T == CUP_BF16) && TOKENS % 8 == 0
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

struct place {
    const product_call &c;
    const packed_call &w;
    long long row, token; /* the first of the block */
    uint32_t ring;        /* of this lane */
};

/* Where a lane's 16 bytes lie: tile i / 2, its upper or lower half. */
DEVICE uint32_t slot(const place &p, int stage, int step, int i)
{
    return p.ring + ((stage * STEPS + step) * SLOTS + i) * 512;
}

/* Orders the copies of one run. */
DEVICE void bring(const place &p, int stage, long long run)
{
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            long long k = run * RUN + step * STEP_K + threadIdx.x % 4 * LANE_K;
            long long row = p.row + 8 * i + threadIdx.x % 32 / 4;
            bool valid = row < p.c.n && k < p.c.k;
            const char *from = (const char *)p.c.b + (valid ? row * p.c.b_mn + k * BITS / 8 : 0);
            copy_async16(slot(p, stage, step, i), from, valid);
        }
}

typedef side_data<SLOTS, OCTETS> side;
typedef float sums[TILES][OCTETS][4];

DEVICE void read(const place &p, long long k, side &to)
{
    read_side(p.c, p.w, p.token, p.row, k + threadIdx.x % 4 * LANE_K, to);
}

DEVICE void multiply(const place &p, int stage, int step, const side &with, sums &sum)
{
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        uint4 upper = load_shared16(slot(p, stage, step, 2 * tile));
        uint4 lower = load_shared16(slot(p, stage, step, 2 * tile + 1));
        multiply_words(upper, lower, with, 2 * tile, sum[tile]);
    }
}

/* Adds up the parts of k; true when this block is to write. */
DEVICE bool add_parts(float *partial, unsigned *arrived, float *sum, unsigned *last)
{
    const int count = TOKENS * ROWS, parts = gridDim.y;
    long long tile_index = (long long)blockIdx.z * gridDim.x + blockIdx.x;
    float *tile = partial + tile_index * parts * count;
    for (int i = threadIdx.x; i < count; i += PRODUCT_THREADS)
        __stcg(tile + blockIdx.y * count + i, sum[i]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *last = atomicAdd(arrived + tile_index, 1u) == (unsigned)parts - 1;
        if (*last)
            arrived[tile_index] = 0;
    }
    __syncthreads();
    if (!*last)
        return false;
    __threadfence();
    for (int i = threadIdx.x; i < count; i += PRODUCT_THREADS) {
        float total = 0;
#pragma unroll 4
        for (int part = 0; part < parts; part++)
            total += __ldcg(tile + part * count + i);
        sum[i] = total;
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS)
    linear_packed(const __grid_constant__ product_call c, const __grid_constant__ packed_call w,
                  int part_runs, float *partial, unsigned *arrived)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ unsigned last;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    place p = {c, w, (long long)blockIdx.x * ROWS, (long long)blockIdx.z * TOKENS,
               shared_address(shared) + warp * STAGES * STEPS * SLOTS * 512 + lane * 16};
    int runs = (int)((c.k + RUN - 1) / RUN), first = blockIdx.y * part_runs;
    int end = min(first + part_runs, runs), ahead = first + warp, stage = 0;
    sums sum = {};
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++, ahead += WARPS) {
        if (ahead < end)
            bring(p, i, ahead);
        copies_end();
    }
    for (int run = first + warp; run < end; run += WARPS, ahead += WARPS) {
        int next = stage == 0 ? STAGES - 1 : stage - 1;
        if (ahead < end)
            bring(p, next, ahead);
        copies_end();
        side now, next_side;
        read(p, (long long)run * RUN, now);
        copies_wait<STAGES - 1>();
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step + 1 < STEPS)
                read(p, (long long)run * RUN + (step + 1) * STEP_K, next_side);
            multiply(p, stage, step, now, sum);
            now = next_side;
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    copies_wait<0>();
    __syncthreads();
    float *all = (float *)shared;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
#pragma unroll
            for (int l = 0; l < 4; l++) {
                int token = 8 * o + lane % 4 * 2 + l % 2, r = 16 * i + lane / 4 + l / 2 * 8;
                all[warp * TOKENS * ROWS + token * ROWS + r] = sum[i][o][l];
            }
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * ROWS; i += PRODUCT_THREADS) {
        float total = all[i];
#pragma unroll
        for (int other = 1; other < WARPS; other++)
            total += all[other * TOKENS * ROWS + i];
        all[i] = total;
    }
    if (gridDim.y > 1 && !add_parts(partial, arrived, all, &last))
        return;
    for (int i = threadIdx.x; i < TOKENS * ROWS; i += PRODUCT_THREADS)
        put(c, p.token + i / ROWS, p.row + i % ROWS, all[i]);
}

#endif
#endif

#if BITS < 16
/* One number of a row, not yet scaled. */
DEVICE real number_at(const void *weight, long long at, int zero)
{
#if BITS == 8
    return (real)((const int8_t *)weight)[at];
#else
    return (real)((((const uint8_t *)weight)[at / 2] >> at % 2 * 4 & 15) - zero);
#endif
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS)
    linear_packed_plain(const __grid_constant__ product_call c,
                        const __grid_constant__ packed_call w)
{
    long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    long long token = (long long)blockIdx.y * TOKENS;
    if (row >= c.n)
        return;
    const T *x = (const T *)c.a + token * c.a_mn;
    real sum[TOKENS] = {};
#pragma unroll 4
    for (long long k = threadIdx.x % 32; k < c.k; k += 32) {
        long long group = row * w.groups + k / w.group;
        real scale = convert<real>(((const scale_type *)w.scale)[group]);
        real v = scale * number_at(w.weight, row * c.k + k, w.zero ? w.zero[group] : 8);
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            if (token + t < c.m)
                sum[t] += v * to_real(x[t * c.a_mn + k]);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        real total = warp_sum(sum[t]);
        if (threadIdx.x % 32 == 0)
            put(c, token + t, row, total);
    }
}
#endif
