#include "dispatch/tuned.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/map.h"
#include "base/memory.h"
#include "cuda/gpu.h"
#include "dispatch/contest.h"
#include "dispatch/memo.h"
#include "dispatch/tuning.h"
#include "tensor/context.h"

#define MOST_INPUTS 64 /* calls with more of them are not measured */
#define MOST_IMPLS CUP__CONTEST_MOST

struct cup__preferred {
    cup__map by_text; /* from the hash of a call's text to its place in `names` */
    char **names;     /* of implementations */
    bool *has;        /* by the op's place in the table: whether there are any for it */
    int ops;
    size_t count, capacity;
};

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

/* What makes a call another one for its speed, as words for a record:
 * "call attention bf16:8x12x64x64 ... causal=1". */
static void text_of(const cup__call *call, cup__text *to)
{
    int64_t numbers[8];
    cup__text_add(to, "call %s", call->row->name);
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

static uint64_t hash_of_text(const char *text)
{
    return cup__hash_bytes(text, strlen(text));
}

static bool has_any(const cup__preferred *p, const cup__row *row)
{
    return row >= cup__rows && row < cup__rows + p->ops && p->has[row - cup__rows];
}

static bool put(cup__preferred *p, const cup__row *row, const char *call, const char *name)
{
    uint64_t hash = hash_of_text(call);
    uint32_t at = cup__map_find(&p->by_text, hash);
    char *copy = cup__strdup(name);
    if (!copy)
        return false;
    p->has[row - cup__rows] = true;
    if (at != CUP__NOT_THERE) {
        cup__free(p->names[at]);
        p->names[at] = copy;
        return true;
    }
    if (!cup__grow(&p->names, &p->capacity, p->count, sizeof *p->names) ||
        !cup__map_add(&p->by_text, hash, (uint32_t)p->count)) {
        cup__free(copy);
        return false;
    }
    p->names[p->count++] = copy;
    return true;
}

static bool take_record(void *to, const cup__tuning_line *line)
{
    char name[64];
    const cup__row *row =
        sscanf(line->call, "call %63s ", name) == 1 ? cup__row_find(name) : NULL;
    return !row || put(to, row, line->call, line->way);
}

static void free_all(void *user)
{
    cup__preferred *p = user;
    for (size_t i = 0; i < p->count; i++)
        cup__free(p->names[i]);
    cup__free(p->names);
    cup__free(p->has);
    cup__map_free(&p->by_text);
    cup__free(p);
}

static cup__preferred *table_of(cup_context *c)
{
    cup__slot *slot = &c->slots[CUP__SLOT_PREFERRED];
    if (slot->kept)
        return slot->kept;
    cup__preferred *p = cup__calloc(1, sizeof *p);
    while (p && cup__rows[p->ops].name)
        p->ops++;
    if (p && !(p->has = cup__calloc((size_t)p->ops, sizeof *p->has))) {
        cup__free(p);
        p = NULL;
    }
    if (!p) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for tuning records");
        return NULL;
    }
    cup__tuning_records(c, take_record, p);
    *slot = (cup__slot){p, free_all};
    return p;
}

static const cup__impl *look_up(const cup__preferred *p, const cup__call *call)
{
    cup__text text = {0};
    const cup__impl *found = NULL;
    text_of(call, &text);
    uint32_t at = text.failed ? CUP__NOT_THERE : cup__map_find(&p->by_text,
                                                               hash_of_text(text.bytes));
    for (const cup__impl *i = call->op->impls; at != CUP__NOT_THERE && i->name && !found; i++)
        if (i->place == CUP__CUDA && !strcmp(i->name, p->names[at]))
            found = i;
    cup__text_free(&text);
    return found;
}

static bool accepts(const cup__call *call, const cup__impl *impl)
{
    return impl->place == CUP__CUDA && !(impl->varies && call->c->options.deterministic) &&
           !(impl->refuses && impl->refuses(call));
}

int cup__impls_of(const cup__call *call, const cup__impl **out, int most)
{
    int count = 0;
    for (const cup__impl *i = call->op->impls; i && i->name && count < most; i++)
        if (accepts(call, i))
            out[count++] = i;
    return count;
}

/* Whether a call that was never measured may be run many times now: not where that changes what it
 * reads, nor where it draws other numbers then. */
static bool measures(const cup__call *call)
{
    return call->c->tuning && !cup__cuda_of(call->c->device)->capturing && !call->op->in_place &&
           !(call->saving && cup__overwrites(call->op, call->attributes)) && call->out_count > 0 &&
           call->out[0];
}

const cup__impl *cup__preferred_of(cup__call *call)
{
    cup_context *c = call->c;
    double us;
    int count;
    if (c->options.deterministic || cup__cuda_of(c->device)->dry || call->in_count > MOST_INPUTS)
        return NULL;
    cup__preferred *p = table_of(c);
    if (!p || !(c->tuning || has_any(p, call->row)))
        return NULL;
    const cup__impl *impl = look_up(p, call);
    if (!impl && measures(call))
        cup__preferred_tune(call, &impl, &us, &count);
    return impl && accepts(call, impl) ? impl : NULL;
}

typedef struct competitors {
    cup__call *call;
    const cup__impl *impl[MOST_IMPLS];
} competitors;

static cup_status run_impl(void *user, int way)
{
    const competitors *k = user;
    return cup__call_run(k->call, k->impl[way]);
}

cup_status cup__preferred_tune(cup__call *call, const cup__impl **out, double *us, int *count)
{
    competitors k = {.call = call};
    cup_context *c = call->c;
    cup__preferred *p = table_of(c);
    *out = NULL;
    *count = cup__impls_of(call, k.impl, MOST_IMPLS);
    if (!p || call->in_count > MOST_INPUTS)
        return c->error.status;
    call->memo = NULL;
    int best = *count > 1 ? cup__contest(c, *count, run_impl, &k, us) : -1;
    *out = best >= 0 ? k.impl[best] : NULL;
    cup__text text = {0}, way = {0};
    cup_status status = c->error.status;
    if (*out) {
        cup__memo_forget(c);
        text_of(call, &text);
        cup__text_add(&way, "%s", (*out)->name);
        if (text.failed || way.failed || !put(p, call->row, text.bytes, (*out)->name))
            status = cup__fail(&c->error, CUP_MEMORY, "out of host memory for tuning records");
    }
    if (*out && status == CUP_OK)
        status = cup__tuning_remember(c, &text, &way, *us);
    cup__text_free(&text);
    cup__text_free(&way);
    return status;
}
