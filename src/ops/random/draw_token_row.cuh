/* A row of logits that the blocks of a cluster share; draw_token.cu includes it. */
#ifndef CUP_OPS_RANDOM_DRAW_TOKEN_ROW_CUH
#define CUP_OPS_RANDOM_DRAW_TOKEN_ROW_CUH

#include "draw_token_call.cuh"

/* Knobs: CLUSTER (blocks), PER (tokens that a thread holds; 0: it reads them again each time). */
#define BINS DRAW_THREADS
#define TOGETHER (CLUSTER * DRAW_THREADS)
#define FEW 256 /* that are left to a thread each, which looks at all of them */
#define AT_ONCE 8
#define WARPS (DRAW_THREADS / 32)

#include "draw_token_mail.cuh"
#include "draw_token_weights.cuh"

/* A place in the order: what lies before or at it is kept. */
struct place {
    float value;
    int token;
};

struct search {
    draw_call c;
    const T *row;
    mail m;
    bool answers; /* this block writes the token */
    float value[PER ? PER : 1];
    float best, least; /* of those that are finite */
    place last;        /* of those that are kept */
};

static __shared__ unsigned bin_low[BINS], bin_high[BINS], bin_count[BINS]; /* halves of weights */
static __shared__ uint64_t warp_sum[WARPS];
static __shared__ float warp_low[WARPS], warp_high[WARPS];
static __shared__ unsigned warp_count[WARPS];
static __shared__ long long draws; /* before this one */
static __shared__ struct {
    place at;
    uint64_t before; /* of a bin: what lies before it */
    int bin;
    unsigned count, sent; /* of what is in it, and of that what this block has sent */
    unsigned first[CLUSTER]; /* of each block, among all */
} found;

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
    int first = s.m.rank * DRAW_THREADS + (int)threadIdx.x;
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
        int token = s.m.rank * DRAW_THREADS + (int)threadIdx.x + i * TOGETHER;
        s.value[i] = token < s.c.count ? value_at(s, token) : nan_value();
    }
}

/* Of a warp, in all its lanes. */
DEVICE void join_lanes(float *low, float *high, unsigned *count)
{
#pragma unroll
    for (int mask = 16; mask; mask /= 2) {
        *low = fminf(*low, __shfl_xor_sync(0xffffffffu, *low, mask));
        *high = fmaxf(*high, __shfl_xor_sync(0xffffffffu, *high, mask));
        *count += __shfl_xor_sync(0xffffffffu, *count, mask);
    }
}

/* The lowest and highest of each thread's and the sum of its count; every thread of all blocks gets
 * them. */
DEVICE void join_all(search &s, float *low, float *high, unsigned *count)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    join_lanes(low, high, count);
    if (lane == 0) {
        warp_low[warp] = *low;
        warp_high[warp] = *high;
        warp_count[warp] = *count;
    }
    __syncthreads();
    if (warp == 0) {
        *low = warp_low[lane];
        *high = warp_high[lane];
        *count = warp_count[lane];
        join_lanes(low, high, count);
    }
    const record *all =
        gather(s.m, {{__float_as_uint(*low), __float_as_uint(*high), *count, 0}});
    *low = infinity();
    *high = -infinity();
    *count = 0;
    for (int i = 0; i < CLUSTER; i++) {
        *low = fminf(*low, __uint_as_float(all[i].at[0]));
        *high = fmaxf(*high, __uint_as_float(all[i].at[1]));
        *count += all[i].at[2];
    }
}

/* What the threads before this one have, and all of them, where only the first Warps warps have
 * anything. */
template <int Warps> DEVICE uint64_t sum_before(uint64_t own, uint64_t *all)
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
    for (int i = 0; i < Warps; i++) {
        sum += i < warp ? warp_sum[i] : 0;
        *all += warp_sum[i];
    }
    return sum - own;
}

#endif
