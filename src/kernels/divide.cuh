/* Division by a number known to the host only, as a multiplication. Plain C, included by host and
 * kernels: divisor_of on the host, divided and split in kernels. */
#ifndef CUP_KERNELS_DIVIDE_CUH
#define CUP_KERNELS_DIVIDE_CUH

/* n / size for n below 2^31 is (upper half of n * multiplier + n) >> shift. */
typedef struct divisor {
    unsigned size, multiplier, shift;
} divisor;

#ifdef __CUDACC__
static __device__ __forceinline__ unsigned divided(unsigned n, const divisor &d)
{
    return (__umulhi(n, d.multiplier) + n) >> d.shift;
}

/* Takes the last of several dimensions from an index: the place along it. */
static __device__ __forceinline__ unsigned split(unsigned *index, const divisor &d)
{
    unsigned rest = divided(*index, d), place = *index - rest * d.size;
    *index = rest;
    return place;
}
#else
/* `size` is from 1 to 2^31 - 1. */
static inline divisor divisor_of(long long size)
{
    divisor d = {(unsigned)size, 0, 0};
    while ((1ll << d.shift) < size)
        d.shift++;
    unsigned long long rest = (1ull << d.shift) - (unsigned long long)size;
    d.multiplier = (unsigned)((rest << 32) / (unsigned long long)size + 1);
    return d;
}
#endif

#endif
