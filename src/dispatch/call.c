/* One call of an op: check, infer, allocate, choose an implementation, run, record. */
#include "dispatch/call.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/options.h"
#include "cuda/dry.h"
#include "dispatch/attributes.h"
#include "dispatch/halves.h"
#include "dispatch/memo.h"
#include "dispatch/tuned.h"
#include "tensor/away.h"
#include "tensor/coming.h"

#define PACKED_MOST 16

const cup__row *cup__row_find(const char *name)
{
    for (const cup__row *row = cup__rows; name && row->name; row++)
        if (!strcmp(row->name, name))
            return row;
    return NULL;
}

int cup__take_ints(int64_t to[8], const int64_t *from, int count)
{
    if (count < 0 || count > 8)
        return -1;
    if (count > 0 && !from)
        return CUP__INTS_NULL;
    for (int i = 0; i < count; i++)
        to[i] = from[i];
    return count;
}

bool cup__take_options(cup_context *c, const char *name, void *to, size_t own, const void *from)
{
    return cup__options_take(c ? &c->error : NULL, name, to, own, from) == CUP_OK;
}

cup_status cup__call_status(cup_context *c)
{
    cup_status status = cup_error(c);
    return status == CUP_OK ? CUP_ARGUMENT : status;
}

cup_status cup__call_fail(cup__call *call, cup_status status, const char *format, ...)
{
    char text[1200], shape[CUP__SHAPE_TEXT];
    size_t used = (size_t)snprintf(text, sizeof text, "%s: ", call->row->name);
    for (int i = 0; i < call->in_count && i < 4 && used < 900; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "",
                                 call->in[i] ? cup__tensor_text(call->in[i], shape) : "none");
    if (call->in_count > 0)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s: ",
                                 call->in_count > 4 ? ", ..." : "");
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, sizeof text - used, format, args);
    va_end(args);
    return cup__fail(&call->c->error, status, "%s", text);
}

static cup_status check_inputs(cup__call *call)
{
    const cup__row *row = call->row;
    if (row->attributes_size && !call->attributes)
        return cup__fail(&call->c->error, CUP_ARGUMENT, "%s: its attributes (%s) are missing",
                         row->name, row->attributes_text);
    if (call->in_count < 0 || (call->in_count > 0 && !call->in) ||
        (call->in_count < 1 && row->in_least > 0))
        return cup__fail(&call->c->error, CUP_ARGUMENT, "%s: it needs at least one input%s",
                         row->name, call->in_count > 0 ? "; the list of them is NULL" : "");
    /* Records of the optimizers' lists may leave tensors out; lists of a caller may not. */
    bool needs_all = row->is_public && row->in_most == INT_MAX;
    for (int i = 0; i < call->in_count; i++) {
        if (!call->in[i] && (i < row->in_least || needs_all))
            return cup__fail(&call->c->error, CUP_ARGUMENT, "%s: input %d of (%s) is NULL",
                             row->name, i + 1, row->inputs);
        if (call->in[i] && call->in[i]->context != call->c)
            return cup__fail(&call->c->error, CUP_ARGUMENT,
                             "%s: input %d of (%s) belongs to another context; copy it with "
                             "cup_tensor_to",
                             row->name, i + 1, row->inputs);
    }
    for (const cup__attribute *a = row->attributes; a && a->name; a++) {
        const char *at = (const char *)call->attributes + a->offset;
        int count = 0;
        if (a->kind == CUP__KIND_INTS)
            memcpy(&count, at + 8 * sizeof(int64_t), sizeof count);
        if (count == CUP__INTS_NULL)
            return cup__fail(&call->c->error, CUP_ARGUMENT,
                             "%s: %s is NULL although it was said to have numbers", row->name,
                             a->name);
        if (count < 0)
            return cup__fail(&call->c->error, CUP_ARGUMENT, "%s: %s must have 0 to 8 numbers",
                             row->name, a->name);
    }
    return CUP_OK;
}

cup_status cup__call_begin(cup__call *call, cup_context *c, const cup__row *row,
                           cup_tensor *const *in, int in_count, const void *attributes)
{
    memset(call->out, 0, sizeof call->out);
    memset(call->order, 0, sizeof call->order);
    call->saving = false;
    call->sequence = 0;
    call->share = c->random.share;
    call->drawn = c->random.drawn;
    call->memo = NULL;
    call->tuned.impl = NULL;
    call->c = c;
    call->row = row;
    call->op = row->op;
    call->attributes = attributes;
    call->in = (cup_tensor **)(uintptr_t)in;
    call->in_count = in_count;
    call->out_count = row->visible;
    call->random = c->random.state;
    if (c->device && c->device->is_cuda)
        cup__cuda_op(cup__cuda_of(c->device), row->name);
    CUP_TRY(check_inputs(call));
    return row->op->infer(call);
}

