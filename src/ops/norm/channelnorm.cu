/* Batchnorm and groupnorm, forward and, with BACK, backward: partial sums (a group of threads a
 * part of a plane, or a block a tile of columns), of which channelnorm_finish.cu makes statistics,
 * and the result, which takes x in reverse order, as its end is still in the L2 cache.
 * Reads x (and dy) twice and writes once. What follows batchnorm is made on the way: with RELU a
 * relu, which leaves a bit for each element of the result that is above 0, and with RESIDUAL a
 * tensor that is added before it. Backward dy counts where its bit is set, and is what goes back
 * to the residual. */
#include "channels.cuh"
#include "hopper.cuh"

/* Knobs: LANES (threads side by side along the columns), RELU, RESIDUAL. */
#define ROWS (THREADS / LANES)
#define UNROLL 4
#define PAIRED (VEC == 4 && LANES > 1) /* whether two threads have 8 neighbours of a row */

typedef dtype_of<PARAM>::type P;
typedef packed<T, VEC> unit;
typedef two<real> pair;

/* A vector's bits stand in one byte, as vectors begin at multiples of their length. */
DEVICE unsigned bits_at(const unsigned char *mask, int64_t at)
{
    return RELU ? (unsigned)mask[at / 8] >> (at % 8) : ~0u;
}

/* What flows back through the relu. */
DEVICE void let_through(real (&dy)[VEC], unsigned bits)
{
#pragma unroll
    for (int k = 0; k < VEC; k++)
        dy[k] = !RELU || (bits >> k & 1) ? dy[k] : (real)0;
}

/* The result of a vector to its place; where one is a byte of bits, or with `Paired` two of threads
 * beside each other, which then both come here, these too. */
template <bool Paired> DEVICE void put(T *out, unsigned char *mask, int64_t at, real (&v)[VEC])
{
#if RELU && !BACK
#pragma unroll
    for (int k = 0; k < VEC; k++)
        v[k] = v[k] < 0 ? (real)0 : v[k];
#endif
    vec<T, VEC> rounded = from_reals<T, VEC>(v);
#if RELU && !BACK
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < VEC; k++)
        bits |= to_real(rounded.at[k]) > 0 ? 1u << k : 0;
    if (Paired && mask)
        bits |= __shfl_down_sync(3u << (threadIdx.x % 32 & ~1u), bits, 1) << 4;
    if (mask && (VEC == 8 || (Paired && threadIdx.x % 2 == 0)))
        mask[at / 8] = (unsigned char)bits;
#endif
    store(out + at, rounded);
}

/* Of one thread's numbers: moments, or sums of dy and dy times the normalised x. */
struct sums {
#if BACK
    real mean, rstd;
    pair s;
    __device__ __forceinline__ void begin(real) { s = {0, 0}; }
    __device__ __forceinline__ void add(real x, real dy)
    {
        s.a += dy;
        s.b += dy * ((x - mean) * rstd);
    }
    typedef pair total;
    typedef two_sums merge;
    __device__ __forceinline__ pair result(real) const { return s; }
    static __device__ __forceinline__ pair partial(pair t) { return t; }
#else
    moments_sum s;
    __device__ __forceinline__ void begin(real first) { s = {first, 0, 0}; }
    __device__ __forceinline__ void add(real x, real) { s.add(x); }
    typedef moments total;
    typedef merge_moments merge;
    __device__ __forceinline__ moments result(real n) const { return s.result(n); }
    static __device__ __forceinline__ pair partial(moments t) { return {t.mean, t.squares}; }
#endif
};

/* The part of a plane that a group of threads works on. */
struct plane_part {
    unsigned instance, channel;
    int64_t first;
    int count;

