/* f32 products on the tensor cores of Hopper, which multiply numbers of 16 bits exactly. At the
 * highest precision an f32 number is the sum of two of f16 (22 bits and a sign), of which three
 * products matter, after rows of a and columns of b were scaled so that their largest elements fit.
 * Where an element is more than 2^35 below the largest of its row or column too little of it would
 * be left; the kernels find that out on the way, and then the product is done again with three
 * numbers of bf16, which have the range of f32, in six products. */
#include "ops/product_split.h"

#include "cuda/loader.h"
#include "kernels/product_call.cuh"
#include "kernels/split_call.cuh"
#include "ops/product_state.h"
#include "tensor/tensor.h"

#define PIECE 8 /* elements to which lines of planes are padded: 16 bytes */
#define THREADS 256
#define COLUMNS 128
#define CHUNKS_MOST 16
#define CHUNK_LINES 64
#define PIECES 4 /* of 4 elements that a thread takes at once */
#define BLOCKS_MOST 1056

static int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

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
    if (p->k == 0 || p->m == 0 || p->n == 0 || p->batch_count == 0)
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
    cup__kernel *kernel = cup__kernel_get(gpu, "matmul_split.cu", entry, knobs, 4);
    cup__grid grid = {.x = call->side[0].blocks + call->side[1].blocks,
                      .threads = THREADS,
                      .dependent = call->when};
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(*call)) : c->error.status;
}

static cup_tensor *ints(cup_context *c, int64_t count, const char *tag)
{
    cup__shape shape = {.dtype = CUP_I32, .ndim = 1, .size = {count}};
    return cup__tensor_make(c, &shape, tag);
}

/* Memory for the planes of one side, and for its scales when there are any. */
static cup_tensor *prepare_side(cup_context *c, split_side *s, int planes, bool scaled,
                                cup__split_planes *to, int i)
{
    cup__shape shape = {
        .dtype = CUP_BF16, .ndim = 4, .size = {planes, s->batch, s->lines, s->padded}};
    bool along_k = s->along == PRODUCT_ALONG_K;
    int64_t each = s->batch * (along_k ? s->lines : s->length), most = along_k ? 0 : s->chunks;
    cup_tensor *found = scaled ? ints(c, each * (1 + most), "scales of f32") : NULL;
    to->planes[i] = scaled && !found ? NULL : cup__tensor_make(c, &shape, "parts of f32");
    to->exponents[i] = found;
    to->length[i] = s->length;
    to->lines[i] = s->lines;
    to->padded[i] = s->padded;
    to->batch[i] = s->batch;
    to->along[i] = s->along;
    s->to = to->planes[i] ? to->planes[i]->data : NULL;
    s->exponents = found ? found->data : NULL;
    s->most = found ? (float *)found->data + each : NULL;
    return to->planes[i];
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
    call->wide = planes->wide = state->wide;
    CUP_TRY(attempt(c, p, plan, call, planes));
    cup__split_plan other = *plan;
    other.dtype = CUP_BF16;
    other.planes = 3;
    call->when = 1;
    planes->exponents[0] = planes->exponents[1] = NULL;
    return attempt(c, p, &other, call, planes);
}

cup_status cup__product_split(cup__call *call, const cup__product *p)
{
    cup_context *c = call->c;
    split_call argument = {0};
    cup__split_planes planes = {.wide = NULL};
    cup__split_plan plan;
    int count = cup__cuda_facts(cup__cuda_of(c->device))->multiprocessors;
    cup__split_choose(c, p, count, &plan);
    take_both(p, &argument);
    cup_tensor *all[4] = {NULL};
    bool good = true;
    for (int i = 0; i < 2; i++) {
        good = good && prepare_side(c, &argument.side[i], plan.planes == 2 ? 3 : plan.planes,
                                    plan.dtype == CUP_F16, &planes, i);
        all[2 * i] = planes.planes[i];
        all[2 * i + 1] = planes.exponents[i];
    }
    cup_status status = good ? run(c, p, &plan, &argument, &planes) : c->error.status;
    for (int i = 0; i < 4; i++)
        cup_tensor_free(all[i]);
    return status;
}

cup_status cup__product_split_best(cup__call *call, const cup__product *p)
{
    return cup__product_split(call, p);
}
