/* f32 products on the tensor cores of Hopper, which multiply numbers of 16 bits exactly. At the
 * highest precision an f32 number is the sum of two of f16 (22 bits and a sign), of which three
 * products matter, after rows of a and columns of b were scaled so that their largest elements fit.
 * Elements more than 2^27 below the largest of their row or column lose bits, at most 2^-36 of the
 * scaled numbers each. The kernels count them on the way. Where a sum is not large enough for that
 * to stay below 2^-23 of it, and where an element is more than 2^35 below, the product is done
 * again with three numbers of bf16, which have the range of f32, in six products. */
#include "ops/f32_split/f32_split.h"

#include "base/divide.h"
#include "cuda/loader.h"
#include "kernels/product_call.cuh"
#include "ops/f32_split/split_call.cuh"
#include "ops/matmul/product_state.h"
#include "tensor/tensor.h"

#define PIECE 8 /* elements to which lines of planes are padded: 16 bytes */
#define THREADS 256
#define COLUMNS 128
#define TURN_TILE 32
#define CHUNKS_MOST 16
#define CHUNK_LINES 64
#define PIECES 4 /* of 4 elements that a thread takes at once */
#define BLOCKS_MOST 1056

/* Threads for a line along k. */
static int group_of(int64_t length)
{
    int group = 32;
    while (group < THREADS && group * PIECES * 4 < length)
        group *= 2;
    return group;
}

/* A matrix as lines of neighbours; `mn` is the side that is not k. */
static bool take_side(const cup__product *p, const cup__matrix *m, int64_t mn, int64_t step_mn,
                      int64_t step_k, split_side *s)
{
    bool along_k = step_k == 1 || p->k == 1;
    int64_t batch = p->batch_ndim ? m->batch[0] : 0;
    *s = (split_side){
        .from = (const float *)(const void *)m->data,
        .along = along_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN,
        .length = along_k ? p->k : mn,
        .lines = along_k ? mn : p->k,
        .distance = along_k ? step_mn : step_k,
        .batch = batch ? p->batch_count : 1,
        .batch_distance = batch,
        .chunks = 1,
    };
    s->padded = divide_up(s->length, PIECE) * PIECE;
    s->whole = (uintptr_t)m->data % 16 == 0 && s->length % 4 == 0 &&
               (s->distance % 4 == 0 || s->lines == 1) && batch % 4 == 0;
    s->chunk_lines = s->lines;
    if (along_k) {
        int64_t blocks = divide_up(s->lines * s->batch, THREADS / group_of(s->length));
        s->blocks = blocks < BLOCKS_MOST ? blocks : BLOCKS_MOST;
        return true;
    }
    int64_t across = divide_up(s->padded, COLUMNS) * s->batch;
    int64_t chunks = divide_up(BLOCKS_MOST / 2, across), most = divide_up(s->lines, CHUNK_LINES);
    chunks = chunks > CHUNKS_MOST ? CHUNKS_MOST : chunks;
    s->chunk_lines = divide_up(s->lines, chunks < most ? chunks : most);
    s->chunks = (int)divide_up(s->lines, s->chunk_lines);
    s->blocks = across * s->chunks;
    return step_mn == 1 || mn == 1;
}

static bool take_both(const cup__product *p, split_call *call)
{
    return take_side(p, &p->a, p->m, p->a.row, p->a.column, &call->side[0]) &&
           take_side(p, &p->b, p->n, p->b.column, p->b.row, &call->side[1]);
}

