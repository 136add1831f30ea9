#include "dispatch/tuned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/log.h"
#include "cuda/dry.h"
#include "cuda/gpu.h"
#include "dispatch/attributes.h"
#include "dispatch/contest.h"
#include "dispatch/memo.h"
#include "dispatch/tuning.h"
#include "tensor/context.h"

#define MOST_INPUTS 64 /* calls with more of them are not measured */
#define WAYS_MOST CUP__CONTEST_MOST

typedef struct table {
    cup__map by_text; /* from the hash of a call's text to its place in `ways` */
    char **ways;
    bool has[CUP__OP_COUNT]; /* by the op's place in ops.def: whether there are any for it */
    bool worded;             /* or any in words of an op's own */
    size_t count, capacity;
} table;

static bool is_aligned(const cup_tensor *t)
{
    return (uintptr_t)t->data % 16 == 0;
}

/* Of an attribute that is no whole number it counts whether it is 0. */
static int numbers_of(const cup__attribute *a, const void *attributes, int64_t out[8])
{
    int count = cup__attribute_numbers(a, attributes, out);
    if (a->kind == CUP__KIND_FLOAT && count)
        out[0] = (out[0] & INT64_MAX) != 0;
    return count;
}

static void add_sizes(cup__text *to, const int64_t *numbers, int count, char between)
{
    for (int i = 0; i < count; i++)
        cup__text_add(to, "%.*s%lld", i > 0, &between, (long long)numbers[i]);
}

void cup__words_of_inputs(const cup__call *call, cup__text *to)
{
    for (int i = 0; i < call->in_count; i++) {
        const cup_tensor *t = call->in[i];
        cup__text_add(to, " %s", t ? cup_dtype_name(t->dtype) : "-");
        if (!t)
            continue;
        cup__text_add(to, ":");
        add_sizes(to, t->shape, t->ndim, 'x');
        if (!t->contiguous) {
            cup__text_add(to, ":steps=");
            add_sizes(to, t->stride, t->ndim, ',');
        }
        cup__text_add(to, "%s", is_aligned(t) ? "" : ":unaligned");
    }
}

/* What makes a call another one for its speed, as words for a record:
 * "call attention bf16:8x12x64x64 ... causal=1". */
static void text_of(const cup__call *call, cup__text *to)
{
    int64_t numbers[8];
    cup__text_add(to, "call %s", call->row->name);
    cup__words_of_inputs(call, to);
    for (const cup__attribute *a = call->row->attributes; a && a->name; a++) {
        int count = numbers_of(a, call->attributes, numbers);
        if (count > 1 || (count == 1 && numbers[0])) {
            cup__text_add(to, " %s=", a->name);
            add_sizes(to, numbers, count, ',');
        }
    }
    if (call->c->precision != CUP__HIGHEST)
        cup__text_add(to, " precision=%s", cup__precision_names[call->c->precision]);
    cup__text_add(to, "%s", call->saving ? " saving" : "");
}

/* In the op's own words, or those above. */
static bool words_of(const cup__call *call, bool similar, cup__text *to)
{
    if (call->op->words)
        return call->op->words(call, similar, to);
    if (!similar)
        text_of(call, to);
    return !similar;
}

void cup__way_text(const cup__way *way, cup__text *text)
{
    cup__text_add(text, "%s", way->impl->name);
    const char *const *names = way->impl->planning ? way->impl->planning->names : NULL;
    for (int i = 0; names && names[i]; i++)
        if (way->plan.number[i])
            cup__text_add(text, " %s=%d", names[i], way->plan.number[i]);
}

static const cup__impl *impl_of(const cup__op *op, const char *name, size_t length)
{
    for (const cup__impl *i = op->impls; i && i->name; i++)
        if (i->place == CUP__CUDA && strlen(i->name) == length && !strncmp(i->name, name, length))
            return i;
    return NULL;
}

/* Takes " name=number" off the text; false when it begins with another name, or none. */
static bool take_number(const char **text, const char *name, int *out)
{
    size_t length = strlen(name);
    if (**text != ' ' || strncmp(*text + 1, name, length) || (*text)[length + 1] != '=')
        return false;
    const char *digits = *text + length + 2;
    char *end;
    long value = strtol(digits, &end, 10);
    if (*digits < '0' || *digits > '9' || value < 1 || value > INT32_MAX)
        return false;
    *text = end;
    *out = (int)value;
    return true;
}

