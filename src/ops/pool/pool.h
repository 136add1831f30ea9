/* What max_pool2d, avg_pool2d, their adaptive forms and the gradients of all share: an image of
 * `planes` of height x width pixels of `inner` values side by side. [N,C,H,W] has N C planes with
 * one value a pixel, [N,H,W,C] N planes with C values. Adaptive windows differ in size: along a
 * dimension of `in` elements the i-th of `out` reaches from floor(i in / out) up to, not including,
 * ceil((i + 1) in / out), so that together they cover all. */
#ifndef CUP_OPS_POOL_POOL_H
#define CUP_OPS_POOL_POOL_H

#include "dispatch/op.h"

/* The `kind` of these ops, bits. */
#define CUP__POOL_MAX 1
#define CUP__POOL_GRAD 2
#define CUP__POOL_ADAPTIVE 4

typedef struct cup__pooling {
    bool is_max, adaptive, channels_last;
    bool count_padding; /* padding counts as elements of the mean */
    int64_t planes, inner;
    int64_t in[2], out[2]; /* height and width of image and result */
    int64_t window[2]; /* at most, where they are adaptive, which have no stride and no padding */
    int64_t stride[2], padding[2], dilation[2];
} cup__pooling;

/* A call's pooling, after its inference. */
cup__pooling cup__pooling_of(const cup__call *call);

cup_status cup__pool_infer(cup__call *call);
cup_status cup__pool_specification(cup__call *call);
cup_status cup__pool_grad_specification(cup__call *call);
cup_status cup__pool_cpu(cup__call *call);
cup_status cup__pool_grad_cpu(cup__call *call);
const char *cup__pool_cuda_refuses(const cup__call *call);
cup_status cup__pool_cuda(cup__call *call);
cup_status cup__pool_grad_cuda(cup__call *call);
const char *cup__adaptive_cuda_refuses(const cup__call *call);
cup_status cup__adaptive_cuda(cup__call *call);

/* The widest vector of up to 16 bytes, and `most` elements, that divides `width` and starts at its
 * multiples. */
int cup__pool_vector(const cup_tensor *t, int64_t width, int most);

/* Where a window's first element lies in the image, or would. */
int64_t cup__pool_start(const cup__pooling *p, int d, int64_t at);

/* The elements of a window along dimension d that lie in the image, from *first on; `at` is where
 * the window stands in the result. */
int64_t cup__pool_span(const cup__pooling *p, int d, int64_t at, int64_t *first);

/* What an average divides by. */
double cup__pool_divisor(const cup__pooling *p, int64_t row, int64_t column);

/* Places are bytes for windows of at most 255 elements, else i32; all bits set where a window has
 * no element. */
int64_t cup__pool_place(const cup_tensor *places, int64_t index);
void cup__pool_place_set(cup_tensor *places, int64_t index, int64_t place);

/* Where in its plane of the image each window's place is, as i64, and whether there is one. */
cup_tensor *cup__pool_indices(cup_context *c, const cup__pooling *p, cup_tensor *places,
                              cup_tensor **there);

/* `gradient` of the gradients of the two that take the largest. */
cup_status cup__pool_pick(cup__grad *g);

extern const cup__impl cup__pool_impls[], cup__pool_grad_impls[], cup__adaptive_impls[];

#endif
