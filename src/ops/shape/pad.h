/* What pad and repeat share: x placed in a larger y, once or over and over again. */
#ifndef CUP_OPS_SHAPE_PAD_H
#define CUP_OPS_SHAPE_PAD_H

#include "dispatch/op.h"

/* Dimensions innermost first, merged where they can be. */
typedef struct cup__placing {
    int ndim;                      /* at least 1 */
    int64_t size[CUP_MAX_DIMS];    /* of y */
    int64_t from[CUP_MAX_DIMS];    /* of x */
    int64_t before[CUP_MAX_DIMS];  /* where x begins in y */
    bool wrap;                     /* x comes again after its end */
    uint64_t value;                /* else the bits of what stands around it */
} cup__placing;

/* `before` as in y's dimensions, NULL for zeros; x may have fewer, and is row-major, as y. */
cup__placing cup__placing_of(const cup_tensor *y, const cup_tensor *x, const int64_t *before,
                             bool wrap);

cup_status cup__place_cpu(cup__call *call, const cup__placing *p);
cup_status cup__place_cuda(cup__call *call, const cup__placing *p);

#endif
