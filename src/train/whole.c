/* What checkpoints hold where processes have parts or stages of a model: whole tensors of all of
 * it, so that any number of processes goes on from them. */
#include <string.h>

#include "base/memory.h"
#include "cupola/grad.h"
#include "nn/parameters.h"
#include "optim/optimizer.h"
#include "train/together.h"

/* A state of the optimizer is named for its parameter: NAME.first. */
const cup__portion *cup__loop_part(const cup_loop *l, const char *name, bool state)
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
static cup_status make_tensor(cup_loop *l, cup__whole *w, int64_t i, const cup__portion *part)
{
    cup__shape shape = part ? cup__part_whole_shape(w->own[i], part) : w->listed[i].shape;
    int64_t rows = w->states ? 0 : part ? part->rows : w->listed[i].rows;
    cup_tensor *t = w->made[i] = cup_keep(w->states ? cup__optimizer_room(l->optimizer, &shape)
                                                    : cup__full(l->c, &shape, 0));
    if (t && rows) {
        shape.size[0] = rows;
        w->named[i].tensor = cup_keep(cup__tensor_view(t, &shape, t->stride, 0));
    } else {
        w->named[i].tensor = t;
    }
    return l->c->error.status;
}

static const cup__portion *part_of(const cup_loop *l, const cup__whole *w, int64_t i)
{
    bool here = !w->listed || (w->listed[i].stages >> cup_comm_rank(l->pipe) & 1);
    return here ? cup__loop_part(l, w->named[i].name, w->states) : NULL;
}

/* With stages, all that these have, in an order that is the same for all. */
static void name_all(cup__whole *w, const cup_named *list, int64_t count,
                     const cup__catalogue *catalogue)
{
    w->count = catalogue ? catalogue->count : count;
    w->listed = catalogue ? catalogue->list : NULL;
    for (int64_t i = 0; i < w->count; i++) {
        int64_t k = i;
        if (catalogue)
            for (k = 0; k < count && strcmp(list[k].name, w->listed[i].name);)
                k++;
        if (k < count)
            w->named[i] = list[k];
        else
            w->named[i].name = w->listed[i].name;
        w->own[i] = w->named[i].tensor;
    }
}

static cup_status make(cup_loop *l, const cup_named *list, int64_t count, bool states,
                       cup__whole **out)
{
    const cup__catalogue *catalogue = !l->pipeline ? NULL
                                      : states     ? &l->pipeline->states
                                                   : &l->pipeline->weights;
    size_t room = (size_t)(catalogue ? catalogue->count : count) + 1;
    cup__whole *w = *out = cup__calloc(1, sizeof *w);
    if (w) {
        w->named = cup__calloc(room, sizeof *w->named);
        w->own = cup__calloc(room, sizeof(cup_tensor *));
        w->made = cup__calloc(room, sizeof(cup_tensor *));
    }
    if (!list || !w || !w->named || !w->own || !w->made)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a checkpoint");
    w->states = states;
    name_all(w, list, count, catalogue);
    for (int64_t i = 0; i < w->count; i++) {
        const cup__portion *part = part_of(l, w, i);
        if ((part || !w->own[i]) && cup_comm_rank(l->comm) == 0)
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

/* The first stage that has it brings it to rank 0. */
static cup_status collect_one(cup_loop *l, cup__whole *w, int64_t i)
{
    const cup__portion *part = part_of(l, w, i);
    int stage = w->listed ? __builtin_ctzll(w->listed[i].stages) : 0;
    int here = cup_comm_rank(l->pipe);
    bool speaks = cup_comm_rank(l->copies) == 0 && cup_comm_rank(l->among) == 0;
    if (stage != here)
        return here == 0 && speaks ? cup_comm_receive(l->pipe, w->made[i], stage) : CUP_OK;
    cup_tensor *whole = w->own[i];
    if (w->states && part && l->options.optimizer.split)
        CUP_TRY(cup__optimizer_bring(l->optimizer, w->named[i].name, &whole));
    whole = part ? cup__part_gather(l->c, whole, part) : whole;
    if (!whole)
        return l->c->error.status;
    if (stage > 0)
        return speaks ? cup_comm_send(l->pipe, whole, 0) : CUP_OK;
    return w->made[i] ? copy_to(w->made[i], whole) : CUP_OK;
}

/* Who has no place for it lends some. */
static cup_status deal_one(cup_loop *l, cup__whole *w, int64_t i)
{
    const cup__portion *part = part_of(l, w, i);
    cup_tensor *own = w->own[i], *whole = w->made[i] ? w->made[i] : part ? NULL : own;
    if (part && !own && !(own = cup__optimizer_lent(l->optimizer, w->named[i].name)))
        return l->c->error.status;
    if (!whole) {
        cup__shape shape = part ? cup__part_whole_shape(own, part) : w->listed[i].shape;
        whole = cup__full(l->c, &shape, 0);
    }
    if (!whole)
        return l->c->error.status;
    CUP_TRY(cup_comm_broadcast(l->comm, &whole, 1, 0));
    if (!part)
        return CUP_OK;
    cup_tensor *taken = cup__part_take(l->c, whole, part);
    return taken ? copy_to(own, taken) : l->c->error.status;
}

/* Of what rank 0 has not. */
static cup_status each(cup_loop *l, cup__whole *w,
                       cup_status (*call)(cup_loop *, cup__whole *, int64_t))
{
    for (int64_t i = 0; i < w->count; i++) {
        if (!w->listed && !part_of(l, w, i))
            continue;
        cup_scope_open(l->c);
        cup_status status = call(l, w, i);
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
