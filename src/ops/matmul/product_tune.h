/* Measures the ways to do a product and remembers the fastest. */
#ifndef CUP_OPS_MATMUL_PRODUCT_TUNE_H
#define CUP_OPS_MATMUL_PRODUCT_TUNE_H

#include "ops/matmul/product_tuned.h"

/* The fastest way of those that were tried. */
typedef struct cup__tuned_way {
    cup__way way;
    double us;
    int ways;       /* that were tried */
    double seconds; /* it took, kernels that had to be compiled included */
} cup__tuned_way;

/* Measures the product of a call, whose result is overwritten by each way, with the L2 cache
 * flushed, and prefers the fastest way from now on in this context. */
cup_status cup__product_tune(cup__call *call, const cup__product *p, cup__tuned_way *out);

/* Puts the result into the user's file of tuning records. */
cup_status cup__tuned_way_save(cup_context *c, const cup__product *p, const cup__tuned_way *found);

#endif