const char *cup__product_split_refuses(cup_context *c, const cup__product *p)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    split_call call = {0};
    if (facts->major != 9)
        return "it is for Hopper (sm_90)";
    if (!cup__driver.cuTensorMapEncodeTiled || !cup__driver.cuLaunchKernelEx)
        return "the driver is too old for tensor maps";
    if (p->dtype != CUP_F32)
        return "it is for f32";
    if (cup__product_is_empty(p))
        return "there is nothing to sum";
    if (p->batch_ndim > 1)
        return "the batch has more than one dimension that does not merge";
    if (p->m > INT32_MAX / 8 || p->n > INT32_MAX / 8 || p->k > INT32_MAX / 8 ||
        p->m * p->batch_count > INT64_C(1) << 36 || p->n * p->batch_count > INT64_C(1) << 36)
        return "a side is too long";
    if (divide_up(p->m, COLUMNS) * divide_up(p->n, 64) * p->batch_count > INT32_MAX / 16)
        return "there are too many tiles";
    if (!take_both(p, &call))
        return "an input has no neighbours in memory";
    return NULL;
}

const char *cup__product_split_best_refuses(cup_context *c, const cup__product *p)
{
    const char *why = cup__product_split_refuses(c, p);
    cup__split_plan plan;
    if (why)
        return why;
    int count = cup__cuda_facts(cup__cuda_of(c->device))->multiprocessors;
    bool slower = cup__split_vendor_time(c, p) < cup__split_choose(c, p, count, &plan);
    return slower ? "making 16-bit numbers would take longer than it gains" : NULL;
}

/* Cuts both sides into planes; `most` first finds the largest elements of lines along m or n. */
static cup_status cut(cup_context *c, const char *entry, split_call *call, cup_dtype dtype,
                      int planes)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    int64_t length = 0;
    for (int i = 0; i < 2; i++)
        if (call->side[i].along == PRODUCT_ALONG_K)
            length = call->side[i].length;
    cup__knob knobs[] = {{"CUP_T", dtype},
                         {"PLANES", planes},
                         {"GROUP", group_of(length)},
                         {"LONG", length > THREADS * PIECES * 4}};
    cup__kernel *kernel = cup__kernel_get(gpu, "f32_split.cu", entry, knobs, 4);
    cup__grid grid = {.x = call->side[0].blocks + call->side[1].blocks,
                      .threads = THREADS,
                      .dependent = call->when};
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(*call)) : c->error.status;
}

/* A matrix as the copies of the product read it. */
static void describe(const split_side *s, void *data, int64_t size, int64_t distance,
                     cup__split_planes *to, int i)
{
    to->data[i] = data;
    to->length[i] = s->length;
    to->lines[i] = s->lines;
    to->batch[i] = s->batch;
    to->along[i] = s->along;
    to->line_bytes[i] = distance * size;
    to->matrix_bytes[i] = s->lines * distance * size;
}

/* Memory for the planes of one side, and for its scales when there are any. */
static bool prepare_side(cup_context *c, split_side *s, int planes, bool scaled,
                         cup__split_planes *to, int i, cup_tensor *made[2])
{
    cup__shape shape = {
        .dtype = CUP_BF16, .ndim = 4, .size = {planes, s->batch, s->lines, s->padded}};
    bool along_k = s->along == PRODUCT_ALONG_K;
    int64_t each = s->batch * (along_k ? s->lines : s->length), most = along_k ? 0 : s->chunks;
    cup__shape found = {.dtype = CUP_I32, .ndim = 1, .size = {each * (1 + most)}};
    made[0] = cup__tensor_make(c, &shape, "parts of f32");
    made[1] = scaled && made[0] ? cup__tensor_make(c, &found, "scales of f32") : NULL;
    if (!made[0] || (scaled && !made[1]))
        return false;
    s->to = made[0]->data;
    if (scaled) {
        to->exponents[i] = s->exponents = made[1]->data;
        s->most = (float *)made[1]->data + each;
    }
    describe(s, s->to, 2, s->padded, to, i);
    return true;
}

/* Cuts and multiplies by one plan. */
static cup_status attempt(cup_context *c, const cup__product *p, const cup__split_plan *plan,
                          split_call *call, const cup__split_planes *planes)
{
    bool along_mn =
        call->side[0].along != PRODUCT_ALONG_K || call->side[1].along != PRODUCT_ALONG_K;
    if (plan->dtype == CUP_F16 && along_mn)
        CUP_TRY(cut(c, "matmul_split_most", call, plan->dtype, plan->planes));
    CUP_TRY(cut(c, "matmul_split", call, plan->dtype, plan->planes));
    return cup__split_multiply(c, p, plan, planes);
}

