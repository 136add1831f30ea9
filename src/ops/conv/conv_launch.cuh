/* The arguments of the convolution kernels beside the convolution itself. Plain C, included by host
 * and kernels. */
#ifndef CUP_OPS_CONV_CONV_LAUNCH_CUH
#define CUP_OPS_CONV_CONV_LAUNCH_CUH

#include "conv_call.cuh"
#include "divide.cuh"

#define CONV_THREADS 256
#define CONV_STRIP 8     /* places side by side that a thread of the depthwise kernels has, */
#define CONV_CHANNELS 32 /* channels that the threads of a strip have, */
#define CONV_HIGH 4      /* and rows in which the strips of a block lie */
#define CONV_NARROW_STRIP 4     /* the same where a thread has all taps of a weight, */
#define CONV_NARROW_THREADS 128 /* and threads of a block of such */

/* Along what the elements of the image are neighbours in memory. */
#define CONV_ALONG_ROWS 0
#define CONV_ALONG_CHANNELS 1

/* Tiles of places and results; all classes have as many as the largest. */
typedef struct conv_tiles {
    unsigned places, results; /* how many tiles of each */
    unsigned classes[2];      /* of rows and columns */
} conv_tiles;

/* The gradient of the weight: places are put into parts, whose sums stand behind each other as
 * groups, results, and elements of the columns. */
typedef struct conv_parts {
    void *sums;
    long long all, part; /* places of all images, and of a part */
    int parts, depth;    /* elements of the columns of a group */
    int channels;        /* of a tap in the sums of wgmma.cu, which have more than there are */
    unsigned results, depths; /* tiles of each */
    divisor by_columns, by_rows; /* of places that are fewer than 2^31, by the sides of dy */
    const void *base;            /* what the sums are added to, with steps as those of y */
    long long base_step[4];
} conv_parts;

/* Convolutions with windows of one place between rows of a few channels and of many; steps are in
 * elements, of places and of channels. With larger windows `few` are the channels of all taps, tap
 * by tap, and gathered from an image. */
typedef struct conv_rows {
    void *few, *many, *sums;
    const void *weight, *bias, *residual; /* the last two may be null */
    long long places, few_row, many_row, residual_row;
    long long weight_few, weight_many, bias_step;
    long long part; /* places of a part of a weight's gradient */
    int count;      /* channels of `many` */
    int lanes;      /* threads that a row has, or with more of them a piece of it */
    divisor wide, high;     /* of these, the places of `many` in an image; for rows and columns, */
    int from[2], step[2], apart[2], size[2]; /* the first tap of the first place, from place to */
                            /* place and from tap to tap, and how many there are in the image */
    long long image_step[4], tap_step[3]; /* of `few`: image, channel, row, column; of a weight: */
                            /* channel, row, column */
} conv_rows;

/* Blocks of conv_outer.cu that a multiprocessor has at a time, by the weights that threads keep. */
#define CONV_OUTER_BLOCKS(few) ((few) <= 2 ? 4 : (few) <= 4 ? 3 : 2)
#define CONV_OUTER_WEIGHT_BLOCKS 2
#define CONV_OUTER_GATHERED 16 /* channels of all taps at most, where they are gathered, */
#define CONV_OUTER_EACH(gathers) ((gathers) ? 2 : 4) /* and places that a thread has at a time */

#endif
