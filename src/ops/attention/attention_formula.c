/* The rows of attention by a formula: what they check, their results and their gradient; and for
 * the specification and the CPU what a formula reads and where its tensors' gradients go. */
#include "ops/attention/attention_formula.h"

#include <string.h>

#include "cupola/ops.h"
#include "ops/attention/attention.h"

#define INPUTS_MOST (6 + CUP__EXTRAS + CUP__SCORE_TENSORS)
_Static_assert(CUP__FORMULA_INPUTS == CUP__ATTENTION_EXTRAS + CUP__KEY_BLOCKS, "it is last");
#define GRAD_TENSORS (6 + CUP__KEY_BLOCKS) /* where they begin in the gradient's inputs */

static const int64_t *sizes_of(const cup__call *call, int64_t sizes[4])
{
    for (int i = 0; i < 3; i++)
        sizes[i] = call->in[0]->shape[i];
    sizes[3] = call->in[1]->shape[2];
    return sizes;
}

void cup__score_bind(cup__attention_score *s, const cup__call *call, int first,
                     cup__score_formula *formula, const double *parameters)
{
    if (formula->plain)
        return;
    s->formula = formula;
    s->parameters = parameters;
    s->changed = true;
    for (int i = 0; i < formula->tensors; i++) {
        cup_tensor *t = call->in[first + i];
        s->tensor[i] = (cup__score_tensor){.tensor = t};
        for (int d = 4 - t->ndim; d < 4; d++)
            if (t->shape[d - (4 - t->ndim)] > 1)
                s->tensor[i].stride[d] = t->stride[d - (4 - t->ndim)];
    }
}

uint32_t cup__score_varies(const cup__attention_score *s, int dimension)
{
    uint32_t varies = 0;
    for (int i = 0; s->formula && i < s->formula->tensors; i++)
        varies |= s->tensor[i].stride[dimension] ? 1u << i : 0;
    return varies;
}

cup__attention cup__attention_of_formula(const cup__call *call)
{
    const cup__formula_attributes *f = call->attributes;
    cup__attention a = cup__attention_of_three(call);
    cup__score_bind(&a.score, call, CUP__FORMULA_INPUTS, f->formula, f->parameters);
    cup__attention_mask_narrow(&a.mask, f->before, f->after);
    return a;
}

/* Tensors whose gradient is wanted and is not 0. */
static uint32_t wanted_of(const cup__formula_grad_attributes *f)
{
    return f->wanted & f->formula->differs;
}

static int count_of(uint32_t bits)
{
    return __builtin_popcount(bits);
}

cup__attention cup__attention_of_formula_grad(const cup__call *call)
{
    const cup__formula_grad_attributes *f = call->attributes;
    cup__attention a = cup__attention_of_three_grad(call);
    cup__score_bind(&a.score, call, GRAD_TENSORS, f->formula, f->parameters);
    cup__attention_mask_narrow(&a.mask, f->before, f->after);
    uint32_t by_key = cup__score_varies(&a.score, 3);
    a.d_slopes = NULL;
    a.d_sinks = call->out[3];
    a.row_grads = wanted_of(f) & ~by_key;
    a.pair_grads = wanted_of(f) & by_key;
    a.d_rows = a.row_grads ? call->out[4] : NULL;
    a.d_pairs = a.pair_grads ? call->out[5] : NULL;
    return a;
}

static cup_status check_tensors(cup__call *call, int first, const cup__score_formula *formula)
{
    int64_t sizes[4];
    sizes_of(call, sizes);
    cup_dtype own = call->in[0]->dtype, number = own == CUP_F64 ? CUP_F64 : CUP_F32;
    for (int i = 0; i < formula->tensors; i++) {
        const cup_tensor *t = call->in[first + i];
        bool fits = t->ndim <= 4;
        for (int d = 0; fits && d < t->ndim; d++)
            fits = t->shape[d] == 1 || t->shape[d] == sizes[d + 4 - t->ndim];
        if (!fits)
            return cup__call_fail(call, CUP_SHAPE,
                                  "tensor %d of the formula does not broadcast to batches, heads, "
                                  "queries and keys, [%lld,%lld,%lld,%lld]; numbers of heads are "
                                  "[%lld,1,1]",
                                  i + 1, (long long)sizes[0], (long long)sizes[1],
                                  (long long)sizes[2], (long long)sizes[3], (long long)sizes[1]);
        if (t->dtype != own && t->dtype != number)
            return cup__call_fail(call, CUP_DTYPE,
                                  "tensor %d of the formula must be in %s or have the dtype of q; "
                                  "cast it",
                                  i + 1, cup_dtype_name(number));
    }
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    const cup__formula_attributes *f = call->attributes;
    CUP_TRY(cup__attention_infer(call));
    return check_tensors(call, CUP__FORMULA_INPUTS, f->formula);
}

