/* What layernorm, rmsnorm and their forms with a residual share. They differ in `kind`. */
#ifndef CUP_OPS_NORM_LAYERNORM_H
#define CUP_OPS_NORM_LAYERNORM_H

#include "dispatch/op.h"

/* Bits of `kind`: the mean is subtracted; a residual is added first. */
#define CUP__LAYERNORM_MEAN 1
#define CUP__LAYERNORM_ADD 2

/* A call with its inputs and results by name; what it has not is NULL. */
typedef struct cup__layernorm {
    cup_tensor *x, *residual, *gamma, *beta;
    cup_tensor *y, *sum, *mean, *rstd;
    int64_t rows, width;
    double eps;
    bool centred;
} cup__layernorm;
cup__layernorm cup__layernorm_of(const cup__call *call);

typedef struct cup__layernorm_back {
    cup_tensor *dy, *x, *rstd, *mean, *gamma, *dsum;
    cup_tensor *dx, *dgamma, *dbeta; /* the last two NULL when not asked for */
    int64_t rows, width;
} cup__layernorm_back;
cup__layernorm_back cup__layernorm_back_of(const cup__call *call);

cup_status cup__layernorm_infer(cup__call *call);
cup_status cup__layernorm_specification(cup__call *call);
cup_status cup__layernorm_gradient(cup__grad *g);
cup_status cup__layernorm_composed(cup__grad *g);
cup_tensor *cup__layernorm_again(const cup__grad *g);

/* The statistics of rows without elements: a mean and a variance of 0. */
cup_status cup__layernorm_of_nothing(cup__call *call, const cup__layernorm *n);

uint32_t cup__layernorm_by_texts(const cup__op *op, cup_tensor *const *in, int in_count,
                                 const void *attributes);

const char *cup__layernorm_cpu_refuses(const cup__call *call);
cup_status cup__layernorm_cpu(cup__call *call);
cup_status cup__layernorm_back_cpu(cup__call *call);
const char *cup__layernorm_cuda_refuses(const cup__call *call);
cup_status cup__layernorm_cuda(cup__call *call);
cup_status cup__layernorm_back_cuda(cup__call *call);

/* The widest vector that all of its rows allow, or, with `shift`, memory does; whether a row fits
 * the registers of a block, and whether its weights do as well. */
int cup__layernorm_vec(const cup__layernorm *n, bool *shift);
bool cup__layernorm_fits(const cup__layernorm *n);
bool cup__layernorm_holds(const cup__layernorm *n);
const char *cup__layernorm_spread_refuses(const cup__call *call);
cup_status cup__layernorm_spread(cup__call *call);

const char *cup__layernorm_back_ring_refuses(const cup__call *call);
cup_status cup__layernorm_back_ring(cup__call *call);

/* Memory for the partial sums of dgamma and dbeta, [blocks, parts, width], and the kernel that
 * adds them up. */
cup_tensor *cup__layernorm_partial(cup_context *c, const cup__layernorm_back *b, int parts,
                                   int64_t blocks);
cup_status cup__layernorm_finish(cup__call *call, const cup__layernorm_back *b,
                                 cup_tensor *partial);

extern const cup__impl cup__layernorm_impls[];

/* The fields of the four descriptors. The domain is off centre, so that the mean matters. */
#define CUP__LAYERNORM(bits)                                                                       \
    .kind = (bits), .infer = cup__layernorm_infer, .specification = cup__layernorm_specification,  \
    .gradient = cup__layernorm_gradient, .composed = cup__layernorm_composed,                      \
    .again = cup__layernorm_again, .is_norm = true,                                                \
    .again_saves = CUP__SAVE_IN((bits) & CUP__LAYERNORM_ADD ? 3 : 2),                              \
    .by_texts = cup__layernorm_by_texts, .impls = cup__layernorm_impls, .domain = {{-1, 3}},       \
    .tolerance = 16 /* a small variance carries the rounding of many squares */

#endif
