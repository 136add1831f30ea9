/* dx = rstd (g - mean g - n mean(g n)) + dsum over rows, with g = gamma dy and n the normalised x;
 * without CENTRED the mean of g is not subtracted. Blocks stay and take rows GROUPS * gridDim
 * apart, so that each thread adds up dgamma and dbeta of its columns in registers; the next row is
 * read while one is worked on. A block writes one partial row of each, and layernorm_finish adds
 * those up in order. Reads x and dy once and writes dx once; with LONG, for rows that no group can
 * hold, the sums along rows come first, then dx together with the sums over columns. */
#include "layernorm_back.cuh"

/* Knobs: PREFETCH (0 where registers are too few for two rows), LONG. */

struct row_of_dsum {
    unit at[DSUM ? PIECES : 1];

    __device__ __forceinline__ void read(const T *dsum, int64_t row, int from, int width)
    {
#pragma unroll
        for (int p = 0; p < (DSUM ? PIECES : 0); p++)
            if (from + piece_at(p) < width)
                at[p] = load<VEC>(dsum + row * width + from + piece_at(p));
    }
};

/* One row of x and dy on its way, and what is made of it. */
struct row_of_dy {
    unit x[PIECES], dy[PIECES];
    real mean, rstd;

    __device__ __forceinline__ void read(const T *xs, const T *dys, const real *means,
                                         const real *rstds, int64_t row, int from, int width)
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < width) {
                int64_t at = row * width + from + piece_at(p);
                x[p] = load<VEC>(xs + at);
                dy[p] = load<VEC>(dys + at);
            }
        mean = CENTRED ? means[row] : 0;
        rstd = rstds[row];
    }

    __device__ __forceinline__ real normal(int p, int k) const
    {
        return (to_real(x[p].at[k]) - mean) * rstd;
    }

    __device__ __forceinline__ void scaled(int p, const P *gamma, int at, real (&g)[VEC]) const
    {
        to_reals(dy[p], g);
        scale_by(g, gamma, (const P *)nullptr, at);
    }

    __device__ __forceinline__ pair dots(const P *gamma, int from, int width) const
    {
        pair s = {0, 0};
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < width) {
                real g[VEC];
                scaled(p, gamma, from + piece_at(p), g);
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    s.a += g[k];
                    s.b += g[k] * normal(p, k);
                }
            }
        return s;
    }

    __device__ __forceinline__ void write(T *dx, const P *gamma, const row_of_dsum &more,
                                          pair means, int64_t row, int from, int width) const
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < width) {
                real g[VEC];
                scaled(p, gamma, from + piece_at(p), g);
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    g[k] = rstd * (g[k] - means.a - normal(p, k) * means.b);
                    if (DSUM)
                        g[k] += to_real(more.at[DSUM ? p : 0].at[k]);
                }
                store(dx + row * width + from + piece_at(p), from_reals<T, VEC>(g));
            }
    }
};

DEVICE pair means_of(pair sums, int width)
{
    return {CENTRED ? sums.a / (real)width : 0, sums.b / (real)width};
}

#if LONG

/* The two sums of a part of a row, `step` elements or what is left of it; a block a part. */
extern "C" __global__ void __launch_bounds__(THREADS)
layernorm_bwd_dots(const T *dy, const T *x, const real *means, const real *rstds, const P *gamma,
                   pair *dots, int width, int step, int parts)
{
    int64_t row = blockIdx.x / parts;
    int from = (int)(blockIdx.x - row * parts) * step;
    int end = width - from < step ? width : from + step;
    real rstd = rstds[row], less = CENTRED ? -means[row] * rstd : 0;
    pair sums = {0, 0};
    x += row * width;
    dy += row * width;
    for (; from < end; from += SPAN) {
        packed<T, VEC> a[PIECES], b[PIECES];
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < end) {
                a[p].read(x + from + piece_at(p));
                b[p].read(dy + from + piece_at(p));
            }
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < end) {
                real n[VEC], g[VEC];
                a[p].unpack(n);
                b[p].unpack(g);
                scale_by(g, gamma, (const P *)nullptr, from + piece_at(p));
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    sums.a += g[k];
                    sums.b += g[k] * (n[k] * rstd + less);
                }
            }
    }
    sums = group_reduce<0>(sums, two_sums());
    if (threadIdx.x == 0)
        dots[blockIdx.x] = sums;
}

/* The two means of each row, by a warp. */
extern "C" __global__ void __launch_bounds__(256)
layernorm_bwd_means(const pair *dots, pair *means, int64_t rows, int width, int parts)
{
    int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    pair sums = {0, 0};
    for (int i = (int)threadIdx.x % 32; row < rows && i < parts; i += 32)
        sums = two_sums()(sums, dots[row * parts + i]);
    sums = warp_reduce(sums, two_sums());
    if (row < rows && threadIdx.x % 32 == 0)
        means[row] = {CENTRED ? sums.a / (real)width : 0, sums.b / (real)width};
}

/* dx and the partial rows: 32 lanes side by side, 8 warps with rows of their own.
 * Grid: columns / (32 VEC), slices of rows. */