static cup_status infer_grad(cup__call *call)
{
    const cup__formula_grad_attributes *f = call->attributes;
    cup_dtype own = call->in[0]->dtype, number = own == CUP_F64 ? CUP_F64 : CUP_F32;
    int64_t sizes[4];
    CUP_TRY(check_tensors(call, GRAD_TENSORS, f->formula));
    cup__attention_score s = {.formula = NULL};
    cup__score_bind(&s, call, GRAD_TENSORS, f->formula, f->parameters);
    uint32_t by_key = cup__score_varies(&s, 3), wanted = wanted_of(f);
    for (int i = 0; i < 3; i++) {
        call->result[i] = cup__shape_of(call->in[i]);
        call->order[i] = "0213";
    }
    sizes_of(call, sizes);
    call->result[3] = call->in[6 + CUP__SINKS]
                          ? (cup__shape){number, 3, {sizes[0], sizes[1], sizes[2]}}
                          : (cup__shape){number, 1, {0}};
    for (int of_pairs = 0; of_pairs < 2; of_pairs++) {
        int count = count_of(of_pairs ? wanted & by_key : wanted & ~by_key);
        cup__shape *to = &call->result[4 + of_pairs];
        *to = (cup__shape){of_pairs ? own : number, count ? 4 + of_pairs : 1, {count}};
        if (count)
            memcpy(to->size + 1, sizes, (size_t)(3 + of_pairs) * sizeof *sizes);
    }
    return CUP_OK;
}

static const cup__row grad_row;

/* The gradient of tensor i is part `at` of what was made for all of its kind. */
static cup_tensor *gradient_of(cup__grad *g, int i, cup_tensor *all, int at)
{
    cup_context *c = g->c;
    if (!all)
        return NULL;
    int64_t from[5] = {at}, size[5] = {1}, shape[4] = {1, 1, 1, 1};
    for (int d = 1; d < all->ndim; d++)
        shape[d - 1] = size[d] = all->shape[d];
    cup_tensor *d = cup_slice(c, all, from, all->ndim, size, all->ndim);
    d = cup__sum_to(c, cup_reshape(c, d, 4, shape), &g->in_shape[i]);
    return cup_cast(c, d, g->in_shape[i].dtype);
}

static uint32_t wanted_tensors(const cup__grad *g, uint32_t *by_key)
{
    uint32_t wanted = 0;
    *by_key = 0;
    for (int i = CUP__FORMULA_INPUTS; i < g->in_count; i++) {
        const cup__shape *shape = &g->in_shape[i];
        bool varies = shape->ndim > 0 && shape->size[shape->ndim - 1] > 1;
        *by_key |= varies ? 1u << (i - CUP__FORMULA_INPUTS) : 0;
        wanted |= g->wanted[i] ? 1u << (i - CUP__FORMULA_INPUTS) : 0;
    }
    return wanted;
}

static cup_status gradient(cup__grad *g)
{
    const cup__formula_attributes *f = g->attributes;
    const cup__attention_attributes *p = &f->plain;
    uint32_t by_key, wanted = wanted_tensors(g, &by_key);
    cup__formula_grad_attributes to = {
        .plain = {.causal = p->causal, .scale = p->scale, .dropout = p->dropout,
                  .sequence = g->sequence, .window_left = p->window_left,
                  .window_right = p->window_right},
        .formula = f->formula,
        .before = f->before,
        .after = f->after,
        .wanted = wanted};
    memcpy(to.parameters, f->parameters, sizeof to.parameters);
    cup_tensor *in[INPUTS_MOST] = {g->in[0], g->in[1], g->in[2], g->out[0], g->out[1],
                                   g->d_out[0]};
    cup_tensor *made[CUP__MAX_OUT] = {NULL};
    for (int i = 3; i < g->in_count; i++)
        in[i + 3] = g->in[i];
    if (!cup__op_call(g->c, &grad_row, in, g->in_count + 3, &to, made))
        return g->c->error.status;
    for (int i = 0; i < 3; i++)
        g->d_in[i] = made[i];
    int sinks = CUP__ATTENTION_EXTRAS + CUP__SINKS, at[2] = {0};
    if (g->in[sinks] && g->wanted[sinks])
        g->d_in[sinks] = cup_sum(g->c, made[3], (int64_t[]){0, 2}, 2, false);
    for (int i = 0; i < f->formula->tensors; i++) {
        bool of_pairs = by_key >> i & 1;
        if (wanted_of(&to) >> i & 1)
            g->d_in[CUP__FORMULA_INPUTS + i] =
                gradient_of(g, CUP__FORMULA_INPUTS + i, made[4 + of_pairs], at[of_pairs]++);
    }
    return g->c->error.status;
}

static const cup__op op = {
    .kind = CUP__ATTENTION_FORMULA,
    .infer = infer,
    .specification = cup__attention_specification,
    .gradient = gradient,
    .impls = cup__attention_impls,
    .saves = 0xffff | CUP__SAVE_OUT(0) | CUP__SAVE_OUT(1),
    .random = true,
    .strided_out = true,
    .tolerance = 32,
    .cost = cup__attention_cost,
};

