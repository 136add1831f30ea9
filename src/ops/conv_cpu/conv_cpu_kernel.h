/* The inner loops of convolutions on a CPU: pieces of a result that stay in registers. */
#ifndef CUP_OPS_CONV_CONV_CPU_KERNEL_H
#define CUP_OPS_CONV_CONV_CPU_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#define CUP__CONV_ROWS 6         /* of a piece */
#define CUP__CONV_VECTORS_MOST 4 /* of a row of it */

/* Rows of sums, one for each place: the channels that lie side by side at each tap of a place,
 * times the weight, which lies taps by channels by columns of the piece. */
typedef struct cup__conv_gather {
    const float *x[CUP__CONV_ROWS]; /* where the taps of each place are counted from */
    const int64_t *taps;
    int64_t tap_count, channels;
    const float *weight;
    float *sums;
    int64_t distance; /* of rows of sums */
    bool add;         /* to the sums that are there */
} cup__conv_gather;

/* Rows of sums, one for each of CUP__CONV_ROWS elements side by side that a place reads: over all
 * places, which lie in lines, each element times the place's row of dy. */
typedef struct cup__conv_outer {
    const float *x;
    const int64_t *lines; /* where each begins from x on */
    int64_t line_count, places, step; /* places of a line, and from one to the next */
    const float *dy;      /* of all places, rows of columns of the piece */
    float *sums;
    int64_t distance;
    bool add; /* to the sums that are there */
} cup__conv_outer;

/* The best that the processor has; number i is for pieces whose rows are i + 1 vectors. */
typedef struct cup__conv_kernels {
    int lanes, vectors; /* floats of a vector, and most vectors of a row */
    void (*gather[CUP__CONV_VECTORS_MOST])(const cup__conv_gather *g);
    void (*outer[CUP__CONV_VECTORS_MOST])(const cup__conv_outer *o);
} cup__conv_kernels;

/* For panels of `columns` in all: few of them would leave most of a long vector empty. */
cup__conv_kernels cup__conv_kernels_best(int64_t columns);

/* A matrix of so many rows and columns, turned: element (r, c) goes to line c. The two do not
 * overlap. */
void cup__conv_turn(float *to, int64_t to_distance, const float *from, int64_t from_distance,
                    int64_t rows, int64_t columns);

#endif
