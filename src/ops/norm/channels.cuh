/* Statistics of channels of x as [instances, before, channels, after], groups of `each` channels
 * sharing one. A plane is `after` neighbours of one channel; where `after` is 1, channels are the
 * columns of rows. Blocks of either leave partial sums [instances, lines, channels, parts]. */
#ifndef CUP_OPS_NORM_CHANNELS_CUH
#define CUP_OPS_NORM_CHANNELS_CUH

#include "divide.cuh"

#ifdef __CUDACC__
#include "rows.cuh"

/* Knobs: PARAM (dtype of gamma and beta), BACK. */
#ifndef RESULT
#define RESULT PARAM /* of dgamma and dbeta */
#endif
#endif

/* As the host fills it and the kernels read it. */
typedef struct channels_call {
    long long before, after, count; /* count: elements behind one statistic */
    unsigned instances, channels, groups, each;
    unsigned lines, parts;    /* of partial sums */
    unsigned line, part;      /* rows of a line, elements of a part; the last have fewer */
    unsigned tasks;           /* partial sums, or blocks of columns */
    unsigned tiles;           /* of columns */
    unsigned constant;        /* the statistics do not depend on x */
    divisor by_parts, by_each;
    double momentum, eps;
} channels_call;

#ifdef __CUDACC__

DEVICE float quotient(float a, float b)
{
    return __fdividef(a, b);
}

DEVICE double quotient(double a, double b)
{
    return a / b;
}

/* A mean and squared distances from it, of `n` numbers; merged without loss (Chan). */
struct moments {
    real n, mean, squares;
};

struct merge_moments {
    __device__ __forceinline__ moments operator()(const moments &a, const moments &b) const
    {
        real n = a.n + b.n, share = n > 0 ? quotient(b.n, n) : 0, d = b.mean - a.mean;
        return {n, a.mean + d * share, a.squares + b.squares + d * d * a.n * share};
    }
};

/* Of numbers one after the other: sums of their distance from the first. */
struct moments_sum {
    real pivot, sum, squares;

    __device__ __forceinline__ void add(real x)
    {
        real d = x - pivot;
        sum += d;
        squares += d * d;
    }

    __device__ __forceinline__ moments result(real n) const
    {
        real mean = n > 0 ? sum / n : 0, left = squares - sum * mean;
        return {n, pivot + mean, left > 0 || left != left ? left : 0};
    }
};

/* One of gamma or beta, which may be left out. */
template <typename Param> DEVICE real param(const Param *p, unsigned i, real missing)
{
    return p ? convert<real>(p[i]) : missing;
}

/* Where the statistics of a channel stand. */
DEVICE unsigned statistic_of(const channels_call &c, unsigned instance, unsigned channel)
{
    return instance * c.groups + channel / c.each;
}

/* Numbers behind one partial sum. */
DEVICE real numbers_of(const channels_call &c, unsigned line, unsigned part)
{
    long long rows = c.before - (long long)line * c.line, elements = c.after;
    elements -= (long long)part * c.part;
    return (real)(rows < c.line ? rows : c.line) * (real)(elements < c.part ? elements : c.part);
}

/* A part of what is behind a statistic: where it begins, its elements and its channel. */
struct part {
    int64_t at;
    int count;
    unsigned channel;
};

DEVICE part part_of(const channels_call &c, unsigned statistic, unsigned q)
{
    unsigned instance = statistic / c.groups, group = statistic % c.groups;
    unsigned plane = divided(q, c.by_parts), piece = q - plane * c.parts;
    unsigned row = divided(plane, c.by_each), channel = group * c.each + plane - row * c.each;
    int64_t at = ((instance * c.before + row) * c.channels + channel) * c.after;
    long long left = c.after - (long long)piece * c.part;
    return {at + (int64_t)piece * c.part, left < c.part ? (int)left : (int)c.part, channel};
}

#endif
#endif
