/* conv2d of one channel a group, and with a stride of 1 the gradient of its input, where channels
 * are neighbours in memory: a thread sums STRIP results side by side of two channels, and reads
 * each element of the image once a row of taps for all of them, one row ahead. The strips of a
 * block lie in CONV_HIGH rows, whose images overlap in the first cache. Grid: x counts blocks of
 * strips, of which an image has t.results, z blocks of channels. */
#include "conv_depthwise.cuh"

#ifndef PAIRS /* whether two channels can be written at once */
#define PAIRS 1
#endif

/* The weights of the block's channels, with the tap first that reads the first row and column. */
DEVICE void stage_weights(const conv_call &c, const conv_class &l, int channel0,
                          real (*weight)[CONV_CHANNELS])
{
    bool turned = l.line[0].tap_step < 0;
    for (int at = threadIdx.x; at < TAPS * CONV_CHANNELS; at += CONV_THREADS) {
        int tap = at / CONV_CHANNELS, own = at % CONV_CHANNELS, channel = channel0 + own;
        int i = tap / TAPS_W, j = tap % TAPS_W;
        if (turned) {
            i = TAPS_H - 1 - i;
            j = TAPS_W - 1 - j;
        }
        weight[tap][own] =
            channel < c.groups
                ? to_real(((const T *)c.w)[channel * c.w_group + i * c.w_step[2] + j * c.w_step[3]])
                : (real)0;
    }
}

/* What a row of the image adds to the strip. */
DEVICE void add_row(const pair_word (&x)[WIDTH], const real (*weight)[CONV_CHANNELS],
                    real (&sum)[STRIP][2])
{
    vec<real, 2> w[TAPS_W];
#pragma unroll
    for (int j = 0; j < TAPS_W; j++)
        w[j] = load_plain<2>(weight[j] + threadIdx.x % TEAM * 2);
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        real v[2];
        unpack(x[k], v);
#pragma unroll
        for (int j = 0; j < TAPS_W; j++)
            if (meets(k, j)) {
                sum[(k - j) / STRIDE][0] += v[0] * w[j].at[0];
                sum[(k - j) / STRIDE][1] += v[1] * w[j].at[1];
            }
    }
}

DEVICE void write_strip(const conv_call &c, const conv_class &l, int image, int channel, int i,
                        int j, const real (&sum)[STRIP][2])
{
    real bias[2] = {0, 0};
    if (c.bias)
#pragma unroll
        for (int n = 0; n < 2; n++)
            bias[n] = to_real(((const T *)c.bias)[(channel + n) * c.bias_step]);
    T *to = (T *)c.y + image * c.y_step[0] + channel * c.y_group + i * c.y_step[2] +
            j * c.y_step[3];
#pragma unroll
    for (int k = 0; k < STRIP; k++, to += c.y_step[3]) {
        pair v = {{from_real<T>(sum[k][0] + bias[0]), from_real<T>(sum[k][1] + bias[1])}};
        if (j + k >= l.line[1].count)
            break;
        if (PAIRS) {
            store(to, v);
        } else {
            to[0] = v.at[0];
            to[c.y_group] = v.at[1];
        }
    }
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS, sizeof(T) == 4 ? 1 : 2)
    conv_depthwise(const __grid_constant__ conv_call c, const __grid_constant__ conv_tiles t)
{
    __shared__ __align__(16) real weight[TAPS][CONV_CHANNELS];
    conv_class l(c, 0, 0);
    int channel0 = (int)blockIdx.z * CONV_CHANNELS;
    int channel = channel0 + (int)threadIdx.x % TEAM * 2;
    stage_weights(c, l, channel0, weight);
    __syncthreads();
    int unit = (int)blockIdx.x * TEAMS + (int)threadIdx.x / TEAM, image = unit / (int)t.results;
    unit -= image * (int)t.results;
    int strip = unit / CONV_HIGH, i = strip / (int)t.places * CONV_HIGH + unit % CONV_HIGH;
    int j = strip % (int)t.places * STRIP;
    if (image >= c.images || i >= l.line[0].count || channel >= c.groups)
        return;
    /* The first tap's row and column; those of the gradient go backwards. */
    int row = l.line[0].from + i * STRIDE + min(0, (TAPS_H - 1) * l.line[0].tap_step);
    int column = l.line[1].from + j * STRIDE + min(0, (TAPS_W - 1) * l.line[1].tap_step);
    unsigned there = columns_there<WIDTH>(column, l.line[1].size);
    unsigned rows = columns_there<TAPS_H>(row, l.line[0].size);
    int step = (int)c.x_step[3];
    const T *from = (const T *)c.x + image * c.x_step[0] + row * c.x_step[2] +
                    column * c.x_step[3] + channel;
    real sum[STRIP][2] = {};
    pair_word x[2][WIDTH];
    read_row(from, step, rows & 1 ? there : 0, x[0]);
#pragma unroll 1
    for (int a = 0; a < TAPS_H; a += 2, from += 2 * c.x_step[2]) {
        read_row(from + c.x_step[2], step, rows >> (a + 1) & 1 ? there : 0, x[1]);
        add_row(x[0], weight + a * TAPS_W, sum);
        if (a + 1 == TAPS_H)
            break;
        read_row(from + 2 * c.x_step[2], step, rows >> (a + 2) & 1 ? there : 0, x[0]);
        add_row(x[1], weight + (a + 1) * TAPS_W, sum);
    }
    write_strip(c, l, image, channel, i, j, sum);
}
