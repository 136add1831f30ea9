/* Convolutions by wgmma.cu: the image is read under each tap by TMA, which walks over the places
 * of the result, so that they are products of places by results, and for the gradient of the weight
 * of results by taps and channels. Channels are neighbours in memory here; what lies otherwise is
 * copied. */
#include <string.h>

#include "base/divide.h"
#include "cupola/ops.h"
#include "dispatch/memo.h"
#include "kernels/wgmma_call.cuh"
#include "ops/conv/conv_wgmma.h"
#include "ops/matmul/product_state.h"
#include "ops/shape/copy.h"

static void fill_product(cup__conv_work *w, const cup__conv *v)
{
    const conv_call *c = w->call;
    const conv_line *l = w->line;
    int64_t places = (int64_t)c->images * l[0].count * l[1].count;
    w->p = (cup__product){.dtype = v->dtype, .y_dtype = v->y_dtype, .batch_count = 1, .factor = 1};
    int64_t chunk = cup__wgmma_tile_k(&w->p), chunks = divide_up(c->channels, chunk);
    int64_t taps = (int64_t)l[0].taps * l[1].taps;
    w->p.m = w->depth ? c->results : places;
    w->p.k = w->depth ? places : taps * chunks * chunk;
    w->p.n = !w->depth ? c->results : taps == 1 ? c->channels : taps * chunks * chunk;
    w->p.bias = c->bias;
    w->argument.chunks = (int)chunks;
    w->argument.taps = (int)taps;
    w->argument.taps_wide = l[1].taps;
}

/* What beside the sums codes need, all of whose products are scaled at the end. */
static void fill_scaling(cup__conv_work *w, const cup__conv *v)
{
    const conv_call *c = w->call;
    w->scaling = (cup__scaling){.b_dtype = v->dtype,
                                .y_dtype = v->y_dtype,
                                .kind = c->scale_step ? PRODUCT_SCALE_LINES : PRODUCT_SCALE_ONE,
                                .a = {.data = c->x_scale},
                                .b = {.data = c->w_scale, .line = c->scale_step},
                                .fast = v->fast};
    w->p.scaling = &w->scaling;
    w->argument.all.a_scale = w->scaling.a;
    w->argument.all.b_scale = w->scaling.b;
}

/* From place to place of a class; 0 where they do not lie evenly. */
static int64_t step_of(const cup__conv_work *w, const long long step[4])
{
    return cup__conv_step_of(step, w->call->images, w->line[0].count, w->line[1].count);
}

/* What becomes of the sums in the same pass. */
static void fill_join(cup__conv_work *w, const cup__conv *v)
{
    const int64_t *s = v->residual_step;
    const long long step[4] = {s[0], s[1], s[2], s[3]};
    w->p.activation = v->activation;
    w->p.kind = v->residual ? PRODUCT_ADD_FIRST : 0;
    w->p.other = v->residual;
    w->residual_row = step_of(w, step);
}

/* Where places and taps are. */
static void fill_walk(cup__conv_work *w)
{
    wgmma_conv *to = &w->argument;
    for (int d = 0; d < 2; d++) {
        w->walk[d] = cup__conv_walk_of(&w->line[d]);
        to->places[d] = divisor_of(w->line[d].count);
        to->from[d] = (int)w->walk[d].from;
        to->step[d] = w->line[d].step;
        to->tap_step[d] = (int)w->walk[d].apart;
    }
    cup__conv_weight_walk(w, &to->weight, to->weight_step);
}

/* Where the results of a class go. */
static void aim_results(cup__conv_work *w)
{
    const conv_call *c = w->call;
    const conv_line *l = w->line;
    long long step[4] = {c->y_step[0], 1, l[0].every * c->y_step[2], l[1].every * c->y_step[3]};
    char *y = c->y;
    y += (l[0].first * c->y_step[2] + l[1].first * c->y_step[3]) * cup_dtype_size(w->p.y_dtype);
    w->p.y = (cup__matrix){y, step_of(w, step), 1, {0}};
    w->spread = w->p.m > 1 && w->p.y.row == 0;
    for (int d = 0; d < 3; d++)
        w->argument.y_step[d] = step[d ? d + 1 : 0];
}

