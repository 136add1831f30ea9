#include "prof/check_call.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/blas.h"
#include "base/memory.h"
#include "cuda/cuda.h"
#include "prof/compare.h"

#define GUARD 64 /* elements before and behind each result */
#define USUAL_TOLERANCE 4.0

/* Memory for a result with guard bytes around it, all of it poisoned; the middle as a tensor. */
static cup_tensor *guarded(cup_context *c, const cup__shape *shape, int offset)
{
    int64_t count;
    if (cup__shape_check(&c->error, shape, &count) != CUP_OK)
        return NULL;
    cup__shape flat = {.dtype = shape->dtype, .ndim = 1, .size = {count + 2 * GUARD + offset}};
    cup_tensor *base = cup__tensor_make(c, &flat, "guarded");
    int64_t stride[CUP_MAX_DIMS], step = 1;
    for (int i = shape->ndim; i-- > 0; step *= shape->size[i])
        stride[i] = step;
    size_t bytes = base ? base->storage->bytes : 0;
    if (!base || c->device->calls->fill(c->device, base->data, 0xff, bytes) != CUP_OK)
        return NULL;
    cup_tensor *middle = cup__tensor_view(base, shape, stride, GUARD + offset);
    cup_tensor_free(base);
    return middle;
}

/* Whether `count` bytes of a result's memory, from `first` on, are as they were filled. */
static bool is_poisoned(cup_tensor *t, size_t first, size_t count)
{
    cup__device *device = t->context->device;
    unsigned char *all = cup__malloc(count);
    bool is = all && device->calls->read(device, all, (char *)t->storage->data + first, count) ==
                         CUP_OK;
    for (size_t i = 0; is && i < count; i++)
        is = all[i] == 0xff;
    cup__free(all);
    return is;
}

static bool guards_hold(cup_tensor *t)
{
    size_t size = (size_t)(t->count * cup_dtype_size(t->dtype));
    size_t before = (size_t)((char *)t->data - (char *)t->storage->data);
    return is_poisoned(t, 0, before) &&
           is_poisoned(t, before + size, t->storage->bytes - before - size);
}

static void compare_with_reference(cup__check_call *k, cup_check_result *r, cup_tensor *want,
                                   cup_tensor *got, const cup__impl *impl, double slack,
                                   double least)
{
    int ways = (k->row->op->slack_by_rows ? CUP__COMPARE_ROWS : 0) |
               (impl && impl->overflows ? CUP__COMPARE_OVERFLOWS : 0);
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
        bool codes = k->row->op->codes && want->dtype == CUP_F64 && cup_dtype_size(b.dtype) == 1;
        double error = codes ? cup__compare_codes(want, &host, slack, least, note, sizeof note)
                             : cup__compare_above(want, &host, slack, least,
                                                  ways, note, sizeof note);
        if (error > r->error) {
            r->error = error;
            snprintf(k->note, sizeof k->note, "%s", note);
        }
    }
    cup__free(memory);
}

/* Bits that tell of which elements of y are above 0, against y. */
static void compare_signs(cup__check_call *k, cup_check_result *r, cup_tensor *y, cup_tensor *bits)
{
    cup_tensor values, bytes;
    void *first = NULL, *second = NULL;
    bool right = cup__on_host(y, &values, &first) && cup__on_host(bits, &bytes, &second);
    for (int64_t i = 0; right && bits->count && i < y->count; i++)
        right = (((const uint8_t *)bytes.data)[i / 8] >> i % 8 & 1) ==
                (cup__element(&values, i) > 0);
    cup__free(first);
    cup__free(second);
    if (right)
        return;
    r->error = INFINITY;
    snprintf(k->note, sizeof k->note, "a bit does not tell whether its element is above 0");
}

/* On the CPU, whatever the device is that is checked. */
static void compare_steady(cup__check_call *k, cup_check_result *r, cup__call *call,
                           const cup__impl *impl)
{
    cup_context *c = k->want->c;
    cup_tensor *want[CUP__MAX_OUT] = {NULL}, *got[CUP__MAX_OUT] = {NULL};
    cup_scope_open(c);
    for (int i = 0; i < k->row->visible; i++) {
        want[i] = k->want->call.out[i];
        got[i] = cup_tensor_to(c, call->out[i]);
    }
    int count = cup__steady(c, k->row->op, want, k->row->visible);
    if (count != cup__steady(c, k->row->op, got, k->row->visible) || count < 0) {
        r->error = INFINITY;
        snprintf(k->note, sizeof k->note, "%.300s", c->error.text);
        cup__error_clear(&c->error);
        count = 0;
    }
    for (int i = 0; i < count; i++)
        compare_with_reference(k, r, want[i], got[i], impl, impl ? impl->slack : 0, 0);
    cup__scope_pop(c);
}

