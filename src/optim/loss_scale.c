#include "optim/loss_scale.h"

#include <math.h>

#include "cupola/expr.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "optim/split.h"
#include "optim/update.h"

/* Of the scale, good steps, whether this one was made, and what it multiplies gradients with. */
static const char next[] = "now = (good + 1) * went; full = now >= steps;"
                           "clamp(scale * where(went > 0, where(full, 2, 1), 0.5), least, most),"
                           "where(full, 0, now), gradient / scale";

static bool is_power_of_two(double x)
{
    int exponent;
    return x > 0 && frexp(x, &exponent) == 0.5;
}

cup_status cup__loss_scale_make(cup_optimizer *o, double first, int64_t steps)
{
    cup_context *c = o->c;
    if (!(is_power_of_two(first) && first >= CUP__LOSS_SCALE_LEAST &&
          first <= CUP__LOSS_SCALE_MOST))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "optimizer: the loss is multiplied by a power of two from %d to %g, by "
                         "which nothing is rounded, and not by %g",
                         CUP__LOSS_SCALE_LEAST, CUP__LOSS_SCALE_MOST, first);
    /* All processes keep it, as the numbers of steps. */
    if (o->split)
        o->split->at = -1;
    o->scale_steps = (double)(steps ? steps : CUP__LOSS_SCALE_STEPS);
    cup_scope_open(c);
    const float start[] = {(float)first, 0};
    o->scale = cup__optimizer_state_add(o, "loss_scale", "",
                                        cup_tensor_from(c, CUP_F32, 1, (int64_t[]){2}, start));
    cup_scope_return(c, NULL);
    o->scale_next =
        o->scale ? cup_expr_new(c, "scale good went gradient", "steps least most", next) : NULL;
    return c->error.status;
}

void cup__loss_scale_free(cup_optimizer *o)
{
    cup_expr_free(o->scale_next);
}

cup_status cup__loss_scale_choose(cup_context *c, cup_dtype dtype, double *first)
{
    if (dtype != CUP_F32 && dtype != CUP_BF16 && dtype != CUP_F16)
        return cup__fail(&c->error, CUP_DTYPE,
                         "training: the dtype must be f32, bf16 or f16, not %s",
                         cup_dtype_name(dtype));
    if (dtype == CUP_F16 && *first == 0)
        *first = CUP__LOSS_SCALE_FIRST;
    return CUP_OK;
}

/* Number i of a tensor, in the innermost scope. */
static cup_tensor *number(cup_tensor *of, int64_t i)
{
    return cup__tensor_view(of, &(cup__shape){.dtype = CUP_F32}, NULL, i);
}

/* Nothing may change the scale's own memory, as gradients are added in place. */
cup_tensor *cup__loss_scale_slope(cup_optimizer *o, const cup_tensor *loss)
{
    cup_context *c = o->c;
    if (!o->scale)
        return NULL;
    bool was = cup_grad_recording(c, false);
    cup_tensor *slope = cup_copy(c, number(o->scale, 0));
    if (loss->dtype != CUP_F32)
        slope = cup_cast(c, slope, loss->dtype);
    slope = cup_reshape(c, slope, loss->ndim, loss->shape);
    cup_grad_recording(c, was);
    return slope;
}

static cup_status divide_norm(cup_optimizer *o)
{
    cup__device *device = o->c->device;
    cup_tensor *norm = cup_div(o->c, o->norm, number(o->scale, 0));
    return norm ? device->calls->copy(device, o->norm->data, norm->data, sizeof(float))
                : o->c->error.status;
}

static cup_status go_on(cup_optimizer *o)
{
    cup_tensor *factors = o->inputs[0];
    cup_tensor *in[] = {number(o->scale, 0), number(o->scale, 1), number(factors, CUP__FACTOR_GO),
                        number(factors, CUP__FACTOR_GRADIENT)};
    const double parameters[] = {o->scale_steps, CUP__LOSS_SCALE_LEAST, CUP__LOSS_SCALE_MOST};
    cup_expr_call(o->scale_next, in, parameters, (cup_tensor *[]){in[0], in[1], in[3]});
    return o->c->error.status;
}

static cup_status within(cup_optimizer *o, cup_status (*call)(cup_optimizer *))
{
    if (!o->scale)
        return CUP_OK;
    bool was = cup_grad_recording(o->c, false);
    cup_scope_open(o->c);
    cup_status status = call(o);
    cup_scope_return(o->c, NULL);
    cup_grad_recording(o->c, was);
    return status;
}

cup_status cup__loss_scale_norm(cup_optimizer *o)
{
    return within(o, divide_norm);
}

cup_status cup__loss_scale_factors(cup_optimizer *o)
{
    return within(o, go_on);
}
