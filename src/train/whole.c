/* What checkpoints hold where processes have parts of a model: whole tensors, so that any number of
 * processes goes on from them. */
#include <string.h>

#include "base/memory.h"
#include "cupola/grad.h"
#include "nn/parameters.h"
#include "optim/optimizer.h"
#include "train/together.h"

/* A state of the optimizer is named for its parameter: NAME.first. */
const cup__part *cup__loop_part(const cup_loop *l, const char *name, bool state)
{
    const char *end = state ? strrchr(name, '.') : NULL;
    size_t length = end ? (size_t)(end - name) : strlen(name);
    return state && !end ? NULL : cup__parameters_part_named(l->list, name, length);
}

static void whole_free(cup__whole *w)
{
    if (!w)
        return;
    for (int64_t i = 0; w->made && i < w->count; i++) {
        if (w->made[i] && w->named[i].tensor != w->made[i])
            cup_tensor_free(w->named[i].tensor);
        cup_tensor_free(w->made[i]);
    }
    cup__free(w->named);
    cup__free(w->own);
    cup__free(w->made);
    cup__free(w);
}

void cup__loop_whole_free(cup_loop *l)
{
    whole_free(l->weights);
    whole_free(l->states);
    l->weights = l->states = NULL;
}

/* The tensor for the whole, of which a file may hold the first rows only. */
static cup_status make_tensor(cup_loop *l, cup__whole *w, int64_t i, const cup__part *part)
{
    cup__shape shape = cup__part_whole_shape(w->own[i], part);
    cup_tensor *t = w->made[i] = cup_keep(cup__full(l->c, &shape, 0));
    if (t && !w->states && part->rows) {
        shape.size[0] = part->rows;
        w->named[i].tensor = cup_keep(cup__tensor_view(t, &shape, t->stride, 0));
    } else {
        w->named[i].tensor = t;
    }
    return l->c->error.status;
}

static cup_status make(cup_loop *l, const cup_named *list, int64_t count, bool states,
                       cup__whole **out)
{
    cup__whole *w = *out = cup__calloc(1, sizeof *w);
    if (w) {
        w->named = cup__calloc((size_t)count + 1, sizeof *w->named);
        w->own = cup__calloc((size_t)count + 1, sizeof(cup_tensor *));
        w->made = cup__calloc((size_t)count + 1, sizeof(cup_tensor *));
    }
    if (!list || !w || !w->named || !w->own || !w->made)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a checkpoint");
    w->count = count;
    w->states = states;
    for (int64_t i = 0; i < count; i++) {
        w->named[i] = list[i];
        w->own[i] = list[i].tensor;
        const cup__part *part = cup__loop_part(l, list[i].name, states);
        if (part && cup_comm_rank(l->comm) == 0)
            CUP_TRY(make_tensor(l, w, i, part));
    }
    return CUP_OK;
}

cup_status cup__loop_whole(cup_loop *l)
{
    int64_t count;
    cup__loop_whole_free(l);
    const cup_named *list = cup_parameters_named(l->list, &count);
    CUP_TRY(l->c->error.status);
    cup_scope_open(l->c);
    cup_status status = make(l, list, count, false, &l->weights);
    if (status == CUP_OK) {
        list = cup__optimizer_whole(l->optimizer, &count);
        status = make(l, list, count, true, &l->states);
    }
    cup_scope_return(l->c, NULL);
    return status;
}

static cup_status copy_to(cup_tensor *to, const cup_tensor *from)
{
    cup__device *device = to->context->device;
    size_t bytes = (size_t)(to->count * cup_dtype_size(to->dtype));
    return device->calls->copy(device, to->data, from->data, bytes);
}

static cup_status collect_one(cup_loop *l, cup__whole *w, int64_t i, const cup__part *part)
{
    cup_tensor *whole = cup__part_gather(l->c, w->own[i], part);
    if (!whole)
        return l->c->error.status;
    return w->made[i] ? copy_to(w->made[i], whole) : CUP_OK;
}

static cup_status deal_one(cup_loop *l, cup__whole *w, int64_t i, const cup__part *part)
{
    cup__shape shape = cup__part_whole_shape(w->own[i], part);
    cup_tensor *whole = w->made[i] ? w->made[i] : cup__full(l->c, &shape, 0);
    if (!whole)
        return l->c->error.status;
    CUP_TRY(cup_comm_broadcast(l->comm, &whole, 1, 0));
    cup_tensor *own = cup__part_take(l->c, whole, part);
    return own ? copy_to(w->own[i], own) : l->c->error.status;
}

static cup_status each(cup_loop *l, cup__whole *w,
                       cup_status (*call)(cup_loop *, cup__whole *, int64_t, const cup__part *))
{
    for (int64_t i = 0; i < w->count; i++) {
        const cup__part *part = cup__loop_part(l, w->named[i].name, w->states);
        if (!part)
            continue;
        cup_scope_open(l->c);
        cup_status status = call(l, w, i, part);
        cup_scope_return(l->c, NULL);
        CUP_TRY(status);
    }
    return CUP_OK;
}

cup_status cup__loop_collect(cup_loop *l)
{
    CUP_TRY(cup__loop_whole(l));
    CUP_TRY(each(l, l->weights, collect_one));
    return each(l, l->states, collect_one);
}

cup_status cup__loop_deal(cup_loop *l)
{
    if (!l->weights)
        CUP_TRY(cup__loop_whole(l));
    CUP_TRY(each(l, l->weights, deal_one));
    return each(l, l->states, deal_one);
}
