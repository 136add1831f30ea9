/* Steps of parameters of which several processes have a part each: what an element's step depends
 * on is all here, but for the norm by which gradients are clipped, and for Muon's, which put the
 * whole together. */
#include "base/memory.h"
#include "comm/comm.h"
#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "optim/split.h"

cup_status cup__optimizer_divide(cup_optimizer *o, int i, cup_comm *m)
{
    if (!o->divided)
        o->divided = cup__calloc((size_t)o->count, sizeof(cup_comm *));
    if (!o->divided)
        return cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for an optimizer");
    o->divided[i] = m;
    return CUP_OK;
}

cup_status cup__optimizer_count(cup_optimizer *o, cup_comm *m, bool *counted)
{
    cup_context *c = o->c;
    int64_t count = cup_comm_count(m), at = cup_comm_rank(m);
    cup__free(o->counted);
    cup_tensor_free(o->own_norm);
    cup_tensor_free(o->norms);
    o->counted = counted;
    o->among = m;
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    o->own_norm = NULL;
    o->norms = cup_keep(cup_zeros(c, CUP_F32, 1, &count));
    if (o->norms)
        o->own_norm = cup_keep(cup__tensor_view(o->norms, &(cup__shape){.dtype = CUP_F32},
                                                &(int64_t){1}, at));
    cup_scope_return(c, NULL);
    cup_grad_recording(c, was);
    return c->error.status;
}

void cup__divided_free(cup_optimizer *o)
{
    cup_tensor_free(o->own_norm);
    cup_tensor_free(o->norms);
    cup__free(o->counted);
    cup__free(o->divided);
}

cup_tensor *const *cup__optimizer_gradients_of(cup_optimizer *o, const cup_comm *m, int *count)
{
    *count = 0;
    for (int i = 0; i < o->count; i++) {
        cup_tensor *gradient = cup_grad(o->parameters[i]);
        if (gradient && (o->divided ? o->divided[i] : NULL) == m)
            o->gradients[(*count)++] = gradient;
    }
    return o->gradients;
}

cup_tensor *const *cup__optimizer_gradients_counted(cup_optimizer *o, int *count)
{
    *count = 0;
    for (int i = 0; i < o->count; i++) {
        cup_tensor *gradient = cup_grad(o->parameters[i]);
        if (gradient && o->counted && o->counted[i])
            o->gradients[(*count)++] = gradient;
    }
    return o->gradients;
}

static cup_status norm_of(cup_optimizer *o, cup_tensor *const *list, int count, cup_tensor *norm)
{
    cup__op_call(o->c, &cup__rows[CUP__OP_global_norm], list, count, NULL, &norm);
    return o->c->error.status;
}

/* The norm of norms is that of all. */
cup_status cup__divided_norm(cup_optimizer *o, int count)
{
    cup__device *device = o->c->device;
    if (!o->among)
        return norm_of(o, o->gradients, count, o->norm);
    cup_tensor *const *list = cup__optimizer_gradients_counted(o, &count);
    CUP_TRY(count ? norm_of(o, list, count, o->own_norm)
                  : device->calls->fill(device, o->own_norm->data, 0, sizeof(float)));
    CUP_TRY(cup_comm_all_gather(o->among, o->own_norm, o->norms));
    return norm_of(o, &o->norms, 1, o->norm);
}
