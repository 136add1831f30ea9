/* Packs an image or a weight of a few channels, and unpacks the gradient of one, whose parts in f32
 * are added in order. A thread has the GROUP rows and CHANNELS channels of a column. */
#include "conv_pack.cuh"
#include "vec.cuh"

#ifndef GROUP
#define GROUP 2
#endif
#ifndef CHANNELS
#define CHANNELS 4
#endif

#ifndef BASE /* whether what is unpacked is added to a tensor, which may be the result itself */
#define BASE 0
#endif

#define EACH (GROUP * CHANNELS)

struct column {
    long long from;
    int row, column; /* of its first element, as it came */
};

DEVICE column column_of(const conv_pack &p, const long long *step, unsigned at)
{
    int column = (int)split(&at, p.columns) - p.before[1];
    int row = (int)split(&at, p.rows) * p.row_step - p.before[0];
    return {at * step[0] + row * step[2] + column * step[3], row, column};
}

DEVICE bool is_there(const conv_pack &p, const column &c, int row, int channel)
{
    return channel < p.channels && (unsigned)(c.row + row) < (unsigned)p.size[0] &&
           (unsigned)c.column < (unsigned)p.size[1];
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_pack_columns(const __grid_constant__ conv_pack p)
{
    for (long long at = (long long)blockIdx.x * CONV_THREADS + threadIdx.x; at < p.all;
         at += (long long)gridDim.x * CONV_THREADS) {
        column c = column_of(p, p.step, (unsigned)at);
        vec<T, EACH> v;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int row = i / CHANNELS, channel = i % CHANNELS;
            v.at[i] = T();
            if (is_there(p, c, row, channel))
                v.at[i] = ((const T *)p.from)[c.from + channel * p.step[1] + row * p.step[2]];
        }
        store((T *)p.to + at * EACH, v);
    }
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_unpack_columns(const __grid_constant__ conv_pack p)
{
    for (long long at = (long long)blockIdx.x * CONV_THREADS + threadIdx.x; at < p.all;
         at += (long long)gridDim.x * CONV_THREADS) {
        column c = column_of(p, p.step, (unsigned)at);
        real sum[EACH] = {};
        for (int part = 0; part < p.parts; part++) {
            vec<real, EACH> v = load<EACH>((const real *)p.from + (part * p.all + at) * EACH);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                sum[i] += v.at[i];
        }
        long long base = BASE ? column_of(p, p.base_step, (unsigned)at).from : 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int row = i / CHANNELS, channel = i % CHANNELS;
            if (!is_there(p, c, row, channel))
                continue;
            if (BASE)
                sum[i] += to_real(((const T *)p.base)[base + channel * p.base_step[1] +
                                                      row * p.base_step[2]]);
            ((T *)p.to)[c.from + channel * p.step[1] + row * p.step[2]] = from_real<T>(sum[i]);
        }
    }
}
