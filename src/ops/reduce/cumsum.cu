/* Running sums along the middle of [outer, length, inner], from the end backwards with REVERSE.
 *
 * cumsum_rows, inner 1: GROUP threads a chunk of a row, VEC elements each at a time, the group's
 * running sum carried on. cumsum_columns: a thread for VEC neighbouring columns, UNROLL rows at a
 * time. With SUMS the kernels write the sum of each chunk only; these are then summed up by
 * themselves, and without SUMS a chunk begins with the sum of those before it; the last chunks
 * come first, as these were read last and are in the L2 cache. All orders are fixed. Grid: chunks
 * of all rows or columns. Bytes: x once, with several chunks twice, y once. */
#include "cumsum_call.cuh"
#include "scan.cuh"

/* Knobs: GROUP (threads of a row: a power of two up to 32, or all of the block), VEC, REVERSE,
 * SUMS, COLUMNS. */
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

/* The sum of a chunk; each thread adds up its own first. */
DEVICE void sum_chunk(const cumsum_call &c, const T *x, int64_t unit, int64_t begin, int64_t end)
{
    total own = 0, all;
#pragma unroll 4
    for (int64_t at = begin + (int)threadIdx.x * VEC; at < end; at += THREADS * VEC) {
        vec<T, VEC> in = load<VEC>(x + (REVERSE ? c.length - VEC - at : at));
#pragma unroll
        for (int k = 0; k < VEC; k++)
            own += (total)to_real(in.at[k]);
    }
    all = block_sum(own);
    if (threadIdx.x == 0)
        ((total *)c.sums)[unit] = all;
}

extern "C" __global__ void __launch_bounds__(THREADS)
cumsum_rows(const __grid_constant__ cumsum_call c)
{
    int64_t unit = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / GROUP;
    bool there = unit < c.outer * c.chunks; /* all must take part in what the group does together */
    unit = SUMS || !there ? unit : c.outer * c.chunks - 1 - unit;
    int64_t row = unit / c.chunks, chunk = unit % c.chunks;
    int64_t begin = chunk * c.chunk, end = begin + c.chunk < c.length ? begin + c.chunk : c.length;
    const T *x = (const T *)c.x + row * c.length;
    if (SUMS) {
        sum_chunk(c, x, unit, begin, end);
        return;
    }
    total sum = chunk ? ((const total *)c.sums)[unit - 1] : (total)0;
    int64_t at = begin + (int)threadIdx.x % GROUP * VEC;
    vec<T, VEC> in, next;
    if (there && at < end)
        next = load_once<VEC>(x + (REVERSE ? c.length - VEC - at : at));
    for (int64_t first = begin; first < end; first += GROUP * VEC, at += GROUP * VEC) {
        int64_t from = REVERSE ? c.length - VEC - at : at;
        int64_t then = REVERSE ? from - GROUP * VEC : from + GROUP * VEC;
        bool valid = there && at < end;
        total v[VEC], all, own = 0;
        in = next;
        if (there && at + GROUP * VEC < end)
            next = load_once<VEC>(x + then);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            own += valid ? (total)to_real(in.at[REVERSE ? VEC - 1 - k : k]) : (total)0;
            v[k] = own;
        }
        total before = sum + group_scan(own, &all);
        sum += all;
        if (!valid)
            continue;
        vec<T, VEC> out;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            out.at[REVERSE ? VEC - 1 - k : k] = convert<T>(before + v[k]);
        store((T *)c.y + row * c.length + from, out);
    }
}

#else

extern "C" __global__ void __launch_bounds__(THREADS)
cumsum_columns(const __grid_constant__ cumsum_call c)
{
    int64_t lanes = c.inner / VEC, index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t column = index % lanes * VEC, unit = index / lanes;
    if (unit >= c.outer * c.chunks)
        return;
    unit = SUMS ? unit : c.outer * c.chunks - 1 - unit;
    int64_t row = unit / c.chunks, chunk = unit % c.chunks;
    int64_t begin = chunk * c.chunk, end = begin + c.chunk < c.length ? begin + c.chunk : c.length;
    int64_t step = REVERSE ? -c.inner : c.inner;
    int64_t start = (row * c.length + (REVERSE ? c.length - 1 - begin : begin)) * c.inner + column;
    const T *x = (const T *)c.x + start;
    total sum[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++)
        sum[k] = 0;
    total *sums = (total *)c.sums + (row * c.inner + column) * c.chunks + chunk;
#pragma unroll
    for (int k = 0; k < VEC; k++)
        if (chunk && !SUMS)
            sum[k] = sums[k * c.chunks - 1];
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
            sums[k * c.chunks] = sum[k];
}

#endif
