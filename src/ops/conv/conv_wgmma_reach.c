/* Which convolutions wgmma.cu can do: how TMA walks over their places, and what they consist of. */
#include <stdlib.h>
#include <string.h>

#include "cuda/loader.h"
#include "ops/conv/conv_wgmma.h"
#include "ops/lowbit/scaled.h"

#define LEAST 16     /* channels and results, below which most of a tile would be empty */
#define GROUP_LEAST 64 /* channels and results of each of several groups, which are a launch each */
#define CORNER 127   /* how far beyond the image TMA can begin or end */
#define FARTHEST 255 /* how far from the first tap the last one can be */
#define STEP_MOST 8  /* from place to place */
#define UNSCALED_MOST 4 /* inputs of a convolution without scales */
#define PLACES_MOST (INT32_MAX - 1024)

/* Taps that go backwards, as in the gradient of the image, are taken from the last one on. */
cup__conv_walk cup__conv_walk_of(const conv_line *l)
{
    int64_t reach = (int64_t)(l->taps - 1) * l->tap_step;
    bool turned = l->tap_step < 0;
    cup__conv_walk w = {.from = l->from + (turned ? reach : 0),
              .apart = turned ? -(int64_t)l->tap_step : l->tap_step,
              .tap = turned ? l->tap + (l->taps - 1) * l->tap_every : l->tap,
              .every = turned ? -l->tap_every : l->tap_every};
    w.end = w.from + (int64_t)(l->count - 1) * l->step - (l->size - 1);
    return w;
}

void cup__conv_begin_tiles(cup__conv_work *w, const cup__call *call, const cup__conv *v)
{
    memset(w, 0, sizeof *w);
    w->c = call->c;
    w->call = &v->call;
    w->p.dtype = v->dtype;
    for (int d = 0; d < 2; d++) {
        w->line[d] = conv_line_of(&v->call.side[d], v->call.back, 0);
        w->walk[d] = cup__conv_walk_of(&w->line[d]);
    }
}

void cup__conv_weight_walk(const cup__conv_work *w, int *first, int step[2])
{
    int wide = w->call->side[1].taps;
    *first = w->walk[0].tap * wide + w->walk[1].tap;
    step[0] = w->walk[0].every * wide;
    step[1] = w->walk[1].every;
}

static bool can_walk(const conv_line *l)
{
    cup__conv_walk w = cup__conv_walk_of(l);
    return llabs(w.from) <= CORNER && llabs(w.end) <= CORNER && l->step <= STEP_MOST &&
           w.apart * (l->taps - 1) <= FARTHEST;
}

bool cup__conv_wgmma_reaches(const conv_call *c)
{
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < conv_classes(&c->side[d], c->back); i++) {
            conv_line l = conv_line_of(&c->side[d], c->back, i);
            if (l.taps && !can_walk(&l))
                return false;
        }
    return true;
}

const char *cup__conv_wgmma_never(const cup__call *call)
{
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    int64_t places = c->images;
    if (cup__cuda_facts(cup__cuda_of(call->c->device))->major != 9)
        return "it is for Hopper (sm_90)";
    if (!cup__driver.cuTensorMapEncodeTiled || !cup__driver.cuTensorMapEncodeIm2col ||
        !cup__driver.cuLaunchKernelEx)
        return "the driver is too old for tensor maps";
    if (v.dtype != CUP_BF16 && v.dtype != CUP_F16 && v.dtype != CUP_I8 && v.dtype != CUP_F8E4M3)
        return "it multiplies bf16, f16 and codes of 8 bits only";
    if (cup__conv_is_scaled(call) && cup__scaled_refuses(call))
        return cup__scaled_refuses(call);
    for (int d = 0; d < 2; d++) {
        int64_t side = c->side[d].in > c->side[d].out ? c->side[d].in : c->side[d].out;
        if (c->side[d].in == 0 || c->side[d].out == 0 || places > PLACES_MOST / side)
            return "its places are none, or too many for 32 bits";
        places *= side;
    }
    if (c->images == 0)
        return "there is no image";
    int64_t taps = (int64_t)c->side[0].taps * c->side[1].taps;
    if (taps > INT32_MAX / 4 / (c->channels + CUP__WGMMA_LINE))
        return "a result is a sum of more than 2^29 products";
    return NULL;
}

const char *cup__conv_f32_refuses(const cup__call *call)
{
    cup_tensor half[2], *in[UNSCALED_MOST] = {&half[0], &half[1]};
    cup__call shadow = *call;
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    if (call->in[0]->dtype != CUP_F32 || cup__conv_is_scaled(call))
        return "it is for f32";
    for (int i = 2; i < call->in_count; i++)
        in[i] = call->in[i];
    for (int i = 0; i < 2; i++) {
        half[i] = *call->in[i];
        half[i].dtype = CUP_F16;
    }
    shadow.in = in;
    return cup__conv_wgmma_refuses(&shadow);
}

const char *cup__conv_wgmma_refuses(const cup__call *call)
{
    const char *why = cup__conv_wgmma_never(call);
    if (why)
        return why;
    const cup__conv v = cup__conv_of(call);
    const conv_call c = v.call;
    if (c.groups > CUP__CONV_GROUPS_MOST ||
        (c.groups > 1 && (c.channels < GROUP_LEAST || c.results < GROUP_LEAST)))
        return "its groups are many, or small";
    bool scaled = cup__conv_is_scaled(call);
    int64_t piece = CUP__CONV_PIECE_BYTES / cup_dtype_size(v.dtype);
    if (c.channels % piece || c.results % CUP__CONV_PIECE || c.channels < LEAST ||
        c.results < LEAST)
        return scaled ? "its channels or results are few, or no multiple of 16 and 8"
                      : "its channels or results are few, or no multiple of 8";
    return cup__conv_wgmma_reaches(&c) ? NULL : "its taps or padding reach farther than TMA does";
}