cup_status cup__conv_parts_memory(cup__conv_work *w)
{
    cup__product_state *state = cup__product_state_of(w->c);
    if (!state)
        return w->c->error.status;
    w->argument.all.partial = state->workspace;
    w->argument.all.arrived = state->counters;
    return CUP_OK;
}

static cup_status fill_call(cup__conv_work *w, int multiprocessors)
{
    wgmma_call *to = &w->argument.all;
    cup__wgmma_cut cut = cup__wgmma_cut_of(&w->p, &w->plan);
    to->bias = w->p.bias;
    to->y = w->p.y.data;
    to->y_row = w->p.y.row;
    to->factor = 1;
    to->moments = w->p.moments;
    to->m = (int)w->p.m;
    to->n = (int)w->p.n;
    to->k_tiles = (int)cut.k_tiles;
    to->tiles_m = (int)cut.tiles_m;
    to->tiles_n = (int)cut.tiles_n;
    to->units = (int)(cut.tiles * cut.parts);
    to->parts = (int)cut.parts;
    to->part_tiles = (int)cut.part_tiles;
    to->batch_inner = 1;
    to->group = cup__wgmma_group_of(&w->plan, multiprocessors);
    if (cut.parts == 1 || w->plan.cluster_k)
        return CUP_OK;
    return cup__conv_parts_memory(w);
}

int cup__conv_steps(const cup__conv_work *w)
{
    int64_t bytes = w->call->channels * cup_dtype_size(w->p.dtype);
    return w->depth || bytes > CUP__WGMMA_LINE ? 4 : (int)divide_up(bytes, 32);
}

static cup_status launch(cup__conv_work *w)
{
    cup__cuda *gpu = cup__cuda_of(w->c->device);
    const cup__wgmma_plan *plan = &w->plan;
    int multiprocessors = cup__cuda_facts(gpu)->multiprocessors;
    bool along_k = !w->depth && cup__conv_weight_along_k(w->call);
    bool beside = w->beside && !w->argument.all.arrived, promote = cup__wgmma_promotes(&w->p);
    cup__knob knobs[] = {
        {"CONV", w->depth ? WGMMA_CONV_DEPTH : WGMMA_CONV_ROWS},
        {"CUP_T", w->p.dtype},
        {"Y_T", w->matrices ? CUP_F32 : w->p.y_dtype},
        {"BATCH", w->matrices},
        {"TILE_M", plan->tile_m},
        {"TILE_N", plan->tile_n},
        {"CONSUMERS", plan->consumers},
        {"PINGPONG", plan->pingpong},
        {"STAGES", plan->stages},
        {"STAGING_BUFFERS", cup__wgmma_staging(&w->p, plan)},
        {"CLUSTER_M", plan->cluster_m},
        {"CLUSTER_K", plan->cluster_k ? plan->cluster_k : 1},
        {"A_ALONG", w->depth ? PRODUCT_ALONG_MN : PRODUCT_ALONG_K},
        {"B_ALONG", along_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"HAS_BIAS", w->p.bias != NULL},
        {"PARTS", plan->parts > 1},
        {"SPREAD", w->spread},
        {"BESIDE", beside},
        {"K_STEPS", cup__conv_steps(w)},
        {"SCALES", w->p.scaling ? w->scaling.kind : PRODUCT_SCALE_NONE},
        {"PROMOTE", promote},
        {"BIAS_T", w->bias_dtype},
        {"ACTIVATION", w->p.activation}, /* this and what follows of conv2d_join alone */
        {"OTHER", w->p.kind},
        {"OTHER_BUFFERS", cup__wgmma_other_buffers(&w->p, plan)},
        {"MOMENTS", w->p.moments != NULL},
    };
    bool joins = w->p.activation || w->p.kind;
    int left = w->p.moments ? 0 : joins ? 1 : 4; /* knobs that stay as they are */
    cup__kernel *kernel = cup__kernel_get(gpu, "wgmma.cu", "conv_sm90", knobs,
                                          (int)(sizeof knobs / sizeof *knobs) - left);
    if (!kernel)
        return w->c->error.status;
    int64_t units = w->argument.all.units, most = multiprocessors / plan->cluster_m;
    bool all = units < most || plan->cluster_k;
    cup__grid grid = {.x = (all ? units : most) * plan->cluster_m,
                      .threads = 128 * (plan->consumers + 1),
                      .shared = cup__wgmma_shared(&w->p, plan),
                      .cluster = plan->cluster_k ? plan->cluster_k : plan->cluster_m,
                      .dependent = beside || all, /* as launches of products are */
                      .waits = w->argument.all.arrived != NULL};
    if (w->p.kind)
        return cup__launch(gpu, kernel, grid, CUP__ARG(w->a), CUP__ARG(w->b), CUP__ARG(w->y),
                           CUP__ARG(w->argument), CUP__ARG(w->residual));
    return cup__launch(gpu, kernel, grid, CUP__ARG(w->a), CUP__ARG(w->b), CUP__ARG(w->y),
                       CUP__ARG(w->argument));
}

