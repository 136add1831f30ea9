/* Convolutions on a CPU without columns in memory: of a block of places, what they read is copied
 * with channels side by side and zeros where the image has ended, and the inner loops find each tap
 * a fixed way from each place. The weight, or dy for its gradient, is cut into panels as wide as a
 * piece that stays in registers. */
#ifndef CUP_OPS_CONV_CONV_CPU_PACKED_H
#define CUP_OPS_CONV_CONV_CPU_PACKED_H

#include "ops/conv_cpu/conv_cpu.h"
#include "ops/conv_cpu/conv_cpu_kernel.h"

/* A rectangle of images, as it is copied: place (i, r, c) is row from[0] + r every[0] and column
 * from[1] + c every[1] of image `image` + i. */
typedef struct cup__conv_window {
    const void *data; /* of the first channel of image 0 */
    cup_dtype dtype;
    const long long *step; /* image, channel, row, column */
    int64_t channels, width; /* those that are read, and that a place has room for */
    int64_t size[2];
    int64_t image, images, from[2], every[2], count[2];
} cup__conv_window;

/* Zeros where the image has ended, and for channels that are not read. `space` takes as many floats
 * as there are channels times columns. */
void cup__conv_window_fill(const cup__conv_window *w, float *to, float *space);

/* How the places of a class are cut into blocks, and their copies. */
typedef struct cup__conv_blocks {
    const cup__conv_class *at;
    /* Of each direction: copied elements from place to place and from tap to tap, those of the
     * image from one copied element to the next, and where the first tap of place 0 is. */
    int64_t step[2], tap_step[2], every[2], from[2];
    int64_t images, lines[2];    /* of a block */
    int64_t counts[3], count;    /* blocks along images, rows and columns, and all */
    int64_t high, wide;          /* copied rows and columns of a block */
    int64_t run, taps;           /* elements side by side that a place reads, and how many such */
    bool joined;                 /* all taps of a row are side by side */
} cup__conv_blocks;

/* Blocks of about `places` places, of which there are at least `enough` where that can be. */
void cup__conv_blocks_make(cup__conv_blocks *b, const cup__conv_class *at, int64_t places,
                           int64_t enough);
int64_t cup__conv_blocks_floats(const cup__conv_blocks *b); /* of a block's copy */
/* Whether one place's copy has a size that can be had. */
bool cup__conv_blocks_fit(const cup__conv_class *at);
/* Where each of the taps is in a copy, counted from what a place reads first; in that order. */
void cup__conv_blocks_taps(const cup__conv_blocks *b, int64_t *to);
/* The number of the weight's tap for tap `tap` of `taps` along direction `d`, in that order. */
int64_t cup__conv_tap_of(const conv_line *l, int64_t tap);

/* Block number `index`: its first image, row and column, and how many of each. */
typedef struct cup__conv_block {
    int64_t image, images, line[2], lines[2];
} cup__conv_block;

cup__conv_block cup__conv_block_of(const cup__conv_blocks *b, int64_t index);
/* Copies what a block of a group reads. */
void cup__conv_block_copy(const cup__conv_blocks *b, const cup__conv_block *k, int64_t group,
                          float *to, float *space);
/* Where the reading of line (image, row) of a block begins in the copy. */
int64_t cup__conv_block_line(const cup__conv_blocks *b, int64_t image, int64_t row);

/* Panels of `columns` numbers: how many there are, and the vectors of each. */
typedef struct cup__conv_panels {
    cup__conv_kernels by;
    int64_t count, vectors, width;
} cup__conv_panels;

cup__conv_panels cup__conv_panels_of(int64_t columns);

/* Whether a product of the image as it lies is better than copies, which few results do not pay. */
bool cup__conv_few_results(const conv_call *c);

const char *cup__conv_packed_refuses(const cup__call *call);
const char *cup__conv_weight_packed_refuses(const cup__call *call);
cup_status cup__conv_packed(cup__call *call);
cup_status cup__conv_weight_packed(cup__call *call);

#endif
