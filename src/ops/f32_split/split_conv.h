/* Convolutions of f32 on Hopper's tensor cores at the highest precision: both tensors are cut into
 * planes as f32_split.c does with matrices, but with one scale each. */
#ifndef CUP_OPS_F32_SPLIT_SPLIT_CONV_H
#define CUP_OPS_F32_SPLIT_SPLIT_CONV_H

#include "ops/conv/conv_wgmma.h"
#include "ops/f32_split/f32_split.h"
#include "ops/lowbit/rounded.h"

#define CUP__SPLIT_PLANES_MOST 3

/* Why a call cannot be done so; and where that is not likely to be faster. */
const char *cup__split_conv_refuses(const cup__call *call);
const char *cup__split_conv_best_refuses(const cup__call *call);
cup_status cup__split_conv(cup__call *call);
cup_status cup__split_conv_weight(cup__call *call);

/* The gradient of a weight of f32, at any precision, that is cut on its way to the tensor cores. */
const char *cup__cut_weight_refuses(const cup__call *call);
const char *cup__cut_weight_best_refuses(const cup__call *call);
cup_status cup__cut_weight(cup__call *call);

/* A call whose channels are neighbours in memory, while it runs. */
typedef struct cup__split_conv_work {
    cup__call *call;
    cup__conv v;         /* of planes, the first of which it points to */
    int64_t elements[2]; /* of a plane of x or dy, and of the weight, or of x behind dy */
    round_off_call cut;
    int64_t blocks;
    int planes; /* of the launches that come next: 2, or 3 if the first are done again */
} cup__split_conv_work;

/* Finds the largest elements and makes room for planes, which are the scope's; and cuts. */
cup_status cup__split_conv_begin(cup__split_conv_work *s, cup__call *call);
cup_status cup__split_conv_cut(cup__split_conv_work *s, int planes);

/* The launch of a product, whose maps but that of `planes` images are made; `image` is which of
 * the operands they are. */
cup_status cup__split_conv_launch(const cup__split_conv_work *s, cup__conv_work *w,
                                  const cup__split_plan *plan, int image);

#endif
