/* Calls of f32 whose products may be rounded (cup_precision), by the kernels for f16, which has as
 * many bits of fraction as tf32 and tensor cores that take twice as many numbers. */
#ifndef CUP_OPS_LOWBIT_ROUNDED_H
#define CUP_OPS_LOWBIT_ROUNDED_H

#include "cuda/cuda.h"
#include "ops/lowbit/round_off_call.cuh"

/* The largest finite elements become this where sums are all that must fit; f16 ends at 65504. */
#define CUP__ROUNDED_MOST 32768

/* A tensor on a GPU that is to be rounded, so that its largest finite element becomes `most`. */
typedef struct cup__rounding {
    cup_tensor *x;
    double most;
    cup_tensor *half; /* the result, in f16 and row-major; or planes, one behind the other */
} cup__rounding;

/* Up to four of them in two launches. Into scales[i], in f32, goes what tensor i was divided by. */
cup_status cup__round_off(cup_context *c, cup__rounding *all, int count, cup_tensor *scales);

/* The same for other kernels that read what the first of these two finds: fills all but the last
 * five fields of a call, whose memory is the scope's, and gives the blocks of a launch, or 0 with
 * the context's error; and a launch. */
int64_t cup__rounding_begin(cup_context *c, cup__rounding *all, int count, int planes,
                            round_off_call *call);
cup_status cup__rounding_launch(cup_context *c, const char *file, const char *entry,
                                const cup__knob *knobs, int knob_count, const round_off_call *call,
                                int64_t blocks);

#endif
