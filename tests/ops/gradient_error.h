/* Gradients of ops against differences, for the tests of all rows. */
#ifndef TESTS_OPS_GRADIENT_ERROR_H
#define TESTS_OPS_GRADIENT_ERROR_H

#include "dispatch/op.h"

/* Holds the op's gradient against finite differences of its specification, in double. Returns
 * the largest difference relative to the gradient's size; NAN with an error in `c`, a CPU
 * context, when it cannot be computed. */
double test_gradient_error(cup_context *c, const cup__row *row, const cup__sample *sample);

#endif
