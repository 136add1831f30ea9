/* What a product keeps: fold.cuh. Floats are multiplied in double, so that many factors lose no
 * digits and none in the middle overflows. */
#ifndef CUP_OPS_REDUCE_PROD_STATE_CUH
#define CUP_OPS_REDUCE_PROD_STATE_CUH

#include "fold.cuh"

template <typename Wide> struct factor_of { typedef double type; };
template <> struct factor_of<int64_t> { typedef int64_t type; };
typedef factor_of<wide>::type factor;

/* Blocks that fit a multiprocessor: factors of 8 bytes need the registers that doubles do. */
#define BLOCKS 2

struct state {
    factor acc;

    __device__ __forceinline__ void start() { acc = 1; }
    __device__ __forceinline__ void add(wide x, int64_t) { acc *= (factor)x; }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ void join(const state &other) { acc *= other.acc; }
    __device__ __forceinline__ wide result(int64_t, double) const { return (wide)acc; }
};

#endif
