/* The gradient of conv2d's weight with one channel a group, where channels are neighbours in
 * memory. A thread has the sums of a row of taps of two channels, and adds to them what STRIP
 * places side by side bring. TAPS_H teams have the rows of taps of a strip, and share in the first
 * cache what they read of dy, and of the image with those of the strip below, which is the next.
 * The SLOTS of a block and the parts, along y, share the strips; their sums are added in order.
 * Grid: x counts blocks of channels, y parts. */
#include "conv_depthwise.cuh"

#define SLOTS (TEAMS / TAPS_H)

typedef real sums[TAPS_W][2];

/* What a strip adds: from column j on in row i of dy. */
DEVICE void add_strip(const conv_call &c, const conv_class &l, int image, int channel, int i,
                      int j, int tap_row, sums &sum)
{
    int row = l.line[0].from + i * STRIDE + tap_row, column = l.line[1].from + j * STRIDE;
    if ((unsigned)row >= (unsigned)l.line[0].size)
        return;
    pair_word x[WIDTH], d[STRIP];
    read_row((const T *)c.w + image * c.w_step[0] + i * c.w_step[2] + j * c.w_step[3] + channel,
             (int)c.w_step[3], columns_there<STRIP>(j, l.line[1].count), d);
    read_row((const T *)c.x + image * c.x_step[0] + row * c.x_step[2] + column * c.x_step[3] +
                 channel,
             (int)c.x_step[3], columns_there<WIDTH>(column, l.line[1].size), x);
    real dy[STRIP][2];
#pragma unroll
    for (int k = 0; k < STRIP; k++)
        unpack(d[k], dy[k]);
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        real v[2];
        unpack(x[k], v);
#pragma unroll
        for (int b = 0; b < TAPS_W; b++)
            if (meets(k, b)) {
                sum[b][0] += v[0] * dy[(k - b) / STRIDE][0];
                sum[b][1] += v[1] * dy[(k - b) / STRIDE][1];
            }
    }
}

/* Adds up what the slots have, in order, and writes it to the part's sums. */
DEVICE void join_slots(const conv_call &c, const conv_parts &p, int channel0, int tap_row,
                       int slot, const sums &sum)
{
    __shared__ real shared[SLOTS][TAPS][CONV_CHANNELS];
    real *to = (real *)p.sums + (long long)blockIdx.y * c.groups * TAPS;
#pragma unroll
    for (int b = 0; b < TAPS_W; b++)
#pragma unroll
        for (int n = 0; n < 2; n++)
            if (slot < SLOTS)
                shared[slot][tap_row * TAPS_W + b][threadIdx.x % TEAM * 2 + n] = sum[b][n];
    __syncthreads();
    for (int at = threadIdx.x; at < TAPS * CONV_CHANNELS; at += CONV_THREADS) {
        int tap = at / CONV_CHANNELS, own = at % CONV_CHANNELS;
        real all = 0;
#pragma unroll
        for (int i = 0; i < SLOTS; i++)
            all += shared[i][tap][own];
        if (channel0 + own < c.groups)
            to[(long long)(channel0 + own) * TAPS + tap] = all;
    }
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_depthwise_weight(const __grid_constant__ conv_call c, const __grid_constant__ conv_parts p)
{
    conv_class l(c, 0, 0);
    int channel0 = (int)blockIdx.x * CONV_CHANNELS;
    int channel = channel0 + (int)threadIdx.x % TEAM * 2, team = (int)threadIdx.x / TEAM;
    int slot = team / TAPS_H, tap_row = team % TAPS_H;
    long long begin = blockIdx.y * p.part + slot, end = (blockIdx.y + 1) * p.part;
    end = end < p.all ? end : p.all;
    sums sum = {};
    if (channel < c.groups && slot < SLOTS)
#pragma unroll 1
        for (long long at = begin; at < end; at += SLOTS) {
            unsigned rest = (unsigned)at;
            int row = (int)split(&rest, p.by_rows), strip = (int)split(&rest, p.by_columns);
            add_strip(c, l, (int)rest, channel, row, strip * STRIP, tap_row, sum);
        }
    join_slots(c, p, channel0, tap_row, slot, sum);
}