extern "C" __global__ void __launch_bounds__(256)
layernorm_bwd_columns(const T *dy, const T *x, const real *means, const real *rstds, const P *gamma,
                      const T *dsum, const pair *of_rows, T *dx, real *partial, int64_t rows,
                      int64_t slice, int width)
{
    __shared__ real shared[8][PARTS ? PARTS : 1][32 * VEC];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int column = ((int)blockIdx.x * 32 + lane) * VEC;
    real sums[2][VEC] = {}, weights[VEC];
    int64_t end = (blockIdx.y + 1) * slice < rows ? (blockIdx.y + 1) * slice : rows;
#pragma unroll
    for (int k = 0; k < VEC; k++)
        weights[k] = 1;
    if (column < width)
        scale_by(weights, gamma, (const P *)nullptr, column);
#pragma unroll 4
    for (int64_t row = blockIdx.y * slice + warp; row < end; row += 8)
        if (column < width) {
            int64_t at = row * width + column;
            packed<T, VEC> a, b, more;
            a.read(x + at);
            b.read(dy + at);
            if (DSUM)
                more.read(dsum + at);
            real rstd = rstds[row], less = CENTRED ? -means[row] * rstd : 0;
            pair m = of_rows[row];
            real n[VEC], d[VEC], out[VEC], plus[VEC];
            a.unpack(n);
            b.unpack(d);
            if (DSUM)
                more.unpack(plus);
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                n[k] = n[k] * rstd + less;
                sums[0][k] += d[k] * n[k];
                sums[1][k] += d[k];
                out[k] = rstd * (d[k] * weights[k] - (m.a + n[k] * m.b));
                if (DSUM)
                    out[k] += plus[k];
            }
            store(dx + at, from_reals<T, VEC>(out));
        }
    if (!PARTS)
        return;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            shared[warp][part][lane * VEC + k] = sums[part][k];
    __syncthreads();
    for (int i = threadIdx.x; i < PARTS * 32 * VEC; i += 256) {
        int part = i / (32 * VEC), at = i % (32 * VEC), to = (int)blockIdx.x * 32 * VEC + at;
        real sum = 0;
        for (int w = 0; w < 8; w++)
            sum += shared[w][part][at];
        if (to < width)
            partial[((int64_t)blockIdx.y * PARTS + part) * width + to] = sum;
    }
}

#else

/* dgamma and dbeta of this thread's columns. */
struct column_sums {
    real at[PARTS ? PARTS : 1][PIECES][VEC];

    __device__ __forceinline__ void add(const row_of_dy &r, int width)
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (piece_at(p) < width)
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    real dy = to_real(r.dy[p].at[k]);
                    at[0][p][k] += dy * r.normal(p, k);
                    if (PARTS > 1)
                        at[PARTS - 1][p][k] += dy;
                }
    }

    /* Adds up the groups of the block, one after the other, in shared memory. */
    __device__ __forceinline__ void write(real *partial, real *shared, int width) const
    {
        for (int group = 0; group < GROUPS; group++) {
            __syncthreads();
            if ((int)threadIdx.x / GROUP != group)
                continue;
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int p = 0; p < PIECES; p++)
                    if (piece_at(p) < width)
#pragma unroll
                        for (int k = 0; k < VEC; k++) {
                            real *to = shared + part * width + piece_at(p) + k;
                            *to = at[part][p][k] + (group ? *to : 0);
                        }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < PARTS * width; i += THREADS)
            partial[(int64_t)blockIdx.x * PARTS * width + i] = shared[i];
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
layernorm_bwd(const T *dy, const T *x, const real *means, const real *rstds, const P *gamma,
              const T *dsum, T *dx, real *partial, int64_t rows, int width)
{
    extern __shared__ real shared[];
    int64_t step = (int64_t)gridDim.x * GROUPS;
    int64_t row = (int64_t)blockIdx.x * GROUPS + threadIdx.x / GROUP;
    /* All groups of a block go round equally often, as their warps shuffle together. */
    int64_t rounds = (rows + step - 1) / step;
    column_sums columns = {};
    row_of_dy now, next = {};
    if (PREFETCH && row < rows)
        next.read(x, dy, means, rstds, row, 0, width);
#pragma unroll 1
    for (int64_t round = 0; round < rounds; round++, row += step) {
        int span = row < rows ? width : 0;
        if (PREFETCH)
            now = next;
        else if (row < rows)
            now.read(x, dy, means, rstds, row, 0, width);
        if (PREFETCH && row + step < rows)
            next.read(x, dy, means, rstds, row + step, 0, width);
        row_of_dsum more;
        more.read(dsum, row, 0, span);
        pair sums = now.dots(gamma, 0, span), mean;
        mean = means_of(round & 1 ? group_reduce<1>(sums, two_sums())
                                  : group_reduce<0>(sums, two_sums()),
                        width);
        now.write(dx, gamma, more, mean, row, 0, span);
        if (PARTS)
            columns.add(now, span);
    }
    if (PARTS)
        columns.write(partial, shared, width);
}

#endif
