/* Times attention by a formula beside the options that say the same, forward and with its
 * gradients, in turns on this card.
 * Build and run: make build/bench/attention_formula && build/bench/attention_formula */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/cuda.h"
#include "cupola/expr.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/context.h"

#define ROUNDS 15
#define CALLS 4

typedef struct shape {
    int64_t batch, heads, positions, size;
} shape;

static const shape shapes[] = {{8, 12, 2048, 64}, {4, 16, 4096, 128}};

typedef struct variant {
    const char *name, *inputs, *parameters, *text;
    double value;
    char tensor; /* 'h': a number for each head, 'b': one for each query and key, 0: none */
    cup_attention_options by, beside; /* without and with the formula */
} variant;

#define OPTIONS(...) {.size = sizeof(cup_attention_options), __VA_ARGS__}
static const variant variants[] = {
    {"scores as they are", "score", NULL, "score", 0, 0, OPTIONS(.causal = true),
     OPTIONS(.causal = true)},
    {"soft cap", "score", "cap", "cap * tanh(score / cap)", 20, 0,
     OPTIONS(.causal = true, .soft_cap = 20), OPTIONS(.causal = true)},
    {"slopes", "score query key slope", NULL, "score - slope * abs(query - key)", 0, 'h',
     OPTIONS(.causal = true), OPTIONS(.causal = true)},
    {"soft cap and slopes", "score query key slope", "cap",
     "cap * tanh(score / cap) - slope * abs(query - key)", 20, 'h',
     OPTIONS(.causal = true, .soft_cap = 20), OPTIONS(.causal = true)},
    {"window, limits beside", "score query key", NULL, "score, query - key < 512", 0, 0,
     OPTIONS(.causal = true, .window_left = 512), OPTIONS(.causal = true, .window_left = 512)},
    {"window, all by formula", "score query key", NULL,
     "score, key <= query && query - key < 512", 0, 0,
     OPTIONS(.causal = true, .window_left = 512), OPTIONS(.causal = false)},
    {"window and first keys", "score query key", NULL,
     "score, key <= query && (query - key < 512 || key < 4)", 0, 0,
     OPTIONS(.causal = true, .window_left = 512), OPTIONS(.causal = false)},
    {"prefix", "score query key", "prefix", "score, key <= query || key < prefix", 64, 0,
     OPTIONS(.causal = true), OPTIONS(.causal = false)},
    {"bias", "score bias", NULL, "score + bias", 0, 'b', OPTIONS(.causal = true),
     OPTIONS(.causal = true)},
};

static void must(cup_context *c)
{
    if (cup_error(c) == CUP_OK)
        return;
    printf("FAILED: %s\n", cup_error_text(c));
    exit(1);
}

typedef struct rig {
    cup_context *c;
    cup__timer *timer;
    const variant *v;
    cup_tensor *q, *k, *v_heads, *d_o, *tensor;
    cup_expr *e;
} rig;

static cup_tensor *attend(rig *r, bool by_formula)
{
    if (by_formula)
        return cup_expr_attention(r->e, r->q, r->k, r->v_heads, &r->tensor, &r->v->value,
                                  &r->v->beside);
    cup_attention_options o = r->v->by;
    int64_t heads = cup_tensor_size(r->q, 1);
    if (r->v->tensor == 'h')
        o.slopes = cup_reshape(r->c, r->tensor, 1, &heads);
    if (r->v->tensor == 'b')
        o.bias = r->tensor;
    return cup_attention(r->c, r->q, r->k, r->v_heads, &o);
}

static double time_once(rig *r, bool by_formula, bool backward)
{
    double milliseconds = 0;
    cup_scope_open(r->c);
    bool was = cup_grad_recording(r->c, backward);
    cup__timer_start(r->timer);
    for (int i = 0; i < CALLS; i++) {
        cup_tensor *o = attend(r, by_formula);
        if (backward)
            cup_backward_from(r->c, &o, &r->d_o, 1);
    }
    cup__timer_stop(r->timer, &milliseconds);
    cup_grad_recording(r->c, was);
    must(r->c);
    cup_scope_close(r->c);
    return milliseconds * 1e3 / CALLS;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(rig *r, bool backward)
{
    double us[2][ROUNDS];
    for (int by = 0; by < 2; by++)
        time_once(r, by, backward); /* compiles */
    for (int i = 0; i < ROUNDS; i++)
        for (int by = 0; by < 2; by++)
            us[by][i] = time_once(r, by, backward);
    for (int by = 0; by < 2; by++)
        qsort(us[by], ROUNDS, sizeof **us, by_value);
    double built_in = us[0][ROUNDS / 2], formula = us[1][ROUNDS / 2];
    printf("%-24s %-20s %9.1f us, by formula %9.1f us, %.2f of it\n", r->v->name,
           backward ? "forward and backward" : "forward", built_in, formula, formula / built_in);
    fflush(stdout);
}

static cup_tensor *parameter(cup_context *c, cup_dtype dtype, int ndim, const int64_t *size)
{
    return cup_require_grad(cup_keep(cup_normal(c, dtype, ndim, size, 0, 1)));
}

static void run(cup_context *c, cup__timer *timer, const shape *s, const variant *v)
{
    const int64_t size[] = {s->batch, s->heads, s->positions, s->size};
    const int64_t pairs[] = {1, s->heads, s->positions, s->positions};
    rig r = {.c = c, .timer = timer, .v = v};
    r.q = parameter(c, CUP_BF16, 4, size);
    r.k = parameter(c, CUP_BF16, 4, size);
    r.v_heads = parameter(c, CUP_BF16, 4, size);
    r.d_o = cup_keep(cup_normal(c, CUP_BF16, 4, size, 0, 1));
    if (v->tensor == 'h')
        r.tensor = parameter(c, CUP_F32, 3, (int64_t[]){s->heads, 1, 1});
    if (v->tensor == 'b')
        r.tensor = parameter(c, CUP_BF16, 4, pairs);
    r.e = cup_expr_new(c, v->inputs, v->parameters, v->text);
    must(c);
    compare(&r, false);
    compare(&r, true);
    cup_expr_free(r.e);
    cup_tensor *all[] = {r.q, r.k, r.v_heads, r.d_o, r.tensor};
    for (int i = 0; i < 5; i++)
        cup_tensor_free(all[i]);
}

int main(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    cup__timer *timer;
    must(c);
    if (cup__timer_new(cup__cuda_of(c->device), &timer) != CUP_OK)
        must(c);
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        printf("bf16 [%lld,%lld,%lld,%lld]\n", (long long)shapes[k].batch,
               (long long)shapes[k].heads, (long long)shapes[k].positions,
               (long long)shapes[k].size);
        for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
            run(c, timer, &shapes[k], &variants[i]);
    }
    cup__timer_free(timer);
    cup_context_free(c);
    return 0;
}
