/* A row of logits that the blocks of a cluster share; draw_token.cu includes it. */
#ifndef CUP_OPS_RANDOM_DRAW_TOKEN_ROW_CUH
#define CUP_OPS_RANDOM_DRAW_TOKEN_ROW_CUH

#include "draw_token_call.cuh"
#include "hopper.cuh"

/* Knobs: CLUSTER (blocks), PER (tokens that a thread holds; 0: it reads them again each time). */
#define BINS DRAW_THREADS
#define TOGETHER (CLUSTER * DRAW_THREADS)
#define FEW DRAW_THREADS /* that are left to a thread each */
#define AT_ONCE 8

/* A place in the order: what lies before or at it is kept. */
struct place {
    float value;
    int token;
};

struct search {
    draw_call c;
    const T *row;
    int rank; /* of the block in its cluster */
    float value[PER ? PER : 1];
    float best, least; /* of those that are finite */
    place last;        /* of those that are kept */
};

static __shared__ unsigned bin_low[BINS], bin_high[BINS], bin_count[BINS]; /* halves of weights */
static __shared__ uint64_t all_weight[BINS]; /* of all blocks */
static __shared__ unsigned all_count[BINS];
static __shared__ uint64_t warp_sum[32], block_sum_of;
static __shared__ float few_value[FEW], warp_low[32], warp_high[32], block_low, block_high;
static __shared__ int few_token[FEW];
static __shared__ struct {
    place at;
    uint64_t before, own; /* of a bin: what lies before it, and in it */
    int bin;
    unsigned count;
} found;

/* The same variable of another block of the cluster. */
template <typename Value> DEVICE Value *of_block(Value *here, int block)
{
#if CLUSTER > 1 && __CUDA_ARCH__ >= 900
    uint64_t there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(block));
    return (Value *)there;
#else
    return here;
#endif
}

DEVICE void meet_all()
{
#if CLUSTER > 1 && __CUDA_ARCH__ >= 900
    cluster_meet();
#else
    __syncthreads();
#endif
}

DEVICE float infinity()
{
    return __int_as_float(0x7f800000);
}

DEVICE float nan_value()
{
    return __int_as_float(0x7fffffff);
}

DEVICE float value_at(const search &s, int token)
{
    return (float)to_real(s.row[token]);
}

/* Calls `visit` with each of the thread's tokens and its value, several of which are read at a
 * time: the row comes from far away. */
template <typename Visit> DEVICE void visit_row(const search &s, const Visit &visit)
{
    int first = s.rank * DRAW_THREADS + (int)threadIdx.x;
#if PER
#pragma unroll
    for (int i = 0; i < PER; i++)
        visit(first + i * TOGETHER, s.value[i]);
#else
    for (int begin = first; begin < s.c.count; begin += AT_ONCE * TOGETHER) {
        float value[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int token = begin + i * TOGETHER;
            value[i] = token < s.c.count ? value_at(s, token) : nan_value();
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            visit(begin + i * TOGETHER, value[i]);
    }
#endif
}

DEVICE void hold_row(search &s)
{
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int token = s.rank * DRAW_THREADS + (int)threadIdx.x + i * TOGETHER;
        s.value[i] = token < s.c.count ? value_at(s, token) : nan_value();
    }
}

/* The lowest and highest of each thread's; every thread of all blocks gets them. */
DEVICE void extremes(float *low, float *high)
{
    for (int mask = 16; mask; mask /= 2) {
        *low = fminf(*low, __shfl_xor_sync(0xffffffffu, *low, mask));
        *high = fmaxf(*high, __shfl_xor_sync(0xffffffffu, *high, mask));
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        warp_low[threadIdx.x / 32] = *low;
        warp_high[threadIdx.x / 32] = *high;
    }
    __syncthreads();
    for (int i = 0; i < DRAW_THREADS / 32; i++) {
        *low = fminf(*low, warp_low[i]);
        *high = fmaxf(*high, warp_high[i]);
    }
    if (CLUSTER == 1)
        return;
    if (threadIdx.x == 0) {
        block_low = *low;
        block_high = *high;
    }
    meet_all();
    for (int i = 0; i < CLUSTER; i++) {
        *low = fminf(*low, *of_block(&block_low, i));
        *high = fmaxf(*high, *of_block(&block_high, i));
    }
    meet_all();
}

/* What the threads before this one have, and all of them. */
DEVICE uint64_t sum_before(uint64_t own, uint64_t *all)
{
    uint64_t sum = own;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int distance = 1; distance < 32; distance *= 2) {
        uint64_t other = __shfl_up_sync(0xffffffffu, sum, distance);
        sum += lane >= distance ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        warp_sum[warp] = sum;
    __syncthreads();
    *all = 0;
    for (int i = 0; i < DRAW_THREADS / 32; i++) {
        sum += i < warp ? warp_sum[i] : 0;
        *all += warp_sum[i];
    }
    return sum - own;
}

/* Of all blocks. */
DEVICE uint64_t sum_all(uint64_t own)
{
    uint64_t all, sum = 0;
    sum_before(own, &all);
    if (CLUSTER == 1)
        return all;
    if (threadIdx.x == 0)
        block_sum_of = all;
    meet_all();
    for (int i = 0; i < CLUSTER; i++)
        sum += *of_block(&block_sum_of, i);
    meet_all();
    return sum;
}

#endif