cup_status cup__call_allocate(cup__call *call)
{
    for (int i = 0; i < call->out_count; i++) {
        cup_tensor *out = call->out[i];
        if (!out) {
            call->out[i] = cup__tensor_make(call->c, &call->result[i], call->row->name);
            if (!call->out[i])
                return call->c->error.status;
            if (call->order[i])
                cup__tensor_order(call->out[i], call->order[i]);
            continue;
        }
        cup__shape shape = cup__shape_of(out);
        if (!cup__shape_equal(&shape, &call->result[i]) || out->dtype != call->result[i].dtype ||
            (!out->contiguous && !call->op->strided_out))
            return cup__call_fail(call, CUP_SHAPE, "the result does not fit where it should go");
        if (cup__tensor_read_only(out))
            return cup__call_fail(call, CUP_STATE, "the result would be written to memory that was "
                                                   "wrapped as read-only");
        out->storage->version++;
    }
    return CUP_OK;
}

/* Why an implementation does not take the call; NULL when it does. */
static const char *refusal(const cup__call *call, const cup__impl *impl)
{
    if (impl->varies && call->c->options.deterministic)
        return impl->varies;
    return impl->refuses ? impl->refuses(call) : NULL;
}

/* Whether CUP_IMPL, a list of op=name, names this implementation for the op. */
static bool is_preferred(const char *list, const char *op, const char *impl)
{
    size_t op_length = strlen(op), impl_length = strlen(impl);
    for (const char *at = list; *at; at += strcspn(at, ",") + (strchr(at, ',') != NULL)) {
        size_t length = strcspn(at, ",");
        if (length == op_length + 1 + impl_length && !strncmp(at, op, op_length) &&
            at[op_length] == '=' && !strncmp(at + op_length + 1, impl, impl_length))
            return true;
    }
    return false;
}

static void log_choice(const cup__call *call, const cup__impl *taken)
{
    char text[CUP__SHAPE_TEXT];
    cup__place place = call->c->device->is_cuda ? CUP__CUDA : CUP__CPU;
    if (call->tuned.impl)
        cup__tuned_log(call);
    cup__log(CUP__DISPATCH, "%s %s: %s", call->row->name,
             call->out_count ? cup__shape_text(&call->result[0], text) : "",
             taken ? taken->name : "specification");
    bool behind = false;
    for (const cup__impl *impl = call->op->impls; impl && impl->name; impl++) {
        behind = behind || impl == taken;
        if (impl == taken || impl->place != place ||
            (behind && !is_preferred(call->c->preferences, call->row->name, impl->name)))
            continue;
        const char *why = refusal(call, impl);
        cup__log(CUP__DISPATCH, "  not %s: %s", impl->name, why ? why : "another is preferred");
    }
}

static const cup__impl *choose(cup__call *call)
{
    const char *preferences = call->c->preferences;
    cup__place place = call->c->device->is_cuda ? CUP__CUDA : CUP__CPU;
    const cup__impl *first = NULL;
    for (const cup__impl *impl = call->op->impls; impl && impl->name; impl++) {
        bool preferred = is_preferred(preferences, call->row->name, impl->name);
        if (impl->place != place || (first && !preferred) || refusal(call, impl))
            continue;
        if (preferred)
            return impl;
        first = impl;
        if (!*preferences)
            break;
    }
    bool may_differ = place == CUP__CUDA && first && first[1].name && !*preferences;
    if (may_differ)
        cup__tuned_of(call);
    return call->tuned.impl ? call->tuned.impl : first;
}

const cup__impl *cup__call_choose(cup__call *call)
{
    call->memo = NULL;
    call->tuned.impl = NULL;
    cup__memo *memo = call->c->device->is_cuda ? cup__memo_of(call) : NULL;
    if (!memo)
        return choose(call);
    if (!memo->impl) {
        memo->impl = choose(call);
        memo->tuned = call->tuned;
    } else if (memo->tuned.impl) {
        call->tuned = memo->tuned;
    }
    call->memo = memo;
    return memo->impl;
}

static cup_status refuse_all(cup__call *call)
{
    char reasons[600] = "";
    size_t used = 0;
    for (const cup__impl *impl = call->op->impls; impl && impl->name; impl++) {
        const char *why = impl->place == CUP__CUDA ? refusal(call, impl) : NULL;
        if (why && used < sizeof reasons)
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s: %s",
                                     used ? "; " : "", impl->name, why);
    }
    return cup__call_fail(call, CUP_UNSUPPORTED,
                          "no implementation on this GPU takes it (%s); use another dtype, or a "
                          "CPU context",
                          used ? reasons : "there is none");
}

