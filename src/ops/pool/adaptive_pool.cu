/* Adaptive pooling: the largest element or the mean of windows that cover an image, whose sizes
 * differ by one, and its gradients.
 *
 * adaptive_fwd: GROUP threads share the elements of a window for a vector of VEC values of a pixel,
 * and are joined in shared memory, in a fixed order. With LAST they stand behind each other, as
 * neighbours take neighbouring values; else they are neighbours. adaptive_bwd: a thread for each
 * vector of the image gathers from the windows that hold it. Bytes: image and result once. */
#include "adaptive_call.cuh"
#include "long_sum.cuh"
#include "reduce.cuh"

/* Knobs: MAX, VEC, GROUP, LAST, PLACE (the dtype of places; -1: none are wanted), BACKWARD (which
 * kernel this is). */
#define ITEMS (ADAPTIVE_THREADS / GROUP)
#define UNROLL 4

typedef dtype_of<(PLACE < 0 ? CUP_U8 : PLACE)>::type place_type;

/* The elements of one window along a dimension. */
struct span {
    int first, count;

    __device__ __forceinline__ span(unsigned at, const divisor &in, const divisor &out)
    {
        first = (int)divided(at * in.size, out);
        count = (int)divided((at + 1) * in.size + out.size - 1, out) - first;
    }
};

/* What is kept of a window: of equal elements the first, and the first NaN. */
struct kept {
    real value;
    int place;

    __device__ __forceinline__ void start()
    {
        value = 0;
        place = -1;
    }
    __device__ __forceinline__ void take(real x, int at)
    {
        if (!MAX) {
            value += x;
            return;
        }
        bool number = x == x, has_number = value == value;
        bool larger = number ? x > value && has_number : has_number;
        bool equal = number ? x == value : !has_number;
        if (at >= 0 && (place < 0 || larger || (equal && at < place))) {
            value = x;
            place = at;
        }
    }
};

#if !BACKWARD

/* This thread's share of a window; `x` is its first pixel. */
DEVICE void take_window(kept (&w)[VEC], const T *x, const adaptive_call &c, const span &rows,
                        const span &columns, int lane)
{
    int i = lane / columns.count, j = lane - i * columns.count;
    int down = GROUP / columns.count, across = GROUP - down * columns.count;
    int64_t pixel = (int64_t)c.inner.size * VEC, row = pixel * c.in[1].size;
    while (i < rows.count) {
        vec<T, VEC> v[UNROLL];
        int at[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            at[u] = -1;
            if (i >= rows.count)
                continue;
            v[u] = load<VEC>(x + i * row + j * pixel);
            at[u] = i * c.reach + j;
            i += down;
            j += across;
            if (j >= columns.count) {
                j -= columns.count;
                i++;
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (at[u] >= 0)
#pragma unroll
                for (int e = 0; e < VEC; e++)
                    w[e].take(to_real(v[u].at[e]), at[u]);
    }
}

/* Joins what the threads of a group have, for the first of them. */
DEVICE void join(kept (&w)[VEC], int item, int lane)
{
    __shared__ kept held[VEC][GROUP / 2 + 1][ITEMS];
#pragma unroll
    for (int half = GROUP / 2; half > 0; half /= 2) {
        if (lane >= half && lane < 2 * half)
#pragma unroll
            for (int e = 0; e < VEC; e++)
                held[e][lane - half][item] = w[e];
        __syncthreads();
        if (lane < half)
#pragma unroll
            for (int e = 0; e < VEC; e++)
                w[e].take(held[e][lane][item].value, held[e][lane][item].place);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(ADAPTIVE_THREADS)
adaptive_fwd(const __grid_constant__ adaptive_call c)
{
    int thread = (int)threadIdx.x;
    int item = LAST ? thread % ITEMS : thread / GROUP;
    int lane = LAST ? thread / ITEMS : thread % GROUP;
    unsigned index = blockIdx.x * ITEMS + item, rest = index;
    bool exists = index < c.count;
    unsigned k = split(&rest, c.inner), column = split(&rest, c.out[1]);
    unsigned row = split(&rest, c.out[0]);
    span rows(row, c.in[0], c.out[0]), columns(column, c.in[1], c.out[1]);
    kept w[VEC];
#pragma unroll
    for (int e = 0; e < VEC; e++)
        w[e].start();
    int64_t pixel = ((int64_t)rest * c.in[0].size + rows.first) * c.in[1].size + columns.first;
    if (exists)
        take_window(w, (const T *)c.x + (pixel * c.inner.size + k) * VEC, c, rows, columns, lane);
    if (GROUP > 1)
        join(w, item, lane);
    if (!exists || lane > 0)
        return;
    real values[VEC];
#pragma unroll
    for (int e = 0; e < VEC; e++)
        values[e] = MAX ? w[e].value : w[e].value / (real)(rows.count * columns.count);
    store((T *)c.y + (int64_t)index * VEC, from_reals<T, VEC>(values));
    if (PLACE >= 0) {
        vec<place_type, VEC> places;
#pragma unroll
        for (int e = 0; e < VEC; e++)
            places.at[e] = (place_type)w[e].place;
        store((place_type *)c.places + (int64_t)index * VEC, places);
    }
}

#else

/* The windows along a dimension that hold an element. */
struct holders {
    int first, last;

    __device__ __forceinline__ holders(unsigned at, const divisor &in, const divisor &out)
    {
        first = (int)divided(at * out.size, in);
        last = (int)divided((at + 1) * out.size - 1, in);
    }
};

extern "C" __global__ void __launch_bounds__(ADAPTIVE_THREADS)
adaptive_bwd(const __grid_constant__ adaptive_call c)
{
    unsigned index = blockIdx.x * ADAPTIVE_THREADS + threadIdx.x, rest = index;
    if (index >= c.count)
        return;
    unsigned k = split(&rest, c.inner), w = split(&rest, c.in[1]), h = split(&rest, c.in[0]);
    holders down(h, c.in[0], c.out[0]), across(w, c.in[1], c.out[1]);
    long_sum<real, sizeof(T) == 4> sum[VEC];
    for (int row = down.first; row <= down.last; row++)
        for (int column = across.first; column <= across.last; column++) {
            span rows(row, c.in[0], c.out[0]), columns(column, c.in[1], c.out[1]);
            int64_t pixel = ((int64_t)rest * c.out[0].size + row) * c.out[1].size + column;
            int64_t at = (pixel * c.inner.size + k) * VEC;
            vec<T, VEC> dy = load<VEC>((const T *)c.x + at);
            vec<place_type, VEC> places;
            if (MAX)
                places = load<VEC>((const place_type *)c.places + at);
            int own = ((int)h - rows.first) * c.reach + (int)w - columns.first;
#pragma unroll
            for (int e = 0; e < VEC; e++)
                if (!MAX)
                    sum[e].add(to_real(dy.at[e]) / (real)(rows.count * columns.count));
                else if (places.at[e] == own)
                    sum[e].add(to_real(dy.at[e]));
        }
    real values[VEC];
#pragma unroll
    for (int e = 0; e < VEC; e++)
        values[e] = sum[e].value();
    store((T *)c.y + (int64_t)index * VEC, from_reals<T, VEC>(values));
}

#endif
