/* Softmax, or with LOG its logarithm, of rows; a group of GROUP threads holds a row in registers,
 * so x is read once and y written once. With LONG the row does not fit and is read twice. Backward,
 * with GRAD, is y (dy - sum y dy), or dy - exp(y) sum dy. Grid: GROUPS rows a block.
 * With COLUMNS the elements of a line are `inner` apart: 32 lines side by side and 8 warps that go
 * down them together; the lines are read twice. */
#include "online.cuh"

/* A knob: LOG. */
#ifndef LONG
#define LONG 0
#endif

typedef vec<T, VEC> unit;

DEVICE real outcome(real x, online all, real scale)
{
    return LOG ? (x - all.most) - scale : exp_of(x - all.most) * scale;
}

/* What every element is scaled by, or has taken from it. */
DEVICE real scale_of(online all)
{
    return LOG ? log_of(all.sum) : 1 / all.sum;
}

struct row {
    unit raw[PIECES];

    __device__ __forceinline__ void read(const T *x, int from, int width)
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < width)
                raw[p] = load<VEC>(x + from + piece_at(p));
    }

    __device__ __forceinline__ real largest(int from, int width) const
    {
        real most = lowest(real());
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < width)
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    most = maximum(most, to_real(raw[p].at[k]));
        return most;
    }

    __device__ __forceinline__ real exponentials(int from, int width, real most) const
    {
        real sum = 0;
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < width)
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    sum += exp_of(to_real(raw[p].at[k]) - most);
        return sum;
    }
};

#if !defined(COLUMNS) && !defined(GRAD)

#if LONG

extern "C" __global__ void __launch_bounds__(THREADS, 1)
softmax_fwd(const T *x, T *y, int64_t rows, int width)
{
    int64_t at = (int64_t)blockIdx.x * GROUPS + threadIdx.x / GROUP;
    int span = at < rows ? width : 0;
    x += at * width;
    y += at * width;
    row r;
    online all = {lowest(real()), 0};
    for (int from = 0; from < span; from += SPAN) {
        r.read(x, from, span);
        real most = r.largest(from, span);
        all.take(most, r.exponentials(from, span, most));
    }
    all = group_reduce<0>(all, online_op());
    real scale = scale_of(all);
    for (int from = 0; from < span; from += SPAN) {
        r.read(x, from, span);
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < span) {
                real out[VEC];
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    out[k] = outcome(to_real(r.raw[p].at[k]), all, scale);
                store(y + from + piece_at(p), from_reals<T, VEC>(out));
            }
    }
}

#else

/* What the result is made of, kept in registers: the exponentials, or the distances to the largest
 * element. */
DEVICE real weigh(real (&e)[VEC], const unit &raw, real most)
{
    real sum = 0;
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        real distance = to_real(raw.at[k]) - most, term = exp_of(distance);
        e[k] = LOG ? distance : term;
        sum += term;
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
softmax_fwd(const T *x, T *y, int64_t rows, int width)
{
    int64_t at = (int64_t)blockIdx.x * GROUPS + threadIdx.x / GROUP;
    int span = at < rows ? width : 0;
    row r;
    r.read(x + at * width, 0, span);
    real most = group_reduce<0>(r.largest(0, span), max_op()), e[PIECES][VEC], sum = 0;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (piece_at(p) < span)
            sum += weigh(e[p], r.raw[p], most);
    real scale = scale_of({most, group_reduce<1>(sum, sum_op())});
    y += at * width;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (piece_at(p) < span) {
#pragma unroll
            for (int k = 0; k < VEC; k++)
                e[p][k] = LOG ? e[p][k] - scale : e[p][k] * scale;
            store(y + piece_at(p), from_reals<T, VEC>(e[p]));
        }
}

#endif

#elif !defined(COLUMNS)

typedef packed<T, VEC> whole;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
softmax_bwd(const T *y, const T *dy, T *dx, int64_t rows, int width)
{
    int64_t at = (int64_t)blockIdx.x * GROUPS + threadIdx.x / GROUP;
    int span = at < rows ? width : 0;
    y += at * width;
    dy += at * width;
    dx += at * width;
    whole a[PIECES], b[PIECES];
    real sum = 0;
    for (int from = 0; from < span; from += SPAN) {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < span) {
                a[p].read(y + from + piece_at(p));
                b[p].read(dy + from + piece_at(p));
            }
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < span) {
                real u[VEC], d[VEC];
                a[p].unpack(u);
                b[p].unpack(d);
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    sum += LOG ? d[k] : u[k] * d[k];
            }
        if (!LONG)
            break;
    }
    sum = group_reduce<0>(sum, sum_op());
    for (int from = 0; from < span; from += SPAN) {
#pragma unroll
        for (int p = 0; p < (LONG ? PIECES : 0); p++)
            if (from + piece_at(p) < span) {
                a[p].read(y + from + piece_at(p));
                b[p].read(dy + from + piece_at(p));
            }
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < span) {
                real u[VEC], d[VEC], out[VEC];
                a[p].unpack(u);
                b[p].unpack(d);
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    out[k] = LOG ? d[k] - exp_of(u[k]) * sum : u[k] * (d[k] - sum);
                store(dx + from + piece_at(p), from_reals<T, VEC>(out));
            }
        if (!LONG)
            break;
    }
}

