#include "prof/check.h"

#include <string.h>

#include "base/memory.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "prof/check_call.h"

const char *const cup__layout_names[] = {"row-major", "padded", "transposed", "channels-last"};

/* The calls of all ops that are to be checked, in order, and where it is among them. */
struct cup__checking {
    cup_context *c;
    cup__reference_call *calls;
    int64_t count, at;
    cup__references *references;
};

/* Every implementation with the inputs in one layout. */
static void check_layout(cup__check_call *k, const cup__reference_call *call, cup__layout layout)
{
    k->layout = cup__layout_names[layout];
    k->out_offset = layout == CUP__PADDED;
    cup_scope_open(k->c);
    k->in_count = cup__sample_inputs_filled(k->c, k->row, call->sample, k->dtype, k->dtype, layout,
                                            CUP__CHECK_SEED, (cup__filling){.alike = true}, k->in,
                                            CUP__CHECK_INPUTS);
    cup__check_run(k, k->in_count < 0 ? k->c->error.status : CUP_OK);
    cup__scope_pop(k->c);
}

static cup_status check_sample(cup__check_call *k, const cup__reference_call *call)
{
    if (!k->want->c)
        return cup__fail(&k->c->error, CUP_MEMORY, "no context for the specification");
    if (k->want->c->error.status != CUP_OK)
        return cup__fail(&k->c->error, k->want->c->error.status, "the specification of %s: %s",
                         k->row->name, k->want->c->error.text);
    k->attributes = call->sample->attributes;
    k->shapes = call->sample->shapes;
    k->dtype = call->dtype;
    for (cup__layout layout = 0; layout < CUP__LAYOUTS && !cup__device_is_lost(k->c->device);
         layout++)
        if (cup__check_has_layout(k->row, call->sample, layout) && k->c->error.status == CUP_OK)
            check_layout(k, call, layout);
    return k->c->error.status;
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

bool cup__check_has_layout(const cup__row *row, const cup__sample *sample, cup__layout layout)
{
    bool one = row->in_most == 0 || row->op->in_place ||
               cup__overwrites(row->op, sample->attributes);
    return layout == CUP__ROW_MAJOR || (!one && (layout != CUP__CHANNELS_LAST || row->op->images));
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
    cup__check_call k = {.c = all->c, .row = row, .report = report, .user = user,
                         .failures = cup__memory_failures()};
    cup_status status = CUP_OK;
    while (all->at < all->count && all->calls[all->at].row != row)
        all->at++;
    cup_seed(all->c, CUP__CHECK_SEED);
    for (; all->at < all->count && all->calls[all->at].row == row; all->at++) {
        if (status != CUP_OK || cup__device_is_lost(all->c->device))
            continue;
        k.want = cup__references_get(all->references, all->at);
        status = check_sample(&k, &all->calls[all->at]);
    }
    if (status == CUP_OK)
        cup__check_unreached(&k);
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
    for (int i = 0; i < count && status == CUP_OK && !cup__device_is_lost(c->device); i++)
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