static cup_status run(cup_context *c, const cup__product *p, const cup__split_plan *plan,
                      split_call *call, cup__split_planes *planes)
{
    if (plan->planes == 1)
        return attempt(c, p, plan, call, planes);
    cup__product_state *state = cup__product_state_of(c);
    if (!state)
        return c->error.status;
    call->words = planes->words = state->split;
    CUP_TRY(attempt(c, p, plan, call, planes));
    cup__split_plan other = *plan;
    other.dtype = CUP_BF16;
    other.planes = 3;
    call->when = 1;
    planes->exponents[0] = planes->exponents[1] = NULL;
    return attempt(c, p, &other, call, planes);
}

/* Lays a matrix along k, or only describes it when it lies so and copies can read it. */
static cup_status turn_side(cup_context *c, split_side *s, cup__split_planes *to, int i,
                            cup_tensor **made)
{
    if (s->along == PRODUCT_ALONG_K && s->whole) {
        int64_t distance = s->lines == 1 ? divide_up(s->length, 4) * 4 : s->distance;
        describe(s, (void *)(uintptr_t)s->from, sizeof(float), distance, to, i);
        to->matrix_bytes[i] = (s->batch > 1 ? s->batch_distance : s->lines * distance) * 4;
        return CUP_OK;
    }
    split_side turned = *s;
    int64_t k = s->along == PRODUCT_ALONG_K ? s->length : s->lines;
    turned.along = PRODUCT_ALONG_K;
    turned.lines = s->along == PRODUCT_ALONG_K ? s->lines : s->length;
    turned.length = k;
    cup__shape shape = {.dtype = CUP_F32,
                        .ndim = 3,
                        .size = {s->batch, turned.lines, divide_up(k, 4) * 4}};
    *made = cup__tensor_make(c, &shape, "matrix laid along k");
    cup__kernel *kernel = cup__kernel_get(cup__cuda_of(c->device), "f32_split_transpose.cu",
                                          "matmul_turn", NULL, 0);
    if (!*made || !kernel)
        return c->error.status;
    describe(&turned, (*made)->data, sizeof(float), shape.size[2], to, i);
    float *data = (*made)->data;
    cup__grid grid = {.x = divide_up(s->length, TURN_TILE) * divide_up(s->lines, TURN_TILE) *
                           s->batch,
                      .threads = THREADS};
    return cup__launch(cup__cuda_of(c->device), kernel, grid, CUP__ARG(*s), CUP__ARG(data),
                       CUP__ARG(shape.size[2]));
}

cup_status cup__product_split(cup__call *call, const cup__product *p)
{
    cup_context *c = call->c;
    split_call argument = {0};
    cup__split_planes planes = {.words = NULL};
    cup__split_plan plan;
    int count = cup__cuda_facts(cup__cuda_of(c->device))->multiprocessors;
    cup__split_choose(c, p, count, &plan);
    take_both(p, &argument);
    cup_tensor *made[4] = {NULL};
    cup_status status = CUP_OK;
    for (int i = 0; i < 2 && status == CUP_OK; i++) {
        if (plan.dtype == CUP_F32)
            status = turn_side(c, &argument.side[i], &planes, i, &made[2 * i]);
        else if (!prepare_side(c, &argument.side[i], plan.planes == 2 ? 3 : plan.planes,
                               plan.dtype == CUP_F16, &planes, i, &made[2 * i]))
            status = c->error.status;
    }
    if (status == CUP_OK)
        status = plan.dtype == CUP_F32 ? cup__split_multiply(c, p, &plan, &planes)
                                       : run(c, p, &plan, &argument, &planes);
    for (int i = 0; i < 4; i++)
        cup_tensor_free(made[i]);
    return status;
}
