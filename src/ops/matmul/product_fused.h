/* Products with more before they are stored: scaled, activated, added to something, into memory of
 * another dtype. In one kernel where Hopper's can; otherwise composed of the plain ops. */
#ifndef CUP_OPS_MATMUL_PRODUCT_FUSED_H
#define CUP_OPS_MATMUL_PRODUCT_FUSED_H

#include "ops/matmul/product.h"

/* What cup__op.kind says of these ops. */
enum {
    CUP__LINEAR_RELU,
    CUP__LINEAR_SILU,
    CUP__LINEAR_SWIGLU,
    CUP__LINEAR_ADD,
    CUP__MATMUL_SCALED,
    CUP__MATMUL_INTO,
    CUP__MATMUL_ADD,
    CUP__MATMUL_GELU_GRAD,
    CUP__MATMUL_SWIGLU_GRAD
};

extern const cup__impl cup__product_fused_impls[];

/* The product of such a call. */
void cup__product_fused_of(const cup__call *call, cup__product *p);

/* A view of the first or second half of the last dimension. */
cup_tensor *cup__half_of(cup_context *c, cup_tensor *t, int which);

/* The inference that all forms of linear share: [..,K] by [N,K] to [..,N]. */
cup_status cup__linear_infer(cup__call *call, const cup_tensor *bias);
/* From the gradient of x weight^T + bias to those of its inputs; input `bias` is the bias. */
cup_status cup__linear_back(cup__grad *g, cup_tensor *dy, int bias);

#endif
