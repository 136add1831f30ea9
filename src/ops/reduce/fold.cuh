/* What a reduction keeps while it goes over elements. A `state` is
 *
 *     start()          nothing seen yet
 *     add(x, index)    takes in one element
 *     add_all(x)       the same for several side by side, where HAS_ADD_ALL
 *     centre()         now and then between two adds, where HAS_CENTRE
 *     settle()         must be called between the last add and a join
 *     join(other)      takes in another's elements, which come later
 *     result(n, ...)   of n elements in all
 * Elements are computed with as `wide`: float, double for f64, int64_t for integers. The state of a
 * CUP__FOLD is one number and stands here, others in NAME_state.cuh. */
#ifndef CUP_OPS_REDUCE_FOLD_CUH
#define CUP_OPS_REDUCE_FOLD_CUH

#include "reduce_call.cuh"
#include "rows.cuh"

template <typename Real> struct wide_of { typedef int64_t type; };
template <> struct wide_of<float> { typedef float type; };
template <> struct wide_of<double> { typedef double type; };
typedef wide_of<real>::type wide;

DEVICE float root_of(float x) { return sqrtf(x); }
DEVICE double root_of(double x) { return sqrt(x); }
DEVICE int64_t root_of(int64_t x) { return x; }
#define LOWEST lowest(wide())
#define HIGHEST highest(wide())

#ifdef NEXT
struct state {
    wide acc;

    __device__ __forceinline__ void start() { acc = START; }
    __device__ __forceinline__ void add(wide x, int64_t) { acc = NEXT; }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ void join(const state &other)
    {
        wide x = other.acc;
        acc = JOIN;
    }
    __device__ __forceinline__ wide result(int64_t length, double) const
    {
        wide n = (wide)length;
        return RESULT;
    }
};
#endif

#endif
