/* Attention of f32 whose products may be rounded: q, k, v and the gradient of the result are scaled
 * and rounded to f16, the kernels for Hopper take them, and what these sum up is multiplied with
 * the scales in f32 on its way to memory.
 *
 * Scores are sums, so the largest elements of q and k may be 2^15. In backward the gradient of a
 * probability is rounded to f16 as well, less its mean: at most 2 * 128 products of elements of v
 * and of the result's gradient, which therefore stay below 8 and 16. */
#include <string.h>

#include "cupola/ops.h"
#include "ops/attention/attention_wgmma.h"
#include "ops/lowbit/rounded.h"
#include "tensor/context.h"

#define ROUNDED 4 /* q, k, v and d_o */
/* Products of numbers that make scores, and keys, from which on it pays to round. */
#define PRODUCTS_LEAST 0x1p30
#define KEYS_LEAST 512

static double products_of(const cup__attention *a)
{
    int64_t most = a->mask.causal ? (a->keys + 1) / 2 : a->keys;
    int64_t seen = a->mask.window && a->mask.before < most ? a->mask.before : most;
    return (double)(a->batch * a->heads * a->size) * (double)a->queries * (double)seen;
}

static const char *refuses(const cup__call *call, const char *(*hopper)(const cup__attention *a))
{
    cup__attention a = cup__attention_of(call);
    if (a.dtype != CUP_F32)
        return "it is for f32";
    if (call->c->precision == CUP__HIGHEST)
        return "it takes f32 where products may be rounded (CUP_PRECISION=high)";
    if (a.score.changed)
        return "it knows of scores that are scaled, and of nothing else";
    a.dtype = CUP_F16;
    const char *why = hopper(&a);
    if (why)
        return why;
    return products_of(&a) < PRODUCTS_LEAST || a.keys < KEYS_LEAST
               ? "rounding would take longer than it gains"
               : NULL;
}

const char *cup__attention_rounded_refuses(const cup__call *call)
{
    return refuses(call, cup__hopper_refuses);
}

const char *cup__attention_rounded_grad_refuses(const cup__call *call)
{
    return refuses(call, cup__hopper_pass_refuses);
}

static const int64_t turned[] = {0, 2, 1, 3};

static bool by_position(const cup__heads *h)
{
    return h->stride[2] > h->stride[1];
}

/* Heads as they lie: text by text, head by head or position by position. */
static cup_tensor *lying_of(const cup__attention *a, const cup__heads *h, bool of_keys)
{
    cup_tensor *x = cup__attention_view(h, a->batch, of_keys ? a->kv_heads : a->heads,
                                        of_keys ? a->keys : a->queries, a->size);
    return x && by_position(h) ? cup_permute(a->c, x, turned, 4) : x;
}

/* The heads become what they were rounded to. */
static cup_status take_half(const cup__attention *a, cup__heads *h, cup_tensor *half)
{
    cup_tensor *x = by_position(h) ? cup_permute(a->c, half, turned, 4) : half;
    if (!x)
        return a->c->error.status;
    *h = (cup__heads){.tensor = x};
    memcpy(h->stride, x->stride, sizeof h->stride);
    return CUP_OK;
}

static cup_status round_all(cup__attention *a, cup_tensor *scales)
{
    bool backward = a->d_o.tensor != NULL;
    cup__heads *heads[ROUNDED] = {&a->q, &a->k, &a->v, &a->d_o};
    const double most[ROUNDED] = {CUP__ROUNDED_MOST, CUP__ROUNDED_MOST,
                                  backward ? 8 : CUP__ROUNDED_MOST, 16};
    int count = backward ? ROUNDED : ROUNDED - 1;
    cup__rounding all[ROUNDED];
    for (int i = 0; i < count; i++) {
        all[i] = (cup__rounding){.x = lying_of(a, heads[i], i == 1 || i == 2), .most = most[i]};
        if (!all[i].x)
            return a->c->error.status;
    }
    CUP_TRY(cup__round_off(a->c, all, count, scales));
    for (int i = 0; i < count; i++)
        CUP_TRY(take_half(a, heads[i], all[i].half));
    a->dtype = CUP_F16;
    a->scales = scales;
    return CUP_OK;
}

static cup_status run(cup__attention *a, cup_status (*kernels)(cup__attention *a))
{
    cup_context *c = a->c;
    cup_scope_open_without_grad(c);
    cup_tensor *scales = cup__attention_numbers(a, CUP_F32, ROUNDED);
    cup_status status = scales ? round_all(a, scales) : c->error.status;
    if (status == CUP_OK)
        status = kernels(a);
    cup_scope_return(c, NULL);
    return status;
}

cup_status cup__attention_rounded(cup__attention *a)
{
    return run(a, cup__attention_hopper);
}

cup_status cup__attention_rounded_grad(cup__attention *a)
{
    return run(a, cup__attention_pass);
}