    __device__ __forceinline__ plane_part(const channels_call &c, unsigned task)
    {
        unsigned plane = task / c.parts, part = task % c.parts;
        channel = plane % c.channels;
        instance = plane / c.channels / (unsigned)c.before;
        first = (int64_t)plane * c.after + (int64_t)part * c.part;
        long long left = c.after - (long long)part * c.part;
        count = task >= c.tasks ? 0 : left < c.part ? (int)left : (int)c.part;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
channel_sums_planes(const __grid_constant__ channels_call c, const T *x, const T *dy,
                    const unsigned char *mask, const real *mean, const real *rstd, pair *partial)
{
    unsigned task = blockIdx.x * GROUPS + threadIdx.x / GROUP;
    plane_part part(c, task);
    sums s;
    int mine = 0;
    x += part.first;
    dy += part.first;
#if BACK
    unsigned at = statistic_of(c, part.instance, part.channel);
    s.mean = part.count ? mean[at] : 0;
    s.rstd = part.count ? rstd[at] : 0;
#endif
    let_next_kernel_start();
    s.begin(piece_at(0) < part.count ? to_real(x[piece_at(0)]) : 0);
    for (int from = 0; from < part.count; from += SPAN) {
        unit a[PIECES], b[PIECES];
        unsigned bits[PIECES];
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < part.count) {
                a[p].read(x + from + piece_at(p));
                if (BACK) {
                    b[p].read(dy + from + piece_at(p));
                    bits[p] = bits_at(mask, part.first + from + piece_at(p));
                }
            }
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < part.count) {
                real vx[VEC], vdy[VEC] = {};
                mine += VEC;
                a[p].unpack(vx);
                if (BACK) {
                    b[p].unpack(vdy);
                    let_through(vdy, bits[p]);
                }
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    s.add(vx[k], vdy[k]);
            }
    }
    sums::total total = group_reduce<0>(s.result((real)mine), sums::merge());
    if (part.count && threadIdx.x % GROUP == 0)
        partial[task] = sums::partial(total);
}

/* The tile of columns and the slice of rows that a block works on. */
struct column_tile {
    unsigned instance, line;
    int64_t first, end; /* rows, of all instances */
    unsigned column;    /* this thread's first */

