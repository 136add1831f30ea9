/* Running sums along the middle of [outer, length, inner], from the end backwards with REVERSE.
 *
 * cumsum_rows, inner 1: GROUP threads a chunk of a row, VEC elements each at a time, the group's
 * running sum carried on. cumsum_columns: a thread for VEC neighbouring columns, UNROLL rows at a
 * time. With SUMS the kernels write the sum of each chunk only; without, a chunk begins with what
 * the chunks before it sum up to, added in a fixed order. Grid: chunks of all rows or columns.
 * Bytes: x once, with several chunks twice, y once. */
#include "cumsum_call.cuh"
#include "scan.cuh"

#ifndef GROUP
#define GROUP 256 /* threads of a row: a power of two up to 32, or all of the block */
#endif
#ifndef VEC
#define VEC 4
#endif
#ifndef REVERSE
#define REVERSE 0
#endif
#ifndef SUMS
#define SUMS 0
#endif
#ifndef COLUMNS
#define COLUMNS 0
#endif
#define THREADS CUMSUM_THREADS
#define UNROLL 8

template <typename Real> struct total_of { typedef int64_t type; };
template <> struct total_of<float> { typedef float type; };
template <> struct total_of<double> { typedef double type; };
typedef total_of<real>::type total;

#if !COLUMNS

/* The sum of the group's values before this thread, and of all. */
DEVICE total group_scan(total value, total *all)
{
#if GROUP == THREADS
    return block_scan<THREADS>(value, all);
#else
    int lane = (int)threadIdx.x % GROUP;
    total own = value;
#pragma unroll
    for (int distance = 1; distance < GROUP; distance *= 2) {
        total before = shuffle_up(own, distance);
        if (lane >= distance)
            own = before + own;
    }
    total before = shuffle_up(own, 1);
    *all = shuffle_from(own, (int)threadIdx.x % 32 / GROUP * GROUP + GROUP - 1);
    return lane ? before : (total)0;
#endif
}

/* What the chunks before this one sum up to; only with a block for each. */
DEVICE total sum_before(const cumsum_call &c, int64_t row, int64_t chunk)
{
    total sum = 0;
    const total *sums = (const total *)c.sums + row * c.chunks;
    for (int64_t i = threadIdx.x; i < chunk; i += THREADS)
        sum += sums[i];
    return block_sum(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
cumsum_rows(const __grid_constant__ cumsum_call c)
{
    int64_t unit = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / GROUP;
    int64_t row = unit / c.chunks, chunk = unit % c.chunks;
    bool there = row < c.outer; /* all must take part in what the block does together */
    int64_t begin = chunk * c.chunk, end = begin + c.chunk < c.length ? begin + c.chunk : c.length;
    const T *x = (const T *)c.x + row * c.length;
    total sum = 0;
    if (GROUP == THREADS && !SUMS && c.chunks > 1)
        sum = sum_before(c, row, chunk);
    for (int64_t first = begin; first < end; first += GROUP * VEC) {
        int64_t at = first + (int)threadIdx.x % GROUP * VEC;
        int64_t from = REVERSE ? c.length - VEC - at : at;
        bool valid = there && at < end;
        total v[VEC], all, own = 0;
        vec<T, VEC> in;
        if (valid)
            in = load_once<VEC>(x + from);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            own += valid ? (total)to_real(in.at[REVERSE ? VEC - 1 - k : k]) : (total)0;
            v[k] = own;
        }
        total before = sum + group_scan(own, &all);
        sum += all;
        if (SUMS || !valid)
            continue;
        vec<T, VEC> out;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            out.at[REVERSE ? VEC - 1 - k : k] = convert<T>(before + v[k]);
        store((T *)c.y + row * c.length + from, out);
    }
    if (SUMS && there && threadIdx.x % GROUP == 0)
        ((total *)c.sums)[unit] = sum;
}

#else

extern "C" __global__ void __launch_bounds__(THREADS)
cumsum_columns(const __grid_constant__ cumsum_call c)
{
    int64_t lanes = c.inner / VEC, index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t column = index % lanes * VEC, unit = index / lanes;
    int64_t row = unit / c.chunks, chunk = unit % c.chunks;
    if (row >= c.outer)
        return;
    int64_t begin = chunk * c.chunk, end = begin + c.chunk < c.length ? begin + c.chunk : c.length;
    int64_t step = REVERSE ? -c.inner : c.inner;
    int64_t start = (row * c.length + (REVERSE ? c.length - 1 - begin : begin)) * c.inner + column;
    const T *x = (const T *)c.x + start;
    total sum[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++)
        sum[k] = 0;
    for (int64_t i = 0; i < chunk && !SUMS; i++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum[k] += ((const total *)c.sums)[(row * c.chunks + i) * c.inner + column + k];
    for (int64_t at = begin; at < end; at += UNROLL, start += UNROLL * step, x += UNROLL * step) {
        vec<T, VEC> in[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (at + u < end)
                in[u] = load_once<VEC>(x + u * step);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (at + u >= end)
                break;
            vec<T, VEC> out;
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                sum[k] += (total)to_real(in[u].at[k]);
                out.at[k] = convert<T>(sum[k]);
            }
            if (!SUMS)
                store((T *)c.y + start + u * step, out);
        }
    }
    if (SUMS)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            ((total *)c.sums)[(row * c.chunks + chunk) * c.inner + column + k] = sum[k];
}

#endif
