#include "prof/exact.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "dispatch/attributes.h"
#include "prof/compare.h"
#include "prof/cost.h"
#include "prof/sampled.h"

#define MOST_INPUTS 1024
#define MANY_OPERATIONS 1e12 /* above, the plainest implementation takes too long */
#define MOST_SPECIFIED 5e8   /* operations of the specification, some seconds */

struct cup__exact {
    cup_context *c;
    const cup__row *row;
    const void *attributes;
    int count;
    cup_tensor *given[MOST_INPUTS]; /* as timed; what a call changes as it was before */
    cup_tensor *in[MOST_INPUTS];    /* in double */
    cup__call call;
    int64_t held; /* elements by the specification; below 0: one of them is wrong */
    char note[200];
};

static cup_tensor *cast(cup_context *c, cup_tensor *t, cup_dtype dtype)
{
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    return cup__op_call(c, &cup__rows[CUP__OP_cast], &t, 1,
                        &(cup__cast_attributes){.dtype = dtype}, out);
}

static cup_tensor *copy(cup_context *c, cup_tensor *t)
{
    cup__shape shape = cup__shape_of(t);
    cup_tensor *same = cup__tensor_make(c, &shape, "sample");
    if (same && c->device->calls->copy(c->device, same->data, t->data,
                                       (size_t)(t->count * cup_dtype_size(t->dtype))) == CUP_OK)
        return same;
    return NULL;
}

static cup_status allocate(cup__call *call, bool saving)
{
    call->saving = saving;
    if (saving)
        call->out_count = call->row->results_count;
    return cup__call_allocate(call);
}

/* By the plainest implementation that takes the call, or for large ones the one that a call takes;
 * a CPU without one has the specification. */
static cup_status run(cup__call *call)
{
    cup__place place = call->c->device->is_cuda ? CUP__CUDA : CUP__CPU;
    const cup__impl *last = NULL;
    double bytes, flops;
    cup__call_cost(call, &bytes, &flops);
    for (const cup__impl *impl = call->op->impls; impl && impl->name; impl++)
        if (impl->place == place && !(impl->refuses && impl->refuses(call)))
            last = impl;
    if (flops > MANY_OPERATIONS)
        last = cup__call_choose(call);
    if (!last && (place == CUP__CUDA || bytes + flops > MOST_SPECIFIED))
        return CUP_UNSUPPORTED;
    return cup__call_run(call, last);
}

static bool prepare(cup__exact *e, const cup__call *timed)
{
    bool any = false;
    for (int i = 0; i < e->count; i++) {
        cup_tensor *t = timed->in[i];
        if (!t)
            continue;
        e->given[i] = e->in[i] = t;
        if (cup__call_changes(timed, i)) {
            if (!t->contiguous || !(e->given[i] = e->in[i] = copy(e->c, t)))
                return false;
        }
        if (!cup__dtype_is_float(t->dtype))
            continue;
        any |= t->dtype != CUP_F64;
        e->in[i] = t->dtype == CUP_F64 ? e->given[i] : cast(e->c, e->given[i], CUP_F64);
        if (!e->in[i])
            return false;
    }
    return any;
}

static bool compute(cup__exact *e, const cup__call *timed)
{
    bool good = prepare(e, timed) && cup__call_begin(&e->call, e->c, e->row, e->in, e->count,
                                                     e->attributes) == CUP_OK;
    bool wide = false;
    for (int i = 0; good && i < e->call.out_count; i++)
        wide |= e->call.result[i].dtype == CUP_F64;
    for (int i = 0; good && i < e->count; i++)
        wide |= e->in[i] && cup__call_changes(timed, i) && e->in[i]->dtype == CUP_F64;
    good = good && wide && allocate(&e->call, timed->saving) == CUP_OK &&
           run(&e->call) == CUP_OK && e->c->device->calls->synchronize(e->c->device) == CUP_OK;
    good = good && e->c->error.status == CUP_OK;
    if (good)
        e->held = cup__sampled_hold(&e->call, e->given[0] == e->in[0] ? NULL : e->given[0], e->note,
                                    sizeof e->note);
    return good;
}

cup__exact *cup__exact_new(const cup__call *timed)
{
    cup_context *c = timed->c;
    cup__exact *e = timed->in_count <= MOST_INPUTS ? cup__calloc(1, sizeof *e) : NULL;
    if (!e || c->error.status != CUP_OK) {
        cup__free(e);
        return NULL;
    }
    e->c = c;
    e->row = timed->row;
    e->attributes = timed->attributes;
    e->count = timed->in_count;
    if (compute(e, timed))
        return e;
    cup__error_clear(&c->error);
    cup__free(e);
    return NULL;
}

static void compare(cup_tensor *want, cup_tensor *got, double *worst)
{
    char note[200];
    void *memory[2] = {NULL};
    cup_tensor host[2];
    double error = INFINITY;
    cup__shape a = cup__shape_of(want), b = cup__shape_of(got);
    if (cup__shape_equal(&a, &b) && cup__on_host(want, &host[0], &memory[0]) &&
        cup__on_host(got, &host[1], &memory[1]))
        error = cup__compare(&host[0], &host[1], 0, note, sizeof note);
    cup__free(memory[0]);
    cup__free(memory[1]);
    *worst = fmax(*worst, error);
}

static double error_of(cup__exact *e, const cup__impl *impl)
{
    cup_tensor *in[MOST_INPUTS] = {NULL};
    cup__call call;
    double worst = 0;
    if (cup__call_begin(&call, e->c, e->row, e->given, e->count, e->attributes) != CUP_OK)
        return NAN;
    call.saving = e->call.saving;
    for (int i = 0; i < e->count; i++) {
        in[i] = e->given[i];
        if (in[i] && cup__call_changes(&call, i) && !(in[i] = copy(e->c, in[i])))
            return NAN;
    }
    if (cup__call_begin(&call, e->c, e->row, in, e->count, e->attributes) != CUP_OK ||
        allocate(&call, e->call.saving) != CUP_OK || cup__call_run(&call, impl) != CUP_OK)
        return NAN;
    cup_tensor *want[CUP__MAX_OUT], *got[CUP__MAX_OUT];
    memcpy(want, e->call.out, sizeof want);
    memcpy(got, call.out, sizeof got);
    int count = cup__steady(e->c, e->row->op, want, call.out_count);
    if (count < 0 || cup__steady(e->c, e->row->op, got, call.out_count) != count)
        return NAN;
    for (int i = 0; i < count; i++)
        compare(want[i], got[i], &worst);
    for (int i = 0; i < call.in_count; i++)
        if (call.in[i] && cup__call_changes(&call, i))
            compare(e->call.in[i], call.in[i], &worst);
    return worst;
}

double cup__exact_error(cup__exact *e, const cup__impl *impl)
{
    if (e->held < 0)
        return INFINITY;
    cup_scope_open(e->c);
    double error = error_of(e, impl);
    cup__scope_pop(e->c);
    if (e->c->error.status != CUP_OK) {
        cup__error_clear(&e->c->error);
        error = NAN;
    }
    return error;
}

void cup__exact_free(cup__exact *e)
{
    cup__free(e);
}
