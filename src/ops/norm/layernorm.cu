/* y = (s - mean) rstd gamma + beta over rows, s = x + residual when ADD; without CENTRED the mean
 * is not subtracted. A group of GROUP threads holds a row in registers, so x is read once and y
 * written once; with LONG the row does not fit and is read in each of the three passes.
 * Grid: GROUPS rows a block, many small blocks: cards share memory unevenly, and blocks that stay
 * and take as many rows each wait for the slowest. With SHIFT rows need not be whole vectors. */
#include "dependent.cuh"
#include "layernorm_row.cuh"

/* Knobs: LONG, BLOCKS (that run at once on a multiprocessor), DEPENDENT (see rows.cuh). */

/* Asks for the line at p to be brought to the L2 cache; nothing is read, so p may still be
 * written by the kernel before. */
DEVICE void ask_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Weights are not in the L2 cache when a token is written: they come while the kernel in front
 * ends. */
DEVICE void begin(const P *gammas, const P *betas, int width)
{
#if DEPENDENT
    const int line = 128 / sizeof(P);
    for (int at = threadIdx.x * line; at < width; at += THREADS * line) {
        if (gammas)
            ask_l2(gammas + at);
        if (betas)
            ask_l2(betas + at);
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
#endif
}

#if __CUDA_ARCH__ >= 1200 && BLOCKS > 3 /* which the compiler has no registers for */
#undef BLOCKS
#define BLOCKS 3
#endif

#if !LONG

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
layernorm_fwd(const T *x, const T *residual, const P *gammas, const P *betas, T *y, T *sum,
              real *means, real *rstds, int64_t rows, int width, real eps)
{
    int64_t row = (int64_t)blockIdx.x * GROUPS + threadIdx.x / GROUP, first = row * width;
    extent e = extent_of(first, width, 0);
    begin(gammas, betas, width);
    if (row >= rows)
        e.end = 0; /* a group without a row only takes part in the reductions */
    row_in r;
    weights gamma, beta;
    r.read(x, residual, first, e);
    gamma.read(gammas, 1, e);
    beta.read(betas, 0, e);
    r.add(e);
    real per = 1 / (real)width;
    pair sums = group_reduce<0>(r.sums(e, PIVOT), two_sums());
    real shift = CENTRED ? sums.a * per : 0, var = sums.b * per - shift * shift;
    if (CENTRED && any_of_warp(shift * shift > FAR * var)) {
        r.pivot += shift;
        sums = group_reduce<1>(r.sums(e, true), two_sums());
        shift = sums.a * per;
        var = sums.b * per - shift * shift;
    }
    real rstd = rsqrt(var + eps);
    write_row(r, gamma, beta, y, sum, first, e, rstd, -shift * rstd);
    if (row < rows && threadIdx.x % GROUP == 0) {
        if (means)
            means[row] = r.pivot + shift;
        if (rstds)
            rstds[row] = rstd;
    }
}

#else

typedef vec<T, VEC> unit;

struct row_of_x {
    const T *x, *residual;
    T *sum;
    real v[PIECES][VEC];

    __device__ __forceinline__ void read(int64_t first, int from, int width, bool write)
    {
        packed<T, VEC> raw[PIECES], more[PIECES];
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < width) {
                raw[p].read(x + first + from + piece_at(p));
                if (ADD)
                    more[p].read(residual + first + from + piece_at(p));
            }
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < width) {
                raw[p].unpack(v[p]);
                if (ADD) {
                    real other[VEC];
                    more[p].unpack(other);
                    add_rounded(v[p], other);
                }
                if (ADD && write)
                    store(sum + first + from + piece_at(p), from_reals<T, VEC>(v[p]));
            }
    }
};

/* The mean has a second part, `rest`, that repairs its own rounding. */
extern "C" __global__ void __launch_bounds__(THREADS, 1)
layernorm_fwd(const T *x, const T *residual, const P *gamma, const P *beta, T *y, T *sum,
              real *means, real *rstds, int64_t rows, int width, real eps)
{
    int64_t row = (int64_t)blockIdx.x * GROUPS + threadIdx.x / GROUP, first = row * width;
    int span = row < rows ? width : 0; /* a group without a row only takes part in the reductions */
    begin(gamma, beta, width);
    row_of_x r = {x, residual, sum};
    real mean = 0;
    if (CENTRED) {
        real total = 0;
        for (int from = 0; from < span; from += SPAN) {
            r.read(first, from, span, true);
#pragma unroll
            for (int p = 0; p < PIECES; p++)
                if (from + piece_at(p) < span)
#pragma unroll
                    for (int k = 0; k < VEC; k++)
                        total += r.v[p][k];
        }
        mean = group_reduce<0>(total, sum_op()) / (real)width;
    }
    pair sums = {0, 0};
    for (int from = 0; from < span; from += SPAN) {
        r.read(first, from, span, !CENTRED);
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < span)
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    r.v[p][k] -= mean;
                    sums.a += r.v[p][k];
                    sums.b += r.v[p][k] * r.v[p][k];
                }
    }
    sums = group_reduce<1>(sums, two_sums());
    real rest = CENTRED ? sums.a / (real)width : 0;
    real rstd = 1 / sqrt(sums.b / (real)width - rest * rest + eps);
    for (int from = 0; from < span; from += SPAN) {
        r.read(first, from, span, false);
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < span) {
                real out[VEC];
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    out[k] = (r.v[p][k] - mean - rest) * rstd;
                scale_by(out, gamma, beta, from + piece_at(p));
                store(y + first + from + piece_at(p), from_reals<T, VEC>(out));
            }
    }
    if (span && threadIdx.x % GROUP == 0) {
        if (means)
            means[row] = mean + rest;
        if (rstds)
            rstds[row] = rstd;
    }
}

#endif
