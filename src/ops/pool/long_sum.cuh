/* A sum of as many values as windows that hold one value of an image. */
#ifndef CUP_OPS_POOL_LONG_SUM_CUH
#define CUP_OPS_POOL_LONG_SUM_CUH

#include "dtype.cuh"

/* With Exact what each addition rounds away is summed beside, so that the error does not grow with
 * the number of values; it is NaN, and left out, once the sum is infinite. */
template <typename Real, bool Exact> struct long_sum {
    Real sum, rest;

    __device__ __forceinline__ long_sum() : sum(0), rest(0) {}
    __device__ __forceinline__ void add(Real x)
    {
        Real before = sum;
        sum += x;
        if (!Exact)
            return;
        Real added = sum - before;
        rest += (before - (sum - added)) + (x - added);
    }
    __device__ __forceinline__ Real value() const
    {
        return Exact && rest == rest ? sum + rest : sum;
    }
};

#endif
