/* Reductions over a warp and over a block. The order of the operations is fixed, so that equal
 * inputs give equal bits. Every thread of the warp or block must call, and all get the result.
 *
 *     warp_sum(x) warp_max(x) warp_min(x)       float, double and integers
 *     block_sum(x) block_max(x) block_min(x)    blocks of x threads, a multiple of 32
 *     warp_reduce(x, op)  block_reduce(x, identity, op)    any type of whole words */
#ifndef CUP_REDUCE_CUH
#define CUP_REDUCE_CUH

#include "dtype.cuh"

template <typename Value> union shuffle_words {
    Value value;
    uint32_t words[sizeof(Value) / 4];
    __device__ __forceinline__ shuffle_words() {}
};

template <typename Value> DEVICE Value shuffle_xor(Value value, int mask)
{
    static_assert(sizeof(Value) % 4 == 0, "a shuffle moves whole words");
    shuffle_words<Value> u;
    u.value = value;
#pragma unroll
    for (int i = 0; i < (int)sizeof(Value) / 4; i++)
        u.words[i] = __shfl_xor_sync(0xffffffffu, u.words[i], mask);
    return u.value;
}

/* Unlike fmaxf and fminf these give NaN when one of the two is NaN. */
template <typename Value> DEVICE Value maximum(Value a, Value b)
{
    return a > b || a != a ? a : b;
}

template <typename Value> DEVICE Value minimum(Value a, Value b)
{
    return a < b || a != a ? a : b;
}

#if __CUDA_ARCH__ >= 800
DEVICE float maximum(float a, float b)
{
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

DEVICE float minimum(float a, float b)
{
    float c;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
#endif

struct sum_op {
    template <typename Value> __device__ __forceinline__ Value operator()(Value a, Value b) const
    {
        return a + b;
    }
};
struct max_op {
    template <typename Value> __device__ __forceinline__ Value operator()(Value a, Value b) const
    {
        return maximum(a, b);
    }
};
struct min_op {
    template <typename Value> __device__ __forceinline__ Value operator()(Value a, Value b) const
    {
        return minimum(a, b);
    }
};

template <typename Value, typename Op> DEVICE Value warp_reduce(Value value, Op op)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        value = op(value, shuffle_xor(value, mask));
    return value;
}

/* Ends with a barrier, so that calls may follow each other. */
template <typename Value, typename Op> DEVICE Value block_reduce(Value value, Value identity, Op op)
{
    __shared__ alignas(alignof(Value)) unsigned char memory[32 * sizeof(Value)];
    Value *partial = (Value *)memory;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    value = warp_reduce(value, op);
    if (lane == 0)
        partial[warp] = value;
    __syncthreads();
    value = lane < (int)(blockDim.x + 31) / 32 ? partial[lane] : identity;
    value = warp_reduce(value, op);
    __syncthreads();
    return value;
}

template <typename Value> DEVICE Value warp_sum(Value value)
{
    return warp_reduce(value, sum_op());
}

template <typename Value> DEVICE Value warp_max(Value value)
{
    return warp_reduce(value, max_op());
}

template <typename Value> DEVICE Value warp_min(Value value)
{
    return warp_reduce(value, min_op());
}

/* What does not change the other value: the least and the largest of a type. */
DEVICE float lowest(float) { return -__int_as_float(0x7f800000); }
DEVICE double lowest(double) { return -__longlong_as_double(0x7ff0000000000000ll); }
DEVICE int32_t lowest(int32_t) { return -0x7fffffff - 1; }
DEVICE int64_t lowest(int64_t) { return -0x7fffffffffffffffll - 1; }
DEVICE float highest(float) { return __int_as_float(0x7f800000); }
DEVICE double highest(double) { return __longlong_as_double(0x7ff0000000000000ll); }
DEVICE int32_t highest(int32_t) { return 0x7fffffff; }
DEVICE int64_t highest(int64_t) { return 0x7fffffffffffffffll; }

template <typename Value> DEVICE Value block_sum(Value value)
{
    return block_reduce(value, Value(0), sum_op());
}

template <typename Value> DEVICE Value block_max(Value value)
{
    return block_reduce(value, lowest(value), max_op());
}

template <typename Value> DEVICE Value block_min(Value value)
{
    return block_reduce(value, highest(value), min_op());
}

#endif
