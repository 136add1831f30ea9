/* The averages of parameters in the place of these, and back: by their owners where several
 * processes split the states, and then by all. */
#include "base/memory.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "optim/average.h"
#include "optim/split.h"
#include "optim/update.h"

static bool is_own(const cup_optimizer *o, int i)
{
    return !o->split || cup__split_is_own(o->split, i);
}

/* Records of averages stand in the order of the parameters whose states are here. */
static cup_status show_all(cup_optimizer *o, double scale)
{
    cup_tensor **record = o->averages + CUP__RECORDS_AT;
    for (int i = 0; i < o->count && o->c->error.status == CUP_OK; i++) {
        cup_tensor *p = o->parameters[i];
        if (!is_own(o, i))
            continue;
        bool was = cup_grad_recording(o->c, false);
        o->shown[i] = cup_keep(cup_copy(o->c, p));
        cup_grad_recording(o->c, was);
        if (scale > 0 && o->shown[i])
            cup__average_take(o->c, p, record[CUP__VALUE], scale);
        record += CUP__RECORD;
    }
    return o->c->error.status;
}

static cup_status show(cup_optimizer *o)
{
    int64_t steps = cup_optimizer_taken(o);
    CUP_TRY(o->c->error.status);
    o->shown = cup__calloc((size_t)o->count, sizeof *o->shown);
    return o->shown ? show_all(o, cup__average_scale(o->options.average, steps))
                    : cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for an optimizer");
}

static cup_status put_back(cup_optimizer *o)
{
    for (int i = 0; i < o->count; i++) {
        if (o->shown[i])
            cup__average_take(o->c, o->parameters[i], o->shown[i], 1);
        cup_tensor_free(o->shown[i]);
    }
    cup__free(o->shown);
    o->shown = NULL;
    return o->c->error.status;
}

cup_status cup_optimizer_show_average(cup_optimizer *o, bool on)
{
    if (!o)
        return CUP_ARGUMENT;
    CUP_TRY(o->c->error.status);
    if (!o->averages)
        return cup__fail(&o->c->error, CUP_STATE,
                         "optimizer: it keeps no averages; make it with an `average`");
    if (on == (o->shown != NULL))
        return CUP_OK;
    cup__split_aside(o, true);
    cup_status status = on ? show(o) : put_back(o);
    cup__split_aside(o, false);
    return status == CUP_OK ? cup__split_share(o) : status;
}
