/* The gradient of an image of a few channels as a convolution with many results: a block of the
 * image, as high and wide as the strides, is one place of dy, and its elements are the results
 * there. The kernel has a tap for each step of a stride then, with zeros where it ends within one.
 * Plain C, included by host and kernels. */
#ifndef CUP_OPS_CONV_CONV_BLOCKS_CUH
#define CUP_OPS_CONV_CONV_BLOCKS_CUH

#include "conv_launch.cuh"

/* What is taken from [result][channel][row][column] to the weight of blocks, [row and column in
 * the block, channel][row][column][result], or from blocks, [image][row][column][row and column in
 * the block, channel], to the image. */
typedef struct conv_blocks {
    const void *from;
    void *to;
    long long step[4];      /* of what does not consist of blocks, in its order */
    long long all;          /* elements of the weight, or places of the image */
    divisor sides[2];       /* taps of the blocks' kernel, or rows and columns of the image */
    divisor stride[2], few; /* `few` channels */
    divisor results;        /* of the kernel as it came */
    int taps[2];            /* of the kernel as it came */
    int before[2];          /* rows and columns of padding */
    int first[2], count[2]; /* of the blocks that the image lies in */
    int each;               /* elements of a block with those that nobody reads */
} conv_blocks;

#endif