/* Results and, for updates, the inputs that were changed. */
static void compare_all(cup__check_call *k, cup_check_result *r, cup__call *call,
                        const cup__impl *impl)
{
    double slack = impl ? impl->slack : 0;
    double hidden = impl && impl->hidden_slack > 0 ? impl->hidden_slack : slack;
    if (k->row->op->steady)
        compare_steady(k, r, call, impl);
    for (int i = 0; i < call->out_count && !k->row->op->steady; i++)
        if (call->op->signs && call->out[i]->dtype == CUP_U8)
            compare_signs(k, r, call->out[0], call->out[i]);
        else
            compare_with_reference(k, r, k->want->call.out[i], call->out[i], impl,
                                   i < k->row->visible ? slack : hidden, k->least_out[i]);
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i] && cup__call_changes(call, i))
            compare_with_reference(k, r, k->want->in[i], call->in[i], impl, slack,
                                   k->least_in[i]);
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

static cup_status begin(cup__check_call *k, cup__call *call, cup_tensor **in)
{
    memcpy(in, k->in, sizeof k->in);
    return cup__call_begin(call, k->c, k->row, in, k->in_count, k->attributes);
}

/* Puts guard bytes around the inputs that the call will change. */
static cup_status guard_changed(cup__check_call *k, cup__call *call)
{
    cup__device *device = k->c->device;
    for (int i = 0; i < call->in_count; i++) {
        cup_tensor *in = call->in[i];
        if (!in || !cup__call_changes(call, i))
            continue;
        cup__shape shape = cup__shape_of(in);
        call->in[i] = guarded(k->c, &shape, k->out_offset);
        if (!call->in[i])
            return k->c->error.status;
        CUP_TRY(device->calls->copy(device, call->in[i]->data, in->data,
                                    (size_t)(in->count * cup_dtype_size(in->dtype))));
    }
    return CUP_OK;
}

/* A call as backward wants it, with memory for its results: what implementations are asked about,
 * since some look at where results begin. */
static cup_status prepare(cup__check_call *k, cup__call *call, cup_tensor **in)
{
    CUP_TRY(begin(k, call, in));
    call->saving = true;
    CUP_TRY(guard_changed(k, call));
    call->out_count = k->row->results_count;
    for (int i = 0; i < call->out_count; i++) {
        call->out[i] = guarded(k->c, &call->result[i], k->out_offset);
        if (!call->out[i])
            return k->c->error.status;
    }
    return CUP_OK;
}

static cup_status run_prepared(cup__check_call *k, const cup__impl *impl, cup__call *call)
{
    CUP_TRY(cup__call_run(call, impl));
    return k->c->device->calls->synchronize(k->c->device);
}

/* Whether memory ran out, on the host or on the device; if so the context has that error. */
static bool short_of_memory(cup__check_call *k, cup_status status)
{
    cup__error *e = &k->c->error;
    if (e->status != CUP_MEMORY && status != CUP_MEMORY &&
        cup__memory_failures() == k->failures)
        return false;
    if (e->status != CUP_MEMORY)
        cup__error_clear(e);
    cup__fail(e, CUP_MEMORY, "out of host memory to check a call of %s", k->row->name);
    return true;
}

static void finish(cup__check_call *k, cup_check_result *r, cup_status status)
{
    bool wrong = status != CUP_OK || k->c->error.status != CUP_OK || !(r->error <= r->tolerance);
    if (wrong && short_of_memory(k, status))
        return;
    if (status != CUP_OK || k->c->error.status != CUP_OK) {
        r->error = INFINITY;
        snprintf(k->note, sizeof k->note, "%.390s", k->c->error.text);
        cup__error_clear(&k->c->error);
    }
    r->passed = r->error <= r->tolerance;
    k->report(r, k->user);
}

static cup_check_result result_of(cup__check_call *k, const char *impl, double tolerance)
{
    cup_check_result r = {.op = k->row->name,
                          .impl = impl,
                          .dtype = k->dtype,
                          .layout = k->layout,
                          .shapes = k->shapes,
                          .repeat = k->repeat,
                          .note = k->note};
    k->note[0] = 0;
    r.tolerance = tolerance ? tolerance : k->row->op->tolerance;
    if (r.tolerance == 0)
        r.tolerance = USUAL_TOLERANCE;
    return r;
}

