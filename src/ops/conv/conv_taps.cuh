/* The arguments of conv_taps.cu. Plain C, included by host and kernels.
 *
 * Places are numbered along rows, rows along strips of columns, strips along images. Either each
 * row is one of the image, and `columns` and `rows` are its own, or a strip has the columns under
 * its results, which overlap those of its neighbours, and rows those above and below the image. */
#ifndef CUP_OPS_CONV_CONV_TAPS_CUH
#define CUP_OPS_CONV_CONV_TAPS_CUH

#include "divide.cuh"

#define CONV_TAPS_THREADS 256 /* that multiply and add up, beside a warp that orders copies */
#define CONV_TAPS_BOX 64      /* places that are brought at once */
#define CONV_TAPS_LINE 128    /* bytes of channels of each */
#define CONV_TAPS_CHUNK 64    /* channels of that */
#define CONV_TAPS_APART 4     /* floats between rows of sums beyond what they hold */

typedef struct conv_taps {
    const void *weight, *bias; /* bias may be null */
    void *y;
    long long weight_step[4]; /* result, channel, row, column */
    long long y_step[4];      /* image, result, row, column */
    long long bias_step;
    divisor columns, rows, strips;
    int strip;              /* columns of results in a strip */
    int count[2], size[2];  /* rows and columns of results, and of x */
    int from[2], apart[2];  /* where a result's first tap is in x, and from tap to tap */
    int origin[2];          /* where the first place of a strip is in x */
    int channels, chunks;   /* of x, and how many pieces of a line they are */
    int stages;             /* copies of a step that shared memory has room for */
    unsigned all, each;     /* places, and how many of them a block has the results of */
    int first;              /* place of the first tap of its first result, counted from that */
    int reach;              /* places from the first tap of a result to the last one */
    int tap, tap_step[2];   /* place of tap 0, counted from the first, and from tap to tap */
} conv_taps;

#endif
