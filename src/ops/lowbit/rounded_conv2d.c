/* Convolutions of f32 whose products may be rounded: x and the weight are scaled so that the
 * largest finite element of each is 2^15, and sums are multiplied with both scales at the end, in
 * f32. Or, forward and by the image, they become tf32 on their way to the tensor cores. */
#include <string.h>

#include "cupola/ops.h"
#include "ops/conv/conv_cuda.h"
#include "ops/lowbit/rounded.h"
#include "tensor/context.h"

#define MOST_INPUTS 5
/* Products of a call from which on it pays to look for the largest elements. */
#define WORTHWHILE ((int64_t)3 << 25)
/* What rounding x takes in microseconds: bytes of memory for an element, the rate at which those
 * come, and two launches; and how much longer a product takes in tf32, as measured on an H200. */
#define ROUNDING_BYTES 8
#define READ_RATE 4.2e6
#define ROUNDING_STARTS 5
#define SLOWER 1.8e-9
#define NARROW 64 /* results, up to which tiles bring too much for each product, unless by halo: */
#define SLOWER_NARROW 4.4e-9

/* The call with inputs in f16, and what these are to be multiplied with. */
typedef struct rounded {
    cup__call call; /* first, as what runs it is given this */
    cup_tensor *in[MOST_INPUTS], *scale[2];
} rounded;

/* Why neither this nor the same without rounding first can be. */
static const char *refuses(const cup__call *call)
{
    const char *why = cup__conv_f32_refuses(call);
    return why || call->c->precision != CUP__HIGHEST
               ? why
               : "it takes f32 where products may be rounded (CUP_PRECISION=high)";
}

const char *cup__conv_rounded_refuses(const cup__call *call)
{
    const char *why = refuses(call);
    if (why)
        return why;
    cup__conv v = cup__conv_of(call);
    return cup__conv_products(&v.call) < WORTHWHILE ? "rounding would take longer than it gains"
                                                    : NULL;
}

const char *cup__conv_tf32_refuses(const cup__call *call)
{
    return refuses(call);
}

const char *cup__conv_tf32_best_refuses(const cup__call *call)
{
    const char *why = refuses(call);
    if (why)
        return why;
    cup__conv v = cup__conv_of(call);
    double looked_at = (double)call->in[0]->count * ROUNDING_BYTES / READ_RATE + ROUNDING_STARTS;
    bool narrow = v.call.results <= NARROW && !cup__conv_halo_pays(call, &v);
    return (double)cup__conv_products(&v.call) * (narrow ? SLOWER_NARROW : SLOWER) > looked_at
               ? "tensor cores take twice as many numbers of f16 at a time, which pays here"
               : NULL;
}

/* By image and weight the channels that are summed are neighbours in memory, as f32 has to lie. */
static cup_tensor *turned(cup__call *call, cup__conv *v)
{
    cup_context *c = call->c;
    cup_tensor *permuted = cup_permute(c, call->in[1], (int64_t[]){1, 2, 3, 0}, 4);
    cup_tensor *w = permuted ? cup_copy(c, permuted) : NULL;
    if (!w)
        return NULL;
    v->call.w = w->data;
    for (int i = 0; i < 4; i++)
        v->call.w_step[i] = w->stride[i == 0 ? 0 : i == 1 ? 3 : i - 1];
    v->call.w_group = v->call.channels;
    return w;
}

/* x and the weight, or dy and x, in f16, as they lie. */
static cup_status round_off(rounded *r)
{
    cup_context *c = r->call.c;
    cup__rounding all[2];
    cup_tensor *scales = cup__tensor_make(c, &(cup__shape){CUP_F32, 1, {2}}, "scales");
    if (!scales)
        return c->error.status;
    for (int i = 0; i < 2; i++) {
        cup_tensor *x = r->call.in[i];
        bool last = !x->contiguous && x->stride[1] == 1;
        all[i] = (cup__rounding){.x = last ? cup_permute(c, x, (int64_t[]){0, 2, 3, 1}, 4) : x,
                                 .most = CUP__ROUNDED_MOST};
        if (!all[i].x)
            return c->error.status;
    }
    CUP_TRY(cup__round_off(c, all, 2, scales));
    for (int i = 0; i < 2; i++) {
        bool last = all[i].x != r->call.in[i];
        r->in[i] = last ? cup_permute(c, all[i].half, (int64_t[]){0, 3, 1, 2}, 4) : all[i].half;
        r->scale[i] = cup__tensor_view(scales, &(cup__shape){.dtype = CUP_F32}, NULL, i);
        if (!r->in[i] || !r->scale[i])
            return c->error.status;
    }
    return CUP_OK;
}

static cup__conv conv_of(const rounded *r)
{
    cup__conv v = cup__conv_of(&r->call);
    v.call.x_scale = r->scale[0]->data;
    v.call.w_scale = r->scale[1]->data;
    v.fast = true;
    return v;
}

static cup_status run_as(cup__call *call, const cup__conv *v)
{
    return cup__conv_halo_pays(call, v) ? cup__conv_halo_rows(call, v)
                                        : cup__conv_wgmma_rows(call, v);
}

static cup_status run_rows(cup__call *call)
{
    const cup__conv v = conv_of((const rounded *)call);
    return run_as(call, &v);
}

static cup_status run_tf32(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    if (v.call.back && !turned(call, &v))
        return call->c->error.status;
    return run_as(call, &v);
}

cup_status cup__conv_tf32(cup__call *call)
{
    /* The weight is turned from however it lies. */
    bool back = call->op->kind == CUP__CONV_INPUT;
    return cup__conv_run_scoped(call, !back || !cup__conv_lies_last(call->out[0]), run_tf32);
}

static cup_status run_weight(cup__call *call)
{
    const cup__conv v = conv_of((const rounded *)call);
    for (int group = 0; group < v.call.groups; group++) {
        conv_parts parts = {0};
        cup__conv one = cup__conv_group(&v, group);
        if (!cup__conv_wgmma_sums(call, &one, &parts))
            return call->c->error.status;
        one.dtype = CUP_F32; /* of the result */
        CUP_TRY(cup__conv_add_parts(call, &one, &parts));
    }
    return CUP_OK;
}

static cup_status run(cup__call *call, cup_status (*how)(cup__call *call))
{
    cup_context *c = call->c;
    rounded r = {.call = *call, .scale = {NULL}};
    if (call->out[0]->count == 0)
        return CUP_OK;
    memcpy(r.in, call->in, (size_t)call->in_count * sizeof *r.in);
    cup_scope_open(c);
    if (round_off(&r) == CUP_OK) {
        r.call.in = r.in;
        cup__conv_run_last(&r.call, true, how);
    }
    cup_scope_return(c, NULL);
    return c->error.status;
}

cup_status cup__conv_rounded(cup__call *call)
{
    return run(call, run_rows);
}

cup_status cup__conv_weight_rounded(cup__call *call)
{
    return run(call, run_weight);
}
