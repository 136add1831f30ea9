/* Every implementation of every op held against its specification: the loop behind
 * `cupola check` and the tests. */
#ifndef CUP_PROF_CHECK_H
#define CUP_PROF_CHECK_H

#include "ops/op.h"

/* How the inputs lie in memory. */
typedef enum cup__layout { CUP__ROW_MAJOR, CUP__PADDED, CUP__TRANSPOSED } cup__layout;
const char *cup__layout_name(cup__layout layout);

typedef struct cup__check_result {
    const cup__row *row;
    const char *impl; /* "specification" and "view" included */
    cup_dtype dtype;
    cup__layout layout;
    const cup__sample *sample;
    double error, tolerance; /* in units of the dtype's epsilon */
    bool passed;
    char note[400]; /* what is wrong, when not passed */
} cup__check_result;

typedef void (*cup__check_report)(const cup__check_result *result, void *user);

/* Runs all samples of one op on the context's device; every result is reported. The status is
 * only about what kept the check itself from running. */
cup_status cup__check_op(cup_context *c, const cup__row *row, cup__check_report report, void *user);

/* Holds the op's gradient against finite differences of its specification, in double. Returns
 * the largest difference relative to the gradient's size; NAN with an error in `c`, a CPU
 * context, when it cannot be computed. */
double cup__check_gradient(cup_context *c, const cup__row *row, const cup__sample *sample);

/* Makes the inputs of a sample: random values of the op's domain, rounded to `dtype` when they
 * are floats, held in `hold` (f64 for the specification, or `dtype` itself). `in` takes at most
 * `most` tensors; returns how many, or -1 with an error in the context. */
int cup__sample_inputs(cup_context *c, const cup__row *row, const cup__sample *sample,
                       cup_dtype dtype, cup_dtype hold, cup__layout layout, uint64_t seed,
                       cup_tensor **in, int most);

#endif
