/* What the tests of attention by a formula share: calls by a formula and by the options that say
 * the same, each with its gradients. */
#ifndef TEST_ATTENTION_FORMULA_H
#define TEST_ATTENTION_FORMULA_H

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "formula.h"

typedef struct sizes {
    int64_t batch, heads, kv_heads, queries, keys, size;
} sizes;

#define TENSORS 4
#define GRADIENTS (4 + TENSORS + 1) /* of o, then q, k, v, the tensors and sinks */

typedef struct variant {
    const char *inputs, *parameters, *text;
    double values[2];         /* of the parameters */
    const char *tensors;      /* of each a letter: head, query (with batches), key (with heads),
                                 both, or all */
    cup_attention_options by; /* what says the same without a formula; slopes and bias are said by
                                 letters h and b of `tensors`, and sinks and offsets beside */
    bool is_own;              /* nothing else says it */
    bool sinks, offsets;
} variant;

#define BY(...) .by = {.size = sizeof(cup_attention_options), __VA_ARGS__}
static const variant variants[] = {
    {"score", "cap", "cap * tanh(score / cap)", {1.5}, "", BY(.soft_cap = 1.5, .causal = true)},
    {"score query key slope", NULL, "score - slope * abs(query - key)", {0}, "h",
     BY(.causal = true)},
    {"score query key slope", "cap", "cap * tanh(score / cap) - abs(query - key) * slope", {2},
     "h", BY(.soft_cap = 2, .dropout = 0.25), .sinks = true},
    {"score query key", "left", "score, key <= query && query - key < left", {9}, "",
     BY(.causal = true, .window_left = 9)},
    {"score query key", NULL, "where(key > query + 2, -inf, where(query - key < 5, score, -inf))",
     {0}, "", BY(.window_left = 5, .window_right = 3)},
    {"score bias", NULL, "score + bias", {0}, "b", BY(.window_right = 7), .sinks = true},
    {"bias score", NULL, "score + bias", {0}, "b", BY(.causal = true), .offsets = true},
    {"score query key slope", NULL, "score - slope * abs(query - key)", {0}, "h",
     BY(.causal = true), .offsets = true},
    /* The root is no number where the key is hidden. */
    {"score query key head batch own of by pair", "a b",
     "h = score * (1 + 0.1 * sin(key * (head + 1))) + of * by * score - a * own * score * score;"
     "h + sqrt(query - key + 0.25) * b - 0.1 * batch + pair * tanh(score),"
     "key <= query && floor(key / 5) * 5 != key",
     {0.05, -0.25}, "hqka", BY(.window_left = 0), .is_own = true, .sinks = true},
    /* Divided, since of scores of a hundred thousand an f32 leaves exponentials two digits. */
    {"query key slope by", NULL, "by - slope * (query - key) * (query - key) / 512", {0}, "hk",
     BY(.causal = true), .is_own = true},
};
#define VARIANTS (int)(sizeof variants / sizeof *variants)

static inline double wave(int seed, int64_t i)
{
    return sin(seed * 1.3 + 0.7 * (double)i * (double)(i % 11));
}

/* Rounded to `dtype`, of which it has the values in the context's own dtype. */
static inline cup_tensor *waves(cup_context *c, int seed, cup_dtype rounded, cup_dtype dtype,
                                int ndim, const int64_t *shape)
{
    cup_tensor *t = cup_tensor_new(c, CUP_F64, ndim, shape);
    double *values = cup__calloc((size_t)cup_tensor_count(t) + 1, sizeof *values);
    for (int64_t i = 0; i < cup_tensor_count(t); i++)
        values[i] = wave(seed, i);
    t = cup_tensor_from(c, CUP_F64, ndim, shape, values);
    cup__free(values);
    return cup_require_grad(cup_keep(cup_cast(c, cup_cast(c, t, rounded), dtype)));
}