/* Runs with inputs of non-row-major strides packed first. */
static cup_status run_packed(cup__call *call, const cup__impl *impl)
{
    cup_tensor *packed[PACKED_MOST], **given = call->in;
    if (call->in_count > PACKED_MOST)
        return cup__call_fail(call, CUP_UNSUPPORTED, "its inputs must be in row-major order");
    for (int i = 0; i < call->in_count; i++)
        if (given[i] && !given[i]->contiguous && cup__call_changes(call, i))
            return cup__call_fail(call, CUP_UNSUPPORTED,
                                  "input %d is changed in place and must be in row-major order",
                                  i + 1);
    for (int i = 0; i < call->in_count; i++)
        packed[i] = given[i] ? cup__contiguous(call->c, given[i]) : NULL;
    call->in = packed;
    cup_status status = call->c->error.status;
    if (status == CUP_OK)
        status = impl->run(call);
    call->in = given;
    for (int i = 0; i < call->in_count; i++)
        if (packed[i] != given[i])
            cup_tensor_free(packed[i]);
    return status;
}

/* Whether there is no element to write: all results are empty, or where there are none, all that
 * the call changes in place. */
static bool writes_nothing(const cup__call *call)
{
    bool changes = false;
    for (int i = 0; i < call->out_count; i++)
        if (call->out[i]->count)
            return false;
    for (int i = 0; i < call->in_count && !call->out_count; i++)
        if (call->in[i] && cup__call_changes(call, i)) {
            changes = true;
            if (call->in[i]->count)
                return false;
        }
    return changes || call->out_count;
}

/* Runs a call that writes something. */
static cup_status run_with(cup__call *call, const cup__impl *impl)
{
    for (int i = 0; i < call->in_count; i++) {
        if (!call->in[i] || !cup__call_changes(call, i))
            continue;
        if (cup__tensor_read_only(call->in[i]))
            return cup__call_fail(call, CUP_STATE,
                                  "input %d would be changed in place, but its memory was wrapped "
                                  "as read-only; change a copy of it",
                                  i + 1);
        call->in[i]->storage->version++;
    }
    if (!impl)
        return call->op->specification(call);
    if (call->memo && call->memo->impl != impl)
        call->memo = NULL;
    if (call->memo && call->memo->again && !cup__log_wants(CUP__DISPATCH))
        return call->memo->again(call, call->memo);
    if (!impl->strided)
        for (int i = 0; i < call->in_count; i++)
            if (call->in[i] && !call->in[i]->contiguous)
                return run_packed(call, impl);
    bool planned = impl->planning && impl == call->tuned.impl;
    return planned ? impl->planning->run(call, &call->tuned.plan) : impl->run(call);
}

cup_status cup__call_run(cup__call *call, const cup__impl *impl)
{
    return writes_nothing(call) ? CUP_OK : run_with(call, impl);
}

/* On a GPU that is not there somebody may count what is called. */
static cup_status run_shown(cup__call *call, const cup__impl *impl)
{
    void (*called)(void *, void *);
    cup__dry_watch_pause(call->c->device, call, &called);
    cup_status status = run_with(call, impl);
    cup__dry_watch_on(call->c->device, called);
    return status;
}

cup_status cup__call_run_chosen(cup__call *call)
{
    if (writes_nothing(call))
        return CUP_OK;
    const cup__impl *impl = cup__call_choose(call);
    if (cup__log_wants(CUP__DISPATCH))
        log_choice(call, impl);
    if (!impl && call->c->device->is_cuda)
        return refuse_all(call);
    if (call->c->device->is_cuda && cup__device_is_dry(call->c->device))
        return run_shown(call, impl);
    return run_with(call, impl);
}

static cup_status do_call(cup__call *call, bool record)
{
    if (call->op->random)
        call->sequence = call->c->random.sequence++;
    if (call->op->view)
        return call->op->view(call);
    if (record && call->row->results_count > call->row->visible) {
        call->saving = true;
        call->out_count = call->row->results_count;
    }
    CUP_TRY(cup__call_allocate(call));
    cup__halves *halves = call->c->halves;
    return halves && halves->taken ? cup__halves_put(call) : cup__call_run_chosen(call);
}

static void drop_new_results(cup__call *call, cup_tensor **out)
{
    for (int i = 0; i < call->out_count; i++)
        if (call->out[i] && !(out && i < call->row->visible && out[i]))
            cup_tensor_free(call->out[i]);
}

/* Results that a caller may take for functions of the inputs. */
static bool gives_floats(const cup__call *call)
{
    for (int i = 0; i < call->row->visible; i++)
        if (cup__dtype_is_float(call->result[i].dtype))
            return true;
    return call->op->in_place != 0;
}

