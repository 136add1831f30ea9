/* What a logsumexp keeps: fold.cuh. */
#ifndef CUP_OPS_REDUCE_LOGSUMEXP_STATE_CUH
#define CUP_OPS_REDUCE_LOGSUMEXP_STATE_CUH

#include "fold.cuh"

DEVICE float log_of(float x) { return logf(x); }
DEVICE double log_of(double x) { return log(x); }
DEVICE int64_t log_of(int64_t x) { return x; }
/* What is added to a sum may be off by 2^-22 of itself. */
DEVICE float power_of_e(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}
DEVICE double power_of_e(double x) { return exp(x); }
DEVICE int64_t power_of_e(int64_t x) { return x; }

#define HAS_ADD_ALL 1

struct state {
    wide most, sum;

    __device__ __forceinline__ void start()
    {
        most = lowest(wide());
        sum = 0;
    }
    /* One exponential an element, of minus the distance to the largest so far. */
    __device__ __forceinline__ void take(wide x, wide terms)
    {
        if (x == lowest(wide()))
            return;
        wide e = x == most ? (wide)1 : power_of_e(x > most ? most - x : x - most);
        sum = x > most ? sum * e + terms : sum + terms * e;
        most = maximum(most, x);
    }
    __device__ __forceinline__ void add(wide x, int64_t) { take(x, 1); }
    /* One exponential an element and one in all. */
    template <int Count> __device__ __forceinline__ void add_all(const wide (&x)[Count])
    {
        wide high = x[0], terms = 0;
#pragma unroll
        for (int k = 1; k < Count; k++)
            high = maximum(high, x[k]);
        if (high - high != 0) { /* infinite, or no number */
#pragma unroll
            for (int k = 0; k < Count; k++)
                take(x[k], 1);
            return;
        }
#pragma unroll
        for (int k = 0; k < Count; k++)
            terms += power_of_e(x[k] - high);
        take(high, terms);
    }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ void join(const state &other) { take(other.most, other.sum); }
    __device__ __forceinline__ wide result(int64_t, double) const { return most + log_of(sum); }
};

#endif