static const cup__op op_grad = {
    .kind = CUP__ATTENTION_FORMULA_GRAD,
    .infer = infer_grad,
    .specification = cup__attention_specification_grad,
    .impls = cup__attention_grad_impls,
    .strided_out = true,
    .tolerance = 64,
    .cost = cup__attention_cost,
};

const cup__row cup__attention_formula_row = {
    .name = "attention_formula",
    .op = &op,
    .inputs = "q, k, v, slopes?, sinks?, query_offsets?, key_offsets?, bias?, tensors",
    .attributes_text = "those of attention, formula, parameters, before, after",
    .results = "o; lse",
    .words = "attention with scores by a formula",
    .in_least = 3,
    .in_most = CUP__FORMULA_INPUTS + CUP__SCORE_TENSORS,
    .visible = 1,
    .results_count = 2,
    .attributes_size = sizeof(cup__formula_attributes),
};

static const cup__row grad_row = {
    .name = "attention_formula_grad",
    .op = &op_grad,
    .inputs = "q, k, v, o, lse, d_o, slopes?, sinks?, query_offsets?, key_offsets?, bias?, tensors",
    .attributes_text = "those of attention_grad, formula, parameters, before, after, wanted",
    .results = "dq, dk, dv, d_sinks, d_rows, d_pairs",
    .words = "the gradients of attention with scores by a formula",
    .in_least = 6,
    .in_most = INPUTS_MOST,
    .visible = 6,
    .results_count = 6,
    .attributes_size = sizeof(cup__formula_grad_attributes),
};

/* Vectors lie side by side in `room`, each of `count` numbers; the formula's own follow. */
int64_t cup__score_floats(const cup__attention *a, int64_t count)
{
    const cup__score_formula *f = a->score.formula;
    return f ? (CUP__READS + (int64_t)f->room / 4) * count : 0;
}

static void fill(const cup__score_run *r, void *to, double first, double step)
{
    for (int64_t i = 0; i < r->count; i++) {
        double value = first + step * (double)i;
        if (r->wide)
            ((double *)to)[i] = value;
        else
            ((float *)to)[i] = (float)value;
    }
}

/* Keys behind the last one are as the last. */
static void bring(const cup__score_run *r, const cup__attention *a, const cup__score_tensor *t,
                  cup__score_place at, void *to)
{
    int64_t from = at.batch * t->stride[0] + at.head * t->stride[1] + at.query * t->stride[2];
    for (int64_t i = 0; i < r->count; i++) {
        int64_t key = at.key + i < a->keys ? at.key + i : a->keys - 1;
        double value = cup__load(t->tensor, from + key * t->stride[3]);
        if (r->wide)
            ((double *)to)[i] = value;
        else
            ((float *)to)[i] = (float)value;
    }
}

cup__score_run cup__score_evaluate(const cup__attention *a, cup__score_place at, bool wide,
                                   const void *scores, void *room)
{
    const cup__score_formula *f = a->score.formula;
    size_t vector = (size_t)at.count * (wide ? sizeof(double) : sizeof(float));
    cup__score_run r = {.wide = wide, .count = at.count, .parameters = a->score.parameters};
    char *next = room;
    r.reads[CUP__READS_SCORE] = scores;
    at.query = at.query < a->queries ? at.query : a->queries - 1;
    double place = (double)cup__attention_position(&a->mask, at.batch, at.query);
    const double leaves[][2] = {{place, 0}, {(double)at.key, 1}, {(double)at.head, 0},
                                {(double)at.batch, 0}};
    for (int i = 0; i < 4; i++, next += vector) {
        fill(&r, next, leaves[i][0], leaves[i][1]);
        r.reads[CUP__READS_QUERY + i] = next;
    }
    for (int i = 0; i < f->tensors; i++, next += vector) {
        bring(&r, a, &a->score.tensor[i], at, next);
        r.reads[CUP__READS_TENSORS + i] = next;
    }
    r.room = (char *)room + CUP__READS * vector;
    f->evaluate(f, &r);
    return r;
}

/* Which part of a gradient for all `bits` is that of tensor i. */
static int64_t part_of(uint32_t bits, int i)
{
    return __builtin_popcount(bits & ((1u << i) - 1));
}

static int64_t row_at(const cup__attention *a, uint32_t bits, int i, cup__score_place at)
{
    return ((part_of(bits, i) * a->batch + at.batch) * a->heads + at.head) * a->queries + at.query;
}

void cup__score_store_row(const cup__attention *a, int i, cup__score_place at, double d)
{
    cup__store(a->d_rows, cup__offset_of(a->d_rows, row_at(a, a->row_grads, i, at)), d);
}

void cup__score_store_pair(const cup__attention *a, int i, cup__score_place at, double d)
{
    int64_t place = row_at(a, a->pair_grads, i, at) * a->keys + at.key;
    cup__store(a->d_pairs, cup__offset_of(a->d_pairs, place), d);
}
