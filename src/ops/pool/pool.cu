/* Pooling: the largest element or the mean of windows of an image.
 *
 * pool_fwd: a thread for each vector of VEC values of a result's pixel; works for any window. Its
 * loads of a window overlap with those of its neighbours in the first cache. pool_rows_fwd: for
 * windows side by side in planes of one value a pixel: a thread for VEC results of a row reads
 * STRIDE_W VEC elements of each row of their windows at once, for UNROLL such groups. Bytes: the
 * image once, the result once, with PLACE a place for each. */
#include "pool_window.cuh"

/* A knob: UNROLL. */

enum {
    unroll_h = WINDOW_H * WINDOW_W <= 36 ? WINDOW_H : 1,
    unroll_w = WINDOW_H * WINDOW_W <= 36 ? WINDOW_W : 4
};
#if !TILES

/* Takes in the window's elements; `x` is where its first one lies or would lie. Whole windows are
 * inside the image. */
template <bool Whole>
DEVICE void take_window(window (&w)[VEC], const pool_call &c, const T *x, int top, int left,
                        int inner)
{
#pragma unroll unroll_h
    for (int i = 0; i < WINDOW_H; i++) {
        if (!Whole && (unsigned)(top + i * DILATION_H) >= (unsigned)c.height)
            continue;
        const T *row = x + (int64_t)(i * DILATION_H) * c.width * inner;
        vec<T, VEC> v[WINDOW_W <= 8 ? WINDOW_W : 1];
#pragma unroll unroll_w
        for (int j = 0; j < WINDOW_W; j++) {
            if (!Whole && (unsigned)(left + j * DILATION_W) >= (unsigned)c.width)
                continue;
            v[WINDOW_W <= 8 ? j : 0] = load<VEC>(row + (int64_t)(j * DILATION_W) * inner);
            if (WINDOW_W <= 8)
                continue;
#pragma unroll
            for (int e = 0; e < VEC; e++)
                w[e].take(to_real(v[0].at[e]), i * WINDOW_W + j);
        }
        if (WINDOW_W > 8)
            continue;
#pragma unroll
        for (int j = 0; j < WINDOW_W; j++)
            if (Whole || (unsigned)(left + j * DILATION_W) < (unsigned)c.width)
#pragma unroll
                for (int e = 0; e < VEC; e++)
                    w[e].take(to_real(v[WINDOW_W <= 8 ? j : 0].at[e]), i * WINDOW_W + j);
    }
}

/* The first tap of a window from `begin` on that lies in the image; `window` when none does. */
DEVICE int first_tap(int begin, int dilation, int window, int size)
{
    int tap = begin < 0 ? (-begin + dilation - 1) / dilation : 0;
    return tap < window && begin + tap * dilation < size ? tap : window;
}

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
    int i = first_tap(top, DILATION_H, WINDOW_H, c.height);
    int j = first_tap(left, DILATION_W, WINDOW_W, c.width);
    window w[VEC];
#pragma unroll
    for (int v = 0; v < VEC; v++)
        w[v].start(i < WINDOW_H && j < WINDOW_W ? i * WINDOW_W + j : -1);
    const T *x = (const T *)c.x + ((plane * c.height + top) * c.width + left) * inner + k;
    if (i + j == 0 && top + (WINDOW_H - 1) * DILATION_H < c.height &&
        left + (WINDOW_W - 1) * DILATION_W < c.width)
        take_window<true>(w, c, x, top, left, inner);
    else
        take_window<false>(w, c, x, top, left, inner);
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
            w[v].start(0);
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
