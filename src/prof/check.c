#include "prof/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "ops/attributes.h"
#include "prof/compare.h"
#include "prof/reference.h"

#define GUARD 64 /* elements before and behind each result */
#define USUAL_TOLERANCE 4.0

static const char *const layout_names[] = {"row-major", "padded", "transposed"};

/* The calls of all ops that are to be checked, in order, and where it is among them. */
struct cup__checking {
    cup_context *c;
    cup__reference_call *calls;
    int64_t count, at;
    cup__references *references;
};

/* One op's. */
typedef struct check {
    cup_context *c;
    const cup__row *row;
    const cup__sample *sample;
    cup_dtype dtype;
    cup__layout layout;
    void (*report)(const cup_check_result *result, void *user);
    void *user;
    const cup__reference *want;
    cup_tensor *in[CUP__CHECK_INPUTS]; /* of the layout; what a call changes is copied for it */
    int in_count;
    char note[400];
} check;

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
        compare_with_reference(k, r, k->want->call.out[i], call->out[i], slack);
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i] && cup__call_changes(call, i))
            compare_with_reference(k, r, k->want->in[i], call->in[i], slack);
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
    memcpy(in, k->in, sizeof k->in);
    return cup__call_begin(call, k->c, k->row, in, k->in_count, k->sample->attributes);
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

/* What was written: inside its bounds, and in a second run the same bits. */
static void check_written(check *k, cup_check_result *r, cup_tensor *t, cup_tensor *again,
                          const char *what, int i)
{
    const char *wrong = !guards_hold(t)                 ? "it wrote outside its bounds"
                        : again && !same_bits(t, again) ? "a second run gave other bits"
                                                        : NULL;
    if (!wrong)
        return;
    r->error = INFINITY;
    snprintf(k->note, sizeof k->note, "%s %d: %s", what, i + 1, wrong);
}

/* The specification itself, which is slow and the same in each run, has no second one. */
static cup_status check_runs(check *k, cup_check_result *r, const cup__impl *impl)
{
    cup__call first, second;
    cup_tensor *in[CUP__CHECK_INPUTS], *again[CUP__CHECK_INPUTS];
    CUP_TRY(run_once(k, impl, &first, in));
    compare_all(k, r, &first, impl ? impl->slack : 0);
    if (impl)
        CUP_TRY(run_once(k, impl, &second, again));
    for (int i = 0; i < first.out_count; i++)
        check_written(k, r, first.out[i], impl ? second.out[i] : NULL, "result", i);
    for (int i = 0; i < first.in_count; i++)
        if (first.in[i] && cup__call_changes(&first, i))
            check_written(k, r, first.in[i], impl ? second.in[i] : NULL, "input", i);
    return CUP_OK;
}

static void check_impl(check *k, const cup__impl *impl)
{
    cup_check_result r = result_of(k, impl ? impl->name : "specification",
                                    impl ? impl->tolerance : 0);
    cup__call call;
    cup_tensor *in[CUP__CHECK_INPUTS];
    cup_scope_open(k->c);
    cup_status status = begin(k, &call, in);
    bool refused = status == CUP_OK && impl && impl->refuses && impl->refuses(&call);
    if (status == CUP_OK && !refused)
        status = check_runs(k, &r, impl);
    if (!refused)
        finish(k, &r, status);
    cup__scope_pop(k->c);
}

static void check_view(check *k)
{
    cup_check_result r = result_of(k, "view", 0);
    cup__call call;
    cup_tensor *in[CUP__CHECK_INPUTS];
    cup_scope_open(k->c);
    cup_status status = begin(k, &call, in);
    if (status == CUP_OK)
        status = k->row->op->view(&call);
    if (status == CUP_OK)
        compare_all(k, &r, &call, 0);
    finish(k, &r, status);
    cup__scope_pop(k->c);
}

/* What a call only reads must be as it was drawn after all of them. */
static void check_inputs(check *k)
{
    cup_check_result r = result_of(k, "inputs", 0);
    cup_status status = CUP_OK;
    for (int i = 0; i < k->in_count && r.error <= 0; i++) {
        cup_tensor host, *in = k->in[i];
        void *memory = NULL;
        char where[200] = "";
        if (!in || cup__call_changes(&k->want->call, i))
            continue;
        if (!cup__on_host(in, &host, &memory))
            status = k->c->error.status;
        else if (cup__compare(k->want->in[i], &host, 0, where, sizeof where) > 0)
            r.error = INFINITY;
        if (r.error > 0)
            snprintf(k->note, sizeof k->note, "input %d was changed: %s", i + 1, where);
        cup__free(memory);
    }
    if (status != CUP_OK || r.error > 0)
        finish(k, &r, status);
}

