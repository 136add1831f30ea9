/* Adds the parts of the gradient of conv2d's weight in order, and puts the sums where they go. A
 * thread has one element. */
#include "conv.cuh"

#ifndef SUM_T /* of the parts */
#define SUM_T CUP_F32
#endif
#ifndef BASE /* whether they are added to a tensor, which may be the result itself */
#define BASE 0
#endif
typedef dtype_of<SUM_T>::type sum_type;

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_join(const __grid_constant__ conv_call c, const __grid_constant__ conv_parts p)
{
    conv_class l(c, 0, 0);
    long long all = (long long)c.groups * c.results * p.depth;
    for (long long at = (long long)blockIdx.x * CONV_THREADS + threadIdx.x; at < all;
         at += (long long)gridDim.x * CONV_THREADS) {
        sum_type sum = 0;
#pragma unroll 8 /* so that as many are on their way */
        for (int i = 0; i < p.parts; i++)
            sum += ((const sum_type *)p.sums)[i * all + at];
        long long result = at / p.depth;
        int k = (int)(at - result * p.depth), taps = l.line[0].taps * l.line[1].taps;
        int tap = ALONG == CONV_ALONG_CHANNELS ? k / c.channels : k % taps;
        int channel = ALONG == CONV_ALONG_CHANNELS ? k % c.channels : k / taps;
        int row = tap / l.line[1].taps, column = tap - row * l.line[1].taps;
        real whole = (real)sum;
        if (BASE)
            whole += conv_base(p, result, channel, row, column);
        ((T *)c.y)[result * c.y_step[0] + channel * c.y_step[1] + row * c.y_step[2] +
                   column * c.y_step[3]] = from_real<T>(whole);
    }
}