/* The plans of a call's launches, which are kept with what is remembered of it. */
#define KEPT 4
typedef struct kept_plans {
    struct {
        cup__wgmma_plan plan;
        int parts; /* 0: the plan is not known yet */
    } of[KEPT];
} kept_plans;

static const char owner;

/* Chooses the plan of launch number `which`, and the parts of its k; false where none fits. */
static bool choose_plan(cup__call *call, cup__conv_work *w, int which, int *parts)
{
    cup__memo *memo = which < KEPT ? call->memo : NULL;
    kept_plans *kept = memo && memo->owner == (const void *)&owner ? memo->kept : NULL;
    int multiprocessors = cup__conv_multiprocessors(call);
    *parts = 1;
    if (kept && kept->of[which].parts) {
        w->plan = kept->of[which].plan;
        *parts = kept->of[which].parts;
        return true;
    }
    double time = w->matrices ? cup__wgmma_choose_deep(&w->p, multiprocessors, &w->plan, parts)
                  : w->depth  ? cup__wgmma_choose_parts(&w->p, multiprocessors, &w->plan)
                              : cup__wgmma_choose_conv(&w->p, multiprocessors, &w->plan);
    if (time <= 0)
        return false;
    if (memo && !kept)
        kept = cup__memo_keep(memo, &owner, &(kept_plans){0}, sizeof *kept);
    if (kept) {
        kept->of[which].plan = w->plan;
        kept->of[which].parts = *parts;
    }
    return true;
}

static cup_status no_plan(cup__call *call)
{
    return cup__call_fail(call, CUP_UNSUPPORTED, "no shape of tiles fits this convolution");
}

/* Whether one launch makes all of a result whose moments are wanted. */
static bool measures(const cup__call *call, const cup__conv *v)
{
    return call->c->moments.wanted && call->op->kind == CUP__CONV_FORWARD && v->call.groups == 1;
}

bool cup__conv_begin_class(cup__conv_work *w, const cup__call *call, const cup__conv *v, int high,
                           int wide)
{
    memset(w, 0, sizeof *w); /* with what lies between fields */
    w->c = call->c;
    w->call = &v->call;
    w->line[0] = conv_line_of(&v->call.side[0], v->call.back, high);
    w->line[1] = conv_line_of(&v->call.side[1], v->call.back, wide);
    if (w->line[0].taps == 0 || w->line[1].taps == 0)
        return false;
    fill_product(w, v);
    w->bias_dtype = v->bias_dtype;
    if (cup__conv_is_scaled(call) || v->call.x_scale)
        fill_scaling(w, v);
    fill_join(w, v);
    fill_walk(w);
    aim_results(w);
    return true;
}

