#include "prof/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cuda/cuda.h"
#include "prof/compare.h"
#include "prof/kernels.h"

#define MOST_INPUTS 64
#define GUARD 64 /* elements before and behind each result */
#define SEED 20240229u
#define USUAL_TOLERANCE 4.0

static const char *const layout_names[] = {"row-major", "padded", "transposed"};

/* What the specification says, in double, on the CPU. */
typedef struct reference {
    cup_context *c;
    cup_tensor *in[MOST_INPUTS];
    cup__call call;
} reference;

typedef struct check {
    cup_context *c;
    const cup__row *row;
    const cup__sample *sample;
    cup_dtype dtype;
    cup__layout layout;
    void (*report)(const cup_check_result *result, void *user);
    void *user;
    reference want;
    char note[400];
} check;

static cup_status run_reference(check *k)
{
    reference *w = &k->want;
    int count = cup__sample_inputs(w->c, k->row, k->sample, k->dtype, CUP_F64, CUP__ROW_MAJOR, SEED,
                                   w->in, MOST_INPUTS);
    if (count < 0)
        return w->c->error.status;
    CUP_TRY(cup__call_begin(&w->call, w->c, k->row, w->in, count, k->sample->attributes));
    w->call.saving = true;
    w->call.out_count = k->row->results_count;
    CUP_TRY(cup__call_allocate(&w->call));
    return cup__call_run(&w->call, NULL);
}

/* Memory for a result with guard bytes around it, all of it poisoned; the middle as a tensor. */
static cup_tensor *guarded(cup_context *c, const cup__shape *shape)
{
    int64_t count;
    if (cup__shape_check(&c->error, shape, &count) != CUP_OK)
        return NULL;
    cup__shape flat = {.dtype = shape->dtype, .ndim = 1, .size = {count + 2 * GUARD}};
    cup_tensor *base = cup__tensor_make(c, &flat, "guarded");
    int64_t stride[CUP_MAX_DIMS], step = 1;
    for (int i = shape->ndim; i-- > 0; step *= shape->size[i])
        stride[i] = step;
    size_t bytes = base ? base->storage->bytes : 0;
    if (!base || c->device->calls->fill(c->device, base->data, 0xff, bytes) != CUP_OK)
        return NULL;
    cup_tensor *middle = cup__tensor_view(base, shape, stride, GUARD);
    cup_tensor_free(base);
    return middle;
}

static bool guards_hold(cup_tensor *t)
{
    size_t size = (size_t)cup_dtype_size(t->dtype), bytes = t->storage->bytes;
    unsigned char *all = cup__malloc(bytes);
    bool hold = all && t->context->device->calls->read(t->context->device, all, t->storage->data,
                                                       bytes) == CUP_OK;
    for (size_t i = 0; hold && i < GUARD * size; i++)
        hold = all[i] == 0xff && all[bytes - 1 - i] == 0xff;
    cup__free(all);
    return hold;
}

static void compare_with_reference(check *k, cup_check_result *r, cup_tensor *want,
                                   cup_tensor *got, double slack)
{
    cup_tensor host;
    void *memory = NULL;
    char note[200] = "";
    cup__shape a = cup__shape_of(want), b = cup__shape_of(got);
    if (!cup__shape_equal(&a, &b)) {
        r->error = INFINITY;
        snprintf(k->note, sizeof k->note, "the shape differs from the specification's");
    } else if (!cup__on_host(got, &host, &memory)) {
        r->error = INFINITY;
        snprintf(k->note, sizeof k->note, "%.300s", k->c->error.text);
    } else {
        double error = cup__compare(want, &host, slack, note, sizeof note);
        if (error > r->error) {
            r->error = error;
            snprintf(k->note, sizeof k->note, "%s", note);
        }
    }
    cup__free(memory);
}

/* Results and, for updates, the inputs that were changed. */
static void compare_all(check *k, cup_check_result *r, cup__call *call, double slack)
{
    for (int i = 0; i < call->out_count; i++)
        compare_with_reference(k, r, k->want.call.out[i], call->out[i], slack);
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i] && cup__call_changes(call, i))
            compare_with_reference(k, r, k->want.in[i], call->in[i], slack);
}

