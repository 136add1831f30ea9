/* Running sums over a warp and over a block, of integers and anything else whose `+` may be taken
 * in any grouping, or whose fixed grouping here is wanted. Every thread must call.
 *
 *     warp_scan(x)                 sum of x over this lane and those before it
 *     block_scan<Threads>(x, &all) sum of x over the threads before this one; `all` of all of them
 *     lanes_before()               the lanes of a mask that come before this one */
#ifndef CUP_SCAN_CUH
#define CUP_SCAN_CUH

#include "reduce.cuh"

DEVICE uint32_t lanes_before()
{
    return (1u << (threadIdx.x % 32)) - 1;
}

template <typename Value> DEVICE Value shuffle_up(Value value, int distance)
{
    static_assert(sizeof(Value) % 4 == 0, "a shuffle moves whole words");
    shuffle_words<Value> u;
    u.value = value;
#pragma unroll
    for (int i = 0; i < (int)sizeof(Value) / 4; i++)
        u.words[i] = __shfl_up_sync(0xffffffffu, u.words[i], distance);
    return u.value;
}

template <typename Value> DEVICE Value shuffle_from(Value value, int lane)
{
    static_assert(sizeof(Value) % 4 == 0, "a shuffle moves whole words");
    shuffle_words<Value> u;
    u.value = value;
#pragma unroll
    for (int i = 0; i < (int)sizeof(Value) / 4; i++)
        u.words[i] = __shfl_sync(0xffffffffu, u.words[i], lane);
    return u.value;
}

template <typename Value> DEVICE Value warp_scan(Value value)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        Value before = shuffle_up(value, distance);
        if (lane >= distance)
            value = before + value;
    }
    return value;
}

/* Ends with a barrier, so that calls may follow each other. */
template <int Threads, typename Value> DEVICE Value block_scan(Value value, Value *all)
{
    const int warps = Threads / 32;
    __shared__ alignas(alignof(Value)) unsigned char memory[warps * sizeof(Value)];
    Value *partial = (Value *)memory;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    Value own = warp_scan(value), before = shuffle_up(own, 1);
    if (lane == 31)
        partial[warp] = own;
    __syncthreads();
    Value sums = lane < warps ? partial[lane] : Value(0);
    sums = warp_scan(sums);
    __syncthreads();
    if (warp == 0 && lane < warps)
        partial[lane] = sums;
    __syncthreads();
    Value base = warp ? partial[warp - 1] : Value(0);
    *all = partial[warps - 1];
    __syncthreads();
    return lane ? base + before : base;
}

#endif
