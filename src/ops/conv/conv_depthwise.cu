/* conv2d of one channel a group, and with a stride of 1 the gradient of its input, where channels
 * are neighbours in memory: a thread sums STRIP results side by side of two channels, and reads
 * each element of the image once for all of them. A warp has 64 channels; the warps of a block have
 * rows below each other, whose images overlap in the first cache. Grid: x counts strips and blocks
 * of rows, y images, z blocks of channels. */
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

#ifndef PAIRS /* whether two channels can be written at once */
#define PAIRS 1
#endif

#define STRIP CONV_STRIP
#define TAPS (TAPS_H * TAPS_W)
#define WIDTH ((STRIP - 1) * STRIDE + TAPS_W) /* of the image, under a strip */
#define ROWS (CONV_THREADS / 32)

typedef vec<T, 2> pair;

/* The weights of the block's channels, with the tap first that reads the first row and column. */
DEVICE void stage_weights(const conv_call &c, const conv_class &l, int channel0,
                          real (*weight)[64])
{
    bool turned = l.line[0].tap_step < 0;
    for (int at = threadIdx.x; at < TAPS * 64; at += CONV_THREADS) {
        int tap = at / 64, channel = channel0 + at % 64, i = tap / TAPS_W, j = tap % TAPS_W;
        if (turned) {
            i = TAPS_H - 1 - i;
            j = TAPS_W - 1 - j;
        }
        weight[tap][at % 64] =
            channel < c.groups
                ? to_real(((const T *)c.w)[channel * c.w_group + i * c.w_step[2] + j * c.w_step[3]])
                : (real)0;
    }
}

/* What a row of the image adds to the strip. */
DEVICE void add_row(const T *from, long long step, int column, int columns,
                    const real (*weight)[64], real (&sum)[STRIP][2])
{
    pair x[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        x[k] = pair();
        if ((unsigned)(column + k) < (unsigned)columns)
            x[k] = load<2>(from + k * step);
    }
    real w[TAPS_W][2];
#pragma unroll
    for (int j = 0; j < TAPS_W; j++) {
        w[j][0] = weight[j][threadIdx.x % 32 * 2];
        w[j][1] = weight[j][threadIdx.x % 32 * 2 + 1];
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        real v[2];
        to_reals(x[k], v);
#pragma unroll
        for (int j = 0; j < TAPS_W; j++)
            if (k >= j && (k - j) % STRIDE == 0 && (k - j) / STRIDE < STRIP) {
                sum[(k - j) / STRIDE][0] += v[0] * w[j][0];
                sum[(k - j) / STRIDE][1] += v[1] * w[j][1];
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

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_depthwise(const __grid_constant__ conv_call c, const __grid_constant__ conv_tiles t)
{
    __shared__ real weight[TAPS][64];
    conv_class l(c, 0, 0);
    int channel0 = (int)blockIdx.z * 64, channel = channel0 + (int)threadIdx.x % 32 * 2;
    stage_weights(c, l, channel0, weight);
    __syncthreads();
    int i = (int)(blockIdx.x / t.places) * ROWS + (int)threadIdx.x / 32;
    int j = (int)(blockIdx.x % t.places) * STRIP;
    if (i >= l.line[0].count || channel >= c.groups)
        return;
    /* The first tap's row and column; those of the gradient go backwards. */
    int row = l.line[0].from + i * STRIDE + min(0, (TAPS_H - 1) * l.line[0].tap_step);
    int column = l.line[1].from + j * STRIDE + min(0, (TAPS_W - 1) * l.line[1].tap_step);
    for (int image = blockIdx.y; image < c.images; image += gridDim.y) {
        const T *from = (const T *)c.x + image * c.x_step[0] + row * c.x_step[2] +
                        column * c.x_step[3] + channel;
        real sum[STRIP][2] = {};
#pragma unroll 1
        for (int a = 0; a < TAPS_H; a++, from += c.x_step[2])
            if ((unsigned)(row + a) < (unsigned)l.line[0].size)
                add_row(from, c.x_step[3], column, l.line[1].size, weight + a * TAPS_W, sum);
        write_strip(c, l, image, channel, i, j, sum);
    }
}
