#include "dispatch/halves.h"

#include <string.h>

#include "base/memory.h"
#include "dispatch/call.h"
#include "tensor/coming.h"

#define INPUTS_MOST 8
#define WHOLE 2 /* in place of a half, 0 or 1 */

typedef struct cup__waiting waiting;
struct cup__waiting {
    const cup__row *row;
    cup_tensor *in[INPUTS_MOST], *out[CUP__MAX_OUT]; /* references */
    uint32_t version[CUP__MAX_OUT];
    int in_count, out_count;
    uint32_t by_texts; /* inputs that have a row for each text */
    bool saving;
    uint32_t sequence, share;
    const cup__stretched *drawn;
    cup__coming coming[CUP__MAX_OUT];
    waiting *next;
    max_align_t attributes[];
};

/* The texts of that half. */
static cup_tensor *part_of(const cup__halves *h, cup_tensor *t, int half)
{
    if (!t || half == WHOLE)
        return t;
    cup__shape shape = cup__shape_of(t);
    int64_t each = shape.size[0] / h->texts, from = half ? h->first : 0;
    shape.size[0] = each * (half ? h->texts - h->first : h->first);
    return cup__tensor_view(t, &shape, t->stride, each * from * t->stride[0]);
}

static cup_status run_part(cup_context *c, waiting *w, int half)
{
    cup_tensor *in[INPUTS_MOST], *out[CUP__MAX_OUT];
    cup__call call;
    for (int i = 0; i < w->in_count; i++)
        in[i] = part_of(c->halves, w->in[i], w->by_texts >> i & 1 ? half : WHOLE);
    for (int i = 0; i < w->out_count; i++)
        out[i] = part_of(c->halves, w->out[i], half);
    CUP_TRY(c->error.status);
    CUP_TRY(cup__coming_end_of(c, in, w->in_count));
    CUP_TRY(cup__call_begin(&call, c, w->row, in, w->in_count, w->attributes));
    call.saving = w->saving;
    call.sequence = w->sequence;
    call.share = w->share;
    call.drawn = w->drawn;
    call.out_count = w->out_count;
    memcpy(call.out, out, (size_t)w->out_count * sizeof *out);
    cup_status status = cup__call_run_chosen(&call);
    /* What was recorded counts on what the run itself writes. */
    for (int i = 0; i < w->out_count; i++)
        w->out[i]->storage->version = w->version[i];
    return status;
}

static cup_status make(cup_context *c, waiting *list, int half)
{
    cup_status status = c->error.status;
    for (waiting *w = list; w && status == CUP_OK; w = w->next) {
        cup_scope_open(c);
        status = run_part(c, w, half);
        cup__scope_pop(c);
    }
    return status;
}

/* Takes all from the list of those that wait. */
static waiting *take_all(cup_context *c)
{
    waiting *list = c->halves->list;
    for (waiting *w = list; w; w = w->next)
        for (int i = 0; i < w->out_count; i++)
            if (w->coming[i].to->coming)
                cup__coming_forget(c, &w->coming[i]);
    c->halves->list = NULL;
    c->halves->last = &c->halves->list;
    return list;
}

static void drop(waiting *list)
{
    while (list) {
        waiting *next = list->next;
        for (int i = 0; i < list->in_count; i++)
            cup__tensor_release(list->in[i]);
        for (int i = 0; i < list->out_count; i++)
            cup__tensor_release(list->out[i]);
        cup__free(list);
        list = next;
    }
}

/* What is made of calls is not recorded once more, and waits for nothing. */
typedef struct mode {
    bool on, recording;
} mode;

static mode at_once(cup_context *c)
{
    const mode was = {c->halves->on, c->recording};
    c->halves->on = c->recording = false;
    return was;
}

static void as_before(cup_context *c, mode was)
{
    c->halves->on = was.on;
    c->recording = was.recording;
}

/* Somebody reads a result: `coming` stands on the list no more. */
static cup_status make_whole(cup__coming *coming)
{
    cup_context *c = coming->to->context;
    const mode was = at_once(c);
    waiting *list = take_all(c);
    cup_status status = make(c, list, WHOLE);
    drop(list);
    as_before(c, was);
    return status;
}

cup_status cup__halves_begin(cup_context *c, const cup_tensor *x, const cup_tensor *delta)
{
    CUP_TRY(c->error.status);
    cup__halves *h = c->halves;
    if (c->finite || c->debug || c->twice)
        return CUP_OK;
    if (!h && !(h = cup__calloc(1, sizeof *h)))
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for calls that wait");
    if (!c->halves)
        h->last = &h->list;
    c->halves = h;
    if (h->list && h->texts != x->shape[0])
        CUP_TRY(cup__coming_end(c, &h->list->coming[0]));
    h->texts = x->shape[0];
    h->first = h->texts / 2;
    h->from[0] = x->storage;
    h->from[1] = delta ? delta->storage : NULL;
    h->on = true;
    return CUP_OK;
}

void cup__halves_end(cup_context *c)
{
    if (c->halves)
        c->halves->on = false;
}

static bool is_waiting(const cup_tensor *t)
{
    return t->storage->coming && t->storage->coming->end == make_whole;
}

/* Whether each half of the tensor lies in that half of its memory, where it is made. */
static bool is_in_order(const cup__halves *h, const cup_tensor *t)
{
    int64_t bytes = (int64_t)t->storage->bytes, all = t->shape[0], size = cup_dtype_size(t->dtype);
    int64_t middle = bytes / h->texts * h->first, last = 0;
    if (bytes % h->texts || t->stride[0] < 0)
        return false;
    for (int d = 1; d < t->ndim; d++)
        last += (t->shape[d] - 1) * t->stride[d];
    int64_t second = all / h->texts * h->first;
    return t->offset + (second * t->stride[0]) * size >= middle &&
           t->offset + ((second - 1) * t->stride[0] + last + 1) * size <= middle;
}

