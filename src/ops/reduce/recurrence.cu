/* y[i] = a[i] y[i - 1] + x[i] along the middle of [outer, length, inner], from the end backwards
 * with REVERSE. In double, since products of several a must not overflow where the sums do not.
 *
 * recurrence_rows, inner 1: a warp a row, VEC elements a lane at a time. What a lane's elements do
 * to the y before them is to multiply and to add; two such steps are one again, so that the warp
 * finds what all lanes before each one do. recurrence_columns: a thread a column, UNROLL rows of it
 * at a time. Bytes: a, x and y once. */
#include "recurrence_call.cuh"
#include "scan.cuh"

/* Knobs: CUP_T, REVERSE. */
#define THREADS RECURRENCE_THREADS
#define VEC 4
#define UNROLL 8

struct step {
    double times, plus;
};

/* First p, then q. */
DEVICE step after(const step &p, const step &q)
{
    step both = {p.times * q.times, p.plus * q.times + q.plus};
    return both;
}

/* The place of element i in the order in which they are taken. */
DEVICE int64_t place(const recurrence_call &c, int64_t i)
{
    return REVERSE ? c.length - 1 - i : i;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    recurrence_rows(const __grid_constant__ recurrence_call c)
{
    int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (row >= c.outer)
        return;
    const T *a = (const T *)c.a + row * c.length, *x = (const T *)c.x + row * c.length;
    T *y = (T *)c.y + row * c.length;
    double carried = 0;
    for (int64_t first = 0; first < c.length; first += 32 * VEC) {
        step own[VEC], all = {1, 0};
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            int64_t i = first + lane * VEC + k, at = place(c, i);
            bool there = i < c.length;
            own[k].times = there ? (double)to_real(a[at]) : 1;
            own[k].plus = there ? (double)to_real(x[at]) : 0;
            all = after(all, own[k]);
        }
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            step before = shuffle_up(all, distance);
            if (lane >= distance)
                all = after(before, all);
        }
        step before = shuffle_up(all, 1);
        double value = lane ? carried * before.times + before.plus : carried;
        carried = shuffle_from(carried * all.times + all.plus, 31);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            int64_t i = first + lane * VEC + k;
            value = value * own[k].times + own[k].plus;
            if (i < c.length)
                y[place(c, i)] = convert<T>(value);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    recurrence_columns(const __grid_constant__ recurrence_call c)
{
    int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= c.outer * c.inner)
        return;
    int64_t start = index / c.inner * c.length * c.inner + index % c.inner;
    const T *a = (const T *)c.a + start, *x = (const T *)c.x + start;
    T *y = (T *)c.y + start;
    double value = 0;
    for (int64_t first = 0; first < c.length; first += UNROLL) {
        T times[UNROLL], plus[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u < c.length) {
                times[u] = a[place(c, first + u) * c.inner];
                plus[u] = x[place(c, first + u) * c.inner];
            }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u < c.length) {
                value = value * (double)to_real(times[u]) + (double)to_real(plus[u]);
                y[place(c, first + u) * c.inner] = convert<T>(value);
            }
    }
}
