/* The arguments of the kernels of formulas, as the host fills them and the kernels read them. Plain
 * C, included by both. Dimensions stand innermost first, and offsets fit 32 bits. */
#ifndef CUP_CUSTOM_EXPRESSION_CALL_CUH
#define CUP_CUSTOM_EXPRESSION_CALL_CUH

#include "pointwise_call.cuh"

#define EXPRESSION_INPUTS 15
#define EXPRESSION_RESULTS 5
#define EXPRESSION_PARAMETERS 9

/* How a formula ends. */
#define EXPRESSION_PLAIN 0
#define EXPRESSION_ROWS 1    /* folds elements that lie side by side */
#define EXPRESSION_COLUMNS 2 /* keeps those that lie side by side */

typedef struct expression_space {
    divisor dim[POINTWISE_DIMS];
    int stride[EXPRESSION_INPUTS][POINTWISE_DIMS]; /* in elements */
} expression_space;

typedef struct expression_call {
    void *y[EXPRESSION_RESULTS];
    unsigned count;           /* elements of a result */
    unsigned length, part;    /* elements folded into one, and by one block */
    const void *x[EXPRESSION_INPUTS];
    float parameters_f32[EXPRESSION_PARAMETERS];
    double parameters[EXPRESSION_PARAMETERS];
    double share;             /* what means are multiplied by */
    divisor dim[POINTWISE_DIMS]; /* of what is kept */
    int stride[EXPRESSION_INPUTS][POINTWISE_DIMS];
} expression_call;

#endif
