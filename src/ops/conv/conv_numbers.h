/* What the attributes of a convolution say, and the sizes of all its tensors. */
#ifndef CUP_OPS_CONV_CONV_NUMBERS_H
#define CUP_OPS_CONV_CONV_NUMBERS_H

#include "dispatch/attributes.h"
#include "ops/conv/conv.h"

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

#endif
