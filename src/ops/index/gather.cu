/* Elements by their places along the middle of [outer, size, inner].
 *
 * gather_fwd: y[o,i,k] = x[o, ids[o,i,k], k]. select_fwd: y[o,i,k] = x[o, ids[i], k], in vectors of
 * VEC. put_fwd, whose places are all different: y[o, ids[o,i,k], k] = x[o,i,k]. An id out of range
 * gives NaN, or 0 for integers, and puts nothing. scatter_targets tells where in [outer, size,
 * inner] each element goes, and scatter_fwd, given these in order with the numbers of the elements,
 * adds the elements of each target up in order: a thread does so for a short run, all lanes of its
 * warp for a long one, with what scatter_parts has added up of each PART elements that have one
 * target, so that the bits are the same in every run. A thread for each element.
 * Bytes: y, ids and as much of x once. */
#include "reduce.cuh"

/* A knob: CUP_ID. */
#ifndef VEC
#define VEC 1
#endif
#ifndef TARGET
#define TARGET CUP_I32 /* the dtype of targets */
#endif
#ifndef SCATTER
#define SCATTER 0 /* which kernels these are */
#endif
#define THREADS 256
#define LONG 64  /* elements that a warp adds up */
#define PART 1024 /* of a run that a block adds up; as in scatter_add.c */

typedef dtype_of<CUP_ID>::type id_type;

#if !SCATTER

DEVICE T bad_element()
{
    return convert<T>(0.0f / 0.0f);
}

/* `count` elements of y, of [outer, length, inner]. */
extern "C" __global__ void __launch_bounds__(THREADS)
gather_fwd(const T *x, const id_type *ids, T *y, int64_t count, int64_t size, int64_t length,
           int64_t inner)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    int64_t id = ids[i], row = i / inner, k = i - row * inner;
    y[i] = id >= 0 && id < size ? x[(row / length * size + id) * inner + k]
                                : bad_element();
}

/* `count` vectors of y; `inner` is in vectors. */
extern "C" __global__ void __launch_bounds__(THREADS)
select_fwd(const T *x, const id_type *ids, T *y, int64_t count, int64_t size, int64_t length,
           int64_t inner)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    bool small = count >> 31 == 0;
    int64_t row = small ? (uint32_t)i / (uint32_t)inner : i / inner, k = i - row * inner;
    int64_t outer = small ? (uint32_t)row / (uint32_t)length : row / length;
    int64_t id = ids[row - outer * length];
    vec<T, VEC> v;
#pragma unroll
    for (int e = 0; e < VEC; e++)
        v.at[e] = bad_element();
    if (id >= 0 && id < size)
        v = load<VEC>(x + ((outer * size + id) * inner + k) * VEC);
    store(y + i * VEC, v);
}

/* `count` elements of x, of [outer, length, inner]. */
extern "C" __global__ void __launch_bounds__(THREADS)
put_fwd(const T *x, const id_type *ids, T *y, int64_t count, int64_t size, int64_t length,
        int64_t inner)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    int64_t id = ids[i], row = i / inner, k = i - row * inner;
    if (id >= 0 && id < size)
        y[(row / length * size + id) * inner + k] = x[i];
}

#else

typedef dtype_of<TARGET>::type target_type;

/* The elements from number `first` on. `none` is the target of those out of range: behind all
 * others. */
extern "C" __global__ void __launch_bounds__(THREADS)
scatter_targets(const id_type *ids, target_type *targets, int64_t first, int64_t count,
                int64_t size, int64_t length, int64_t inner, target_type none)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    int64_t id = ids[first + i], row = (first + i) / inner, k = first + i - row * inner;
    bool valid = id >= 0 && id < size;
    targets[i] = valid ? (target_type)((row / length * size + id) * inner + k) : none;
}

/* The first of the targets from `from` on that is not `target`. */
DEVICE int64_t end_of_run(const target_type *targets, int64_t from, int64_t count,
                          target_type target)
{
    int64_t low = from, high = count;
    for (int64_t step = 1; low + step < count; step *= 2) {
        if (targets[low + step] != target) {
            high = low + step;
            break;
        }
        low += step;
    }
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (targets[middle] == target)
            low = middle;
        else
            high = middle;
    }
    return low + 1;
}

DEVICE real sum_run(const T *x, const int64_t *numbers, int64_t from, int64_t end, int step)
{
    real sum = 0;
#pragma unroll 4
    for (int64_t i = from; i < end; i += step)
        sum += to_real(x[numbers[i]]);
    return sum;
}

/* The sum of each PART elements from a multiple of PART on that have one target. */
extern "C" __global__ void __launch_bounds__(THREADS)
scatter_parts(const T *x, const target_type *targets, const int64_t *numbers, real *parts,
              target_type none)
{
    int64_t first = (int64_t)blockIdx.x * PART;
    target_type target = targets[first];
    if (target == none || targets[first + PART - 1] != target)
        return;
    real sum = sum_run(x, numbers, first + (int)threadIdx.x, first + PART, THREADS);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

/* The share of a long run's sum that falls to this lane. */
DEVICE real sum_long_run(const T *x, const int64_t *numbers, const real *parts, int64_t from,
                         int64_t end)
{
    int lane = (int)threadIdx.x % 32;
    int64_t first = (from + PART - 1) / PART, last = end / PART;
    if (first >= last)
        return sum_run(x, numbers, from + lane, end, 32);
    real sum = sum_run(x, numbers, from + lane, first * PART, 32);
    for (int64_t p = first + lane; p < last; p += 32)
        sum += parts[p];
    return sum + sum_run(x, numbers, last * PART + lane, end, 32);
}

/* Adds to what y holds. */
extern "C" __global__ void __launch_bounds__(THREADS)
scatter_fwd(const T *x, const target_type *targets, const int64_t *numbers, const real *parts,
            T *y, int64_t count, target_type none)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, end = i;
    int lane = (int)threadIdx.x % 32;
    target_type target = i < count ? targets[i] : none;
    if (target != none && (i == 0 || targets[i - 1] != target))
        end = end_of_run(targets, i, count, target);
    if (end > i && end - i < LONG)
        y[target] = from_real<T>(to_real(y[target]) + sum_run(x, numbers, i, end, 1));
    uint32_t left = __ballot_sync(0xffffffffu, end - i >= LONG);
    for (; left; left &= left - 1) {
        int owner = __ffs(left) - 1;
        int64_t begin = i - lane + owner;
        int64_t length = __shfl_sync(0xffffffffu, end - i, owner);
        real sum = warp_sum(sum_long_run(x, numbers, parts, begin, begin + length));
        if (lane == owner)
            y[target] = from_real<T>(to_real(y[target]) + sum);
    }
}

#endif
