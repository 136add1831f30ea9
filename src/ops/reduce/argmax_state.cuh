/* What argmax and argmin keep: fold.cuh. LESS turns the one into the other. */
#ifndef CUP_OPS_REDUCE_ARGMAX_STATE_CUH
#define CUP_OPS_REDUCE_ARGMAX_STATE_CUH

#include "fold.cuh"

#ifndef LESS
#define LESS 0
#endif

/* Of equal elements the first; NaN counts as more extreme than any number. */
struct state {
    wide value;
    int64_t index;

    __device__ __forceinline__ void start()
    {
        value = 0;
        index = -1;
    }
    __device__ __forceinline__ void add(wide x, int64_t i)
    {
        bool beats = LESS ? x < value : x > value;
        bool same = x == value || (x != x && value != value);
        if (i >= 0 && (index < 0 || beats || (x != x && value == value) || (same && i < index))) {
            value = x;
            index = i;
        }
    }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ void join(const state &other) { add(other.value, other.index); }
    __device__ __forceinline__ int64_t result(int64_t, double) const { return index; }
};

#endif
