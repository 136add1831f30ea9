/* What the dropout ops share. The mask has one bit an element: bit i % 8 of byte i / 8 is set where
 * element i is kept. The 8 elements of a byte take the 16-bit halves, low ones first, of the words
 * of one Philox block, and an element is kept when its half is not below the threshold. */
#ifndef CUP_OPS_RANDOM_DROPOUT_H
#define CUP_OPS_RANDOM_DROPOUT_H

#include "dispatch/op.h"

/* What p becomes: halves below the threshold drop their element, the others are scaled. p is
 * rounded to a multiple of 2^-16; the scale goes with the rounded one, so that means are kept. */
typedef struct cup__dropout {
    uint32_t threshold;
    double scale;
} cup__dropout;
cup__dropout cup__dropout_of(const cup__call *call);

/* For (x) and (residual, x) -> (y; mask). */
cup_status cup__dropout_infer(cup__call *call);
cup_status cup__dropout_specification(cup__call *call);
extern const cup__impl cup__dropout_impls[];
cup_status cup__dropout_cuda(cup__call *call);

#endif
