#include "optim/guard.h"

#include "cupola/grad.h"
#include "cupola/ops.h"
#include "optim/update.h"

cup_status cup__optimizer_guard(cup_optimizer *o, cup_tensor *numbers, bool for_good)
{
    o->guarded = numbers;
    if (for_good)
        o->stuck = cup_keep(cup_full(o->c, CUP_F32, 0, NULL, 0));
    return o->c->error.status;
}

void cup__guard_free(cup_optimizer *o)
{
    cup_tensor_free(o->stuck);
}

static cup_status copy(cup_tensor *to, const cup_tensor *from)
{
    cup__device *device = to->context->device;
    return from ? device->calls->copy(device, to->data, from->data, sizeof(float))
                : to->context->error.status;
}

/* 0 times what is finite is 0, and NaN else. A norm plus 0 is the norm, bit for bit. */
static cup_status spoil(cup_optimizer *o)
{
    cup_context *c = o->c;
    cup_tensor *zero = cup_sum(c, cup_scale(c, o->guarded, 0), NULL, 0, false);
    if (o->stuck)
        zero = cup_add(c, zero, o->stuck);
    CUP_TRY(copy(o->norm, cup_add(c, o->norm, zero)));
    /* Gradients that are not finite may be so for the scale of the loss alone. */
    return o->stuck ? copy(o->stuck, cup_scale(c, o->scale ? zero : o->norm, 0)) : CUP_OK;
}

cup_status cup__guard_norm(cup_optimizer *o)
{
    if (!o->guarded)
        return CUP_OK;
    bool was = cup_grad_recording(o->c, false);
    cup_scope_open(o->c);
    cup_status status = spoil(o);
    cup_scope_return(o->c, NULL);
    cup_grad_recording(o->c, was);
    return status;
}

cup_tensor *cup__optimizer_went(cup_optimizer *o)
{
    return cup__tensor_view(o->inputs[0], &(cup__shape){.dtype = CUP_F32}, NULL, CUP__FACTOR_GO);
}
