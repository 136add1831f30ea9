/* What max_pool2d, avg_pool2d and their gradients share: an image of `planes` of height x width
 * pixels of `inner` values side by side. [N,C,H,W] has N C planes with one value a pixel,
 * [N,H,W,C] N planes with C values. */
#ifndef CUP_OPS_POOL_POOL_H
#define CUP_OPS_POOL_POOL_H

#include "dispatch/op.h"

/* The `kind` of these ops, bits. */
#define CUP__POOL_MAX 1
#define CUP__POOL_GRAD 2

typedef struct cup__pooling {
    bool is_max, count_padding; /* padding counts as elements of the mean */
    int64_t planes, inner;
    int64_t in[2], out[2]; /* height and width of image and result */
    int64_t window[2], stride[2], padding[2], dilation[2];
} cup__pooling;

/* A call's pooling, after its inference. */
cup__pooling cup__pooling_of(const cup__call *call);

cup_status cup__pool_infer(cup__call *call);
cup_status cup__pool_grad_infer(cup__call *call);
cup_status cup__pool_specification(cup__call *call);
cup_status cup__pool_grad_specification(cup__call *call);
cup_status cup__pool_cpu(cup__call *call);
cup_status cup__pool_grad_cpu(cup__call *call);
const char *cup__pool_cpu_refuses(const cup__call *call);
const char *cup__pool_cuda_refuses(const cup__call *call);
cup_status cup__pool_cuda(cup__call *call);
cup_status cup__pool_grad_cuda(cup__call *call);

/* The elements of a window along dimension d that lie in the image, from *first on; `at` is where
 * the window stands in the result. */
int64_t cup__pool_span(const cup__pooling *p, int d, int64_t at, int64_t *first);

/* What an average divides by. */
double cup__pool_divisor(const cup__pooling *p, int64_t row, int64_t column);

/* Places are bytes for windows of at most 255 elements, else i32; all bits set where a window has
 * no element. */
int64_t cup__pool_place(const cup_tensor *places, int64_t index);
void cup__pool_place_set(cup_tensor *places, int64_t index, int64_t place);

extern const cup__impl cup__pool_impls[], cup__pool_grad_impls[];

#endif
