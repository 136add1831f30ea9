/* The gradient of conv2d's weight with one channel a group and a stride of 1, of 16-bit elements
 * whose channels are neighbours in memory. A thread walks down STRIP columns of an image with the
 * sums of all taps of two channels, and with the last TAPS_H rows of dy in shared memory of its
 * own, so that it reads each row once, one ahead. The teams of a block and the parts, along y,
 * share the strips; their sums are added in order. Grid: x counts blocks of channels, y parts.
 *
 * A strip of H rows takes 2 H STRIP TAPS operations a channel, and reads H (STRIP + WIDTH). */
#define STRIDE 1
#define STRIP CONV_NARROW_STRIP
#include "conv_depthwise.cuh"

#define THREADS CONV_NARROW_THREADS
#define SLOTS (THREADS / TEAM)

typedef real sums[TAPS_H][TAPS_W][2];
typedef vec<pair_word, STRIP> row_of_dy;
typedef row_of_dy rows_of_dy[TAPS_H][THREADS]; /* the newest wherever its turn is */

/* What a row of the image adds. The newest row of dy lies under the first row of taps. */
DEVICE void add_row(const real (&v)[WIDTH][2], const rows_of_dy &dy, int newest, sums &sum)
{
#pragma unroll
    for (int a = 0; a < TAPS_H; a++) {
        int turn = newest - a + (newest < a ? TAPS_H : 0);
        row_of_dy words = dy[turn][threadIdx.x];
        real d[STRIP][2];
#pragma unroll
        for (int k = 0; k < STRIP; k++)
            unpack(words.at[k], d[k]);
#pragma unroll
        for (int b = 0; b < TAPS_W; b++)
#pragma unroll
            for (int k = 0; k < STRIP; k++) {
                sum[a][b][0] += v[k + b][0] * d[k][0];
                sum[a][b][1] += v[k + b][1] * d[k][1];
            }
    }
}

/* What the places from column j on of an image add. */
DEVICE void add_strip(const conv_call &c, int image, int channel, int j, rows_of_dy &window,
                      sums &sum)
{
    const conv_side &high = c.side[0], &wide = c.side[1];
    int row = -high.before, column = j - wide.before;
    unsigned there = columns_there<WIDTH>(column, wide.in);
    unsigned dy_there = columns_there<STRIP>(j, wide.out);
    const T *x = (const T *)c.x + image * c.x_step[0] + row * c.x_step[2] + column * c.x_step[3] +
                 channel;
    const T *dy = (const T *)c.w + image * c.w_step[0] + j * c.w_step[3] + channel;
    pair_word next[WIDTH];
    row_of_dy next_dy = {};
#pragma unroll
    for (int a = 0; a < TAPS_H; a++)
        window[a][threadIdx.x] = next_dy;
    read_row(x, (int)c.x_step[3], (unsigned)row < (unsigned)high.in ? there : 0, next);
    read_row(dy, (int)c.w_step[3], high.out ? dy_there : 0, next_dy.at);
    int newest = 0;
#pragma unroll 1
    for (int i = 0; i < high.out + TAPS_H - 1; i++, row++) {
        real now[WIDTH][2];
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            unpack(next[k], now[k]);
        window[newest][threadIdx.x] = next_dy;
        x += c.x_step[2];
        dy += c.w_step[2];
        read_row(x, (int)c.x_step[3], (unsigned)(row + 1) < (unsigned)high.in ? there : 0, next);
        read_row(dy, (int)c.w_step[3], i + 1 < high.out ? dy_there : 0, next_dy.at);
        if ((unsigned)row < (unsigned)high.in)
            add_row(now, window, newest, sum);
        newest = newest == TAPS_H - 1 ? 0 : newest + 1;
    }
}

/* Adds up what the teams have, in order, a row of taps at a time. */
DEVICE void join_teams(const conv_call &c, const conv_parts &p, int channel0, const sums &sum)
{
    __shared__ real shared[SLOTS][TAPS_W][CONV_CHANNELS];
    real *to = (real *)p.sums + (long long)blockIdx.y * c.groups * TAPS;
    int team = (int)threadIdx.x / TEAM, own = (int)threadIdx.x % TEAM * 2;
#pragma unroll
    for (int a = 0; a < TAPS_H; a++) {
#pragma unroll
        for (int b = 0; b < TAPS_W; b++)
#pragma unroll
            for (int n = 0; n < 2; n++)
                shared[team][b][own + n] = sum[a][b][n];
        __syncthreads();
        for (int at = threadIdx.x; at < TAPS_W * CONV_CHANNELS; at += THREADS) {
            int b = at / CONV_CHANNELS, channel = at % CONV_CHANNELS;
            real all = 0;
#pragma unroll
            for (int i = 0; i < SLOTS; i++)
                all += shared[i][b][channel];
            if (channel0 + channel < c.groups)
                to[(long long)(channel0 + channel) * TAPS + a * TAPS_W + b] = all;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    conv_depthwise_columns(const __grid_constant__ conv_call c,
                           const __grid_constant__ conv_parts p)
{
    __shared__ rows_of_dy window;
    int channel0 = (int)blockIdx.x * CONV_CHANNELS;
    int channel = channel0 + (int)threadIdx.x % TEAM * 2;
    int begin = (int)(blockIdx.y * p.part), end = (int)min(begin + p.part, p.all);
    sums sum = {};
    if (channel < c.groups)
#pragma unroll 1
        for (int at = begin + (int)threadIdx.x / TEAM; at < end; at += SLOTS) {
            unsigned image = (unsigned)at;
            int strip = (int)split(&image, p.by_columns);
            add_strip(c, (int)image, channel, strip * STRIP, window, sum);
        }
    join_teams(c, p, channel0, sum);
}
