/* What the dropout ops share. The mask has one bit an element: bit i % 8 of byte i / 8 is set where
 * element i is kept. The 8 elements of a byte take the 16-bit halves, low ones first, of the words
 * of one Philox block, that of the byte's number. An element is kept when its half is not below the
 * threshold; one that equals it, which one in 65536 does, is dropped where the half at the same
 * place of the block 2^63 further on is below the rest. So 32 random bits decide, and nearly always
 * 16 are enough. Of parts of sequences each block has the number that it has in the whole. */
#ifndef CUP_OPS_RANDOM_DROPOUT_H
#define CUP_OPS_RANDOM_DROPOUT_H

#include "dispatch/op.h"

/* What p becomes, rounded to a multiple of 2^-32: the threshold, at most 65536, and its rest. What
 * is kept is scaled by what goes with the rounded p, so that means are kept. */
typedef struct cup__dropout {
    uint32_t threshold, rest;
    double scale;
} cup__dropout;
cup__dropout cup__dropout_of(const cup__call *call);

/* Parts of sequences [B,T,..] in blocks of 8 elements: so many of a stretch and of a whole, and
 * where both stretches begin. 0 of a stretch: there are no parts. Filled in for kernels, too. */
typedef struct cup__dropout_parts {
    uint64_t stretch, whole, place[2];
} cup__dropout_parts;
cup__dropout_parts cup__dropout_parts_of(const cup__call *call);

/* Whether element `index` is kept: plainly, for specifications. */
bool cup__dropout_keeps(const cup__call *call, const cup__dropout *dropout, int64_t index);

/* For (x) and (residual, x) -> (y; mask). */
cup_status cup__dropout_infer(cup__call *call);
cup_status cup__dropout_specification(cup__call *call);
extern const cup__impl cup__dropout_impls[];
cup_status cup__dropout_cuda(cup__call *call);

#endif