static bool same_bits(cup_tensor *a, cup_tensor *b)
{
    cup_tensor x, y;
    void *mx = NULL, *my = NULL;
    bool same = cup__on_host(a, &x, &mx) && cup__on_host(b, &y, &my) &&
                !memcmp(mx, my, (size_t)(a->count * cup_dtype_size(a->dtype)));
    cup__free(mx);
    cup__free(my);
    return same;
}

static cup_status begin(check *k, cup__call *call, cup_tensor **in)
{
    int count = cup__sample_inputs(k->c, k->row, k->sample, k->dtype, k->dtype, k->layout, SEED, in,
                                   MOST_INPUTS);
    if (count < 0)
        return k->c->error.status;
    return cup__call_begin(call, k->c, k->row, in, count, k->sample->attributes);
}

/* Puts guard bytes around the inputs that the call will change. */
static cup_status guard_changed(check *k, cup__call *call)
{
    cup__device *device = k->c->device;
    for (int i = 0; i < call->in_count; i++) {
        cup_tensor *in = call->in[i];
        if (!in || !cup__call_changes(call, i))
            continue;
        cup__shape shape = cup__shape_of(in);
        call->in[i] = guarded(k->c, &shape);
        if (!call->in[i])
            return k->c->error.status;
        CUP_TRY(device->calls->copy(device, call->in[i]->data, in->data,
                                    (size_t)(in->count * cup_dtype_size(in->dtype))));
    }
    return CUP_OK;
}

static cup_status run_once(check *k, const cup__impl *impl, cup__call *call, cup_tensor **in)
{
    CUP_TRY(begin(k, call, in));
    call->saving = true;
    CUP_TRY(guard_changed(k, call));
    call->out_count = k->row->results_count;
    for (int i = 0; i < call->out_count; i++) {
        call->out[i] = guarded(k->c, &call->result[i]);
        if (!call->out[i])
            return k->c->error.status;
    }
    CUP_TRY(cup__call_run(call, impl));
    return k->c->device->calls->synchronize(k->c->device);
}

static void finish(check *k, cup_check_result *r, cup_status status)
{
    if (status != CUP_OK || k->c->error.status != CUP_OK) {
        r->error = INFINITY;
        snprintf(k->note, sizeof k->note, "%.390s", k->c->error.text);
        cup__error_clear(&k->c->error);
    }
    r->passed = r->error <= r->tolerance;
    k->report(r, k->user);
}

static cup_check_result result_of(check *k, const char *impl, double tolerance)
{
    cup_check_result r = {.op = k->row->name,
                          .impl = impl,
                          .dtype = k->dtype,
                          .layout = layout_names[k->layout],
                          .shapes = k->sample->shapes,
                          .note = k->note};
    k->note[0] = 0;
    r.tolerance = tolerance ? tolerance : k->row->op->tolerance;
    if (r.tolerance == 0)
        r.tolerance = USUAL_TOLERANCE;
    return r;
}

/* What two runs wrote: inside its bounds, and the same bits. */
static void check_written(check *k, cup_check_result *r, cup_tensor *t, cup_tensor *again,
                          const char *what, int i)
{
    (void)k;
    const char *wrong = !guards_hold(t)        ? "it wrote outside its bounds"
                        : !same_bits(t, again) ? "a second run gave other bits"
                                               : NULL;
    if (!wrong)
        return;
    r->error = INFINITY;
    snprintf(k->note, sizeof k->note, "%s %d: %s", what, i + 1, wrong);
}

static void check_impl(check *k, const cup__impl *impl)
{
    cup_check_result r = result_of(k, impl ? impl->name : "specification",
                                    impl ? impl->tolerance : 0);
    cup__call first, second;
    cup_tensor *in[MOST_INPUTS], *again[MOST_INPUTS];
    cup_scope_open(k->c);
    cup_status status = begin(k, &first, in);
    if (status == CUP_OK && impl && impl->refuses && impl->refuses(&first)) {
        cup__scope_pop(k->c);
        return;
    }
    if (status == CUP_OK)
        status = run_once(k, impl, &first, in);
    if (status == CUP_OK)
        status = run_once(k, impl, &second, again);
    if (status == CUP_OK)
        compare_all(k, &r, &first, impl ? impl->slack : 0);
    for (int i = 0; status == CUP_OK && i < first.out_count; i++)
        check_written(k, &r, first.out[i], second.out[i], "result", i);
    for (int i = 0; status == CUP_OK && i < first.in_count; i++)
        if (first.in[i] && cup__call_changes(&first, i))
            check_written(k, &r, first.in[i], second.in[i], "input", i);
    finish(k, &r, status);
    cup__scope_pop(k->c);
}

