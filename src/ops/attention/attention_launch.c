/* What the host sides of all attention kernels need. */
#include "ops/attention/attention_launch.h"

#include <string.h>

#include "dispatch/attributes.h"

#define ALIGNMENT 16

static char *data_of(const cup__heads *h)
{
    return (char *)h->tensor->data + h->offset * cup_dtype_size(h->tensor->dtype);
}

static attention_heads heads_for(const cup__heads *h)
{
    if (!h->tensor)
        return (attention_heads){0};
    return (attention_heads){data_of(h), h->stride[0], h->stride[1], h->stride[2], h->stride[3]};
}

static attention_numbers numbers_for(const cup_tensor *t)
{
    if (!t || t->ndim != 3)
        return (attention_numbers){0};
    return (attention_numbers){t->data, t->stride[0], t->stride[1], t->stride[2]};
}

static attention_pairs pairs_for(const cup_tensor *t, const int64_t *stride)
{
    if (!t)
        return (attention_pairs){0};
    return (attention_pairs){t->data, stride[0], stride[1], stride[2], stride[3]};
}

static attention_score score_for(const cup__attention *a)
{
    const cup__attention_score *s = &a->score;
    return (attention_score){
        .slopes = s->slopes ? s->slopes->data : NULL,
        .sinks = s->sinks ? s->sinks->data : NULL,
        .slopes_step = s->slopes ? s->slopes->stride[0] : 0,
        .sinks_step = s->sinks ? s->sinks->stride[0] : 0,
        .soft_cap_f64 = s->soft_cap,
        .soft_cap = (float)s->soft_cap,
        .soft_cap_inverse = s->soft_cap > 0 ? (float)(1 / s->soft_cap) : 0,
        .d_slopes = numbers_for(a->d_slopes),
        .d_sinks = numbers_for(a->d_sinks),
        .bias = pairs_for(s->bias, s->bias_stride),
        .d_bias = pairs_for(a->d_bias, a->d_bias ? a->d_bias->stride : NULL),
    };
}

static attention_sight sight_for(const cup__attention *a, int of_keys)
{
    const cup_tensor *t = a->ranges[of_keys];
    return (attention_sight){t ? t->data : NULL, t && t->shape[0] > 1 ? t->stride[0] : 0};
}

static attention_stretches stretches_for(const cup__stretches *s)
{
    int64_t tile = CUP__ATTENTION_TILE, half = s->half / tile;
    return (attention_stretches){(int)(s->all / tile), (int)half, (int)(s->place[0] / tile),
                                 (int)(s->place[1] / tile - half)};
}

static attention_drawn drawn_for(const cup__stretched *d)
{
    return d ? (attention_drawn){stretches_for(&d->rows), stretches_for(&d->keys)}
             : (attention_drawn){0};
}

attention_call cup__attention_call_of(const cup__attention *a)
{
    return (attention_call){
        .q = heads_for(&a->q),
        .k = heads_for(&a->k),
        .v = heads_for(&a->v),
        .o = heads_for(&a->o),
        .d_o = heads_for(&a->d_o),
        .dq = heads_for(&a->dq),
        .dk = heads_for(&a->dk),
        .dv = heads_for(&a->dv),
        .lse = a->lse ? a->lse->data : NULL,
        .random = a->random,
        .batch = (int)a->batch,
        .heads = (int)a->heads,
        .kv_heads = (int)a->kv_heads,
        .queries = (int)a->queries,
        .keys = (int)a->keys,
        .size = (int)a->size,
        .causal = a->mask.causal,
        .mask = {(int)a->mask.before, (int)a->mask.after},
        .score = score_for(a),
        .ranges = {sight_for(a, 0), sight_for(a, 1)},
        .lists = {a->lists.bits, a->lists.batch, a->lists.head, a->lists.words},
        .splits = 1,
        .sequence = a->sequence,
        .others = (int)a->others,
        .drawn = drawn_for(a->drawn),
        .first = (int)a->first,
        .threshold = cup__attention_threshold(a->dropout),
        .scale = (float)a->scale,
        .factor = (float)cup__attention_factor(a->dropout),
        .scale_f64 = a->scale,
        .factor_f64 = cup__attention_factor(a->dropout),
        .scales = a->scales ? a->scales->data : NULL,
        .formula = cup__attention_formula_of(a),
    };
}