/* Those of an elementwise op that are not read along the batch by all texts. */
static uint32_t by_texts(cup_tensor *const *in, int in_count)
{
    uint32_t bits = 0;
    int ndim = 0;
    int64_t most = 1;
    for (int i = 0; i < in_count; i++)
        if (in[i] && in[i]->ndim > ndim)
            ndim = in[i]->ndim;
    for (int i = 0; i < in_count; i++)
        if (in[i] && in[i]->ndim == ndim && ndim && in[i]->shape[0] > 1) {
            most = in[i]->shape[0];
            bits |= 1u << i;
        }
    return most > 1 ? bits : 0;
}

uint32_t cup__halves_by_texts(const cup__row *row, cup_tensor *const *in, int in_count,
                              const void *attributes)
{
    const cup__op *op = row->op;
    bool changes = op->in_place || op->overwrites || op->view;
    if (changes || !in || in_count < 1 || in_count > INPUTS_MOST || !in[0] ||
        cup__inputs_unlike(row, in, in_count))
        return 0;
    if (op->by_texts)
        return op->by_texts(op, in, in_count, attributes);
    return op->pointwise && !op->random && !op->signs ? by_texts(in, in_count) : 0;
}

static bool has_rows(const cup__halves *h, const cup_tensor *t)
{
    return t->ndim > 0 && t->count && t->shape[0] % h->texts == 0;
}

/* Whether an input is there when half a call is made, of whose rows it has some, or is read by all
 * of it. */
static bool is_there(const cup__halves *h, const cup_tensor *t, bool rows)
{
    bool waits = is_waiting(t);
    return rows ? has_rows(h, t) && (!waits || is_in_order(h, t)) : !waits;
}

/* Other tensors may have as many rows as there are texts by chance. */
static bool is_of_batch(const cup__halves *h, const cup_tensor *t)
{
    return t->storage->coming || t->storage == h->from[0] || t->storage == h->from[1];
}

bool cup__halves_take(cup_context *c, const cup__row *row, cup_tensor *const *in, int in_count,
                      const void *attributes, cup_tensor *const *out)
{
    cup__halves *h = c->halves;
    bool of_batch = false;
    h->taken = false;
    if (!h->on || c->away || (out && out[0]))
        return false;
    uint32_t bits = cup__halves_by_texts(row, in, in_count, attributes);
    for (int i = 0; bits && i < in_count; i++) {
        bool rows = bits >> i & 1;
        if (in[i] && (in[i]->context != c || !is_there(h, in[i], rows)))
            return false;
        of_batch |= in[i] && rows && is_of_batch(h, in[i]);
    }
    return h->taken = of_batch;
}

/* Whether the results have rows for each text. */
static bool has_texts(const cup__call *call)
{
    const cup__halves *h = call->c->halves;
    for (int i = 0; i < call->out_count; i++)
        if (!has_rows(h, call->out[i]) || !is_in_order(h, call->out[i]))
            return false;
    return true;
}

static waiting *waiting_of(const cup__call *call)
{
    size_t size = call->row->attributes_size;
    waiting *w = cup__calloc(1, sizeof *w + size);
    if (!w)
        return NULL;
    *w = (waiting){.row = call->row,
                   .in_count = call->in_count,
                   .out_count = call->out_count,
                   .saving = call->saving,
                   .sequence = call->sequence,
                   .share = call->share,
                   .drawn = call->drawn};
    w->by_texts = cup__halves_by_texts(call->row, call->in, call->in_count, call->attributes);
    if (size)
        memcpy(w->attributes, call->attributes, size);
    for (int i = 0; i < w->in_count; i++)
        if (call->in[i])
            cup__tensor_retain(w->in[i] = call->in[i]);
    for (int i = 0; i < w->out_count; i++) {
        cup__tensor_retain(w->out[i] = call->out[i]);
        w->version[i] = w->out[i]->storage->version;
        w->coming[i].end = make_whole;
        cup__coming_begin(&w->coming[i], NULL, w->out[i]);
    }
    return w;
}

cup_status cup__halves_put(cup__call *call)
{
    cup_context *c = call->c;
    cup__halves *h = c->halves;
    h->taken = false;
    if (!has_texts(call)) {
        const mode was = at_once(c);
        cup_status status = cup__coming_end_of(c, call->in, call->in_count);
        if (status == CUP_OK)
            status = cup__call_run_chosen(call);
        as_before(c, was);
        return status;
    }
    waiting *w = waiting_of(call);
    if (!w)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a call that waits");
    *h->last = w;
    h->last = &w->next;
    return CUP_OK;
}

bool cup__halves_waits(const cup_context *c, const cup_tensor *t)
{
    return c->halves && t && is_waiting(t) && t->contiguous && t->ndim > 0 &&
           t->shape[0] % c->halves->texts == 0 && is_in_order(c->halves, t);
}

cup_status cup__halves_run(cup_context *c, cup_tensor *from, cup_tensor *to,
                           cup__halves_behind behind, void *user)
{
    const mode was = at_once(c);
    waiting *list = take_all(c);
    cup_status status = c->error.status;
    for (int half = 0; half < WHOLE && status == CUP_OK; half++) {
        status = make(c, list, half);
        cup_scope_open(c);
        cup_tensor *part[] = {part_of(c->halves, from, half), part_of(c->halves, to, half)};
        status = status == CUP_OK ? c->error.status : status;
        if (status == CUP_OK)
            status = behind(part[0], part[1], user);
        cup__scope_pop(c);
    }
    c->halves->from[1] = to->storage;
    drop(list);
    as_before(c, was);
    return status;
}
