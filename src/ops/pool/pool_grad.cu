/* The gradients of pooling: each value of the image gathers from the windows that hold it, in
 * order, so that no atomics are needed. What a largest element gets is known by its place.
 *
 * pool_bwd: a thread for each vector of VEC values of a pixel of dx; works for any window.
 * pool_rows_bwd: for windows that tile planes of one value a pixel: a thread for VEC windows of a
 * row writes their elements, STRIDE_W VEC of each of their rows. Bytes: dy, its places and dx
 * once. */
#include "long_sum.cuh"
#include "pool_window.cuh"

/* Windows that hold one value, at most, along a dimension. */
#define DEPTH(window, stride) (((window) + (stride)-1) / (stride))
#define FEW (DEPTH(WINDOW_H, STRIDE_H) * DEPTH(WINDOW_W, STRIDE_W) <= 16)

#if !TILES

/* The windows along one dimension that hold a value, in order. At step s it is tap `*tap` of
 * window `*window`; false when there is no such. */
template <int Window, int Stride, int Dilation>
DEVICE bool holder(int at, int pad, int windows, int s, int *window, int *tap)
{
    int offset = at + pad; /* from the first element of window 0 */
    if (Dilation == 1) {
        int first = offset < Window ? 0 : (offset - Window) / Stride + 1;
        *window = first + s;
        *tap = offset - *window * Stride;
        return *tap >= 0 && *window < windows;
    }
    *tap = Window - 1 - s;
    int begin = offset - *tap * Dilation;
    *window = begin / Stride;
    return begin >= 0 && begin % Stride == 0 && *window < windows;
}

#define STEPS_H (DILATION_H == 1 ? DEPTH(WINDOW_H, STRIDE_H) : WINDOW_H)
#define STEPS_W (DILATION_W == 1 ? DEPTH(WINDOW_W, STRIDE_W) : WINDOW_W)

enum { unroll_h = FEW ? STEPS_H : 1, unroll_w = FEW ? STEPS_W : 1 };

extern "C" __global__ void __launch_bounds__(POOL_THREADS)
pool_bwd(const __grid_constant__ pool_call c)
{
    unsigned index = blockIdx.x * POOL_THREADS + threadIdx.x;
    if (index >= c.count)
        return;
    int k = (int)split(&index, c.inner) * VEC, w = (int)split(&index, c.columns);
    int h = (int)split(&index, c.rows) + c.first_row, inner = (int)c.inner.size * VEC;
    int64_t plane = c.plane + index;
    long_sum<real, sizeof(T) == 4 && !FEW> sum[VEC];
#pragma unroll unroll_h
    for (int s = 0; s < STEPS_H; s++) {
        int row, i;
        if (!holder<WINDOW_H, STRIDE_H, DILATION_H>(h, c.pad_height, c.out_height, s, &row, &i))
            continue;
#pragma unroll unroll_w
        for (int t = 0; t < STEPS_W; t++) {
            int column, j;
            if (!holder<WINDOW_W, STRIDE_W, DILATION_W>(w, c.pad_width, c.out_width, t, &column,
                                                        &j))
                continue;
            int64_t at = ((plane * c.out_height + row) * c.out_width + column) * inner + k;
            vec<T, VEC> dy = load<VEC>((const T *)c.x + at);
            vec<place_type, VEC> places;
            real share = 1;
            if (MAX)
                places = load<VEC>((const place_type *)c.places + at);
            else
                share = (real)(elements(row * STRIDE_H - c.pad_height, WINDOW_H, c.height,
                                        c.pad_height) *
                               elements(column * STRIDE_W - c.pad_width, WINDOW_W, c.width,
                                        c.pad_width));
#pragma unroll
            for (int e = 0; e < VEC; e++)
                if (!MAX)
                    sum[e].add(to_real(dy.at[e]) / share);
                else if (places.at[e] == i * WINDOW_W + j)
                    sum[e].add(to_real(dy.at[e]));
        }
    }
    real values[VEC];
#pragma unroll
    for (int e = 0; e < VEC; e++)
        values[e] = sum[e].value();
    store((T *)c.y + ((plane * c.height + h) * c.width + w) * inner + k,
          from_reals<T, VEC>(values));
}

#else

extern "C" __global__ void __launch_bounds__(POOL_THREADS)
pool_rows_bwd(const __grid_constant__ pool_call c)
{
    unsigned index = blockIdx.x * POOL_THREADS + threadIdx.x;
    if (index >= c.count)
        return;
    int column = (int)split(&index, c.columns) * VEC;
    int row = (int)split(&index, c.rows) + c.first_row;
    int64_t plane = c.plane + index;
    int64_t at = (plane * c.out_height + row) * c.out_width + column;
    vec<T, VEC> dy = load_once<VEC>((const T *)c.x + at);
    vec<place_type, VEC> places;
    if (MAX)
        places = load_once<VEC>((const place_type *)c.places + at);
    T *to = (T *)c.y + (plane * c.height + row * STRIDE_H) * c.width + column * STRIDE_W;
#pragma unroll
    for (int i = 0; i < STRIDE_H; i++) {
        real out[VEC * STRIDE_W];
#pragma unroll
        for (int e = 0; e < VEC; e++)
#pragma unroll
            for (int j = 0; j < STRIDE_W; j++) {
                real v = to_real(dy.at[e]);
                if (MAX)
                    out[e * STRIDE_W + j] = places.at[e] == i * WINDOW_W + j ? v : (real)0;
                else
                    out[e * STRIDE_W + j] = v / (real)(WINDOW_H * WINDOW_W);
            }
        store(to + (int64_t)i * c.width, from_reals<T, VEC * STRIDE_W>(out));
    }
}

#endif
