/* What softmax, log_softmax and cross_entropy share. */
#ifndef CUP_OPS_LOSS_SOFTMAX_H
#define CUP_OPS_LOSS_SOFTMAX_H

#include "dispatch/op.h"

/* Values of `kind`. */
#define CUP__SOFTMAX_PLAIN 0
#define CUP__SOFTMAX_LOG 1

/* A row-major tensor cut at an axis: element k of line (i, j) is at
 * (i * length + k) * inner + j. */
typedef struct cup__lines {
    int64_t outer, length, inner;
} cup__lines;

/* The cut of input 0 at the attribute `axis`, for softmax and its gradient. */
cup__lines cup__lines_of(const cup__call *call);

cup_status cup__softmax_infer(cup__call *call);
cup_status cup__softmax_specification(cup__call *call);
cup_status cup__softmax_grad_specification(cup__call *call);

const char *cup__softmax_cpu_refuses(const cup__call *call);
cup_status cup__softmax_cpu(cup__call *call);
cup_status cup__softmax_grad_cpu(cup__call *call);
const char *cup__softmax_cuda_refuses(const cup__call *call);
cup_status cup__softmax_cuda(cup__call *call);
const char *cup__softmax_ring_refuses(const cup__call *call);
cup_status cup__softmax_ring(cup__call *call);
cup_status cup__softmax_grad_cuda(cup__call *call);
extern const cup__impl cup__softmax_impls[], cup__softmax_grad_impls[];
extern const cup__sample cup__softmax_samples[], cup__softmax_bench[];
extern const cup__sample cup__softmax_grad_samples[], cup__softmax_grad_bench[];

#define CUP__SOFTMAX(form)                                                                         \
    .kind = (form), .infer = cup__softmax_infer, .specification = cup__softmax_specification,      \
    .impls = cup__softmax_impls, .samples = cup__softmax_samples, .bench = cup__softmax_bench,     \
    .domain = {{-6, 6}},                                                                           \
    .tolerance = 16 /* the rounding of x - max, up to 12, comes through the exponential */
#define CUP__SOFTMAX_GRAD(form)                                                                    \
    .kind = (form), .infer = cup__softmax_infer,                                                   \
    .specification = cup__softmax_grad_specification, .impls = cup__softmax_grad_impls,            \
    .samples = cup__softmax_grad_samples, .bench = cup__softmax_grad_bench, .tolerance = 16

/* Pieces of a row on the CPU: its largest element, NaN when there is one; the largest to take
 * exponentials from, which does not look for NaN, as their sum will be NaN; exponentials of
 * x - shift into y, which may be x or NULL, and their sum; plain sums. */
float cup__row_max(const float *x, int64_t count);
float cup__row_shift(const float *x, int64_t count);
double cup__row_exp(float *y, const float *x, int64_t count, float shift);
double cup__row_sum(const float *x, int64_t count);

#endif
