#include "dispatch/attributes.h"
#include "ops/loss/softmax.h"

static cup_status gradient(cup__grad *g)
{
    int axis = ((const cup__log_softmax_attributes *)g->attributes)->axis;
    g->d_in[0] = cup__log_softmax_grad(g->c, g->out[0], g->d_out[0], axis);
    return CUP_OK;
}

static cup_status composed(cup__grad *g)
{
    const int64_t axis = ((const cup__log_softmax_attributes *)g->attributes)->axis;
    cup_context *c = g->c;
    cup_tensor *y = cup__widen(c, g->out[0]), *dy = cup__widen(c, g->d_out[0]);
    cup_tensor *sum = cup_sum(c, dy, &axis, 1, true);
    g->d_in[0] = cup_cast(c, cup_sub(c, dy, cup_mul(c, cup_exp(c, y), sum)),
                          g->in_shape[0].dtype);
    return CUP_OK;
}

const cup__op cup__op_log_softmax = {
    CUP__SOFTMAX(CUP__SOFTMAX_LOG),
    .gradient = gradient,
    .composed = composed,
    .saves = CUP__SAVE_OUT(0),
};

const cup__op cup__op_log_softmax_grad = {
    CUP__SOFTMAX_GRAD(CUP__SOFTMAX_LOG),
    .domain = {{-9, -6}}, /* about what a log_softmax gives */
};