int cup__attention_knobs(const cup__attention *a, const cup__knob *knobs, int count, cup__knob *out)
{
    memcpy(out, knobs, (size_t)count * sizeof *out);
    if (a->drawn && a->dropout > 0)
        out[count++] = (cup__knob){"PARTS", 1};
    if (a->mask.window)
        out[count++] = (cup__knob){"WINDOW", 1};
    if (a->ranges[0])
        out[count++] = (cup__knob){"RANGES", 1};
    if (a->lists.bits)
        out[count++] = (cup__knob){"LISTS", a->lists.size};
    if (a->score.soft_cap > 0)
        out[count++] = (cup__knob){"SOFT_CAP", 1};
    if (a->score.slopes)
        out[count++] = (cup__knob){"SLOPES", 1};
    if (a->score.sinks)
        out[count++] = (cup__knob){"SINKS", 1};
    if (a->score.bias)
        out[count++] = (cup__knob){"BIAS", 1};
    if (a->d_bias)
        out[count++] = (cup__knob){"BIAS_GRAD", 1};
    if (a->scales)
        out[count++] = (cup__knob){"ROUNDED", 1};
    return count + cup__attention_formula_knobs(a, out + count);
}

cup_status cup__attention_launch(const cup__attention *a, const cup__attention_kernel *l,
                                 const attention_call *argument)
{
    cup__cuda *gpu = cup__cuda_of(a->c->device);
    cup__knob knobs[CUP__ATTENTION_KNOBS];
    int count = cup__attention_knobs(a, l->knobs, l->knob_count, knobs);
    cup__kernel *kernel = cup__attention_kernel_get(a, l->file, l->entry, knobs, count);
    if (!kernel)
        return a->c->error.status;
    return cup__launch(gpu, kernel, l->grid, cup__attention_argument(a, argument));
}

cup_tensor *cup__attention_numbers(const cup__attention *a, cup_dtype dtype, int64_t count)
{
    cup__shape shape = {.dtype = dtype, .ndim = 1, .size = {count}};
    return cup__tensor_make(a->c, &shape, "attention");
}

static attention_ends ends_for(const cup_tensor *t, int64_t positions, cup_tensor *sight)
{
    attention_ends e = {.positions = (int)positions, .sight = sight->data};
    if (!t)
        return e;
    e.ends = t->data;
    e.batch = t->ndim == 2 ? t->stride[0] : 0;
    e.step = t->stride[t->ndim - 1];
    e.is_wide = t->dtype == CUP_I64;
    return e;
}

static cup_status make_ranges(const cup__attention *a, cup_tensor *of_queries, cup_tensor *of_keys)
{
    cup__cuda *gpu = cup__cuda_of(a->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "attention_ranges.cu", "attention_ranges", NULL, 0);
    int64_t most = a->queries > a->keys ? a->queries : a->keys, batches = of_queries->shape[0];
    attention_documents argument = {
        .queries = ends_for(a->mask.query_offsets, a->queries, of_queries),
        .keys = ends_for(a->mask.key_offsets, a->keys, of_keys),
        .before = a->mask.before,
        .after = a->mask.after,
        .count = (int)a->mask.documents,
        .batches = (int)batches,
    };
    cup__grid grid = {.x = (most + 127) / 128, .y = 2, .z = batches, .threads = 128};
    if (!kernel)
        return a->c->error.status;
    return most && batches ? cup__launch(gpu, kernel, grid, CUP__ARG(argument)) : CUP_OK;
}

cup_status cup__attention_with_ranges(cup__attention *a, cup_status (*kernels)(cup__attention *a))
{
    const cup__attention_mask *m = &a->mask;
    if (!m->key_offsets)
        return kernels(a);
    bool alike = m->key_offsets->ndim == 1 && (!m->query_offsets || m->query_offsets->ndim == 1);
    cup_tensor *made[2];
    for (int i = 0; i < 2; i++) {
        cup__shape shape = {CUP_I32, 3, {alike ? 1 : a->batch, 3, i ? a->keys : a->queries}};
        a->ranges[i] = made[i] = cup__tensor_make(a->c, &shape, "attention");
    }
    cup_status status = a->c->error.status;
    if (made[0] && made[1])
        status = make_ranges(a, made[0], made[1]);
    if (status == CUP_OK)
        status = kernels(a);
    cup_tensor_free(made[0]);
    cup_tensor_free(made[1]);
    return status;
}

