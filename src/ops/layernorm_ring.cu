/* y = (x - mean) rstd gamma + beta over rows; without CENTRED the mean is not subtracted. As
 * layernorm.cu, for Hopper and later and for rows of whole 16-byte vectors:
 * blocks stay, rows come through a ring in shared memory, gamma and beta stay in registers.
 * Reads x once and writes y once. Grid: as many blocks as run at once. */
#define PIVOT 1
#include "team_ring.cuh"

#ifndef PARAM
#define PARAM CUP_T /* dtype of gamma and beta */
#endif
#ifndef CENTRED
#define CENTRED 1
#endif
#ifndef FULL
#define FULL 0 /* a row is exactly SPAN wide */
#endif
#ifndef BLOCKS
#define BLOCKS 1 /* that run at once on a multiprocessor */
#endif
#if __CUDA_ARCH__ >= 900

typedef dtype_of<PARAM>::type P;
typedef vec<T, VEC> unit;
typedef two<real> pair;

DEVICE bool has(int p, int width)
{
    return FULL || piece_at(p) < width;
}

/* Gamma and beta of this thread's columns. */
struct parameters {
    real gamma[PIECES][VEC], beta[PIECES][VEC];

    __device__ __forceinline__ void read(const P *gammas, const P *betas, int width)
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                gamma[p][k] = 1;
                beta[p][k] = 0;
            }
            if (has(p, width)) {
                scale_by(gamma[p], gammas, (const P *)nullptr, piece_at(p));
                scale_by(beta[p], (const P *)nullptr, betas, piece_at(p));
            }
        }
    }
};

/* A row, less the pivot where there is one, and the sums of that and of its squares. */
DEVICE pair read(real (&v)[PIECES][VEC], const T *from, int span, bool centre, real pivot)
{
    pair sums = {0, 0};
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (has(p, span)) {
            to_reals(load_plain<VEC>(from + piece_at(p)), v[p]);
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                if (centre)
                    v[p][k] -= pivot;
                if (CENTRED)
                    sums.a += v[p][k];
                sums.b += v[p][k] * v[p][k];
            }
        }
    return sums;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
layernorm_ring(const T *x, const P *gamma, const P *beta, T *y, real *means, real *rstds,
               int64_t rows, int width, real eps)
{
    extern __shared__ __align__(128) unsigned char places[];
    __shared__ uint64_t barriers[TEAMS * STAGES];
    team_ring<T, 1> ring;
    ring.from[0] = x;
    ring.rows = rows;
    ring.width = width;
    int64_t share = ring.begin(barriers, places);
    parameters w;
    w.read(gamma, beta, width);
    real per = 1 / (real)width;
    int within = (int)threadIdx.x % TEAM / GROUP, turn = 0;
#pragma unroll 1
    for (; share < ring.shares; share += ring.step, turn ^= 1) {
        ring.wait();
        int64_t row = share * SHARE + within;
        int span = row < rows ? width : 0;
        const T *from = ring.row(0, within);
        real v[PIECES][VEC], pivot = PIVOT && CENTRED ? to_real(from[0]) : 0;
        pair sums = read(v, from, span, PIVOT, pivot);
        sums = turn ? group_reduce<1>(sums, two_sums()) : group_reduce<0>(sums, two_sums());
        real shift = CENTRED ? sums.a * per : 0, var = sums.b * per - shift * shift;
        if (CENTRED && any_of_warp(shift * shift > FAR * var)) {
            pivot += shift;
            sums = group_reduce<2>(read(v, from, span, true, pivot), two_sums());
            shift = sums.a * per;
            var = sums.b * per - shift * shift;
        }
        ring.refill(share);
        real rstd = rsqrt(var + eps), less = -shift * rstd;
        if (row < rows) {
#pragma unroll
            for (int p = 0; p < PIECES; p++)
                if (has(p, span)) {
                    real out[VEC];
#pragma unroll
                    for (int k = 0; k < VEC; k++)
                        out[k] = (v[p][k] * rstd + less) * w.gamma[p][k] + w.beta[p][k];
                    store(y + row * width + piece_at(p), from_reals<T, VEC>(out));
                }
            if (threadIdx.x % GROUP == 0) {
                if (means)
                    means[row] = pivot + shift;
                if (rstds)
                    rstds[row] = rstd;
            }
        }
        ring.next();
    }
}

#endif
