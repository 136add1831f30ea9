/* Adds the parts of the gradient of conv2d's weight as wgmma.cu leaves them, by result, tap and
 * channel, in order, and puts the sums where they go. A warp has 32 elements; the warps of a block
 * share the parts, SLICES of them, where there are few elements. */
#include "conv.cuh"
#include "dependent.cuh"

#ifndef SLICES
#define SLICES 8
#endif
#ifndef BASE /* whether they are added to a tensor, which may be the result itself */
#define BASE 0
#endif
#ifndef SCALED /* whether x and dy were divided by something */
#define SCALED 0
#endif

#define ELEMENTS (CONV_THREADS / SLICES) /* of a block */

DEVICE void put_sum(const conv_call &c, const conv_parts &p, long long at, float sum)
{
    long long result = at / p.depth;
    int k = (int)(at - result * p.depth), tap = k / p.channels, channel = k - tap * p.channels;
    int row = tap / c.side[1].taps, column = tap - row * c.side[1].taps;
    if (channel >= c.channels)
        return;
    if (SCALED)
        sum *= *c.x_scale * *c.w_scale;
    if (BASE)
        sum += conv_base(p, result, channel, row, column);
    ((T *)c.y)[result * c.y_step[0] + channel * c.y_step[1] + row * c.y_step[2] +
               column * c.y_step[3]] = from_real<T>(sum);
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_sums(const __grid_constant__ conv_call c, const __grid_constant__ conv_parts p)
{
    __shared__ float shared[SLICES][ELEMENTS];
    long long all = (long long)c.results * p.depth;
    int slice = (int)threadIdx.x / ELEMENTS, element = (int)threadIdx.x % ELEMENTS;
    long long at = (long long)blockIdx.x * ELEMENTS + element;
    int each = (p.parts + SLICES - 1) / SLICES, end = min(p.parts, (slice + 1) * each);
    float sum = 0;
    wait_for_previous_kernel();
    if (at < all)
#pragma unroll 8
        for (int i = slice * each; i < end; i++)
            sum += __ldcg((const float *)p.sums + i * all + at);
    if (SLICES > 1) {
        shared[slice][element] = sum;
        __syncthreads();
        sum = 0;
        if (slice == 0)
#pragma unroll
            for (int i = 0; i < SLICES; i++)
                sum += shared[i][element];
    }
    if (slice == 0 && at < all)
        put_sum(c, p, at, sum);
}
