/* Convolutions by wgmma.cu: the image is read under each tap by TMA, which walks over the places
 * of the result, so that they are products of places by results, and for the gradient of the weight
 * of results by taps and channels. Channels are neighbours in memory here; what lies otherwise is
 * copied. */
#include <stdlib.h>
#include <string.h>

#include "base/divide.h"
#include "cuda/loader.h"
#include "cupola/ops.h"
#include "kernels/wgmma_call.cuh"
#include "ops/conv/conv_cuda.h"
#include "ops/matmul/product_state.h"
#include "ops/matmul/wgmma_maps.h"
#include "ops/shape/copy.h"

#define CHUNK 64     /* channels of a line, and places of a step of the weight's gradient */
#define LEAST 16     /* channels and results, below which most of a tile would be empty */
#define CORNER 127   /* how far beyond the image TMA can begin or end */
#define FARTHEST 255 /* how far from the first tap the last one can be */
#define STEP_MOST 8  /* from place to place */
#define PLACES_MOST (INT32_MAX - 1024)

/* How TMA walks over the places of a class along a side. */
typedef struct walk {
    int64_t from, end; /* where the first and the last first tap are read, from each end */
    int64_t apart;     /* taps */
    int tap, every;    /* number of the first tap, and from one to the next */
} walk;

/* Taps that go backwards, as in the gradient of the image, are taken from the last one on. */
static walk walk_of(const conv_line *l)
{
    int64_t reach = (int64_t)(l->taps - 1) * l->tap_step;
    bool turned = l->tap_step < 0;
    walk w = {.from = l->from + (turned ? reach : 0),
              .apart = turned ? -(int64_t)l->tap_step : l->tap_step,
              .tap = turned ? l->tap + (l->taps - 1) * l->tap_every : l->tap,
              .every = turned ? -l->tap_every : l->tap_every};
    w.end = w.from + (int64_t)(l->count - 1) * l->step - (l->size - 1);
    return w;
}

static bool can_walk(const conv_line *l)
{
    walk w = walk_of(l);
    return llabs(w.from) <= CORNER && llabs(w.end) <= CORNER && l->step <= STEP_MOST &&
           w.apart * (l->taps - 1) <= FARTHEST;
}

static bool can_walk_all(const conv_call *c)
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
    if (v.dtype != CUP_BF16 && v.dtype != CUP_F16)
        return "it multiplies bf16 and f16 only";
    if (c->groups != 1)
        return "it has several groups";
    for (int d = 0; d < 2; d++) {
        int64_t side = c->side[d].in > c->side[d].out ? c->side[d].in : c->side[d].out;
        if (c->side[d].in == 0 || c->side[d].out == 0 || places > PLACES_MOST / side)
            return "its places are none, or too many for 32 bits";
        places *= side;
    }
    if (c->images == 0)
        return "there is no image";
    if ((int64_t)c->side[0].taps * c->side[1].taps > INT32_MAX / 4 / (c->channels + CHUNK))
        return "a result is a sum of more than 2^29 products";
    return NULL;
}

const char *cup__conv_wgmma_refuses(const cup__call *call)
{
    const char *why = cup__conv_wgmma_never(call);
    if (why)
        return why;
    const conv_call c = cup__conv_of(call).call;
    if (c.channels % CUP__CONV_PIECE || c.results % CUP__CONV_PIECE || c.channels < LEAST ||
        c.results < LEAST)
        return "its channels or results are few, or no multiple of 8";
    return can_walk_all(&c) ? NULL : "its taps or padding reach farther than TMA does";
}

/* One launch. */
typedef struct work {
    cup_context *c;
    const conv_call *call;
    conv_line line[2];
    walk walk[2];
    cup__product p;
    cup__wgmma_plan plan;
    bool depth, spread;
    wgmma_conv argument;
    CUtensorMap a, b, y;
} work;

static cup_status refused(const work *w, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return CUP_OK;
    return cup__fail(&w->c->error, CUP_INTERNAL,
                     "convolution: the driver refused a tensor map, with error %d", (int)result);
}