/* `beside` says whether the launch before it was of this call, and of other results. */
static cup_status run_class(cup__call *call, const cup__conv *v, int high, int wide, bool *beside)
{
    cup__conv_work w;
    if (!cup__conv_begin_class(&w, call, v, high, wide))
        return CUP_OK;
    w.beside = *beside;
    w.p.measuring = measures(call, v);
    int parts, multiprocessors = cup__conv_multiprocessors(call);
    if (!choose_plan(call, &w, high * conv_classes(&v->call.side[1], v->call.back) + wide, &parts))
        return no_plan(call);
    if (w.p.measuring)
        w.p.moments = cup__wgmma_moments(call->c, &w.p, &w.plan);
    CUP_TRY(cup__conv_encode_image(&w, &w.a, w.plan.tile_m, CUP__WGMMA_LINE));
    CUP_TRY(cup__conv_encode_weight(&w));
    CUP_TRY(cup__conv_encode_results(&w));
    CUP_TRY(fill_call(&w, multiprocessors));
    *beside = true;
    return launch(&w);
}

cup_status cup__conv_wgmma_class(cup__call *call, const cup__conv *v, int high, int wide)
{
    return run_class(call, v, high, wide, &(bool){false});
}

cup_status cup__conv_clear_unreached(cup__call *call, const conv_call *c)
{
    bool all = true;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < conv_classes(&c->side[d], c->back); i++)
            all = all && conv_line_of(&c->side[d], c->back, i).taps > 0;
    if (all)
        return CUP_OK;
    cup_tensor *out = call->out[0];
    cup__shape shape = {out->dtype, out->ndim, {0}};
    memcpy(shape.size, out->shape, sizeof shape.size);
    cup_tensor *zero = cup__full(call->c, &(cup__shape){out->dtype, 1, {1}}, 0);
    cup_tensor *zeros = zero ? cup__tensor_view(zero, &shape, (int64_t[CUP_MAX_DIMS]){0}, 0) : NULL;
    if (zeros)
        cup__copy_to(call->c, out, zeros);
    cup_tensor_free(zeros);
    cup_tensor_free(zero);
    return call->c->error.status;
}

/* From the last class on, which with the usual padding has the most taps, so that short ones fill
 * up the card at the end. */
static cup_status run_classes(cup__call *call, const cup__conv *v, bool *beside)
{
    int high = conv_classes(&v->call.side[0], v->call.back);
    int wide = conv_classes(&v->call.side[1], v->call.back);
    for (int i = high * wide - 1; i >= 0; i--)
        CUP_TRY(run_class(call, v, i / wide, i % wide, beside));
    return CUP_OK;
}

cup_status cup__conv_wgmma_rows(cup__call *call, const cup__conv *v)
{
    bool beside = false;
    CUP_TRY(cup__conv_clear_unreached(call, &v->call));
    for (int group = 0; group < v->call.groups; group++) {
        const cup__conv one = cup__conv_group(v, group);
        CUP_TRY(run_classes(call, &one, &beside));
    }
    return CUP_OK;
}

static cup_status run_rows(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    return cup__conv_wgmma_rows(call, &v);
}

cup_status cup__conv_wgmma(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, true, run_rows) : CUP_OK;
}

cup_tensor *cup__conv_make_parts(const cup__conv_work *w, int count, conv_parts *out)
{
    int64_t part = divide_up(divide_up(w->p.k, CUP__CONV_CHUNK), count);
    *out = (conv_parts){.parts = (int)divide_up(divide_up(w->p.k, CUP__CONV_CHUNK), part),
                        .part = part, .depth = (int)w->p.n,
                        .channels = (int)(w->p.n / w->argument.taps)};
    cup__shape shape = {CUP_F32, 3, {out->parts, w->p.m, w->p.n}};
    cup_tensor *sums = cup__tensor_make(w->c, &shape, "partial sums");
    out->sums = sums ? sums->data : NULL;
    return sums;
}

static cup_status encode_depth(cup__conv_work *w)
{
    CUP_TRY(cup__conv_encode_dy(w, step_of(w, w->call->w_step)));
    return cup__conv_encode_image(w, &w->b, CUP__CONV_CHUNK, CUP__WGMMA_LINE);
}

