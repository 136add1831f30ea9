/* The gradients of single calls on a device, through the tape, held against the same in double. */
#ifndef CUP_PROF_CHECK_BACKWARD_H
#define CUP_PROF_CHECK_BACKWARD_H

#include "dispatch/op.h"

typedef struct cup__backward_result {
    const char *op;
    const char *call; /* as text, which a drawn call can be repeated by */
    const char *note;
    cup_dtype dtype;
    double error, tolerance;
    bool passed;
    bool drawn; /* the call is the smallest one that fails, and can be made again by its text */
} cup__backward_result;

typedef void (*cup__backward_report)(const cup__backward_result *result, void *user);

/* Every sample of the ops that have a gradient, in f32, bf16 and f16, and then `count` calls drawn
 * from the seed. On a dry GPU (cuda/dry.h) only their kernels are compiled. */
cup_status cup__check_backward(cup_context *c, const cup__row *const *rows, int row_count,
                               uint64_t seed, int64_t count, cup__backward_report report,
                               void *user);

/* One drawn call, by its text. */
cup_status cup__check_backward_call(cup_context *c, const char *text, cup__backward_report report,
                                    void *user);

/* The samples alone, and in f32: what a check of everything can afford. */
cup_status cup__check_backward_samples(cup_context *c, const cup__row *const *rows, int row_count,
                                       cup__backward_report report, void *user);

#endif
