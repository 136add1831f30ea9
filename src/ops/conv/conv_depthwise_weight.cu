/* The gradient of conv2d's weight with one channel a group, where channels are neighbours in
 * memory. A thread has the sums of all taps of two channels, and adds to them what STRIP places
 * side by side bring, of which it reads each element of the image once a row of taps. A warp has 64
 * channels, the warps of a block and the parts, along y, share the strips; their sums are added in
 * order. Grid: x counts blocks of channels, y parts. */
#include "conv.cuh"

#ifndef TAPS_H
#define TAPS_H 7
#endif
#ifndef TAPS_W
#define TAPS_W 7
#endif
#ifndef STRIDE
#define STRIDE 1
#endif

#define STRIP CONV_STRIP
#define TAPS (TAPS_H * TAPS_W)
#define WIDTH ((STRIP - 1) * STRIDE + TAPS_W)
#define WARPS (CONV_THREADS / 32)

typedef vec<T, 2> pair;
typedef real sums[TAPS_H][TAPS_W][2];

/* `Count` neighbours in a row, zeros beyond its ends. */
template <int Count>
DEVICE void read_row(const T *from, long long step, int column, int columns, pair (&out)[Count])
{
#pragma unroll
    for (int k = 0; k < Count; k++) {
        out[k] = pair();
        if ((unsigned)(column + k) < (unsigned)columns)
            out[k] = load<2>(from + k * step);
    }
}

/* What a strip adds: from column j on in row i of dy. */
DEVICE void add_strip(const conv_call &c, const conv_class &l, int image, int channel, int i,
                      int j, sums &sum)
{
    pair dy[STRIP];
    read_row(((const T *)c.w) + image * c.w_step[0] + i * c.w_step[2] + j * c.w_step[3] + channel,
             c.w_step[3], j, l.line[1].count, dy);
    int row = l.line[0].from + i * STRIDE, column = l.line[1].from + j * STRIDE;
    const T *from = (const T *)c.x + image * c.x_step[0] + row * c.x_step[2] +
                    column * c.x_step[3] + channel;
#pragma unroll
    for (int a = 0; a < TAPS_H; a++, from += c.x_step[2]) {
        if ((unsigned)(row + a) >= (unsigned)l.line[0].size)
            continue;
        pair x[WIDTH];
        read_row(from, c.x_step[3], column, l.line[1].size, x);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            real v[2];
            to_reals(x[k], v);
#pragma unroll
            for (int b = 0; b < TAPS_W; b++)
                if (k >= b && (k - b) % STRIDE == 0 && (k - b) / STRIDE < STRIP) {
                    real d[2];
                    to_reals(dy[(k - b) / STRIDE], d);
                    sum[a][b][0] += v[0] * d[0];
                    sum[a][b][1] += v[1] * d[1];
                }
        }
    }
}

/* Adds up what the warps have, in order, and writes it to the part's sums. */
DEVICE void join_warps(const conv_call &c, const conv_parts &p, int channel0, const sums &sum)
{
    __shared__ real shared[WARPS][64];
    real *to = (real *)p.sums + (long long)blockIdx.y * c.groups * TAPS;
    int lane = threadIdx.x % 32, channel = channel0 + (int)threadIdx.x;
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
#pragma unroll
        for (int n = 0; n < 2; n++)
            shared[threadIdx.x / 32][2 * lane + n] = sum[tap / TAPS_W][tap % TAPS_W][n];
        __syncthreads();
        if (threadIdx.x < 64 && channel < c.groups) {
            real all = 0;
#pragma unroll
            for (int warp = 0; warp < WARPS; warp++)
                all += shared[warp][threadIdx.x];
            to[(long long)channel * TAPS + tap] = all;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_depthwise_weight(const __grid_constant__ conv_call c, const __grid_constant__ conv_parts p)
{
    conv_class l(c, 0, 0);
    int channel0 = (int)blockIdx.x * 64, channel = channel0 + (int)threadIdx.x % 32 * 2;
    long long begin = blockIdx.y * p.part + threadIdx.x / 32, end = (blockIdx.y + 1) * p.part;
    end = end < p.all ? end : p.all;
    sums sum = {};
    if (channel < c.groups)
        for (long long at = begin; at < end; at += WARPS) {
            unsigned rest = (unsigned)at;
            int strip = (int)split(&rest, p.by_columns), row = (int)split(&rest, p.by_rows);
            add_strip(c, l, (int)rest, channel, row, strip * STRIP, sum);
        }
    join_warps(c, p, channel0, sum);
}