static cup_status launch_parts(cup__conv_work *w, const conv_parts *parts)
{
    CUP_TRY(encode_depth(w));
    CUP_TRY(cup__conv_encode_parts(w, parts));
    CUP_TRY(fill_call(w, cup__cuda_facts(cup__cuda_of(w->c->device))->multiprocessors));
    w->argument.all.part_tiles = (int)parts->part;
    w->argument.all.units *= parts->parts;
    return launch(w);
}

static cup_status launch_depth(cup__conv_work *w)
{
    CUP_TRY(encode_depth(w));
    CUP_TRY(cup__conv_encode_results(w));
    CUP_TRY(fill_call(w, cup__cuda_facts(cup__cuda_of(w->c->device))->multiprocessors));
    return launch(w);
}

void cup__conv_begin_depth(cup__conv_work *w, const cup__call *call, const cup__conv *v)
{
    memset(w, 0, sizeof *w);
    w->c = call->c;
    w->call = &v->call;
    w->depth = true;
    for (int d = 0; d < 2; d++)
        w->line[d] = conv_line_of(&v->call.side[d], false, 0);
    fill_product(w, v);
    fill_walk(w);
}

cup_tensor *cup__conv_wgmma_sums(cup__call *call, const cup__conv *v, conv_parts *parts)
{
    int count;
    cup__conv_work w;
    cup__conv_begin_depth(&w, call, v);
    w.matrices = true;
    if (!choose_plan(call, &w, 0, &count)) {
        no_plan(call);
        return NULL;
    }
    cup_tensor *sums = cup__conv_make_parts(&w, count, parts);
    if (sums && launch_parts(&w, parts) == CUP_OK)
        return sums;
    cup_tensor_free(sums);
    return NULL;
}

static cup_status run_matrices(cup__call *call, const cup__conv *v)
{
    conv_parts parts = {0};
    cup_tensor *sums = cup__conv_wgmma_sums(call, v, &parts);
    if (sums)
        cup__conv_add_parts(call, v, &parts);
    cup_tensor_free(sums);
    return call->c->error.status;
}

/* Sums by result, tap and channel go where the weight has them, or are added. */
static cup_status turn_sums(cup__call *call, cup_tensor *sums)
{
    cup_tensor *out = call->out[0];
    cup__shape shape = {out->dtype, 4, {0}};
    memcpy(shape.size, out->shape, sizeof shape.size);
    const int64_t *s = sums->stride;
    cup_tensor *turned =
        cup__tensor_view(sums, &shape, (int64_t[CUP_MAX_DIMS]){s[0], s[3], s[1], s[2]}, 0);
    if (turned)
        cup__conv_hand_over(call, turned);
    cup_tensor_free(turned);
    return call->c->error.status;
}

/* Its parts are added by the blocks that have them. */
static cup_status run_whole(cup__call *call, cup__conv_work *w)
{
    const conv_call *c = w->call;
    int count;
    int64_t channels = w->p.n / w->argument.taps;
    cup__shape shape = {w->p.dtype, 4, {c->results, c->side[0].taps, c->side[1].taps, channels}};
    if (!choose_plan(call, w, 0, &count))
        return no_plan(call);
    bool as_is = w->argument.taps == 1 && !cup__conv_sum(call) &&
                 (uintptr_t)call->out[0]->data % 16 == 0;
    cup_tensor *sums =
        as_is ? call->out[0] : cup__tensor_make(call->c, &shape, "weight gradient");
    if (!sums)
        return call->c->error.status;
    w->p.y = (cup__matrix){sums->data, w->p.n, 1, {0}};
    if (launch_depth(w) == CUP_OK && !as_is)
        turn_sums(call, sums);
    if (!as_is)
        cup_tensor_free(sums);
    return call->c->error.status;
}

static cup_status run_depth(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    cup__conv_work w;
    cup__conv_begin_depth(&w, call, &v);
    if (v.call.groups == 1 && cup__conv_is_whole(&w))
        return run_whole(call, &w);
    for (int group = 0; group < v.call.groups; group++) {
        const cup__conv one = cup__conv_group(&v, group);
        CUP_TRY(run_matrices(call, &one));
    }
    return CUP_OK;
}

cup_status cup__conv_weight_wgmma(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, true, run_depth) : CUP_OK;
}
