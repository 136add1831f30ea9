/* What a norm keeps: fold.cuh. */
#ifndef CUP_OPS_REDUCE_NORM_STATE_CUH
#define CUP_OPS_REDUCE_NORM_STATE_CUH

#include "fold.cuh"

#if CUP_T == CUP_F16 /* whose squares all fit */

struct state {
    wide squares;

    __device__ __forceinline__ void start() { squares = 0; }
    __device__ __forceinline__ void add(wide x, int64_t) { squares += x * x; }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ void join(const state &other) { squares += other.squares; }
    __device__ __forceinline__ wide result(int64_t, double) const { return root_of(squares); }
};

#else

/* Squares as they are, and of numbers made small and large, where those overflow or vanish. */
#define FAR_DOWN (CUP_T == CUP_F64 ? (wide)0x1p-600 : (wide)0x1p-80f)
#define FAR_UP (CUP_T == CUP_F64 ? (wide)0x1p800 : (wide)0x1p100f)
#define LEAST_SQUARES (CUP_T == CUP_F64 ? (wide)0x1p-900 : (wide)0x1p-80f)

struct state {
    wide squares, small, large;

    __device__ __forceinline__ void start() { squares = small = large = 0; }
    __device__ __forceinline__ void add(wide x, int64_t)
    {
        squares += x * x;
        small += (x * FAR_DOWN) * (x * FAR_DOWN);
        large += (x * FAR_UP) * (x * FAR_UP);
    }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ void join(const state &other)
    {
        squares += other.squares;
        small += other.small;
        large += other.large;
    }
    __device__ __forceinline__ wide result(int64_t, double) const
    {
        if (squares == highest(wide()))
            return root_of(small) / FAR_DOWN;
        if (squares < LEAST_SQUARES)
            return root_of(large) / FAR_UP;
        return root_of(squares);
    }
};

#endif

#endif