bool cup__way_parse(const cup__op *op, const char *text, cup__way *out)
{
    size_t length = strcspn(text, " ");
    memset(out, 0, sizeof *out);
    out->impl = impl_of(op, text, length);
    if (!out->impl)
        return false;
    text += length;
    const char *const *names = out->impl->planning ? out->impl->planning->names : NULL;
    for (int i = 0; names && names[i]; i++)
        take_number(&text, names[i], &out->plan.number[i]);
    return *text == 0;
}

void cup__tuned_log(const cup__call *call)
{
    cup__text text = {0};
    cup__way_text(&call->tuned, &text);
    cup__log(CUP__DISPATCH, "  tuned: %s", cup__text_string(&text));
    cup__text_free(&text);
}

static void log_unused(const cup__way *way, const char *why)
{
    cup__text text = {0};
    cup__way_text(way, &text);
    cup__log(CUP__DISPATCH, "  not %s, which was the fastest when measured: %s",
             cup__text_string(&text), why);
    cup__text_free(&text);
}

static uint64_t hash_of_text(const char *text)
{
    return cup__hash_bytes(text, strlen(text));
}

static bool put(table *t, const char *call, const char *way)
{
    uint64_t hash = hash_of_text(call);
    uint32_t at = cup__map_find(&t->by_text, hash);
    char *copy = cup__strdup(way);
    if (!copy)
        return false;
    if (at != CUP__NOT_THERE) {
        cup__free(t->ways[at]);
        t->ways[at] = copy;
        return true;
    }
    if (!cup__grow(&t->ways, &t->capacity, t->count, sizeof *t->ways) ||
        !cup__map_add(&t->by_text, hash, (uint32_t)t->count)) {
        cup__free(copy);
        return false;
    }
    t->ways[t->count++] = copy;
    return true;
}

static bool take_record(void *to, const cup__tuning_line *line)
{
    table *t = to;
    char name[64];
    bool plain = sscanf(line->call, "call %63s ", name) == 1;
    const cup__row *row = plain ? cup__row_find(name) : NULL;
    if (plain && !row)
        return true;
    if (row)
        t->has[row - cup__rows] = true;
    t->worded |= !row;
    return put(t, line->call, line->way);
}

static void free_all(void *user)
{
    table *t = user;
    for (size_t i = 0; i < t->count; i++)
        cup__free(t->ways[i]);
    cup__free(t->ways);
    cup__map_free(&t->by_text);
    cup__free(t);
}

static table *table_of(cup_context *c)
{
    cup__slot *slot = &c->slots[CUP__SLOT_TUNED];
    if (slot->kept)
        return slot->kept;
    table *t = cup__calloc(1, sizeof *t);
    if (!t) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for tuning records");
        return NULL;
    }
    cup__tuning_records(c, take_record, t);
    *slot = (cup__slot){t, free_all};
    return t;
}

static bool has_any(const table *t, const cup__call *call)
{
    const cup__row *row = call->row;
    if (call->op->words)
        return t->worded;
    return row >= cup__rows && row < cup__rows + CUP__OP_COUNT && t->has[row - cup__rows];
}

static bool accepts_impl(const cup__call *call, const cup__impl *impl)
{
    return impl->place == CUP__CUDA && !(impl->varies && call->c->options.deterministic) &&
           !(impl->refuses && impl->refuses(call));
}

/* Why a way that was measured is not taken; NULL: it is. */
static const char *why_not(const cup__call *call, const cup__way *way)
{
    const cup__impl *impl = way->impl;
    const char *why = impl->refuses ? impl->refuses(call) : NULL;
    return why || !impl->planning ? why : impl->planning->refuses(call, &way->plan);
}

static bool accepts_plan(const cup__call *call, const cup__way *way)
{
    const cup__planning *planning = way->impl->planning;
    return !planning || !planning->refuses(call, &way->plan);
}

/* The record of the call, or of one that is similar. */
static bool look_up(const table *t, const cup__call *call, cup__way *out)
{
    bool found = false;
    for (int similar = 0; similar < 2 && !found; similar++) {
        cup__text text = {0};
        uint32_t at = CUP__NOT_THERE;
        if (words_of(call, similar, &text) && !text.failed)
            at = cup__map_find(&t->by_text, hash_of_text(text.bytes));
        found = at != CUP__NOT_THERE && cup__way_parse(call->op, t->ways[at], out);
        cup__text_free(&text);
    }
    return found;
}

/* Whether a call that was never measured may be run many times now: not where that changes what it
 * reads, nor where it draws other numbers then. */
static bool measures(const cup__call *call)
{
    return call->c->tuning && !cup__cuda_of(call->c->device)->capturing && !call->op->in_place &&
           !(call->saving && cup__overwrites(call->op, call->attributes)) && call->out_count > 0 &&
           call->out[0];
}

