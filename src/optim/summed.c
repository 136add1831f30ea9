/* Gradients that are added up on the process that their parameter belongs to (stage 2). */
#include "base/memory.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "optim/split.h"

int cup__split_stage(const cup_optimizer *o)
{
    return o->split ? o->split->stage : 0;
}

void cup__split_summed(cup_optimizer *o, bool all)
{
    if (o->split)
        o->split->summed = all;
}

cup_status cup__split_sums_make(cup_optimizer *o)
{
    struct cup__split *s = o->split;
    int64_t count = cup_comm_count(s->comm), at = cup_comm_rank(s->comm);
    if (s->stage > 3)
        return cup__fail(&o->c->error, CUP_ARGUMENT,
                         "optimizer: there is no stage %d of splitting; 1 to 3 are", s->stage);
    s->part_norms = cup_keep(cup_zeros(o->c, CUP_F32, 1, &count));
    if (s->part_norms)
        s->own_norm =
            cup_keep(cup__tensor_view(s->part_norms, &(cup__shape){.dtype = CUP_F32},
                                      &(int64_t){1}, at));
    return o->c->error.status;
}

void cup__split_sums_free(cup_optimizer *o)
{
    cup_tensor_free(o->split->own_norm);
    cup_tensor_free(o->split->part_norms);
}

cup_status cup__split_sum_end(cup_optimizer *o)
{
    struct cup__split *s = o->split;
    if (!s->waiting_count)
        return CUP_OK;
    cup_status status = cup__comm_join(s->comm);
    for (int i = 0; i < s->alike_count && status == CUP_OK; i++)
        status = cup__comm_join(s->alike[i].same);
    for (int i = 0; i < s->waiting_count; i++)
        if (!cup__split_is_own(s, s->waiting[i]))
            cup_grad_clear(o->parameters[s->waiting[i]]);
    s->waiting_count = 0;
    return status;
}

static cup_status begin(cup_optimizer *o, const int *which, int count, cup_comm *among)
{
    struct cup__split *s = o->split;
    int first = s->waiting_count;
    for (int i = 0; i < count; i++) {
        cup_tensor *gradient = o->parameters[which[i]]->grad;
        if (!gradient || cup__split_among(s, which[i]) != among)
            continue;
        s->list[s->waiting_count] = gradient;
        s->list_owners[s->waiting_count] = s->owner[which[i]];
        s->waiting[s->waiting_count++] = which[i];
    }
    return s->waiting_count == first
               ? CUP_OK
               : cup__comm_sum_owned_begin(among, s->list + first, s->list_owners + first,
                                           s->waiting_count - first);
}

/* Two lots of gradients are there at a time: what is added up, and what backward makes
 * meanwhile. */
cup_status cup__split_sum_begin(cup_optimizer *o, const int *which, int count)
{
    struct cup__split *s = o->split;
    if (cup__device_is_dry(o->c->device))
        return CUP_OK;
    CUP_TRY(cup__split_sum_end(o));
    CUP_TRY(begin(o, which, count, s->comm));
    for (int i = 0; i < s->alike_count; i++)
        CUP_TRY(begin(o, which, count, s->alike[i].same));
    return CUP_OK;
}

cup_status cup__split_sum_all(cup_optimizer *o)
{
    int *all = o->split->summed ? NULL : cup__malloc((size_t)o->count * sizeof *all);
    if (!all && !o->split->summed)
        return cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for an optimizer");
    for (int i = 0; all && i < o->count; i++)
        all[i] = i;
    cup_status status = all ? cup__split_sum_begin(o, all, o->count) : CUP_OK;
    cup__free(all);
    CUP_TRY(status);
    o->split->summed = true;
    return cup__split_sum_end(o);
}

cup_status cup__split_count(cup_optimizer *o, cup_comm *m, bool *counted)
{
    o->split->staged = true;
    return cup__optimizer_count(o, m, counted);
}

/* The norm of norms is that of all. */
static cup_status norm_of_all(cup_optimizer *o, cup_comm *m, cup_tensor *own, cup_tensor *norms,
                              cup_tensor *all)
{
    if (!cup__device_is_dry(o->c->device))
        CUP_TRY(cup_comm_all_gather(m, own, norms));
    cup__op_call(o->c, &cup__rows[CUP__OP_global_norm], &norms, 1, NULL, &all);
    return o->c->error.status;
}

cup_status cup__split_norm(cup_optimizer *o, int count)
{
    struct cup__split *s = o->split;
    s->summed = false;
    if (s->staged)
        cup__optimizer_gradients_counted(o, &count);
    if (count)
        cup__op_call(o->c, &cup__rows[CUP__OP_global_norm], o->gradients, count, NULL,
                     &s->own_norm);
    else
        CUP_TRY(o->c->device->calls->fill(o->c->device, s->own_norm->data, 0, sizeof(float)));
    CUP_TRY(o->c->error.status);
    CUP_TRY(norm_of_all(o, s->comm, s->own_norm, s->part_norms, s->staged ? o->own_norm : o->norm));
    return s->staged ? norm_of_all(o, o->among, o->own_norm, o->norms, o->norm) : CUP_OK;
}
