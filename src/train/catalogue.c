/* What the stages of a model have, as each of them says it to all: so rank 0 knows what belongs
 * into a checkpoint, and all know what several of them share. */
#include <string.h>

#include "base/memory.h"
#include "cupola/grad.h"
#include "nn/parameters.h"
#include "optim/optimizer.h"
#include "train/together.h"

#define WORDS ((int64_t)(sizeof(cup__listed) / sizeof(int32_t)))
_Static_assert(sizeof(cup__listed) % sizeof(int32_t) == 0, "entries travel as words");

static cup__listed *find(const cup__catalogue *catalogue, const char *name)
{
    for (int64_t i = 0; i < catalogue->count; i++)
        if (!strcmp(catalogue->list[i].name, name))
            return &catalogue->list[i];
    return NULL;
}

static cup_status no_memory(cup_loop *l)
{
    return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for the stages of a model");
}

/* Of states this process may keep some only, and knows all. */
static cup_status write_own(cup_loop *l, const cup_named *own, int64_t count, bool states,
                            cup__listed *to)
{
    for (int64_t i = 0; i < count; i++) {
        cup__shape shape;
        const char *name = own ? own[i].name : cup__optimizer_state_of(l->optimizer, i, &shape);
        const cup__portion *part = cup__loop_part(l, name, states);
        size_t length = strlen(name);
        if (own)
            shape = cup__shape_of(own[i].tensor);
        if (length >= sizeof to[i].name)
            return cup__fail(&l->c->error, CUP_UNSUPPORTED,
                             "training: the name %.40s.. has %zu letters, and names of stages have "
                             "%zu at most",
                             name, length, sizeof to[i].name - 1);
        memcpy(to[i].name, name, length);
        to[i].shape = shape;
        if (part)
            to[i].shape.size[part->axis] *= cup_comm_count(part->comm);
        to[i].rows = part && !states ? part->rows : 0;
        to[i].stages = (uint64_t)1 << cup_comm_rank(l->pipe);
    }
    return CUP_OK;
}

static cup_status check_alike(cup_loop *l, const cup__listed *a, const cup__listed *b)
{
    if (cup__shape_equal(&a->shape, &b->shape) && a->shape.dtype == b->shape.dtype &&
        a->rows == b->rows)
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_SHAPE,
                     "training: %s has another shape or dtype in one stage than in another; what "
                     "stages share is the same in each, and what they do not has other names",
                     a->name);
}

/* Puts together what all have said, which is in the order of the stages. */
static cup_status merge(cup_loop *l, const cup__listed *all, int64_t count, cup__catalogue *out)
{
    out->list = cup__calloc((size_t)count + 1, sizeof *out->list);
    if (!out->list)
        return no_memory(l);
    for (int64_t i = 0; i < count; i++) {
        cup__listed *known = find(out, all[i].name);
        if (!*all[i].name)
            continue;
        if (known)
            CUP_TRY(check_alike(l, known, &all[i]));
        else
            out->list[out->count++] = all[i];
        if (known)
            known->stages |= all[i].stages;
    }
    return CUP_OK;
}

static cup_status tell(cup_loop *l, const cup__listed *own, int64_t most, cup__listed *all)
{
    cup_context *c = l->c;
    int64_t stages = cup_comm_count(l->pipe);
    cup_scope_open(c);
    cup_tensor *from = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){most * WORDS}, own);
    cup_tensor *to = cup_tensor_new(c, CUP_I32, 1, (int64_t[]){stages * most * WORDS});
    cup_status status = from && to ? cup_comm_all_gather(l->pipe, from, to) : c->error.status;
    if (status == CUP_OK)
        status = cup_tensor_read(to, all, (size_t)(stages * most) * sizeof *all);
    cup_scope_return(c, NULL);
    return status;
}

cup_status cup__catalogue_make(cup_loop *l, bool states, cup__catalogue *out)
{
    int64_t count, stages = cup_comm_count(l->pipe);
    const cup_named *named = states ? NULL : cup_parameters_named(l->list, &count);
    if (states)
        count = cup__optimizer_state_count(l->optimizer);
    CUP_TRY(l->c->error.status);
    int64_t most = count;
    CUP_TRY(cup_comm_agree(l->pipe, &most, 1));
    most += most == 0;
    cup__listed *own = cup__calloc((size_t)most, sizeof *own);
    cup__listed *all = cup__calloc((size_t)(stages * most), sizeof *all);
    cup_status status = own && all ? write_own(l, named, count, states, own) : no_memory(l);
    bool was = cup_grad_recording(l->c, false);
    if (status == CUP_OK)
        status = tell(l, own, most, all);
    cup_grad_recording(l->c, was);
    if (status == CUP_OK)
        status = merge(l, all, stages * most, out);
    cup__free(own);
    cup__free(all);
    return status;
}
