/* What batchnorm and groupnorm share: statistics over groups of channels. Batchnorm is groupnorm
 * of the whole batch as one instance, each channel a group. */
#ifndef CUP_OPS_NORM_CHANNELNORM_H
#define CUP_OPS_NORM_CHANNELNORM_H

#include "dispatch/op.h"

/* x as [instances, before, channels, after]; mean and rstd are [instances, groups]. */
typedef struct cup__channels {
    int64_t instances, before, channels, after;
    int64_t groups, each; /* channels of a group */
    int64_t count;        /* elements behind one mean */
} cup__channels;

/* A call with its inputs and results by name; what it has not is NULL. */
typedef struct cup__channelnorm {
    cup__channels at;
    cup_tensor *x, *gamma, *beta, *running_mean, *running_var;
    cup_tensor *residual;
    cup_tensor *y, *mean, *rstd;
    cup_tensor *mask; /* a bit for each element of y, from the lowest of the first byte on: whether
                         it is above 0. NULL without relu, or when nobody asks */
    double eps, momentum;
    bool batch, constant; /* batchnorm; by the running statistics */
    bool relu;
} cup__channelnorm;
cup__channelnorm cup__channelnorm_of(const cup__call *call);

typedef struct cup__channelnorm_back {
    cup__channels at;
    cup_tensor *dy, *x, *mean, *rstd, *gamma, *mask;
    cup_tensor *dx, *dgamma, *dbeta, *dresidual; /* all but dx NULL when not asked for */
    bool constant;
} cup__channelnorm_back;
cup__channelnorm_back cup__channelnorm_back_of(const cup__call *call);

/* groups -1 makes all of x one instance, with a group for each channel; 0 such groups in each. The
 * axis must exist. */
cup__channels cup__channels_of(const cup_tensor *x, int axis, int groups);

cup_status cup__channelnorm_infer(cup__call *call);
cup_status cup__channelnorm_specification(cup__call *call);
cup_status cup__channelnorm_gradient(cup__grad *g);
cup_status cup__channelnorm_composed(cup__grad *g);

/* Whether a bit of a mask is set; all are of no mask. */
static inline bool cup__mask_bit(const cup_tensor *mask, int64_t i)
{
    return !mask || ((const uint8_t *)mask->data)[i / 8] >> i % 8 & 1;
}
/* The mask of y: whether each element is above 0. */
void cup__mask_write(const cup_tensor *y, cup_tensor *mask);

const char *cup__channelnorm_cpu_refuses(const cup__call *call);
cup_status cup__channelnorm_cpu(cup__call *call);
cup_status cup__channelnorm_back_cpu(cup__call *call);
const char *cup__channelnorm_cuda_refuses(const cup__call *call);
cup_status cup__channelnorm_cuda(cup__call *call);
cup_status cup__channelnorm_back_cuda(cup__call *call);

const char *cup__channelnorm_cluster_refuses(const cup__call *call);
cup_status cup__channelnorm_cluster(cup__call *call);
const char *cup__channelnorm_back_cluster_refuses(const cup__call *call);
cup_status cup__channelnorm_back_cluster(cup__call *call);

extern const cup__impl cup__channelnorm_impls[];

#define CUP__CHANNELNORM                                                                           \
    .infer = cup__channelnorm_infer, .specification = cup__channelnorm_specification,              \
    .gradient = cup__channelnorm_gradient, .composed = cup__channelnorm_composed,                  \
    .impls = cup__channelnorm_impls,                                                               \
    .tolerance = 16 /* a small variance carries the rounding of many squares */

#endif
