/* What cross_entropy and its gradient share.
 *
 * A row x of C classes with target t, smoothing s and z-loss factor z costs
 *     lse - (1 - s) x[t] - s mean(x) + z lse^2,   lse = log sum exp x,
 * and its gradient is p (1 + 2 z lse) - s / C - (1 - s) at t, with p the softmax. */
#ifndef CUP_OPS_LOSS_CROSS_ENTROPY_H
#define CUP_OPS_LOSS_CROSS_ENTROPY_H

#include "dispatch/op.h"

typedef struct cup__cross_entropy {
    cup_tensor *logits, *targets;
    int64_t rows, width, classes; /* width is that of the logits' rows */
    int64_t ignore_index;
    double smoothing, z_loss;
    bool in_place; /* the gradient is written where the logits are */
    const cup_tensor *share; /* what a row's loss is multiplied with; NULL: 1 / rows that count */
} cup__cross_entropy;

/* For either op. */
cup__cross_entropy cup__cross_entropy_of(const cup__call *call);

/* The target of a row of a row-major tensor on the CPU. */
int64_t cup__target_of(const cup__cross_entropy *e, int64_t row);
bool cup__target_counts(const cup__cross_entropy *e, int64_t row);
/* Fails with the row whose target is no class; gives the share. */
cup_status cup__cross_entropy_share(cup__call *call, const cup__cross_entropy *e, double *share);

/* 1 / (the rows that count), for targets of any shape, into call->out[0]. */
cup_status cup__target_share_cuda(cup__call *call);

const char *cup__cross_entropy_cpu_refuses(const cup__call *call);
cup_status cup__cross_entropy_cpu(cup__call *call);
cup_status cup__cross_entropy_grad_cpu(cup__call *call);

/* On the GPU. */
cup_status cup__cross_entropy_cuda(cup__call *call);
const char *cup__cross_entropy_ring_refuses(const cup__call *call);
cup_status cup__cross_entropy_ring(cup__call *call);
const char *cup__cross_entropy_grad_cuda_refuses(const cup__call *call);
cup_status cup__cross_entropy_grad_cuda(cup__call *call);
cup_status cup__scale_by_cuda(cup__call *call);

cup_status cup__cross_entropy_composed(cup__grad *g);

/* A gradient of the loss that the call left, times that of the loss: in place unless it is kept. */
cup_tensor *cup__loss_slope(cup__grad *g, cup_tensor *slope);

#endif
