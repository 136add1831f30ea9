/* What conv2d, conv3d and their gradients share. */
#ifndef CUP_OPS_CONV_CONV_H
#define CUP_OPS_CONV_CONV_H

#include "dispatch/attributes.h"
#include "ops/conv/conv_call.cuh"

/* The `kind` of these ops: which part, and CUP__CONV3 more of those with a depth. */
enum { CUP__CONV_FORWARD, CUP__CONV_INPUT, CUP__CONV_WEIGHT, CUP__CONV3 };

static inline int cup__conv_part(const cup__op *op)
{
    return op->kind % CUP__CONV3;
}

typedef struct cup__conv {
    cup_dtype dtype, y_dtype, bias_dtype; /* the first of x and the weight */
    bool fast; /* sums of f8 may stay in tensor cores that keep 14 bits of them */
    int activation; /* PRODUCT_RELU and so on, of the sums with what lies as y does; 0: none */
    const void *residual; /* or NULL, with steps as those of y: what is added to the sums */
    int64_t residual_step[4], residual_group;
    conv_call call; /* with the addresses of call->in and, once there is memory, of call->out */
} cup__conv;

/* The convolution of a call without depth, after its inference. */
cup__conv cup__conv_of(const cup__call *call);
/* One group of it, whose channels and results stand among those of all. */
cup__conv cup__conv_group(const cup__conv *v, int group);

/* Whether x and the weight are codes of 8 bits; and which input is the bias, behind their scales,
 * and what is added to the result, which one op has. */
static inline bool cup__conv_is_scaled(const cup__call *call)
{
    return call->in_count > 4;
}

static inline int cup__conv_bias_at(const cup__call *call)
{
    return cup__conv_is_scaled(call) ? 4 : 2;
}

static inline cup_tensor *cup__conv_bias(const cup__call *call)
{
    return call->in_count > 2 && cup__conv_part(call->op) != CUP__CONV_WEIGHT
               ? call->in[cup__conv_bias_at(call)]
               : NULL;
}

/* What the gradient of the weight is added to; it may be the result itself. */
static inline cup_tensor *cup__conv_sum(const cup__call *call)
{
    return call->in_count > 2 && cup__conv_part(call->op) == CUP__CONV_WEIGHT ? call->in[2] : NULL;
}

static inline cup_tensor *cup__conv_residual(const cup__call *call)
{
    return call->in_count == 4 ? call->in[3] : NULL;
}

/* Along depth, height and width, or the last two of these. */
typedef struct cup__conv_numbers {
    int dims;
    int64_t stride[3], dilation[3], padding[3][2]; /* before and behind */
    int64_t groups, in[3], kernel[3], out[3];
    bool same;
} cup__conv_numbers;

/* What the attributes of all these ops share. */
cup__conv2d_attributes cup__conv_attributes(const cup__call *call);

/* Those of a call in its inference, and after it. */
cup_status cup__conv_check(cup__call *call, cup__conv_numbers *n);
cup__conv_numbers cup__conv_numbers_of(const cup__call *call);

cup_status cup__conv_infer(cup__call *call);
cup_status cup__conv_input_infer(cup__call *call);
cup_status cup__conv_weight_infer(cup__call *call);
cup_status cup__conv_specification(cup__call *call);
cup_status cup__conv_input_specification(cup__call *call);
cup_status cup__conv_weight_specification(cup__call *call);
cup_status cup__scaled_conv_cpu(cup__call *call);
void cup__conv_cost(const cup__call *call, double *bytes, double *flops);
/* By what is meant: a stride that is left out, 1 and 1,1 are the same. */
bool cup__conv_words(const cup__call *call, bool similar, struct cup__text *to);

extern const cup__impl cup__conv_impls[], cup__conv_weight_impls[], cup__conv3d_impls[];
extern const cup__impl cup__scaled_conv_impls[], cup__conv_join_impls[];

/* Whether windows have one place, so that it is a product of matrices: places by results. */
bool cup__conv_is_product(const conv_call *c);

/* What its activation is, in the table of epilogues; NULL: none. */
const struct cup__epilogue *cup__conv_follower(const cup__call *call);

/* What conv2d_join consists of, one after the other, into its result. */
cup_status cup__conv_join_compose(cup__call *call);

/* Of a convolution's gradient: that with respect to its weight, input 1, from dy and the image of
 * as many dimensions, added to the one that is there already. */
void cup__conv_weight_back(cup__grad *g, cup_tensor *dy, cup_tensor *x, int dims);

/* The gradient of the weight, made in a tensor of its own, becomes the call's result: copied, or
 * added to what it is added to. And runs a call so, as if there were nothing to add to. */
cup_status cup__conv_hand_over(cup__call *call, cup_tensor *made);
cup_status cup__conv_weight_apart(cup__call *call, cup_status (*run)(cup__call *call));

/* The descriptor of one of three, each of which is differentiated by the other two. */
#define CUP__CONV_OP(name, which, part, impls_, ...)                                               \
    const cup__op cup__op_##name = {.kind = which,                                                 \
                                    .infer = cup__conv_##part##infer,                              \
                                    .specification = cup__conv_##part##specification,              \
                                    .gradient = gradient,                                          \
                                    .composed = gradient,                                          \
                                    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),                    \
                                    .impls = impls_,                                               \
                                    .images = true,                                                \
                                    .samples = samples,                                            \
                                    .bench = bench,                                                \
                                    .tolerance = 16,                                               \
                                    .cost = cup__conv_cost,                                        \
                                    .words = cup__conv_words,                                      \
                                    __VA_ARGS__};

#endif
