/* What the convolution kernels share: where the elements of places and columns lie, and what
 * becomes of sums. The columns of a place are counted by channel and then tap, or by tap and then
 * channel where channels are neighbours in memory (ALONG). Codes of 8 bits (CUP_T) are summed in
 * f32, or exactly those that are integers, and give results in Y_T. */
#ifndef CUP_OPS_CONV_CONV_CUH
#define CUP_OPS_CONV_CONV_CUH

#include "conv_launch.cuh"
#include "vec.cuh"

#ifndef ALONG
#define ALONG CONV_ALONG_ROWS
#endif
#define CODES (CUP_T == CUP_I8 || CUP_T == CUP_F8E4M3)

#ifdef Y_T
typedef dtype_of<Y_T>::type result_type;
#else
typedef T result_type;
#endif
#if CUP_T == CUP_I8
typedef int number; /* what is summed */
#else
typedef real number;
#endif
#if CODES
typedef float finished, bias_type;
#else
typedef real finished;
typedef T bias_type;
#endif

/* What becomes of the sums of a result; `channel` counts the results of all groups. */
struct conv_end {
    finished factor, bias;

    __device__ __forceinline__ conv_end(const conv_call &c, long long channel) : factor(1), bias(0)
    {
        if (c.bias)
            bias = to_real(((const bias_type *)c.bias)[channel * c.bias_step]);
#if CODES
        if (c.x_scale)
            factor = *c.x_scale;
        if (c.w_scale)
            factor *= c.w_scale[channel * c.scale_step];
#endif
    }
    __device__ __forceinline__ finished of(number sum) const
    {
        return CODES ? (finished)sum * factor + bias : (finished)sum + bias;
    }
};

/* A place: where its first tap would lie in memory and in the image, and where it is written. */
struct conv_place {
    long long from, to;
    int row, column; /* of the image */
};

/* A row below any tap, so that nothing is inside: of places that there are not. */
#define CONV_NOWHERE (-0x40000000)

struct conv_class {
    conv_line line[2];
    int depth;

    __device__ __forceinline__ conv_class(const conv_call &c, int high, int wide)
    {
        line[0] = conv_line_of(&c.side[0], c.back, high);
        line[1] = conv_line_of(&c.side[1], c.back, wide);
        depth = c.channels * line[0].taps * line[1].taps;
    }
    __device__ __forceinline__ long long places(const conv_call &c) const
    {
        return (long long)c.images * line[0].count * line[1].count;
    }
    /* Place number `at` of all images; beyond the last, one that reads nothing. */
    __device__ __forceinline__ conv_place place(const conv_call &c, long long at) const
    {
        conv_place p = {0, -1, CONV_NOWHERE, CONV_NOWHERE};
        if (at >= places(c))
            return p;
        long long rest = at / line[1].count, image = rest / line[0].count;
        int j = (int)(at - rest * line[1].count), i = (int)(rest - image * line[0].count);
        p.row = line[0].from + i * line[0].step;
        p.column = line[1].from + j * line[1].step;
        p.from = image * c.x_step[0] + p.row * c.x_step[2] + p.column * c.x_step[3];
        p.to = image * c.y_step[0] + (line[0].first + (long long)i * line[0].every) * c.y_step[2] +
               (line[1].first + (long long)j * line[1].every) * c.y_step[3];
        return p;
    }
};

/* Places of all images, `by` further at each step, without the divisions of finding each anew. */
struct conv_walk {
    int image, row, column; /* of the result */
    int by_image, by_row, by_column;

    conv_walk() = default;
    __device__ __forceinline__ conv_walk(const conv_class &l, long long at, int by)
    {
        long long rest = at / l.line[1].count;
        image = (int)(rest / l.line[0].count);
        row = (int)(rest - (long long)image * l.line[0].count);
        column = (int)(at - rest * l.line[1].count);
        by_column = by % l.line[1].count;
        by_row = by / l.line[1].count;
        by_image = by_row / l.line[0].count;
        by_row -= by_image * l.line[0].count;
    }
    __device__ __forceinline__ void next(const conv_class &l)
    {
        column += by_column;
        bool over = column >= l.line[1].count;
        column -= over ? l.line[1].count : 0;
        row += by_row + over;
        over = row >= l.line[0].count;
        row -= over ? l.line[0].count : 0;
        image += by_image + over;
    }
};

/* One element of the columns: how far from a place's first it lies, in memory and in the image, and
 * its place in a row of the weight. */
struct conv_element {
    long long x, w;
    int row, column;
};

DEVICE conv_element conv_element_of(const conv_call &c, const conv_class &l, int k)
{
    conv_element e = {0, 0, 0, 0};
    if (k >= l.depth)
        return e;
    int taps = l.line[0].taps * l.line[1].taps, channel, tap;
    if (ALONG == CONV_ALONG_CHANNELS) {
        tap = k / c.channels;
        channel = k - tap * c.channels;
    } else {
        channel = k / taps;
        tap = k - channel * taps;
    }
    int i = tap / l.line[1].taps, j = tap - i * l.line[1].taps;
    e.row = i * l.line[0].tap_step;
    e.column = j * l.line[1].tap_step;
    e.x = channel * c.x_step[1] + e.row * c.x_step[2] + e.column * c.x_step[3];
    e.w = channel * c.w_step[1] + (l.line[0].tap + i * l.line[0].tap_every) * c.w_step[2] +
          (l.line[1].tap + j * l.line[1].tap_every) * c.w_step[3];
    return e;
}

/* What an element of a weight's gradient is added to. */
DEVICE real conv_base(const conv_parts &p, long long result, int channel, int row, int column)
{
    return to_real(((const T *)p.base)[result * p.base_step[0] + channel * p.base_step[1] +
                                         row * p.base_step[2] + column * p.base_step[3]]);
}

DEVICE bool conv_inside(const conv_class &l, int row, int column)
{
    return (unsigned)row < (unsigned)l.line[0].size && (unsigned)column < (unsigned)l.line[1].size;
}

#endif
