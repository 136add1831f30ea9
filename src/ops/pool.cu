/* Pooling: the largest element or the mean of windows of an image.
 *
 * pool_fwd: a thread for each vector of VEC values of a result's pixel; works for any window. Its
 * loads of a window overlap with those of its neighbours in the first cache. pool_rows_fwd: for
 * windows side by side in planes of one value a pixel: a thread for VEC results of a row reads
 * STRIDE_W VEC elements of each row of their windows at once, for UNROLL such groups. Bytes: the
 * image once, the result once, with PLACE a place for each. */
#include "pool_call.cuh"
#include "reduce.cuh"

#ifndef MAX
#define MAX 1
#endif
#ifndef WINDOW_H
#define WINDOW_H 2
#endif
#ifndef WINDOW_W
#define WINDOW_W 2
#endif
#ifndef STRIDE_H
#define STRIDE_H 2
#endif
#ifndef STRIDE_W
#define STRIDE_W 2
#endif
#ifndef DILATION_H
#define DILATION_H 1
#endif
#ifndef DILATION_W
#define DILATION_W 1
#endif
#ifndef TILES
#define TILES 0 /* which kernel this is */
#endif
#ifndef VEC
#define VEC 1
#endif
#ifndef PLACE
#define PLACE -1 /* the dtype of places; -1: none are wanted */
#endif
#ifndef COUNT_PADDING
#define COUNT_PADDING 0
#endif
#ifndef UNROLL
#define UNROLL 2
#endif
#define UNROLL_H (WINDOW_H * WINDOW_W <= 36 ? WINDOW_H : 1)
#define UNROLL_W (WINDOW_H * WINDOW_W <= 36 ? WINDOW_W : 4)

typedef dtype_of<(PLACE < 0 ? CUP_U8 : PLACE)>::type place_type;

/* What is kept of a window. */
struct window {
    real value;
    int place;

    __device__ __forceinline__ void start()
    {
        value = MAX ? lowest(real()) : (real)0;
        place = -1;
    }
    __device__ __forceinline__ void take(real x, int at)
    {
        if (!MAX) {
            value += x;
        } else if (place < 0 || x > value || (x != x && value == value)) {
            value = x;
            place = at;
        }
    }
};

/* How many elements of a window from `begin` on count, along one dimension. */
DEVICE int elements(int begin, int reach, int size, int pad)
{
    int end = begin + reach;
    if (COUNT_PADDING)
        return (end < size + pad ? end : size + pad) - begin;
    return (end < size ? end : size) - (begin > 0 ? begin : 0);
}

DEVICE void write_windows(const pool_call &c, int64_t at, const window (&w)[VEC])
{
    real values[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++)
        values[k] = w[k].value;
    store((T *)c.y + at, from_reals<T, VEC>(values));
    if (PLACE >= 0) {
        vec<place_type, VEC> places;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            places.at[k] = (place_type)w[k].place;
        store((place_type *)c.places + at, places);
    }
}

DEVICE unsigned split(unsigned *index, const divisor &d)
{
    unsigned rest = divided(*index, d), place = *index - rest * d.size;
    *index = rest;
    return place;
}

#if !TILES

extern "C" __global__ void __launch_bounds__(POOL_THREADS)
pool_fwd(const __grid_constant__ pool_call c)
{
    unsigned index = blockIdx.x * POOL_THREADS + threadIdx.x;
    if (index >= c.count)
        return;
    int k = (int)split(&index, c.inner) * VEC, column = (int)split(&index, c.columns);
    int row = (int)split(&index, c.rows) + c.first_row, inner = (int)c.inner.size * VEC;
    int64_t plane = c.plane + index;
    int top = row * STRIDE_H - c.pad_height, left = column * STRIDE_W - c.pad_width;
    window w[VEC];
#pragma unroll
    for (int v = 0; v < VEC; v++)
        w[v].start();
#pragma unroll UNROLL_H
    for (int i = 0; i < WINDOW_H; i++) {
        int h = top + i * DILATION_H;
        if ((unsigned)h >= (unsigned)c.height)
            continue;
        const T *x = (const T *)c.x + (plane * c.height + h) * c.width * inner + k;
#pragma unroll UNROLL_W
        for (int j = 0; j < WINDOW_W; j++) {
            int at = left + j * DILATION_W;
            if ((unsigned)at >= (unsigned)c.width)
                continue;
            vec<T, VEC> v = load<VEC>(x + (int64_t)at * inner);
#pragma unroll
            for (int e = 0; e < VEC; e++)
                w[e].take(to_real(v.at[e]), i * WINDOW_W + j);
        }
    }
    if (!MAX) {
        int n = elements(top, WINDOW_H, c.height, c.pad_height) *
                elements(left, WINDOW_W, c.width, c.pad_width);
#pragma unroll
        for (int v = 0; v < VEC; v++)
            w[v].value /= (real)n;
    }
    write_windows(c, ((plane * c.out_height + row) * c.out_width + column) * inner + k, w);
}

#else

extern "C" __global__ void __launch_bounds__(POOL_THREADS)
pool_rows_fwd(const __grid_constant__ pool_call c)
{
    unsigned start = blockIdx.x * (POOL_THREADS * UNROLL) + threadIdx.x;
    vec<T, VEC * STRIDE_W> x[UNROLL][WINDOW_H];
    int64_t to[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        unsigned index = start + u * POOL_THREADS;
        if (index >= c.count)
            break;
        int column = (int)split(&index, c.columns) * VEC;
        int row = (int)split(&index, c.rows) + c.first_row;
        int64_t plane = c.plane + index;
        to[u] = (plane * c.out_height + row) * c.out_width + column;
        const T *from = (const T *)c.x + (plane * c.height + row * STRIDE_H) * c.width +
                        column * STRIDE_W;
#pragma unroll
        for (int i = 0; i < WINDOW_H; i++)
            x[u][i] = load_once<VEC * STRIDE_W>(from + (int64_t)i * c.width);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        if (start + u * POOL_THREADS >= c.count)
            break;
        window w[VEC];
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            w[v].start();
#pragma unroll
            for (int i = 0; i < WINDOW_H; i++)
#pragma unroll
                for (int j = 0; j < WINDOW_W; j++)
                    w[v].take(to_real(x[u][i].at[v * STRIDE_W + j]), i * WINDOW_W + j);
            if (!MAX)
                w[v].value /= (real)(WINDOW_H * WINDOW_W);
        }
        write_windows(c, to[u], w);
    }
}

#endif
