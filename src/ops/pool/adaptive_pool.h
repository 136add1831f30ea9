/* What adaptive_avg_pool2d, adaptive_max_pool2d and their gradients share. Along a dimension of
 * `in` elements the i-th of `out` windows reaches from floor(i in / out) up to, not including,
 * ceil((i + 1) in / out), so that together they cover all. */
#ifndef CUP_OPS_POOL_ADAPTIVE_POOL_H
#define CUP_OPS_POOL_ADAPTIVE_POOL_H

#include "dispatch/op.h"

/* The `kind` of these ops, bits. */
#define CUP__ADAPTIVE_MAX 1
#define CUP__ADAPTIVE_GRAD 2

typedef struct cup__adaptive {
    bool is_max;
    int64_t planes, inner;   /* values of a pixel lie side by side */
    int64_t in[2], out[2];   /* height and width of image and result */
    int64_t reach[2];        /* the most elements a window can have */
} cup__adaptive;

/* A call's pooling, after its inference. */
cup__adaptive cup__adaptive_of(const cup__call *call);

cup_status cup__adaptive_infer(cup__call *call);
cup_status cup__adaptive_grad_infer(cup__call *call);
cup_status cup__adaptive_specification(cup__call *call);
cup_status cup__adaptive_grad_specification(cup__call *call);

const char *cup__adaptive_cuda_refuses(const cup__call *call);
cup_status cup__adaptive_cuda(cup__call *call);

extern const cup__impl cup__adaptive_impls[];

#endif
