/* Makes the weight of blocks from that of a convolution, and an image from its blocks
 * (conv_blocks.cuh). A thread has an element of the weight, or a place of the image. */
#include "conv_blocks.cuh"
#include "vec.cuh"

/* The taps of a block's kernel go forwards in dy, so backwards in the weight. */
extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_block_weight(const __grid_constant__ conv_blocks b)
{
    for (long long at = (long long)blockIdx.x * CONV_THREADS + threadIdx.x; at < b.all;
         at += (long long)gridDim.x * CONV_THREADS) {
        unsigned rest = (unsigned)at, result = split(&rest, b.results);
        int column = (int)(b.sides[1].size - 1 - split(&rest, b.sides[1]));
        int row = (int)(b.sides[0].size - 1 - split(&rest, b.sides[0]));
        unsigned channel = split(&rest, b.few);
        column = column * (int)b.stride[1].size + (int)split(&rest, b.stride[1]);
        row = row * (int)b.stride[0].size + (int)split(&rest, b.stride[0]);
        T v = T();
        if (rest == 0 && row < b.taps[0] && column < b.taps[1])
            v = ((const T *)b.from)[result * b.step[0] + channel * b.step[1] + row * b.step[2] +
                                    column * b.step[3]];
        ((T *)b.to)[at] = v;
    }
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_unblock(const __grid_constant__ conv_blocks b)
{
    for (long long at = (long long)blockIdx.x * CONV_THREADS + threadIdx.x; at < b.all;
         at += (long long)gridDim.x * CONV_THREADS) {
        unsigned image = (unsigned)at, j = split(&image, b.sides[1]), i = split(&image, b.sides[0]);
        unsigned column = j + b.before[1], row = i + b.before[0];
        int in_row = (int)split(&row, b.stride[0]), in_column = (int)split(&column, b.stride[1]);
        long long block = ((long long)image * b.count[0] + (row - b.first[0])) * b.count[1] +
                          (column - b.first[1]);
        int channels = (int)b.few.size;
        const T *from = (const T *)b.from + block * b.each +
                        (in_row * (int)b.stride[1].size + in_column) * channels;
        T *to = (T *)b.to + image * b.step[0] + i * b.step[2] + j * b.step[3];
        for (int channel = 0; channel < channels; channel++)
            to[channel * b.step[1]] = from[channel];
    }
}
