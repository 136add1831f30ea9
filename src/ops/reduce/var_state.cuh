/* What a variance keeps: fold.cuh. */
#ifndef CUP_OPS_REDUCE_VAR_STATE_CUH
#define CUP_OPS_REDUCE_VAR_STATE_CUH

#include "fold.cuh"

DEVICE float about_one_over(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE double about_one_over(double x) { return 1 / x; }
DEVICE int64_t about_one_over(int64_t x) { return x; }

#define HAS_CENTRE 1
#define RESTS (sizeof(T) > 2) /* numbers of 16 bits are further apart than a rounded mean is off */

/* Sums around a shift, at first the first element seen and then about the mean of those before, so
 * that neither a large mean nor one large element swallows the differences. Once settled, the mean
 * is shift + rest, two numbers since it need not be one that fits, and `squares` the sum of squares
 * around it. */
struct state {
    wide n, shift, squares;
    union {
        wide sum, rest;
    };

    __device__ __forceinline__ void start() { n = shift = sum = squares = 0; }
    __device__ __forceinline__ void add(wide x, int64_t)
    {
        shift = n == 0 ? x : shift;
        n += 1;
        sum += x - shift;
        squares += (x - shift) * (x - shift);
    }
    __device__ __forceinline__ void centre()
    {
        if (n == 0)
            return;
        wide to = shift + sum * about_one_over(n), by = to - shift, left = sum - n * by;
        squares -= by * (sum + left);
        shift = to;
        sum = left;
    }
    __device__ __forceinline__ void settle()
    {
        if (n == 0)
            return;
        wide all = sum;
        rest = all / n;
        squares -= all * rest;
        if (!RESTS)
            shift += rest;
    }
    __device__ __forceinline__ void join(const state &other)
    {
        if (other.n == 0)
            return;
        wide all = n + other.n, apart = n == 0 ? 0 : other.shift - shift;
        if (RESTS && n != 0)
            apart += other.rest - rest;
        squares += other.squares + apart * apart * (n / all * other.n);
        wide &mean = RESTS ? rest : shift, by = apart * (other.n / all);
        mean = n == 0 ? RESTS ? other.rest : other.shift : mean + by;
        shift = n == 0 ? other.shift : shift;
        n = all;
    }
    __device__ __forceinline__ wide result(int64_t length, double correction) const
    {
        wide degrees = (wide)((double)length - correction);
        return degrees > 0 ? squares / degrees : (wide)0 / (degrees - degrees);
    }
};

#endif
