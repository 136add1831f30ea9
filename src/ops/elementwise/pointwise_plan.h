/* How elementwise kernels read their inputs and how much a thread does: what decides the knobs of
 * kernels/inputs.cuh. */
#ifndef CUP_OPS_ELEMENTWISE_POINTWISE_PLAN_H
#define CUP_OPS_ELEMENTWISE_POINTWISE_PLAN_H

#include "cuda/cuda.h"
#include "dispatch/loop.h"
#include "dispatch/op.h"

/* Loops over what 32 bits can index, and where their tensors begin. */
typedef struct cup__nest {
    cup__loop loop; /* tensor 0 stands for the results, tensor k + 1 is input k */
    int inputs, results;
    char *x[CUP__LOOP_MOST], *y[CUP__MAX_OUT];
    cup_dtype x_dtype[CUP__LOOP_MOST], y_dtype[CUP__MAX_OUT];
} cup__nest;

typedef struct cup__access_plan {
    int vec, unroll, ndim;
    int kind[CUP__LOOP_MOST], width[CUP__LOOP_MOST];
} cup__access_plan;

/* Results are written in units of neighbours. With `outer`, a loop over the same inputs around
 * this one, units begin anew at each of its steps, and there are only whole ones. */
cup__access_plan cup__access_plan_make(const cup__nest *nest, const cup__loop *outer,
                                       const cup__gpu_facts *facts);

/* Whether a unit of so many elements of this size is whole lines of 16 bytes, so that it can be cut
 * out of these wherever it begins (width 0). */
bool cup__unit_is_lines(int vec, int64_t size);

/* The value of the knob X0, X1, .. of input k. */
int64_t cup__access_knob(const cup__nest *nest, const cup__access_plan *plan, int k);

/* Whether reading the input where it lies would touch far more memory than it holds: it is as
 * large as the result and its neighbours are not the result's. `k` is its number in the loop. */
bool cup__is_transposed(const cup__loop *loop, int k, const cup_tensor *in);

#endif
