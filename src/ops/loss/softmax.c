#include "ops/loss/softmax.h"

#include <math.h>

#include "dispatch/attributes.h"

/* All four ops have the attributes of softmax and the axis of input 0. */
cup__lines cup__lines_of(const cup__call *call)
{
    const cup_tensor *x = call->in[0];
    int axis = ((const cup__softmax_attributes *)call->attributes)->axis;
    cup__lines lines = {1, 1, 1};
    axis += axis < 0 ? x->ndim : 0;
    for (int i = 0; i < x->ndim; i++)
        *(i < axis ? &lines.outer : i == axis ? &lines.length : &lines.inner) *= x->shape[i];
    return lines;
}

cup_status cup__softmax_infer(cup__call *call)
{
    int axis;
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_axis(call, 0, ((const cup__softmax_attributes *)call->attributes)->axis,
                           &axis));
    if (call->in_count > 1)
        CUP_TRY(cup__need_same_dtype(call, 0, 1));
    call->result[0] = cup__shape_of(call->in[0]);
    return CUP_OK;
}

cup_status cup__softmax_specification(cup__call *call)
{
    cup__lines l = cup__lines_of(call);
    const cup_tensor *x = call->in[0];
    for (int64_t line = 0; line < l.outer * l.inner; line++) {
        int64_t first = line / l.inner * l.length * l.inner + line % l.inner;
        double most = -INFINITY;
        long double sum = 0; /* or its rounding would be more than that of a tree of sums */
        for (int64_t k = 0; k < l.length; k++)
            most = fmax(most, cup__element(x, first + k * l.inner));
        for (int64_t k = 0; k < l.length; k++)
            sum += exp(cup__element(x, first + k * l.inner) - most);
        for (int64_t k = 0; k < l.length; k++) {
            double d = cup__element(x, first + k * l.inner) - most;
            cup__store(call->out[0], first + k * l.inner,
                       call->op->kind == CUP__SOFTMAX_LOG ? d - log((double)sum)
                                                          : exp(d) / (double)sum);
        }
    }
    return CUP_OK;
}

cup_status cup__softmax_grad_specification(cup__call *call)
{
    cup__lines l = cup__lines_of(call);
    const cup_tensor *y = call->in[0], *dy = call->in[1];
    bool is_log = call->op->kind == CUP__SOFTMAX_LOG;
    for (int64_t line = 0; line < l.outer * l.inner; line++) {
        int64_t first = line / l.inner * l.length * l.inner + line % l.inner;
        double sum = 0;
        for (int64_t k = 0; k < l.length; k++) {
            int64_t i = first + k * l.inner;
            sum += cup__element(dy, i) * (is_log ? 1 : cup__element(y, i));
        }
        for (int64_t k = 0; k < l.length; k++) {
            int64_t i = first + k * l.inner;
            cup__store(call->out[0], i, is_log ? cup__element(dy, i) - exp(cup__element(y, i)) * sum
                                               : cup__element(y, i) * (cup__element(dy, i) - sum));
        }
    }
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    int axis = ((const cup__softmax_attributes *)g->attributes)->axis;
    g->d_in[0] = cup__softmax_grad(g->c, g->out[0], g->d_out[0], axis);
    return CUP_OK;
}

static const cup__softmax_attributes last = {-1}, first = {0}, second = {1};
const cup__sample cup__softmax_samples[] = {
    {"7", &last},         {"3x5", &last},       {"3x5", &first},     {"0x5", &last},
    {"4x1", &last},       {"2x7x3", &second},   {"5x1025", &last},   {"33x128", &last},
    {"1025x40", &first},  {"2x20000", &last},   {"3x33x600", &second}, {"140x2056", &last},
    {"1x100000", &last},  {"9x50304", &last}, {NULL, NULL}};
const cup__sample cup__softmax_bench[] = {{"8192x8192", &last},
                                          {"4096x10000", &last},
                                          {"32768x768", &last},
                                          {"1048576x64", &last},
                                          {"8192x50304", &last},
                                          {NULL, NULL}};
const cup__sample cup__softmax_grad_samples[] = {
    {"7 7", &last},           {"3x5 3x5", &last},         {"3x5 3x5", &first},
    {"4x1 4x1", &last},       {"2x7x3 2x7x3", &second},   {"5x1025 5x1025", &last},
    {"33x128 33x128", &last}, {"1025x40 1025x40", &first}, {"2x20000 2x20000", &last},
    {NULL, NULL}};
const cup__sample cup__softmax_grad_bench[] = {{"8192x8192 8192x8192", &last},
                                               {"4096x10000 4096x10000", &last},
                                               {NULL, NULL}};

static cup_status composed(cup__grad *g)
{
    const int64_t axis = ((const cup__softmax_attributes *)g->attributes)->axis;
    cup_context *c = g->c;
    cup_tensor *y = cup__widen(c, g->out[0]), *dy = cup__widen(c, g->d_out[0]);
    cup_tensor *sum = cup_sum(c, cup_mul(c, y, dy), &axis, 1, true);
    g->d_in[0] = cup_cast(c, cup_mul(c, y, cup_sub(c, dy, sum)), g->in_shape[0].dtype);
    return CUP_OK;
}

const cup__op cup__op_softmax = {
    CUP__SOFTMAX(CUP__SOFTMAX_PLAIN),
    .gradient = gradient,
    .composed = composed,
    .saves = CUP__SAVE_OUT(0),
};

const cup__op cup__op_softmax_grad = {
    CUP__SOFTMAX_GRAD(CUP__SOFTMAX_PLAIN),
    .domain = {{0, 0.01}}, /* about what a softmax gives */
};