static void check_view(check *k)
{
    cup_check_result r = result_of(k, "view", 0);
    cup__call call;
    cup_tensor *in[MOST_INPUTS];
    cup_scope_open(k->c);
    cup_status status = begin(k, &call, in);
    if (status == CUP_OK)
        status = k->row->op->view(&call);
    if (status == CUP_OK)
        compare_all(k, &r, &call, 0);
    finish(k, &r, status);
    cup__scope_pop(k->c);
}

static cup_status check_sample(check *k)
{
    cup_scope_open(k->want.c);
    cup_status status = run_reference(k);
    if (status != CUP_OK) {
        cup__fail(&k->c->error, status, "the specification of %s: %s", k->row->name,
                  k->want.c->error.text);
    } else if (k->row->op->view) {
        check_view(k);
    } else {
        cup__place place = k->c->device->is_cuda ? CUP__CUDA : CUP__CPU;
        for (const cup__impl *impl = k->row->op->impls; impl && impl->name; impl++)
            if (impl->place == place)
                check_impl(k, impl);
        if (place == CUP__CPU)
            check_impl(k, NULL);
    }
    cup__scope_pop(k->want.c);
    return status;
}

uint32_t cup__check_dtypes(const cup__row *row)
{
    uint32_t dtypes = row->op->in_dtypes[row->op->list_from];
    if (!dtypes)
        dtypes = CUP__DTYPES_FLOAT;
    else if (!row->op->list_step)
        for (int i = 0; i < 8; i++)
            dtypes |= row->op->in_dtypes[i];
    return row->in_most == 0 ? CUP__DTYPE(F32) : dtypes;
}

bool cup__check_one_layout(const cup__row *row, const cup__sample *sample)
{
    return row->in_most == 0 || row->op->in_place || cup__overwrites(row->op, sample->attributes);
}

static cup_status check_row(cup_context *c, const cup__row *row,
                            void (*report)(const cup_check_result *result, void *user), void *user)
{
    check k = {.c = c, .row = row, .report = report, .user = user};
    k.want.c = cup_context_new(&(cup_options){.device = "cpu"});
    if (cup_error(k.want.c) != CUP_OK) {
        cup_context_free(k.want.c);
        return cup__fail(&c->error, CUP_MEMORY, "no context for the specification");
    }
    cup_seed(k.want.c, SEED);
    cup_seed(c, SEED);
    cup_status status = CUP_OK;
    for (k.sample = row->op->samples; k.sample && k.sample->shapes; k.sample++)
        for (int dtype = 0; dtype < 11; dtype++)
            for (int layout = 0; layout < 3 && status == CUP_OK; layout++) {
                if (!(cup__check_dtypes(row) & (1u << dtype)) ||
                    (layout && cup__check_one_layout(row, k.sample)))
                    continue;
                k.dtype = (cup_dtype)dtype;
                k.layout = (cup__layout)layout;
                status = check_sample(&k);
            }
    cup_context_free(k.want.c);
    return status;
}

/* Compiles what will be asked for on all cores, instead of one after the other as it is met. A
 * failure is met again then, with the call it belongs to. */
static void prepare_kernels(cup_context *c, const char *op)
{
    cup__error ignored = {0};
    int count;
    if (c->device && c->device->is_cuda)
        cup__kernels_build(&ignored, cup__cuda_facts(cup__cuda_of(c->device))->arch, op, 0, NULL,
                           NULL, &count);
}

cup_status cup_check(cup_context *c, const char *op,
                     void (*report)(const cup_check_result *result, void *user), void *user)
{
    if (!c)
        return CUP_MEMORY;
    if (!report)
        return cup__fail(&c->error, CUP_ARGUMENT, "check: there is nothing to report to");
    if (op && !cup__row_find(op))
        return cup__fail(&c->error, CUP_ARGUMENT, "there is no op \"%.60s\"; cupola ops lists them",
                         op);
    prepare_kernels(c, op);
    for (const cup__row *row = cup__rows; row->name; row++)
        if (!op || !strcmp(op, row->name))
            CUP_TRY(check_row(c, row, report, user));
    return CUP_OK;
}
