/* conv2d and the gradient of its input for few channels a group, as depthwise ones: a thread sums
 * the elements of one result, which overlap with those of its neighbours in the first cache. Grid:
 * x counts results of an image, y images, z classes. */
#include "conv.cuh"

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_direct(const __grid_constant__ conv_call c, const __grid_constant__ conv_tiles t)
{
    unsigned which = blockIdx.z;
    conv_class l(c, (int)(which / t.classes[1]), (int)(which % t.classes[1]));
    unsigned high = l.line[0].count, wide = l.line[1].count, all = c.groups * c.results;
    unsigned at = blockIdx.x * CONV_THREADS + threadIdx.x;
    if (at >= high * wide * all)
        return;
    unsigned result, i, j;
    if (ALONG == CONV_ALONG_CHANNELS) {
        unsigned place = at / all;
        result = at - place * all;
        i = place / wide;
        j = place - i * wide;
    } else {
        unsigned row = at / wide;
        j = at - row * wide;
        result = row / high;
        i = row - result * high;
    }
    int group = (int)result / c.results, row0 = l.line[0].from + (int)i * l.line[0].step;
    int column0 = l.line[1].from + (int)j * l.line[1].step, own = (int)result - group * c.results;
    const T *w0 = (const T *)c.w + group * c.w_group + own * c.w_step[0] +
                  l.line[0].tap * c.w_step[2] + l.line[1].tap * c.w_step[3];
    conv_end end(c, result);
    for (int image = blockIdx.y; image < c.images; image += gridDim.y) {
        number sum = 0;
        for (int channel = 0; channel < c.channels; channel++) {
            const T *x = (const T *)c.x + image * c.x_step[0] + group * c.x_group +
                         channel * c.x_step[1];
            const T *w = w0 + channel * c.w_step[1];
            for (int a = 0; a < l.line[0].taps; a++) {
                int row = row0 + a * l.line[0].tap_step;
                if ((unsigned)row >= (unsigned)l.line[0].size)
                    continue;
                const T *line = x + row * c.x_step[2];
                const T *tap = w + (long long)a * l.line[0].tap_every * c.w_step[2];
                number row_sum = 0; /* by itself, so that roundings do not pile up */
#pragma unroll 4
                for (int b = 0; b < l.line[1].taps; b++) {
                    int column = column0 + b * l.line[1].tap_step;
                    if ((unsigned)column < (unsigned)l.line[1].size)
                        row_sum += (number)to_real(line[column * c.x_step[3]]) *
                                   to_real(tap[(long long)b * l.line[1].tap_every * c.w_step[3]]);
                }
                sum += row_sum;
            }
        }
        long long to = image * c.y_step[0] + group * c.y_group + own * c.y_step[1] +
                       (l.line[0].first + (long long)i * l.line[0].every) * c.y_step[2] +
                       (l.line[1].first + (long long)j * l.line[1].every) * c.y_step[3];
        ((result_type *)c.y)[to] = from_real<result_type>(end.of(sum));
    }
}