/* What a caller's call may not do to gradients; the library's own calls know what they do. */
static cup_status check_recording(cup__call *call, bool wanted)
{
    if (!call->row->is_public)
        return CUP_OK;
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i] && cup__input_changes(call->op, i) && call->c->tape_calls &&
            call->c->tape_calls->holds(call->in[i]))
            return cup__call_fail(call, CUP_STATE,
                                  "input %d would be changed in place, but is a recorded result "
                                  "that gradients flow through; change a copy of it, or call "
                                  "cup_backward or cup_tape_clear first",
                                  i + 1);
    if (wanted && !call->op->gradient && gives_floats(call))
        return cup__call_fail(call, CUP_UNSUPPORTED,
                              "it has no gradient, and an input leads to a parameter; switch "
                              "recording off around it with cup_grad_recording");
    return CUP_OK;
}

static cup_status end_coming(cup_context *c, const cup__row *row, cup_tensor *const *in,
                             int in_count, cup_tensor *const *out)
{
    if (row->op->view)
        return CUP_OK;
    CUP_TRY(cup__coming_end_of(c, in, in_count));
    CUP_TRY(cup__coming_end_of(c, out, row->visible));
    if (row->op->in_place)
        CUP_TRY(cup__coming_end_from(c, in, in_count));
    return cup__coming_end_from(c, out, row->visible);
}

cup_tensor *cup__op_call(cup_context *c, const cup__row *row, cup_tensor *const *in, int in_count,
                         const void *attributes, cup_tensor **out)
{
    if (!c || (c->away && cup__away_begin(c, in, in_count, row->op->view != NULL) != CUP_OK))
        return NULL;
    bool waits = c->halves && cup__halves_take(c, row, in, in_count, attributes, out);
    if (c->coming && !waits && end_coming(c, row, in, in_count, out) != CUP_OK)
        return NULL;
    bool others = c->halves && c->halves->on;
    if (others)
        c->halves->on = waits || row->op->view;
    cup_tensor *result =
        cup__inputs_unlike(row, in, in_count)
            ? cup__op_promoted(c, row, in, in_count, attributes, out)
        : c->finite ? cup__op_traced(c, row, in, in_count, attributes, out)
        : c->debug ? cup__op_watched(c, row, in, in_count, attributes, out)
                   : cup__op_plain(c, row, in, in_count, attributes, out);
    if (others)
        c->halves->on = true;
    if (c->away)
        cup__away_end(c);
    return result;
}

/* What a recorded gradient would silently leave out. */
static cup_status check_twice(cup__call *call, bool given)
{
    cup_context *c = call->c;
    if (!c->twice || !c->tape_calls->wants(c, call->in, call->in_count) || !gives_floats(call))
        return CUP_OK;
    if (call->op->gradient && !given)
        return CUP_OK;
    return cup__call_fail(call, CUP_UNSUPPORTED,
                          "this part of a gradient has none itself, so that second derivatives "
                          "cannot be had here");
}

/* What an implementation calls is part of it, and recorded as it. */
static cup_status do_hidden(cup__call *call, bool record)
{
    cup_context *c = call->c;
    bool recording = c->recording;
    c->recording = recording && !c->twice;
    cup_status status = do_call(call, record);
    c->recording = recording;
    return status;
}

cup_tensor *cup__op_plain(cup_context *c, const cup__row *row, cup_tensor *const *in, int in_count,
                          const void *attributes, cup_tensor **out)
{
    if (c->error.status != CUP_OK || cup__stopped(c) != CUP_OK)
        return NULL;
    cup__call call;
    if (cup__call_begin(&call, c, row, in, in_count, attributes) != CUP_OK)
        return NULL;
    bool wanted = c->tape_calls && !(out && out[0]) && c->tape_calls->wants(c, in, in_count);
    if (check_recording(&call, wanted) != CUP_OK || check_twice(&call, out && out[0]) != CUP_OK)
        return NULL;
    bool record = wanted && row->op->gradient;
    for (int i = 0; out && i < row->visible; i++)
        call.out[i] = out[i];
    bool failed = do_hidden(&call, record) != CUP_OK || c->error.status != CUP_OK;
    if (!failed && record)
        failed = c->tape_calls->record(&call) != CUP_OK;
    if (failed) {
        drop_new_results(&call, out);
        if (c->error.status == CUP_OK)
            cup__call_fail(&call, CUP_INTERNAL, "failed without a reason");
        return NULL;
    }
    for (int i = row->visible; i < call.out_count; i++)
        cup_tensor_free(call.out[i]);
    for (int i = 0; out && i < row->visible; i++)
        out[i] = call.out[i];
    return row->visible ? call.out[0] : in[0];
}
