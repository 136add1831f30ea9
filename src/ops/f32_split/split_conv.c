/* The host side of f32_split_wgmma.cu for convolutions, forward and by the image. Three launches:
 * what the largest elements are, planes of f16, three products; and two that end at once unless
 * elements were too small beside the largest of their tensor: planes of bf16, six products. */
#include "ops/f32_split/split_conv.h"

#include <math.h>
#include <string.h>

#include "base/divide.h"
#include "cupola/ops.h"
#include "dispatch/tensor_map.h"
#include "ops/f32_split/split_call.cuh"
#include "tensor/context.h"

#define MOST_INPUTS 5
#define TILE_M 128
/* Products of a call from which on it pays to cut its tensors. */
#define WORTHWHILE ((int64_t)1 << 28)

const char *cup__split_conv_refuses(const cup__call *call)
{
    const char *why = cup__conv_f32_refuses(call);
    return why || call->c->precision == CUP__HIGHEST
               ? why
               : "it is for f32 whose products must not be rounded (CUP_PRECISION=highest)";
}

const char *cup__split_conv_best_refuses(const cup__call *call)
{
    const char *why = cup__split_conv_refuses(call);
    if (why)
        return why;
    const cup__conv v = cup__conv_of(call);
    return cup__conv_products(&v.call) < WORTHWHILE ? "cutting would take longer than it gains"
                                                    : NULL;
}

/* The first plane as the tensor that was cut. */
static cup_tensor *first_plane(cup_tensor *planes, const cup_tensor *from)
{
    const int64_t *n = from->shape;
    cup__shape shape = {CUP_F16, 4, {n[0], n[1], n[2], n[3]}};
    const int64_t step[CUP_MAX_DIMS] = {n[1] * n[2] * n[3], 1, n[3] * n[1], n[1]};
    return cup__tensor_view(planes, &shape, step, 0);
}

cup_status cup__split_conv_begin(cup__split_conv_work *s, cup__call *call)
{
    cup_context *c = call->c;
    cup__rounding all[2] = {{NULL}};
    cup_tensor *in[MOST_INPUTS];
    cup__call shadow = *call;
    *s = (cup__split_conv_work){.call = call};
    for (int i = 0; i < 2; i++)
        if (!(all[i].x = cup_permute(c, call->in[i], (int64_t[]){0, 2, 3, 1}, 4)))
            return c->error.status;
    cup_tensor *words =
        cup__tensor_make(c, &(cup__shape){CUP_I32, 1, {SPLIT_WORDS + 2}}, "words of a product");
    s->blocks = words ? cup__rounding_begin(c, all, 2, CUP__SPLIT_PLANES_MOST, &s->cut) : 0;
    if (!s->blocks)
        return c->error.status;
    s->cut.words = words->data;
    s->cut.word_count = SPLIT_WORDS;
    s->cut.exponents = (int *)words->data + SPLIT_WORDS;
    memcpy(in, call->in, (size_t)call->in_count * sizeof *in);
    for (int i = 0; i < 2; i++) {
        s->elements[i] = call->in[i]->count;
        if (!(in[i] = first_plane(all[i].half, call->in[i])))
            return c->error.status;
    }
    shadow.in = in;
    s->v = cup__conv_of(&shadow);
    return cup__rounding_launch(c, "round_off.cu", "largest_of_all", NULL, 0, &s->cut, s->blocks);
}

static cup_dtype dtype_of(int planes)
{
    return planes == 2 ? CUP_F16 : CUP_BF16;
}

cup_status cup__split_conv_cut(cup__split_conv_work *s, int planes)
{
    const cup__knob knobs[] = {{"CUP_T", dtype_of(planes)}, {"PLANES", planes}};
    s->planes = planes;
    s->cut.when = planes > 2;
    return cup__rounding_launch(s->call->c, "f32_split_whole.cu", "f32_split_whole", knobs, 2,
                                &s->cut, s->blocks);
}

/* The image whose planes are more images, TILE_M places of it at a time or a chunk of k. */
static cup_status encode_image(const cup__split_conv_work *s, cup__conv_work *w, int image)
{
    const conv_call *own = w->call;
    conv_call all = *own;
    all.images *= s->planes;
    w->call = &all;
    cup_status status = cup__conv_encode_image(w, image ? &w->b : &w->a,
                                               image ? CUP__CONV_CHUNK : TILE_M, CUP__WGMMA_LINE);
    w->call = own;
    return status;
}

static void fill_argument(cup__conv_work *w, const cup__split_plan *plan, int multiprocessors)
{
    wgmma_call *to = &w->argument.all;
    int64_t k_tiles = divide_up(w->p.k, CUP__CONV_CHUNK), part = divide_up(k_tiles, plan->parts);
    to->bias = w->p.bias;
    to->y = w->p.y.data;
    to->y_row = w->p.y.row;
    to->factor = 1;
    to->m = (int)w->p.m;
    to->n = (int)w->p.n;
    to->k_tiles = (int)k_tiles;
    to->tiles_m = (int)divide_up(w->p.m, TILE_M);
    to->tiles_n = (int)divide_up(w->p.n, plan->tile_n);
    to->parts = (int)divide_up(k_tiles, part);
    to->part_tiles = (int)part;
    to->units = to->tiles_m * to->tiles_n * to->parts;
    to->group = (int)(sqrt((double)multiprocessors * plan->tile_n / TILE_M) + 0.5);
}

