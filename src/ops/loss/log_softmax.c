#include "dispatch/attributes.h"
#include "ops/loss/softmax.h"

static cup_status gradient(cup__grad *g)
{
    int axis = ((const cup__log_softmax_attributes *)g->attributes)->axis;
    g->d_in[0] = cup__log_softmax_grad(g->c, g->out[0], g->d_out[0], axis);
    return CUP_OK;
}

const cup__op cup__op_log_softmax = {
    CUP__SOFTMAX(CUP__SOFTMAX_LOG),
    .gradient = gradient,
    .saves = CUP__SAVE_OUT(0),
};

const cup__op cup__op_log_softmax_grad = {
    CUP__SOFTMAX_GRAD(CUP__SOFTMAX_LOG),
    .domain = {{-9, -6}}, /* about what a log_softmax gives */
};