/* Every implementation with the inputs in one layout. */
static void check_layout(check *k)
{
    cup__place place = k->c->device->is_cuda ? CUP__CUDA : CUP__CPU;
    cup_scope_open(k->c);
    k->in_count = cup__sample_inputs_filled(k->c, k->row, k->sample, k->dtype, k->dtype, k->layout,
                                            CUP__CHECK_SEED, (cup__filling){.alike = true}, k->in,
                                            CUP__CHECK_INPUTS);
    if (k->in_count < 0) {
        cup_check_result r = result_of(k, "inputs", 0);
        finish(k, &r, k->c->error.status);
    } else if (k->row->op->view) {
        check_view(k);
    } else {
        for (const cup__impl *impl = k->row->op->impls; impl && impl->name; impl++)
            if (impl->place == place)
                check_impl(k, impl);
        if (place == CUP__CPU)
            check_impl(k, NULL);
        check_inputs(k);
    }
    cup__scope_pop(k->c);
}

static cup_status check_sample(check *k)
{
    if (!k->want->c)
        return cup__fail(&k->c->error, CUP_MEMORY, "no context for the specification");
    if (k->want->c->error.status != CUP_OK)
        return cup__fail(&k->c->error, k->want->c->error.status, "the specification of %s: %s",
                         k->row->name, k->want->c->error.text);
    int layouts = cup__check_one_layout(k->row, k->sample) ? 1 : 3;
    for (int layout = 0; layout < layouts; layout++) {
        k->layout = (cup__layout)layout;
        check_layout(k);
    }
    return CUP_OK;
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

/* Puts the calls of an op on the list, or only counts them. */
static int64_t list_calls(const cup__row *row, cup__reference_call *to)
{
    int64_t count = 0;
    for (const cup__sample *s = row->op->samples; s && s->shapes; s++)
        for (int dtype = 0; dtype < 11; dtype++)
            if (cup__check_dtypes(row) & (1u << dtype)) {
                if (to)
                    to[count] = (cup__reference_call){row, s, (cup_dtype)dtype};
                count++;
            }
    return count;
}

cup__checking *cup__checking_new(cup_context *c, const cup__row *const *rows, int count)
{
    cup__checking *k = cup__calloc(1, sizeof *k);
    if (k) {
        k->c = c;
        for (int i = 0; i < count; i++)
            k->count += list_calls(rows[i], NULL);
        k->calls = cup__calloc((size_t)k->count + 1, sizeof *k->calls);
        for (int64_t i = 0, at = 0; k->calls && i < count; i++)
            at += list_calls(rows[i], k->calls + at);
        k->references = k->calls ? cup__references_new(c, k->calls, k->count) : NULL;
    }
    if (k && k->references)
        return k;
    cup__checking_free(k);
    cup__fail(&c->error, CUP_MEMORY, "out of host memory for a list of calls");
    return NULL;
}

cup_status cup__checking_row(cup__checking *all, const cup__row *row,
                             void (*report)(const cup_check_result *result, void *user),
                             void *user)
{
    check k = {.c = all->c, .row = row, .report = report, .user = user};
    cup_status status = CUP_OK;
    while (all->at < all->count && all->calls[all->at].row != row)
        all->at++;
    cup_seed(all->c, CUP__CHECK_SEED);
    for (; all->at < all->count && all->calls[all->at].row == row; all->at++) {
        if (status != CUP_OK)
            continue;
        k.sample = all->calls[all->at].sample;
        k.dtype = all->calls[all->at].dtype;
        k.want = cup__references_get(all->references, all->at);
        status = check_sample(&k);
    }
    return status;
}

double cup__checking_waited(const cup__checking *k)
{
    return cup__references_waited(k->references);
}

void cup__checking_free(cup__checking *k)
{
    if (!k)
        return;
    cup__references_free(k->references);
    cup__free(k->calls);
    cup__free(k);
}

static cup_status check_rows(cup_context *c, const cup__row *const *rows, int count,
                             void (*report)(const cup_check_result *result, void *user), void *user)
{
    cup__checking *k = cup__checking_new(c, rows, count);
    cup_status status = k ? CUP_OK : CUP_MEMORY;
    for (int i = 0; i < count && status == CUP_OK; i++)
        status = cup__checking_row(k, rows[i], report, user);
    cup__checking_free(k);
    return status;
}

cup_status cup_check(cup_context *c, const char *op,
                     void (*report)(const cup_check_result *result, void *user), void *user)
{
    const cup__row *rows[CUP__OP_COUNT] = {0};
    int count = 0;
    if (!c)
        return CUP_MEMORY;
    if (!report)
        return cup__fail(&c->error, CUP_ARGUMENT, "check: there is nothing to report to");
    if (op && !cup__row_find(op))
        return cup__fail(&c->error, CUP_ARGUMENT, "there is no op \"%.60s\"; cupola ops lists them",
                         op);
    for (const cup__row *row = cup__rows; row->name; row++)
        if (!op || !strcmp(op, row->name))
            rows[count++] = row;
    return check_rows(c, rows, count, report, user);
}
