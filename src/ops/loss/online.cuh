/* The largest of some elements and the sum of the exponentials of their distances to it, gathered
 * in one pass. Elements of 16 bits take the short exponential. */
#ifndef CUP_OPS_LOSS_ONLINE_CUH
#define CUP_OPS_LOSS_ONLINE_CUH

#if CUP_T == 2 || CUP_T == 3
#define SHORT_MATH 1
#endif
#include "real_math.cuh"
#include "rows.cuh"

struct online {
    real most, sum;

    __device__ __forceinline__ void take(real other, real terms)
    {
        real up = maximum(most, other);
        if (up == lowest(real()))
            return;
        sum = sum * exp_of(most - up) + terms * exp_of(other - up);
        most = up;
    }
};
struct online_op {
    __device__ __forceinline__ online operator()(online a, online b) const
    {
        /* In the same order in both lanes of a pair, so that they agree. */
        online low = a.most < b.most ? a : b, high = a.most < b.most ? b : a;
        high.take(low.most, low.sum);
        return high;
    }
};

#endif
