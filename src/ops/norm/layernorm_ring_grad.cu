/* dx = rstd (g - mean g - n mean(g n)) + dsum over rows, with g = gamma dy and n the normalised x;
 * without CENTRED the mean of g is not subtracted. As layernorm_grad.cu, for Hopper and later and
 * for rows of whole 16-byte vectors: blocks stay, rows come through a ring in shared memory, and
 * each thread adds up dgamma and dbeta of its columns in registers. A block writes one partial row
 * of each, which layernorm_finish adds up. Reads x and dy once and writes dx once. */
#include "layernorm_back.cuh"
#include "team_ring.cuh"

/* Knobs: FULL (a row is exactly SPAN wide), AGAIN (a row is read and worked on again, where
 * registers are too few to keep it). */
#ifndef BLOCKS
#define BLOCKS 1 /* that run at once on a multiprocessor */
#endif
#define SUMS (PARTS ? PARTS : 1)
#define KEPT (AGAIN ? 1 : PIECES)

#if __CUDA_ARCH__ >= 900

DEVICE bool has(int p, int width)
{
    return FULL || piece_at(p) < width;
}

/* What a thread keeps from row to row. */
struct columns {
    const P *gamma;
    packed<P, VEC> gammas[PIECES];
    real sums[SUMS][PIECES][VEC];

    __device__ __forceinline__ void read(int width)
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (gamma && has(p, width))
                gammas[p].read(gamma + piece_at(p));
            else
                gammas[p].set(1);
    }

    __device__ __forceinline__ void scale(int p, real (&v)[VEC]) const
    {
        real w[VEC];
        gammas[p].unpack(w);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v[k] *= w[k];
    }

    /* The teams' sums side by side in shared memory, then added up in order. */
    __device__ __forceinline__ void write(real *partial, real *shared, int width) const
    {
        const int groups = THREADS / GROUP;
        real *mine = shared + (int)threadIdx.x / GROUP * PARTS * width;
        __syncthreads();
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int p = 0; p < PIECES; p++)
                if (has(p, width))
#pragma unroll
                    for (int k = 0; k < VEC; k++)
                        mine[part * width + piece_at(p) + k] = sums[part][p][k];
        __syncthreads();
        for (int i = threadIdx.x; i < PARTS * width; i += THREADS) {
            real sum = shared[i];
#pragma unroll 4
            for (int group = 1; group < groups; group++)
                sum += shared[group * PARTS * width + i];
            partial[(int64_t)blockIdx.x * PARTS * width + i] = sum;
        }
    }
};

DEVICE void normalise(real (&n)[VEC], const T *row, int p, real rstd, real less)
{
    to_reals(load_plain<VEC>(row + piece_at(p)), n);
#pragma unroll
    for (int k = 0; k < VEC; k++)
        n[k] = n[k] * rstd + less;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
layernorm_ring_bwd(const T *dy, const T *x, const real *means, const real *rstds, const P *gamma,
                   const T *dsum, T *dx, real *partial, int64_t rows, int width)
{
    extern __shared__ __align__(128) unsigned char places[];
    __shared__ uint64_t barriers[TEAMS * STAGES];
    team_ring<T, 2 + DSUM> ring;
    ring.from[0] = x;
    ring.from[1] = dy;
    if (DSUM)
        ring.from[1 + DSUM] = dsum;
    ring.rows = rows;
    ring.width = width;
    int64_t share = ring.begin(barriers, places);
    let_next_kernel_start();
    columns w;
#pragma unroll
    for (int i = 0; i < SUMS * PIECES * VEC; i++)
        (&w.sums[0][0][0])[i] = 0;
    w.gamma = gamma;
    w.read(width);
    real per = 1 / (real)width;
    int within = (int)threadIdx.x % TEAM / GROUP, turn = 0;
    int64_t row = share * SHARE + within;
    real next_mean = CENTRED && row < rows ? means[row] : 0;
    real next_rstd = row < rows ? rstds[row] : 0;
#pragma unroll 1
    for (; share < ring.shares; share += ring.step, turn ^= 1) {
        row = share * SHARE + within;
        bool here = row < rows;
        int span = here ? width : 0;
        real mean = next_mean, rstd = next_rstd;
        int64_t after = row + ring.step * SHARE;
        if (after < rows) {
            next_mean = CENTRED ? means[after] : 0;
            next_rstd = rstds[after];
        }
        ring.wait();
        const T *x_row = ring.row(0, within), *dy_row = ring.row(1, within);
        real n[KEPT][VEC], g[KEPT][VEC], less = -mean * rstd;
        pair sums = {0, 0}, odd = {0, 0};
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (has(p, span)) {
                int at = AGAIN ? 0 : p;
                normalise(n[at], x_row, p, rstd, less);
                to_reals(load_plain<VEC>(dy_row + piece_at(p)), g[at]);
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    if (PARTS && (!FULL || GROUP >= 32 || here))
                        w.sums[0][p][k] += g[at][k] * n[at][k];
                    if (PARTS > 1 && (!FULL || GROUP >= 32 || here))
                        w.sums[SUMS - 1][p][k] += g[at][k];
                }
                w.scale(p, g[at]);
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    pair &into = k % 2 ? odd : sums;
                    into.a += g[at][k];
                    into.b += g[at][k] * n[at][k];
                }
            }
        sums = two_sums()(sums, odd);
        sums = turn ? group_reduce<1>(sums, two_sums()) : group_reduce<0>(sums, two_sums());
        if (!DSUM && !AGAIN)
            ring.refill(share);
        real mean_g = CENTRED ? rstd * sums.a * per : 0, mean_gn = rstd * sums.b * per;
        if (here)
#pragma unroll
            for (int p = 0; p < PIECES; p++)
                if (has(p, span)) {
                    int at = AGAIN ? 0 : p;
                    real out[VEC];
                    if (AGAIN) {
                        normalise(n[at], x_row, p, rstd, less);
                        to_reals(load_plain<VEC>(dy_row + piece_at(p)), g[at]);
                        w.scale(p, g[at]);
                    }
#pragma unroll
                    for (int k = 0; k < VEC; k++)
                        out[k] = rstd * g[at][k] - (mean_g + n[at][k] * mean_gn);
                    if (DSUM) {
                        real more[VEC];
                        to_reals(load_plain<VEC>(ring.row(1 + DSUM, within) + piece_at(p)), more);
#pragma unroll
                        for (int k = 0; k < VEC; k++)
                            out[k] += more[k];
                    }
                    store(dx + row * width + piece_at(p), from_reals<T, VEC>(out));
                }
        if (DSUM || AGAIN) {
            team_barrier();
            ring.refill(share);
        }
        ring.next();
    }
    if (PARTS)
        w.write(partial, (real *)places, width);
}

#endif