void cup__tuned_of(cup__call *call)
{
    cup_context *c = call->c;
    cup__way way = {0};
    double us;
    int count;
    call->tuned.impl = NULL;
    if (c->options.deterministic || cup__cuda_of(c->device)->dry || call->in_count > MOST_INPUTS)
        return;
    table *t = table_of(c);
    if (!t || !(c->tuning || has_any(t, call)))
        return;
    bool known = look_up(t, call, &way);
    if (!known && measures(call))
        cup__tune_call(call, &way, &us, &count);
    call->tuned.impl = NULL;
    const char *why = way.impl ? why_not(call, &way) : NULL;
    if (way.impl && !why)
        call->tuned = way;
    else if (way.impl)
        log_unused(&way, why);
}

typedef struct competitors {
    cup__call *call;
    cup__way way[WAYS_MOST];
    int count;
} competitors;

static void list_ways(competitors *k)
{
    cup__plan plans[WAYS_MOST];
    for (const cup__impl *i = k->call->op->impls; i && i->name && k->count < WAYS_MOST; i++) {
        if (i->eager || !accepts_impl(k->call, i))
            continue;
        int count = i->planning ? i->planning->list(k->call, plans, WAYS_MOST - k->count) : 1;
        for (int j = 0; j < count; j++) {
            cup__way *way = &k->way[k->count++];
            *way = (cup__way){.impl = i};
            if (i->planning)
                way->plan = plans[j];
        }
    }
}

/* Compiles what plans need on all cores, by running them on a GPU that is not there. */
static void prepare(const competitors *k)
{
    const char *arch = cup__cuda_facts(cup__cuda_of(k->call->c->device))->arch;
    cup_context *dry = cup__context_dry(arch);
    cup__call call = *k->call;
    call.c = dry;
    for (int i = 0; i < k->count && cup_error(dry) == CUP_OK; i++) {
        const cup__impl *impl = k->way[i].impl;
        if (impl->planning && !(impl->refuses && impl->refuses(&call)))
            impl->planning->run(&call, &k->way[i].plan);
    }
    cup__error error = {0};
    int count = 0;
    const cup__kernel_request *requests =
        cup_error(dry) == CUP_OK ? cup__dry_requests(cup__cuda_of(dry->device), &count) : NULL;
    if (count)
        cup__kernels_prepare(&error, arch, requests, count, 0, NULL, NULL);
    cup_context_free(dry);
}

static cup_status run_way(void *user, int i)
{
    const competitors *k = user;
    if (!accepts_plan(k->call, &k->way[i]))
        return CUP_UNSUPPORTED;
    k->call->tuned = k->way[i];
    return cup__call_run(k->call, k->way[i].impl);
}

/* From now on, here and in later contexts. */
static cup_status keep(table *t, const cup__call *call, const cup__way *fastest, double us)
{
    cup__text text = {0}, way = {0};
    cup_context *c = call->c;
    words_of(call, false, &text);
    cup__way_text(fastest, &way);
    cup__memo_forget(c);
    cup_status status = c->error.status;
    if (text.failed || way.failed || !put(t, text.bytes, way.bytes))
        status = cup__fail(&c->error, CUP_MEMORY, "out of host memory for tuning records");
    t->worded |= call->op->words != NULL;
    t->has[call->row - cup__rows] = true;
    if (status == CUP_OK)
        status = cup__tuning_remember(c, &text, &way, us);
    cup__text_free(&text);
    cup__text_free(&way);
    return status;
}

cup_status cup__tune_call(cup__call *call, cup__way *out, double *us, int *count)
{
    cup_context *c = call->c;
    table *t = table_of(c);
    competitors *k = t ? cup__calloc(1, sizeof *k) : NULL;
    *out = (cup__way){0};
    *count = 0;
    if (!k)
        return t ? cup__fail(&c->error, CUP_MEMORY, "out of host memory for tuning")
                 : c->error.status;
    call->memo = NULL; /* of which each way would make its own */
    k->call = call;
    if (call->in_count <= MOST_INPUTS && call->row >= cup__rows &&
        call->row < cup__rows + CUP__OP_COUNT)
        list_ways(k);
    *count = k->count;
    int best = -1;
    if (k->count > 1) {
        prepare(k);
        best = cup__contest(c, k->count, run_way, k, us);
    }
    if (best >= 0)
        *out = k->way[best];
    call->tuned.impl = NULL;
    cup__free(k);
    return best >= 0 && c->error.status == CUP_OK ? keep(t, call, out, *us) : c->error.status;
}