/* What was written: inside its bounds, and in a second run the same bits. */
static void check_written(cup__check_call *k, cup_check_result *r, cup_tensor *t, cup_tensor *again,
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
static cup_status check_runs(cup__check_call *k, cup_check_result *r, const cup__impl *impl,
                             cup__call *first)
{
    cup__call second;
    cup_tensor *again[CUP__CHECK_INPUTS];
    CUP_TRY(run_prepared(k, impl, first));
    compare_all(k, r, first, impl);
    if (impl) {
        CUP_TRY(prepare(k, &second, again));
        CUP_TRY(run_prepared(k, impl, &second));
    }
    for (int i = 0; i < first->out_count; i++)
        check_written(k, r, first->out[i], impl ? second.out[i] : NULL, "result", i);
    for (int i = 0; i < first->in_count; i++)
        if (first->in[i] && cup__call_changes(first, i))
            check_written(k, r, first->in[i], impl ? second.in[i] : NULL, "input", i);
    return CUP_OK;
}

/* `number` is that of the implementation among the op's, for the counts. False: it did not take the
 * call, or was not asked. */
static bool check_impl(cup__check_call *k, const cup__impl *impl, int number)
{
    cup_check_result r = result_of(k, impl ? impl->name : "specification",
                                    impl ? impl->tolerance : 0);
    cup__call call;
    cup_tensor *in[CUP__CHECK_INPUTS];
    if (k->only && strcmp(k->only, r.impl) != 0 && strcmp(k->only, "inputs") != 0)
        return false;
    cup_scope_open(k->c);
    cup_status status = prepare(k, &call, in);
    const char *why = status == CUP_OK && impl && impl->refuses ? impl->refuses(&call) : NULL;
    if (impl && number < CUP__CHECK_IMPLS) {
        k->accepted[number] += !why;
        k->refusal[number] = why ? why : k->refusal[number];
    }
    if (status == CUP_OK && !why)
        status = check_runs(k, &r, impl, &call);
    if (!why)
        finish(k, &r, status);
    cup__scope_pop(k->c);
    return !why;
}

static void check_view(cup__check_call *k)
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
static void check_inputs(cup__check_call *k)
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

void cup__check_run(cup__check_call *k, cup_status made)
{
    cup__place place = k->c->device->is_cuda ? CUP__CUDA : CUP__CPU;
    const cup__impl *impls = k->row->op->impls;
    if (made != CUP_OK) {
        cup_check_result r = result_of(k, "inputs", 0);
        finish(k, &r, made);
    } else if (k->row->op->view) {
        check_view(k);
    } else {
        bool taken = false;
        for (int i = 0; impls && impls[i].name; i++)
            if (impls[i].place == place && !cup__device_is_lost(k->c->device) &&
                k->c->error.status != CUP_MEMORY)
                taken = check_impl(k, &impls[i], i) || taken;
        if (place == CUP__CPU && !taken && k->c->error.status != CUP_MEMORY)
            check_impl(k, NULL, 0);
        if (!cup__device_is_lost(k->c->device) && k->c->error.status != CUP_MEMORY)
            check_inputs(k);
    }
}

static void launch(cup__check_call *k, const cup__impl *impl)
{
    cup_check_result r = result_of(k, impl ? impl->name : "view", 0);
    cup__call call;
    cup_tensor *in[CUP__CHECK_INPUTS];
    cup_scope_open(k->c);
    cup_status status = impl ? prepare(k, &call, in) : begin(k, &call, in);
    if (status == CUP_OK && !impl)
        status = k->row->op->view(&call);
    else if (status == CUP_OK && !(impl->refuses && impl->refuses(&call)))
        status = run_prepared(k, impl, &call);
    if (k->report)
        finish(k, &r, status);
    cup__scope_pop(k->c);
    cup__error_clear(&k->c->error);
}

void cup__check_launches(cup__check_call *k)
{
    k->failures = cup__memory_failures();
    if (k->row->op->view)
        launch(k, NULL);
    for (const cup__impl *impl = k->row->op->impls; impl && impl->name; impl++)
        if (impl->place == CUP__CUDA)
            launch(k, impl);
}

void cup__check_unreached(cup__check_call *k)
{
    cup__place place = k->c->device->is_cuda ? CUP__CUDA : CUP__CPU;
    const cup__impl *impls = k->row->op->impls;
    for (int i = 0; impls && impls[i].name && i < CUP__CHECK_IMPLS; i++) {
        if (cup__device_is_lost(k->c->device))
            return;
        if (impls[i].place != place || k->accepted[i] || !k->refusal[i])
            continue;
        /* On a CPU only a BLAS library can be missing. */
        bool missing = place == CUP__CUDA || k->refusal[i] == cup__blas_get()->text;
        cup_check_result r = result_of(k, impls[i].name, impls[i].tolerance);
        r.layout = r.shapes = "";
        r.unreached = true;
        r.passed = missing;
        snprintf(k->note, sizeof k->note, "no sample reaches it: %.300s", k->refusal[i]);
        k->report(&r, k->user);
    }
}