static CUtensorMapDataType type_of(const work *w)
{
    return w->p.dtype == CUP_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

/* Bytes between elements of a dimension; where it has one, any that TMA takes. */
static uint64_t bytes_apart(int64_t size, int64_t step)
{
    return size == 1 ? 16 : (uint64_t)step * 2;
}

static cup_status encode_boxes(const work *w, CUtensorMap *map, const void *data, uint32_t rank,
                               const uint64_t *sizes, const uint64_t *strides, const uint32_t *box)
{
    const uint32_t steps[] = {1, 1, 1};
    CUtensorMapSwizzle swizzle =
        box[0] * 2 == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
    return refused(w, cup__driver.cuTensorMapEncodeTiled(
                          map, type_of(w), rank, (void *)(uintptr_t)data, sizes, strides, box,
                          steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

/* The image, of which `places` are read at a time. */
static cup_status encode_image(const work *w, CUtensorMap *map, int places)
{
    const conv_call *c = w->call;
    const conv_line *l = w->line;
    const uint64_t sizes[] = {(uint64_t)c->channels, (uint64_t)l[1].size, (uint64_t)l[0].size,
                              (uint64_t)c->images};
    const uint64_t strides[] = {bytes_apart(l[1].size, c->x_step[3]),
                                bytes_apart(l[0].size, c->x_step[2]),
                                bytes_apart(c->images, c->x_step[0])};
    const int from[] = {(int)w->walk[1].from, (int)w->walk[0].from};
    const int end[] = {(int)w->walk[1].end, (int)w->walk[0].end};
    const uint32_t steps[] = {1, (uint32_t)l[1].step, (uint32_t)l[0].step, 1};
    return refused(w, cup__driver.cuTensorMapEncodeIm2col(
                          map, type_of(w), 4, (void *)(uintptr_t)c->x, sizes, strides, from, end,
                          CHUNK, (uint32_t)places, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                          CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

/* The weight as a matrix for each tap, whose lines are its channels. */
static cup_status encode_weight(work *w)
{
    const conv_call *c = w->call;
    int64_t taps = (int64_t)c->side[0].taps * c->side[1].taps;
    int64_t lines = c->back ? c->channels : c->results;
    const uint64_t sizes[] = {(uint64_t)(c->back ? c->results : c->channels), (uint64_t)lines,
                              (uint64_t)taps};
    const uint64_t strides[] = {bytes_apart(lines, c->w_step[c->back]),
                                bytes_apart(taps, c->w_step[c->side[1].taps > 1 ? 3 : 2])};
    int box_lines = (c->back ? CHUNK : w->plan.tile_n) / w->plan.cluster_m;
    return encode_boxes(w, &w->b, c->w, 3, sizes, strides,
                        (const uint32_t[]){CHUNK, (uint32_t)box_lines, 1});
}

/* A matrix with lines of `length`, of which boxes are read or written. */
static cup_status encode_matrix(const work *w, CUtensorMap *map, const void *data, int64_t length,
                                int64_t lines, int64_t step, int box_length, int box_lines)
{
    return encode_boxes(w, map, data, 2, (const uint64_t[]){(uint64_t)length, (uint64_t)lines},
                        (const uint64_t[]){bytes_apart(lines, step)},
                        (const uint32_t[]){(uint32_t)box_length, (uint32_t)box_lines});
}

/* Elements from one place to the next, where places lie evenly behind each other. */
static int64_t place_step(const long long step[4], int64_t rows, int64_t columns)
{
    return columns > 1 ? step[3] : rows > 1 ? step[2] : step[0];
}

static bool places_lie_evenly(const long long step[4], int64_t images, int64_t rows,
                              int64_t columns)
{
    int64_t each = place_step(step, rows, columns);
    return (rows == 1 || step[2] == columns * each) &&
           (images == 1 || step[0] == rows * columns * each);
}

static cup_status encode_results(work *w)
{
    int64_t line = cup__wgmma_stored_line(w->plan.tile_n * 2) / 2;
    if (w->spread) {
        w->y = w->a; /* which nobody looks at */
        return CUP_OK;
    }
    return encode_matrix(w, &w->y, w->p.y.data, w->p.n, w->p.m, w->p.y.row, (int)line, 16);
}

static void fill_product(work *w, cup_dtype dtype)
{
    const conv_call *c = w->call;
    const conv_line *l = w->line;
    int64_t places = (int64_t)c->images * l[0].count * l[1].count;
    int64_t chunks = divide_up(c->channels, CHUNK), taps = (int64_t)l[0].taps * l[1].taps;
    w->p = (cup__product){.dtype = dtype, .y_dtype = dtype, .batch_count = 1, .factor = 1};
    w->p.m = w->depth ? c->results : places;
    w->p.k = w->depth ? places : taps * chunks * CHUNK;
    w->p.n = !w->depth ? c->results : taps == 1 ? c->channels : taps * chunks * CHUNK;
    w->p.bias = c->bias;
    w->argument.chunks = (int)chunks;
    w->argument.taps = (int)taps;
    w->argument.taps_wide = l[1].taps;
}

/* Where places and taps are. */
static void fill_walk(work *w)
{
    wgmma_conv *to = &w->argument;
    int wide = w->call->side[1].taps;
    for (int d = 0; d < 2; d++) {
        w->walk[d] = walk_of(&w->line[d]);
        to->places[d] = divisor_of(w->line[d].count);
        to->from[d] = (int)w->walk[d].from;
        to->step[d] = w->line[d].step;
        to->tap_step[d] = (int)w->walk[d].apart;
    }
    to->weight = w->walk[0].tap * wide + w->walk[1].tap;
    to->weight_step[0] = w->walk[0].every * wide;
    to->weight_step[1] = w->walk[1].every;
}

/* Where the results of a class go. */
static void aim_results(work *w)
{
    const conv_call *c = w->call;
    const conv_line *l = w->line;
    long long step[4] = {c->y_step[0], 1, l[0].every * c->y_step[2], l[1].every * c->y_step[3]};
    char *y = c->y;
    y += 2 * (l[0].first * c->y_step[2] + l[1].first * c->y_step[3]);
    w->p.y = (cup__matrix){y, place_step(step, l[0].count, l[1].count), 1, {0}};
    w->spread = !places_lie_evenly(step, c->images, l[0].count, l[1].count);
    for (int d = 0; d < 3; d++)
        w->argument.y_step[d] = step[d ? d + 1 : 0];
}

static cup_status fill_call(work *w, int multiprocessors)
{
    wgmma_call *to = &w->argument.all;
    cup__wgmma_cut cut = cup__wgmma_cut_of(&w->p, &w->plan);
    to->bias = w->p.bias;
    to->y = w->p.y.data;
    to->y_row = w->p.y.row;
    to->factor = 1;
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
    cup__product_state *state = cup__product_state_of(w->c);
    if (!state)
        return w->c->error.status;
    to->partial = state->workspace;
    to->arrived = state->counters;
    return CUP_OK;
}

static cup_status launch(work *w)
{
    cup__cuda *gpu = cup__cuda_of(w->c->device);
    const cup__wgmma_plan *plan = &w->plan;
    int multiprocessors = cup__cuda_facts(gpu)->multiprocessors;
    CUP_TRY(encode_results(w));
    CUP_TRY(fill_call(w, multiprocessors));
    bool along_k = !w->depth && !w->call->back;
    cup__knob knobs[] = {
        {"CONV", w->depth ? WGMMA_CONV_DEPTH : WGMMA_CONV_ROWS},
        {"CUP_T", w->p.dtype},
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
    };
    cup__kernel *kernel =
        cup__kernel_get(gpu, "wgmma.cu", "conv_sm90", knobs, sizeof knobs / sizeof *knobs);
    if (!kernel)
        return w->c->error.status;
    int64_t units = w->argument.all.units, most = multiprocessors / plan->cluster_m;
    cup__grid grid = {.x = (units < most || plan->cluster_k ? units : most) * plan->cluster_m,
                      .threads = 128 * (plan->consumers + 1),
                      .shared = cup__wgmma_shared(&w->p, plan),
                      .cluster = plan->cluster_k ? plan->cluster_k : plan->cluster_m};
    return cup__launch(gpu, kernel, grid, CUP__ARG(w->a), CUP__ARG(w->b), CUP__ARG(w->y),
                       CUP__ARG(w->argument));
}

static cup_status no_plan(cup__call *call)
{
    return cup__call_fail(call, CUP_UNSUPPORTED, "no shape of tiles fits this convolution");
}

cup_status cup__conv_wgmma_class(cup__call *call, const cup__conv *v, int high, int wide)
{
    work w;
    memset(&w, 0, sizeof w); /* with what lies between fields */
    w.c = call->c;
    w.call = &v->call;
    w.line[0] = conv_line_of(&v->call.side[0], v->call.back, high);
    w.line[1] = conv_line_of(&v->call.side[1], v->call.back, wide);
    if (w.line[0].taps == 0 || w.line[1].taps == 0)
        return CUP_OK;
    fill_product(&w, v->dtype);
    fill_walk(&w);
    aim_results(&w);
    int multiprocessors = cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors;
    if (cup__wgmma_choose(&w.p, multiprocessors, &w.plan) <= 0)
        return no_plan(call);
    CUP_TRY(encode_image(&w, &w.a, w.plan.tile_m));
    CUP_TRY(encode_weight(&w));
    return launch(&w);
}

/* Zeros, where some places are reached by no tap. */
static cup_status clear_unreached(cup__call *call, const conv_call *c)
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

static cup_status run_rows(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    CUP_TRY(clear_unreached(call, &v.call));
    for (int i = 0; i < conv_classes(&v.call.side[0], v.call.back); i++)
        for (int j = 0; j < conv_classes(&v.call.side[1], v.call.back); j++)
            CUP_TRY(cup__conv_wgmma_class(call, &v, i, j));
    return CUP_OK;
}

cup_status cup__conv_wgmma(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, true, run_rows) : CUP_OK;
}

/* The sums as the kernel leaves them, by result, tap and channel; `one`: under a single tap. */
static cup_tensor *make_sums(cup__call *call, const conv_call *c, bool one)
{
    int64_t channels = one ? c->channels : divide_up(c->channels, CHUNK) * CHUNK;
    cup__shape shape = {call->out[0]->dtype, 4,
                        {c->results, c->side[0].taps, c->side[1].taps, channels}};
    return cup__tensor_make(call->c, &shape, "weight gradient");
}

static cup_status turn_sums(cup__call *call, cup_tensor *sums)
{
    cup_tensor *out = call->out[0];
    int64_t size[] = {sums->shape[0], out->shape[1], sums->shape[1], sums->shape[2]};
    cup__shape shape = {out->dtype, 4, {size[0], size[1], size[2], size[3]}};
    const int64_t *s = sums->stride;
    cup_tensor *turned =
        cup__tensor_view(sums, &shape, (int64_t[CUP_MAX_DIMS]){s[0], s[3], s[1], s[2]}, 0);
    if (turned)
        cup__copy_to(call->c, out, turned);
    cup_tensor_free(turned);
    return call->c->error.status;
}

cup_status cup__conv_wgmma_sums(cup__call *call, const cup__conv *v, void *to)
{
    const conv_call *c = &v->call;
    int multiprocessors = cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors;
    work w;
    memset(&w, 0, sizeof w);
    w.c = call->c;
    w.call = c;
    w.depth = true;
    for (int d = 0; d < 2; d++)
        w.line[d] = conv_line_of(&c->side[d], false, 0);
    fill_product(&w, v->dtype);
    fill_walk(&w);
    w.p.y = (cup__matrix){to, w.p.n, 1, {0}};
    if (cup__wgmma_choose_deep(&w.p, multiprocessors, &w.plan) <= 0)
        return no_plan(call);
    int64_t step = place_step(c->w_step, w.line[0].count, w.line[1].count);
    CUP_TRY(encode_matrix(&w, &w.a, c->w, c->results, w.p.k, step, CHUNK, CHUNK));
    CUP_TRY(encode_image(&w, &w.b, CHUNK));
    return launch(&w);
}

static cup_status run_depth(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    bool one = c->side[0].taps == 1 && c->side[1].taps == 1;
    if (one && (uintptr_t)call->out[0]->data % 16 == 0)
        return cup__conv_wgmma_sums(call, &v, call->out[0]->data);
    cup_tensor *sums = make_sums(call, c, one);
    if (sums && cup__conv_wgmma_sums(call, &v, sums->data) == CUP_OK)
        turn_sums(call, sums);
    cup_tensor_free(sums);
    return call->c->error.status;
}

cup_status cup__conv_weight_wgmma(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, true, run_depth) : CUP_OK;
}