static inline cup_tensor *tensor_of(cup_context *c, char kind, const sizes *s, cup_dtype rounded,
                                    cup_dtype dtype, int seed)
{
    int64_t shape[4] = {s->batch, s->heads, s->queries, s->keys};
    bool is_number = kind == 'h' || kind == 'q';
    if (kind == 'h')
        return waves(c, seed, CUP_F32, dtype == CUP_F64 ? CUP_F64 : CUP_F32, 3,
                     (int64_t[]){s->heads, 1, 1});
    if (kind == 'q' || kind == 'b')
        shape[kind == 'q' ? 1 : 0] = 1;
    if (kind == 'q')
        shape[3] = 1;
    if (kind == 'k')
        shape[0] = shape[2] = 1;
    return waves(c, seed, is_number ? CUP_F32 : rounded,
                 is_number && dtype != CUP_F64 ? CUP_F32 : dtype, 4, shape);
}

static inline cup_tensor *call_formula(cup_context *c, const variant *v, cup_tensor *const *in,
                                       const cup_attention_options *beside)
{
    cup_expr *e = cup_expr_new(c, v->inputs, v->parameters, v->text);
    cup_tensor *o = cup_expr_attention(e, in[0], in[1], in[2], in + 3, v->values, beside);
    cup_expr_free(e);
    return o;
}

static inline cup_tensor *call_built_in(cup_context *c, const variant *v, cup_tensor *const *in,
                                        cup_attention_options o, int64_t heads)
{
    for (int i = 0; v->tensors[i]; i++) {
        if (v->tensors[i] == 'h')
            o.slopes = cup_reshape(c, in[3 + i], 1, &heads);
        else
            o.bias = in[3 + i];
    }
    return cup_attention(c, in[0], in[1], in[2], &o);
}

/* The result and the gradients of a weighted sum of it, by the formula or without. Values are
 * rounded to one dtype and computed with in another. */
static inline void run_variant(cup_context *c, const variant *v, const sizes *s, cup_dtype rounded,
                               cup_dtype dtype, bool by_formula, cup_tensor *out[GRADIENTS])
{
    const int64_t shapes[][4] = {{s->batch, s->heads, s->queries, s->size},
                                 {s->batch, s->kv_heads, s->keys, s->size},
                                 {s->batch, s->kv_heads, s->keys, s->size}};
    cup_tensor *in[3 + TENSORS] = {NULL};
    cup_attention_options o = v->by;
    memset(out, 0, GRADIENTS * sizeof *out);
    for (int i = 0; i < 3; i++)
        in[i] = waves(c, i + 1, rounded, dtype, 4, shapes[i]);
    for (int i = 0; v->tensors[i]; i++)
        in[3 + i] = tensor_of(c, v->tensors[i], s, rounded, dtype, 11 + i);
    if (v->sinks)
        o.sinks = waves(c, 5, CUP_F32, dtype == CUP_F64 ? CUP_F64 : CUP_F32, 1, &s->heads);
    if (v->offsets) {
        o.query_offsets = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){2},
                                          (int64_t[]){s->queries / 3, s->queries});
        o.key_offsets = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){2},
                                        (int64_t[]){s->keys / 2, s->keys});
    }
    if (!by_formula) {
        out[0] = call_built_in(c, v, in, o, s->heads);
    } else {
        bool windows = strchr(v->text, ',') && !strchr(v->tensors, 'b') && !v->is_own;
        cup_attention_options beside = {.size = sizeof beside, .causal = o.causal,
                                        .dropout = o.dropout, .sinks = o.sinks,
                                        .query_offsets = o.query_offsets,
                                        .key_offsets = o.key_offsets};
        if (!windows) {
            beside.window_left = o.window_left;
            beside.window_right = o.window_right;
        } else {
            beside.causal = false;
        }
        out[0] = call_formula(c, v, in, &beside);
    }
    CHECK(c);
    cup_tensor *w = waves(c, 7, rounded, dtype, 4, shapes[0]);
    cup_tensor *loss = cup_sum(c, cup_mul(c, out[0], cup_detach(w)), NULL, 0, false);
    cup_backward(c, loss);
    CHECK(c);
    for (int i = 0; i < 3 + TENSORS; i++)
        out[1 + i] = in[i] ? cup_grad(in[i]) : NULL;
    out[4 + TENSORS] = o.sinks ? cup_grad(o.sinks) : NULL;
}

#endif
