/* What the files of formulas on the GPU share. */
#ifndef CUP_CUSTOM_WORK_H
#define CUP_CUSTOM_WORK_H

#include "cuda/cuda.h"
#include "custom/program.h"
#include "custom/expression_call.cuh"
#include "ops/elementwise/pointwise_plan.h"

#define CUP__WORK_KNOBS (8 + CUP_EXPR_RESULTS + CUP__PROGRAM_INPUTS)

/* One call, or a part of it. */
typedef struct cup__work {
    cup__call *call;
    const cup__expr_plan *plan;
    cup__program *program;
    cup__nest nest;      /* what is gone through in units; `loop` is that of the part */
    cup__loop kept, folded;
    cup__access_plan access;
    int64_t length; /* elements folded into one */
    int mode, team, parts;
    bool odd; /* units of results are whole, but the last begins inside the one before it */
    int lead; /* the input that says where whole units begin, -1: they begin with the rows */
} cup__work;

/* The same work from these offsets on: those of the results, then of the inputs, in elements. */
cup__work cup__work_part(const cup__work *w, const int64_t *offset);

/* The knobs of a kernel for this work; how many. */
int cup__work_knobs(const cup__work *w, int ndim, int folded_ndim, cup__knob *knobs);

/* The kernel of the work's program with these knobs; NULL with an error. */
cup__kernel *cup__work_kernel(const cup__work *w, const cup__knob *knobs, int count);

/* Fills what does not depend on the loops, and the dimensions of one, innermost first. */
void cup__work_call(const cup__work *w, expression_call *to);
void cup__work_dimensions(const cup__loop *loop, int inputs, int ndim, divisor *dim,
                          int (*stride)[POINTWISE_DIMS]);

/* Runs a work that folds; `kept` and `folded` are set. */
cup_status cup__work_fold(cup__work *w);

#endif
