/* Convolutions of f32 whose products may be rounded: x and the weight are scaled so that the
 * largest finite element of each is 2^15, and sums are multiplied with both scales at the end, in
 * f32. */
#include <math.h>
#include <string.h>

#include "cupola/ops.h"
#include "ops/conv/conv_cuda.h"
#include "ops/lowbit/rounded.h"
#include "ops/shape/copy.h"
#include "tensor/context.h"

#define MOST_INPUTS 5
/* Products of a call from which on it pays to look for the largest elements. */
#define WORTHWHILE ((int64_t)3 << 25)

/* The call with inputs in f16, and what these are to be multiplied with. */
typedef struct rounded {
    cup__call call; /* first, as what runs it is given this */
    cup_tensor *in[MOST_INPUTS], *scale[2];
} rounded;

static int64_t products_of(const conv_call *c)
{
    return (int64_t)c->images * c->side[0].out * c->side[1].out * c->results * c->channels *
           c->groups * c->side[0].taps * c->side[1].taps;
}

const char *cup__conv_rounded_refuses(const cup__call *call)
{
    cup_tensor half[2], *in[MOST_INPUTS] = {&half[0], &half[1]};
    cup__call shadow = *call;
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    if (call->in[0]->dtype != CUP_F32)
        return "it is for f32";
    if (call->c->precision == CUP__HIGHEST)
        return "it takes f32 where products may be rounded (CUP_PRECISION=high)";
    for (int i = 0; i < call->in_count; i++)
        in[i] = i < 2 ? in[i] : call->in[i];
    for (int i = 0; i < 2; i++) {
        half[i] = *call->in[i];
        half[i].dtype = CUP_F16;
    }
    shadow.in = in;
    const char *why = cup__conv_wgmma_refuses(&shadow);
    if (why)
        return why;
    cup__conv v = cup__conv_of(&shadow);
    return products_of(&v.call) < WORTHWHILE ? "rounding would take longer than it gains" : NULL;
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

static cup_status run_rows(cup__call *call)
{
    cup__conv v = conv_of((const rounded *)call);
    return cup__conv_halo_pays(call, &v) ? cup__conv_halo_rows(call, &v)
                                         : cup__conv_wgmma_rows(call, &v);
}

/* Parts of the sums of a group's weights become their gradient, of which this is the first. */
static cup_status finish_weight(const rounded *r, cup_tensor *sums, const cup__conv *v,
                                const conv_parts *parts, int64_t first)
{
    cup_context *c = r->call.c;
    cup_tensor *out = r->call.out[0];
    const conv_call *k = &v->call;
    int64_t wide = k->side[1].taps, taps = k->side[0].taps * wide, each = parts->depth / taps;
    cup__shape shape = {CUP_F32, 4, {k->results, k->channels, k->side[0].taps, wide}};
    const int64_t step[CUP_MAX_DIMS] = {parts->depth, 1, wide * each, each};
    cup_tensor *sum = cup_sum(c, sums, (int64_t[]){0}, 1, false);
    cup_tensor *turned = sum ? cup__tensor_view(sum, &shape, step, 0) : NULL;
    cup_tensor *to = cup__tensor_view(out, &shape, out->stride, first * out->stride[0]);
    cup_tensor *in[] = {turned, r->scale[0], r->scale[1]};
    cup__rounded_formula(c, "sum x dy", "sum * (x * dy)", in, 0, to);
    return c->error.status;
}

static cup_status run_weight(cup__call *call)
{
    const rounded *r = (const rounded *)call;
    cup__conv v = conv_of(r);
    for (int group = 0; group < v.call.groups; group++) {
        conv_parts parts = {0};
        const cup__conv one = cup__conv_group(&v, group);
        cup_tensor *sums = cup__conv_wgmma_sums(call, &one, &parts);
        if (!sums)
            return call->c->error.status;
        CUP_TRY(finish_weight(r, sums, &one, &parts, (int64_t)group * v.call.results));
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

static cup_status weight_alone(cup__call *call)
{
    return run(call, run_weight);
}

cup_status cup__conv_weight_rounded(cup__call *call)
{
    return cup__conv_weight_apart(call, weight_alone);
}