#else

/* The line of this thread: `outer` of them follow each other, `inner` side by side. */
struct line {
    int64_t first, length, inner;
    int slot, lane;
    bool inside;

    __device__ __forceinline__ line(int64_t length_, int64_t inner_)
    {
        int64_t tiles = (inner_ + 31) / 32, outer = blockIdx.x / tiles;
        slot = (int)threadIdx.x / 32;
        lane = (int)threadIdx.x % 32;
        int64_t column = (blockIdx.x - outer * tiles) * 32 + lane;
        length = length_;
        inner = inner_;
        first = outer * length * inner + column;
        inside = column < inner;
    }
};

/* Joins what the 8 warps found of each line; all get the result. */
template <typename Value, typename Op> DEVICE Value join_warps(Value value, const line &l, Op op)
{
    __shared__ alignas(alignof(Value)) unsigned char memory[256 * sizeof(Value)];
    Value *shared = (Value *)memory;
    shared[threadIdx.x] = value;
    __syncthreads();
    value = shared[l.lane];
    for (int slot = 1; slot < 8; slot++)
        value = op(value, shared[slot * 32 + l.lane]);
    return value;
}

extern "C" __global__ void __launch_bounds__(256, 1)
softmax_columns_fwd(const T *x, T *y, int64_t length, int64_t inner)
{
    line l(length, inner);
    online all = {lowest(real()), 0};
    if (l.inside)
#pragma unroll 4
        for (int64_t k = l.slot; k < length; k += 8)
            all.take(to_real(x[l.first + k * inner]), 1);
    all = join_warps(all, l, online_op());
    real scale = scale_of(all);
    if (l.inside)
#pragma unroll 4
        for (int64_t k = l.slot; k < length; k += 8)
            y[l.first + k * inner] =
                from_real<T>(outcome(to_real(x[l.first + k * inner]), all, scale));
}

extern "C" __global__ void __launch_bounds__(256, 1)
softmax_columns_bwd(const T *y, const T *dy, T *dx, int64_t length, int64_t inner)
{
    line l(length, inner);
    real sum = 0;
    if (l.inside)
#pragma unroll 4
        for (int64_t k = l.slot; k < length; k += 8)
            sum += to_real(dy[l.first + k * inner]) *
                   (LOG ? (real)1 : to_real(y[l.first + k * inner]));
    sum = join_warps(sum, l, sum_op());
    if (l.inside)
#pragma unroll 4
        for (int64_t k = l.slot; k < length; k += 8) {
            real u = to_real(y[l.first + k * inner]), d = to_real(dy[l.first + k * inner]);
            dx[l.first + k * inner] = from_real<T>(LOG ? d - exp_of(u) * sum : u * (d - sum));
        }
}

#endif
