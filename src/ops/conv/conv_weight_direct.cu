/* The gradient of conv2d's weight for few channels a group, as depthwise ones. Grid: x counts
 * blocks of pairs of a result and a channel, y taps, z parts. The 256 threads of a block have
 * CHANNELS pairs side by side; the others share the places, and their sums are added in order. */
#include "conv.cuh"

#define CHANNELS (ALONG == CONV_ALONG_CHANNELS ? 32 : 1)
#define LANES (CONV_THREADS / CHANNELS)
#define CHUNK 128 /* places that are summed by themselves, so that roundings do not pile up */

/* What the places of this thread add to a tap of a pair. */
DEVICE real sum_of(const conv_call &c, const conv_parts &p, const conv_class &l, int group,
                   int result, int channel, int tap)
{
    long long begin = blockIdx.z * p.part + threadIdx.x / CHANNELS, end = (blockIdx.z + 1) * p.part;
    end = end < p.all ? end : p.all;
    int row0 = tap / l.line[1].taps, column0 = tap - row0 * l.line[1].taps;
    row0 = row0 * l.line[0].tap_step + l.line[0].from;
    column0 = column0 * l.line[1].tap_step + l.line[1].from;
    const T *x = (const T *)c.x + group * c.x_group + channel * c.x_step[1];
    const T *dy = (const T *)c.w + group * c.w_group + result * c.w_step[1];
    real sum = 0, chunk = 0;
    int taken = 0;
    conv_walk place(l, begin, LANES);
    for (long long at = begin; at < end; at += LANES, place.next(l)) {
        int row = row0 + place.row * l.line[0].step;
        int column = column0 + place.column * l.line[1].step;
        if (conv_inside(l, row, column))
            chunk += to_real(dy[place.image * c.w_step[0] + place.row * c.w_step[2] +
                                place.column * c.w_step[3]]) *
                     to_real(x[place.image * c.x_step[0] + row * c.x_step[2] +
                               column * c.x_step[3]]);
        if (++taken % CHUNK == 0) {
            sum += chunk;
            chunk = 0;
        }
    }
    return sum + chunk;
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_weight_direct(const __grid_constant__ conv_call c, const __grid_constant__ conv_parts p)
{
    __shared__ real shared[LANES][CHANNELS];
    conv_class l(c, 0, 0);
    int taps = l.line[0].taps * l.line[1].taps;
    long long pairs = (long long)c.groups * c.results * c.channels;
    long long pair = (long long)blockIdx.x * CHANNELS + threadIdx.x % CHANNELS;
    int channel = (int)(pair % c.channels), own = (int)(pair / c.channels);
    for (int tap = blockIdx.y; tap < taps; tap += gridDim.y) {
        shared[threadIdx.x / CHANNELS][threadIdx.x % CHANNELS] =
            pair < pairs ? sum_of(c, p, l, own / c.results, own % c.results, channel, tap)
                         : (real)0;
        __syncthreads();
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
            if (threadIdx.x < lanes * CHANNELS)
                shared[threadIdx.x / CHANNELS][threadIdx.x % CHANNELS] +=
                    shared[threadIdx.x / CHANNELS + lanes][threadIdx.x % CHANNELS];
            __syncthreads();
        }
        int k = ALONG == CONV_ALONG_CHANNELS ? tap * c.channels + channel : channel * taps + tap;
        if (threadIdx.x < CHANNELS && pair < pairs)
            ((real *)p.sums)[((long long)blockIdx.z * c.groups * c.results + own) * p.depth + k] =
                shared[0][threadIdx.x];
        __syncthreads();
    }
}
