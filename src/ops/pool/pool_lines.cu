/* Pooling of planes of one value a pixel over windows that overlap or are padded, and its gradient:
 * a thread for VEC neighbours of a line.
 *
 * pool_lines_fwd: of each line of its windows it reads the STRIDE_W VEC elements that stand under
 * its results at once, and those before and behind, LEFT and RIGHT of them, one by one from the
 * first cache. pool_lines_bwd: VEC, a multiple of STRIDE_W, neighbours of dx gather from the
 * windows of each line that hold them, read likewise; which tap of which window an element is, is
 * known when this is compiled. Bytes: the image once, the result once, with PLACE places. */
#include "pool_window.cuh"

/* Knobs: PAD_H, PAD_W, BACKWARD (which kernel this is). */

/* `Main` neighbours of a line that begin at column `column`, Left before and Right behind them. */
template <int Left, int Main, int Right, typename Element> struct line {
    vec<Element, Main> main;
    Element left[Left + 1], right[Right + 1];

    /* Of those that are not in the line, `outside`. */
    __device__ __forceinline__ void read(const Element *at, int column, int width, Element outside)
    {
        main = load<Main>(at);
#pragma unroll
        for (int i = 0; i < Left; i++)
            left[i] = column - Left + i >= 0 ? load<1>(at - Left + i).at[0] : outside;
#pragma unroll
        for (int i = 0; i < Right; i++)
            right[i] = column + Main + i < width ? load<1>(at + Main + i).at[0] : outside;
    }
    __device__ __forceinline__ void fill(Element value)
    {
#pragma unroll
        for (int i = 0; i < Left + Main + Right; i++)
            at(i) = value;
    }
    __device__ __forceinline__ Element &at(int i)
    {
        return i < Left ? left[i] : i < Left + Main ? main.at[i - Left] : right[i - Left - Main];
    }
};

#if !BACKWARD

enum {
    left = PAD_W,
    under = VEC * STRIDE_W,
    right = WINDOW_W - PAD_W > STRIDE_W ? WINDOW_W - PAD_W - STRIDE_W : 0
};

extern "C" __global__ void __launch_bounds__(POOL_THREADS)
pool_lines_fwd(const __grid_constant__ pool_call c)
{
    unsigned index = blockIdx.x * POOL_THREADS + threadIdx.x;
    if (index >= c.count)
        return;
    int column = (int)split(&index, c.columns) * VEC;
    int row = (int)split(&index, c.rows) + c.first_row;
    int64_t plane = c.plane + index;
    int top = row * STRIDE_H - PAD_H, first = column * STRIDE_W;
    const T *x = (const T *)c.x + (plane * c.height + top) * c.width + first;
    const T outside = from_real<T>(MAX ? lowest(real()) : (real)0);
    line<left, under, right, T> lines[WINDOW_H];
#pragma unroll
    for (int i = 0; i < WINDOW_H; i++)
        if ((unsigned)(top + i) < (unsigned)c.height)
            lines[i].read(x + (int64_t)i * c.width, first, c.width, outside);
        else
            lines[i].fill(outside);
    window w[VEC];
    int high = elements(top, WINDOW_H, c.height, PAD_H);
#pragma unroll
    for (int v = 0; v < VEC; v++) {
        int from = first + v * STRIDE_W - PAD_W;
        w[v].start((top < 0 ? -top * WINDOW_W : 0) + (from < 0 ? -from : 0));
#pragma unroll
        for (int i = 0; i < WINDOW_H; i++)
#pragma unroll
            for (int j = 0; j < WINDOW_W; j++)
                w[v].take(to_real(lines[i].at(v * STRIDE_W + j)), i * WINDOW_W + j);
        if (!MAX)
            w[v].value /= (real)(high * elements(from, WINDOW_W, c.width, PAD_W));
    }
    write_windows(c, (plane * c.out_height + row) * c.out_width + column, w);
}

#else

enum {
    under = VEC / STRIDE_W,
    left = (WINDOW_W - 1 - PAD_W) / STRIDE_W,
    right = (VEC - 1 + PAD_W) / STRIDE_W - (under - 1),
    depth = (WINDOW_H + STRIDE_H - 1) / STRIDE_H /* lines of windows that hold an element */
};

/* Adds what the windows of one line, whose tap along the other dimension is `i`, give. */
DEVICE void gather(real (&sum)[VEC], line<left, under, right, T> &dy,
                   line<left, under, right, place_type> &places, int i, int first, int high,
                   int width)
{
#pragma unroll
    for (int o = -left; o < under + right; o++) {
        real share = to_real(dy.at(o + left));
        int place = MAX ? (int)places.at(o + left) - i * WINDOW_W : 0;
        int from = (first + o) * STRIDE_W - PAD_W;
        int count = MAX ? 1 : high * elements(from, WINDOW_W, width, PAD_W);
        if (!MAX)
            share = count == WINDOW_H * WINDOW_W ? share * ((real)1 / (WINDOW_H * WINDOW_W))
                                                 : share / (real)count;
#pragma unroll
        for (int e = 0; e < VEC; e++) {
            const int j = e + PAD_W - o * STRIDE_W; /* its tap of that window */
            if (j >= 0 && j < WINDOW_W && (!MAX || place == j))
                sum[e] += share;
        }
    }
}

extern "C" __global__ void __launch_bounds__(POOL_THREADS)
pool_lines_bwd(const __grid_constant__ pool_call c)
{
    unsigned index = blockIdx.x * POOL_THREADS + threadIdx.x;
    if (index >= c.count)
        return;
    int w = (int)split(&index, c.columns) * VEC, h = (int)split(&index, c.rows) + c.first_row;
    int64_t plane = c.plane + index;
    int first = w / STRIDE_W, tap = (h + PAD_H) % STRIDE_H, last = (h + PAD_H) / STRIDE_H;
    line<left, under, right, T> dy[depth];
    line<left, under, right, place_type> places[depth];
    real sum[VEC];
#pragma unroll
    for (int e = 0; e < VEC; e++)
        sum[e] = 0;
#pragma unroll
    for (int s = 0; s < depth; s++) {
        int row = last - (depth - 1 - s), i = tap + (depth - 1 - s) * STRIDE_H;
        if (i >= WINDOW_H || (unsigned)row >= (unsigned)c.out_height)
            continue;
        int64_t at = (plane * c.out_height + row) * c.out_width + first;
        dy[s].read((const T *)c.x + at, first, c.out_width, from_real<T>((real)0));
        if (MAX)
            places[s].read((const place_type *)c.places + at, first, c.out_width, 0);
    }
#pragma unroll
    for (int s = 0; s < depth; s++) {
        int row = last - (depth - 1 - s), i = tap + (depth - 1 - s) * STRIDE_H;
        if (i >= WINDOW_H || (unsigned)row >= (unsigned)c.out_height)
            continue;
        int high = elements(row * STRIDE_H - PAD_H, WINDOW_H, c.height, PAD_H);
        gather(sum, dy[s], places[s], i, first, high, c.width);
    }
    store((T *)c.y + (plane * c.height + h) * c.width + w, from_reals<T, VEC>(sum));
}

#endif