cup_status cup__split_conv_launch(const cup__split_conv_work *s, cup__conv_work *w,
                                  const cup__split_plan *chosen, int image)
{
    cup_context *c = s->call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    int multiprocessors = cup__cuda_facts(gpu)->multiprocessors;
    cup__split_plan plan = *chosen;
    plan.planes = s->planes;
    plan.dtype = w->p.dtype = dtype_of(s->planes);
    CUP_TRY(encode_image(s, w, image));
    fill_argument(w, &plan, multiprocessors);
    bool parts = !w->matrices && w->argument.all.parts > 1;
    if (parts)
        CUP_TRY(cup__conv_parts_memory(w));
    const split_product extra = {.a_exponents = s->cut.exponents,
                                 .b_exponents = s->cut.exponents + 1,
                                 .a_matrices = s->v.call.images,
                                 .b_matrices = s->v.call.images,
                                 .words = s->cut.words};
    bool along_k = !w->depth && !w->call->back;
    const cup__knob knobs[] = {
        {"CONV", w->depth ? WGMMA_CONV_DEPTH : WGMMA_CONV_ROWS},
        {"CUP_T", plan.dtype},
        {"PLANES", plan.planes},
        {"TILE_N", plan.tile_n},
        {"STAGES", cup__split_stages(&w->p, &plan)},
        {"A_ALONG", w->depth ? PRODUCT_ALONG_MN : PRODUCT_ALONG_K},
        {"B_ALONG", along_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"BATCH", w->matrices},
        {"HAS_BIAS", w->p.bias != NULL},
        {"PARTS", parts},
        {"SPREAD", w->spread},
        {"K_STEPS", cup__conv_steps(w)},
    };
    cup__kernel *kernel = cup__kernel_get(gpu, "f32_split_wgmma.cu", "conv_split_sm90", knobs,
                                          (int)(sizeof knobs / sizeof *knobs));
    if (!kernel)
        return c->error.status;
    int64_t units = w->argument.all.units;
    cup__grid grid = {.x = units < multiprocessors ? units : multiprocessors,
                      .threads = 128 * 3,
                      .shared = cup__split_shared(&w->p, &plan),
                      .dependent = true,
                      .waits = parts};
    return cup__launch(gpu, kernel, grid, CUP__ARG(w->a), CUP__ARG(w->b), CUP__ARG(w->y),
                       CUP__ARG(w->argument), CUP__ARG(extra));
}

/* The weight as a matrix for each tap, whose lines are its channels, in planes. */
static cup_status encode_weight(const cup__split_conv_work *s, cup__conv_work *w, int tile_n)
{
    const conv_call *c = w->call;
    int64_t size = 2, taps = (int64_t)c->side[0].taps * c->side[1].taps;
    const cup__boxes boxes = {
        .data = c->w,
        .dtype = CUP_F16,
        .ndim = 4,
        .size = {c->back ? c->results : c->channels, c->back ? c->channels : c->results, taps,
                 s->planes},
        .stride = {0, c->w_step[c->back] * size, c->w_step[c->side[1].taps > 1 ? 3 : 2] * size,
                   s->elements[1] * size},
        .box = {CUP__CONV_CHUNK, c->back ? CUP__CONV_CHUNK : tile_n, 1, 1}};
    return cup__tensor_map_make(cup__cuda_of(w->c->device), &boxes, &w->b);
}

static cup_status run_class(const cup__split_conv_work *s, const cup__conv *v, int high, int wide)
{
    cup__conv_work w;
    cup__split_plan plan;
    if (!cup__conv_begin_class(&w, s->call, v, high, wide))
        return CUP_OK;
    int multiprocessors = cup__conv_multiprocessors(s->call);
    cup__split_tiles(&w.p, multiprocessors, CUP_F16, 2, &plan);
    w.plan.tile_n = plan.tile_n;
    CUP_TRY(encode_weight(s, &w, plan.tile_n));
    CUP_TRY(cup__conv_encode_results(&w));
    return cup__split_conv_launch(s, &w, &plan, 0);
}

static cup_status run_all(const cup__split_conv_work *s)
{
    const conv_call *c = &s->v.call;
    int high = conv_classes(&c->side[0], c->back), wide = conv_classes(&c->side[1], c->back);
    for (int group = 0; group < c->groups; group++) {
        const cup__conv one = cup__conv_group(&s->v, group);
        for (int i = high * wide - 1; i >= 0; i--)
            CUP_TRY(run_class(s, &one, i / wide, i % wide));
    }
    return CUP_OK;
}

static cup_status run_rows(cup__call *call)
{
    cup__split_conv_work s;
    CUP_TRY(cup__split_conv_begin(&s, call));
    CUP_TRY(cup__conv_clear_unreached(call, &s.v.call));
    for (int planes = 2; planes <= CUP__SPLIT_PLANES_MOST; planes++) {
        CUP_TRY(cup__split_conv_cut(&s, planes));
        CUP_TRY(run_all(&s));
    }
    return CUP_OK;
}

cup_status cup__split_conv(cup__call *call)
{
    return cup__conv_run_scoped(call, true, run_rows);
}
