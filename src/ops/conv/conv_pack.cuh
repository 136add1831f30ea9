/* Images of a few channels as wgmma.cu takes them: lines of 64 elements, which hold neighbouring
 * columns, each with GROUP rows of CHANNELS channels below each other, zeros where there are none.
 * A tap of the packed convolution is a line: GROUP rows of taps. Plain C, included by host and
 * kernels. */
#ifndef CUP_OPS_CONV_CONV_PACK_CUH
#define CUP_OPS_CONV_CONV_PACK_CUH

#include "conv_launch.cuh"

/* What is packed, [lines][rows][columns][GROUP][CHANNELS] from [lines][channel][row][column]. */
typedef struct conv_pack {
    const void *from;
    void *to;
    long long step[4]; /* of what lies as it came: line, channel, row, column */
    long long all;     /* columns of all lines that are packed */
    divisor columns, rows;
    int row_step;      /* from packed row to packed row */
    int before[2];     /* rows and columns of zeros in front */
    int size[2], channels; /* of what lies as it came */
    int parts;         /* that are added while it is unpacked, */
    const void *base;  /* to this where it is not null */
    long long base_step[4];
} conv_pack;

#endif