    __device__ __forceinline__ column_tile(const channels_call &c, unsigned task)
    {
        unsigned at = task / c.tiles;
        line = at % c.lines;
        instance = at / c.lines;
        column = (task % c.tiles * LANES + threadIdx.x % LANES) * VEC;
        int64_t rows = c.before - (int64_t)line * c.line;
        first = instance * c.before + (int64_t)line * c.line;
        end = first + (rows < (int64_t)c.line ? rows : (int64_t)c.line);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
channel_sums_columns(const __grid_constant__ channels_call c, const T *x, const T *dy,
                     const unsigned char *mask, const real *mean, const real *rstd, pair *partial)
{
    __shared__ sums::total shared[ROWS][LANES * VEC + 1];
    let_next_kernel_start();
    column_tile tile(c, blockIdx.x);
    int lane = threadIdx.x % LANES, line = threadIdx.x / LANES, mine = 0;
    int64_t row = tile.first + line;
    sums s[VEC];
    if (tile.column < c.channels && row < tile.end) {
        vec<T, VEC> first = load<VEC>(x + row * c.channels + tile.column);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
#if BACK
            s[k].mean = mean[statistic_of(c, tile.instance, tile.column + k)];
            s[k].rstd = rstd[statistic_of(c, tile.instance, tile.column + k)];
#endif
            s[k].begin(to_real(first.at[k]));
        }
        for (; row < tile.end; row += UNROLL * ROWS) {
            unit a[UNROLL], b[UNROLL];
            unsigned bits[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (row + u * ROWS < tile.end) {
                    int64_t at = (row + u * ROWS) * c.channels + tile.column;
                    a[u].read(x + at);
                    if (BACK) {
                        b[u].read(dy + at);
                        bits[u] = bits_at(mask, at);
                    }
                }
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (row + u * ROWS < tile.end) {
                    real vx[VEC], vdy[VEC] = {};
                    mine++;
                    a[u].unpack(vx);
                    if (BACK) {
                        b[u].unpack(vdy);
                        let_through(vdy, bits[u]);
                    }
#pragma unroll
                    for (int k = 0; k < VEC; k++)
                        s[k].add(vx[k], vdy[k]);
                }
        }
    } else {
#pragma unroll
        for (int k = 0; k < VEC; k++)
            s[k].begin(0);
    }
#pragma unroll
    for (int k = 0; k < VEC; k++)
        shared[line][lane * VEC + k] = s[k].result((real)mine);
    for (int half = ROWS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (line < half)
#pragma unroll
            for (int k = 0; k < VEC; k++)
                shared[line][lane * VEC + k] = sums::merge()(
                    shared[line][lane * VEC + k], shared[line + half][lane * VEC + k]);
    }
    if (line == 0 && tile.column < c.channels) {
        unsigned to = (tile.instance * c.lines + tile.line) * c.channels + tile.column;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            partial[to + k] = sums::partial(shared[0][lane * VEC + k]);
    }
}

#if BACK

/* What a backward pass multiplies with, and what it adds. */
struct factors {
    real scale, slope, shift, mean;

    __device__ __forceinline__ factors() {}
    __device__ __forceinline__ factors(const channels_call &c, unsigned instance, unsigned channel,
                                       const real *means, const real *rstds, const P *gamma,
                                       const pair *means_of)
    {
        unsigned at = statistic_of(c, instance, channel);
        pair m = c.constant ? pair{0, 0} : means_of[at];
        mean = means[at];
        scale = param(gamma, channel, 1) * rstds[at];
        slope = -rstds[at] * rstds[at] * m.b;
        shift = -rstds[at] * m.a;
    }
    __device__ __forceinline__ real apply(real x, real dy) const
    {
        return dy * scale + ((x - mean) * slope + shift);
    }
};

#else

struct factors {
    real scale, shift, mean;

    __device__ __forceinline__ factors() {}
    __device__ __forceinline__ factors(const channels_call &c, unsigned instance, unsigned channel,
                                       const real *means, const real *rstds, const P *gamma,
                                       const P *beta)
    {
        unsigned at = statistic_of(c, instance, channel);
        mean = means[at];
        scale = param(gamma, channel, 1) * rstds[at];
        shift = param(beta, channel, 0);
    }
    __device__ __forceinline__ real apply(real x, real residual) const
    {
        real y = (x - mean) * scale + shift;
        return RESIDUAL ? y + residual : y;
    }
};

#endif

#define SECOND (BACK || RESIDUAL) /* there is dy, or what is added */

/* What `other` of the kernels below is: beta, or means of gradients. */
#if BACK
typedef pair more;
#else
typedef P more;
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
channel_apply_planes(const __grid_constant__ channels_call c, const T *x, const T *second,
                     unsigned char *mask, const real *mean, const real *rstd, const P *gamma,
                     const more *other, T *out, T *dresidual)
{
    unsigned task = (gridDim.x - 1 - blockIdx.x) * GROUPS + threadIdx.x / GROUP;
    if (task >= c.tasks)
        return;
    plane_part part(c, task);
    unit a[PIECES], b[PIECES];
    unsigned bits[PIECES];
    factors f;
    for (int from = 0; from < part.count; from += SPAN) {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < part.count) {
                a[p].read(x + part.first + from + piece_at(p));
                if (SECOND)
                    b[p].read(second + part.first + from + piece_at(p));
                if (BACK)
                    bits[p] = bits_at(mask, part.first + from + piece_at(p));
            }
        if (from == 0) {
            wait_for_previous_kernel();
            f = factors(c, part.instance, part.channel, mean, rstd, gamma, other);
        }
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < part.count) {
                real v[VEC], w[VEC] = {};
                a[p].unpack(v);
                if (SECOND)
                    b[p].unpack(w);
                if (BACK)
                    let_through(w, bits[p]);
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    v[k] = f.apply(v[k], w[k]);
                put<false>(out, mask, part.first + from + piece_at(p), v);
                if (BACK && RESIDUAL)
                    store(dresidual + part.first + from + piece_at(p), from_reals<T, VEC>(w));
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
channel_apply_columns(const __grid_constant__ channels_call c, const T *x, const T *second,
                      unsigned char *mask, const real *mean, const real *rstd, const P *gamma,
                      const more *other, T *out, T *dresidual)
{
    column_tile tile(c, gridDim.x - 1 - blockIdx.x);
    wait_for_previous_kernel();
    if (tile.column >= c.channels)
        return;
    factors f[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++)
        f[k] = factors(c, tile.instance, tile.column + k, mean, rstd, gamma, other);
    for (int64_t row = tile.first + threadIdx.x / LANES; row < tile.end; row += UNROLL * ROWS) {
        unit a[UNROLL], b[UNROLL];
        unsigned bits[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (row + u * ROWS < tile.end) {
                int64_t at = (row + u * ROWS) * c.channels + tile.column;
                a[u].read(x + at);
                if (SECOND)
                    b[u].read(second + at);
                if (BACK)
                    bits[u] = bits_at(mask, at);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (row + u * ROWS < tile.end) {
                int64_t at = (row + u * ROWS) * c.channels + tile.column;
                real v[VEC], w[VEC] = {};
                a[u].unpack(v);
                if (SECOND)
                    b[u].unpack(w);
                if (BACK)
                    let_through(w, bits[u]);
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    v[k] = f[k].apply(v[k], w[k]);
                put<PAIRED>(out, VEC == 8 || c.channels % 8 == 0 ? mask : NULL, at, v);
                if (BACK && RESIDUAL)
                    store(dresidual + at, from_reals<T, VEC>(w));
            }
    }
}

/* The bits of a result whose vectors are no bytes of them. */
extern "C" __global__ void __launch_bounds__(THREADS)
channel_mask(const T *y, int64_t count, unsigned char *mask)
{
    int64_t byte = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        if (byte * 8 + k < count && to_real(y[byte * 8 + k]) > 0)
            bits |= 1u << k;
    if (byte * 8 < count)
        mask[byte] = (unsigned char)bits;
}
