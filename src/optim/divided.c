/* Steps of parameters of which several processes have a part each: what an element's step depends
 * on is all here, but for the norm by which gradients are clipped. */
#include "base/memory.h"
#include "comm/comm.h"
#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "optim/optimizer.h"

static cup_status begin(cup_optimizer *o, cup_comm *m)
{
    cup_context *c = o->c;
    int64_t count = cup_comm_count(m), at = cup_comm_rank(m);
    if (o->split)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "optimizer: states are not split over processes that have parts of the "
                         "parameters; leave `split` out");
    o->divided = cup__calloc((size_t)o->count, sizeof *o->divided);
    if (!o->divided)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for an optimizer");
    o->among = m;
    o->whole_norm = cup_keep(cup_full(c, CUP_F32, 0, NULL, 0));
    o->part_norms = cup_keep(cup_zeros(c, CUP_F32, 1, &count));
    if (o->part_norms)
        o->own_norm =
            cup_keep(cup__tensor_view(o->part_norms, &(cup__shape){.dtype = CUP_F32},
                                      &(int64_t){1}, at));
    return c->error.status;
}

cup_status cup__optimizer_divide(cup_optimizer *o, cup_comm *m, int i)
{
    char text[CUP__SHAPE_TEXT];
    bool was = cup_grad_recording(o->c, false);
    cup_status status = o->among ? CUP_OK : begin(o, m);
    cup_grad_recording(o->c, was);
    CUP_TRY(status);
    for (int k = 0; k < o->matrix_count; k++)
        if (o->matrices[k].value == o->parameters[i])
            return cup__fail(&o->c->error, CUP_UNSUPPORTED,
                             "optimizer: Muon's step needs a whole matrix, and of parameter %d, "
                             "%s, this process has a part; take another method",
                             i, cup__tensor_text(o->parameters[i], text));
    o->divided[i] = true;
    return CUP_OK;
}

void cup__divided_free(cup_optimizer *o)
{
    cup_tensor_free(o->own_norm);
    cup_tensor_free(o->part_norms);
    cup_tensor_free(o->whole_norm);
    cup__free(o->divided);
}

cup_tensor *const *cup__optimizer_gradients_of(cup_optimizer *o, bool divided, int *count)
{
    *count = 0;
    for (int i = 0; i < o->count; i++) {
        cup_tensor *gradient = cup_grad(o->parameters[i]);
        if (gradient && o->divided[i] == divided)
            o->gradients[(*count)++] = gradient;
    }
    return o->gradients;
}

static cup_status norm_of(cup_optimizer *o, cup_tensor *const *list, int count, cup_tensor *norm)
{
    if (count == 0)
        return CUP_OK;
    cup__op_call(o->c, &cup__rows[CUP__OP_global_norm], list, count, NULL, &norm);
    return o->c->error.status;
}

/* The norm of norms is that of all. */
cup_status cup__divided_norm(cup_optimizer *o, int count)
{
    if (!o->among)
        return norm_of(o, o->gradients, count, o->norm);
    cup_tensor *const *list = cup__optimizer_gradients_of(o, false, &count);
    CUP_TRY(norm_of(o, list, count, o->whole_norm));
    list = cup__optimizer_gradients_of(o, true, &count);
    CUP_TRY(norm_of(o, list, count, o->own_norm));
    CUP_TRY(cup_comm_all_gather(o->among, o->own_norm, o->part_norms));
    return norm_of(o, (cup_tensor *[]){o->whole_norm, o->part_norms}, 2, o->norm);
}