/* The tensors of a call that the fast kernels can take: rows of neighbouring features that begin at
 * multiples of 16 bytes. Others pass through copies. */
enum { COPIES_MOST = 9 }; /* q, k, v, do, dq, dk, dv, o and lse */
typedef struct copies {
    cup_tensor *copy[COPIES_MOST];
    cup__heads *result[COPIES_MOST]; /* what the copy must be written back to */
    cup__heads original[COPIES_MOST];
    int count;
} copies;

static bool fits(const cup__attention *a, const cup__heads *h)
{
    int64_t elements = ALIGNMENT / cup_dtype_size(a->dtype);
    return (uintptr_t)data_of(h) % ALIGNMENT == 0 && h->stride[3] == 1 &&
           h->stride[0] % elements == 0 && h->stride[1] % elements == 0 &&
           h->stride[2] % elements == 0;
}

cup_tensor *cup__attention_view(const cup__heads *h, int64_t batch, int64_t heads,
                                int64_t positions, int64_t size)
{
    cup__shape shape = {
        .dtype = h->tensor->dtype, .ndim = 4, .size = {batch, heads, positions, size}};
    return cup__tensor_view(h->tensor, &shape, h->stride, h->offset);
}

static cup_status take(const cup__attention *a, copies *all, cup__heads *h, bool of_keys,
                       bool is_result)
{
    if (!h->tensor || fits(a, h))
        return CUP_OK;
    cup_tensor *view = cup__attention_view(h, a->batch, of_keys ? a->kv_heads : a->heads,
                               of_keys ? a->keys : a->queries, a->size);
    if (!view)
        return a->c->error.status;
    cup__shape shape = cup__shape_of(view);
    cup_tensor *copy =
        is_result ? cup__tensor_make(a->c, &shape, "attention") : cup_copy(a->c, view);
    cup_tensor_free(view);
    if (!copy)
        return a->c->error.status;
    int i = all->count++;
    all->copy[i] = copy;
    all->original[i] = *h;
    all->result[i] = is_result ? h : NULL;
    h->tensor = copy;
    h->offset = 0;
    memcpy(h->stride, copy->stride, sizeof h->stride);
    return CUP_OK;
}

static cup_status take_all(cup__attention *a, copies *all)
{
    cup__heads *inputs[] = {&a->q, &a->k, &a->v, &a->d_o}, *results[] = {&a->dq, &a->dk, &a->dv};
    bool backward = a->d_o.tensor != NULL;
    all->count = 0;
    for (int i = 0; i < 4; i++)
        CUP_TRY(take(a, all, inputs[i], i == 1 || i == 2, false));
    for (int i = 0; i < 3; i++)
        CUP_TRY(take(a, all, results[i], i > 0, true));
    CUP_TRY(take(a, all, &a->o, false, !backward));
    if (backward && !a->lse->contiguous) {
        a->lse = all->copy[all->count] = cup_copy(a->c, a->lse);
        all->result[all->count++] = NULL;
    }
    return a->c->error.status;
}

static cup_status give_back(const cup__attention *a, copies *all, cup_status status)
{
    for (int i = 0; i < all->count; i++) {
        if (status == CUP_OK && all->result[i]) {
            const int64_t *n = all->copy[i]->shape;
            cup_tensor *to = cup__attention_view(&all->original[i], n[0], n[1], n[2], n[3]);
            if (!to || !cup__op_call(a->c, &cup__rows[CUP__OP_copy], &all->copy[i], 1, NULL, &to))
                status = a->c->error.status;
            cup_tensor_free(to);
        }
        cup_tensor_free(all->copy[i]);
    }
    return status;
}

cup_status cup__attention_with_copies(cup__attention *a, cup_status (*kernel)(cup__attention *a))
{
    copies all;
    bool was = a->c->recording;
    a->c->recording = false;
    cup_status status = take_all(a, &all);
    if (status == CUP_OK)
        status = kernel(a);
    status = give_back(a, &all, status);
    a->c->recording = was;
    return status;
}
