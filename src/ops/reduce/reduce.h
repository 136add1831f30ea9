/* What the ops that fold elements along axes share. Their attributes begin as those of sum do:
 * axes, axes_count, keep. Their `kind` is one of the folds below. */
#ifndef CUP_OPS_REDUCE_REDUCE_H
#define CUP_OPS_REDUCE_REDUCE_H

#include "dispatch/op.h"

typedef enum cup__fold {
    CUP__FOLD_SUM,
    CUP__FOLD_MEAN,
    CUP__FOLD_MAX,
    CUP__FOLD_MIN,
    CUP__FOLD_NORM,
    CUP__FOLD_VAR,
    CUP__FOLD_LOGSUMEXP,
    CUP__FOLD_ARGMAX,
    CUP__FOLD_ARGMIN
} cup__fold;

/* Which dimensions of a tensor are kept and which are folded, neighbours merged where the strides
 * allow. The result is row-major over the kept ones. */
typedef struct cup__reduction {
    int kept, folded; /* dimensions */
    int64_t kept_size[CUP_MAX_DIMS], kept_stride[CUP_MAX_DIMS];
    int64_t folded_size[CUP_MAX_DIMS], folded_stride[CUP_MAX_DIMS];
    int64_t outputs, length; /* results, and elements folded into each */
} cup__reduction;

/* The reduction of a call whose attributes are axes; the input may have been packed meanwhile. */
void cup__reduction_make(cup__reduction *r, const cup__call *call);

/* Offsets in elements of a flat index over the kept or the folded dimensions. */
int64_t cup__reduction_kept(const cup__reduction *r, int64_t output);
int64_t cup__reduction_folded(const cup__reduction *r, int64_t index);

cup_status cup__reduce_infer(cup__call *call);
cup_status cup__reduce_specification(cup__call *call);
cup_status cup__reduce_cpu(cup__call *call);
cup_status cup__reduce_cuda(cup__call *call);
const char *cup__reduce_cpu_refuses(const cup__call *call);

/* What is left to do with the folded value: dividing, a root, a logarithm. `shift` is the value
 * of the first of two passes: the mean, or the largest element. */
double cup__fold_finish(const cup__call *call, int64_t length, double value, double shift);

extern const cup__impl cup__reduce_impls[];
extern const cup__sample cup__reduce_samples[], cup__reduce_bench[];

/* A sum of many elements carries the rounding of its own steps; the samples are not centred on 0,
 * where what is left of them could be arbitrarily small. */
#define CUP__REDUCE_TOLERANCE 16

/* The integers that sums and extremes take. */
#define CUP__DTYPES_INTEGER                                                                        \
    (CUP__DTYPES_INDEX | CUP__DTYPE(U8) | CUP__DTYPE(BOOL) | CUP__DTYPE(I8))

/* The fields of a descriptor that all reductions share. */
#define CUP__REDUCE(fold)                                                                          \
    .kind = (fold), .infer = cup__reduce_infer, .specification = cup__reduce_specification,        \
    .impls = cup__reduce_impls, .samples = cup__reduce_samples, .bench = cup__reduce_bench,        \
    .domain = {{-0.5, 1}}, .tolerance = CUP__REDUCE_TOLERANCE

/* For gradients: a tensor of the result's shape with the folded axes at size 1, so that it
 * broadcasts against the input; and the same broadcast to it. */
cup_tensor *cup__reduce_kept(const cup__grad *g, cup_tensor *t);
cup_tensor *cup__reduce_spread(const cup__grad *g, cup_tensor *t);
int64_t cup__reduce_length(const cup__grad *g);

#endif
