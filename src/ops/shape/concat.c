#include "cuda/cuda.h"
#include "ops/shape/concat_call.cuh"
#include "dispatch/attributes.h"
#include "ops/index/gather.h"
#include "ops/shape/copy.h"

#define MANY_WORDS (1 << 18) /* from which a thread moves several */

static cup_status infer(cup__call *call)
{
    const cup__concat_attributes *a = call->attributes;
    cup__shape *shape = &call->result[0];
    int axis;
    CUP_TRY(cup__need_axis(call, 0, a->axis, &axis));
    *shape = cup__shape_of(call->in[0]);
    for (int k = 1; k < call->in_count; k++) {
        const cup_tensor *in = call->in[k];
        CUP_TRY(cup__need_same_dtype(call, 0, k));
        CUP_TRY(cup__need_ndim(call, k, shape->ndim, shape->ndim));
        for (int d = 0; d < shape->ndim; d++)
            if (d != axis && in->shape[d] != shape->size[d])
                return cup__call_fail(call, CUP_SHAPE,
                                      "input %d differs in dimension %d; only sizes along axis %d "
                                      "may differ",
                                      k + 1, d, axis);
        shape->size[axis] += in->shape[axis];
    }
    return CUP_OK;
}

static int axis_of(const cup__call *call)
{
    const cup__concat_attributes *a = call->attributes;
    return a->axis < 0 ? a->axis + call->out[0]->ndim : a->axis;
}

static cup_status specification(cup__call *call)
{
    cup_tensor *out = call->out[0];
    int axis = axis_of(call);
    int64_t before = 0;
    for (int k = 0; k < call->in_count; k++) {
        const cup_tensor *in = call->in[k];
        for (int64_t i = 0; i < in->count; i++) {
            int64_t rest = i, offset = before * out->stride[axis];
            for (int d = in->ndim; d-- > 0; rest /= in->shape[d])
                offset += rest % in->shape[d] * out->stride[d];
            cup__move_element(out, offset, in, cup__offset_of(in, i));
        }
        before += in->shape[axis];
    }
    return CUP_OK;
}

static cup_status copy_part(cup__call *call, cup_tensor *in, int64_t before)
{
    cup_tensor *out = call->out[0];
    cup__shape shape = cup__shape_of(in);
    cup_tensor *place =
        cup__tensor_view(out, &shape, out->stride, before * out->stride[axis_of(call)]);
    if (place)
        cup__copy_to(call->c, place, in);
    cup_tensor_free(place);
    return call->c->error.status;
}

/* Each input is copied into its place in the result. */
static cup_status run(cup__call *call)
{
    int axis = axis_of(call);
    int64_t before = 0;
    for (int k = 0; k < call->in_count; k++) {
        cup_tensor *in = call->in[k];
        if (in->count)
            CUP_TRY(copy_part(call, in, before));
        before += in->shape[axis];
    }
    return CUP_OK;
}

/* An input as rows of `length` neighbours, `step` apart, and the most of these that one access of
 * 16 bytes may have on both sides; 0 when it has no such rows. */
typedef struct part {
    int64_t length, rows, step, before;
    int vec;
} part;

static bool find_rows(const cup_tensor *in, int axis, part *p)
{
    p->length = p->rows = 1;
    p->step = 0;
    for (int d = in->ndim; d-- > axis; p->length *= in->shape[d])
        if (in->shape[d] != 1 && in->stride[d] != p->length)
            return false;
    for (int d = axis; d-- > 0; p->rows *= in->shape[d]) {
        if (in->shape[d] == 1)
            continue;
        if (p->rows > 1 && in->stride[d] != p->step * p->rows)
            return false;
        p->step = p->rows > 1 ? p->step : in->stride[d];
    }
    return true;
}

static part part_of(const cup__call *call, int k, int64_t before)
{
    const cup_tensor *in = call->in[k], *out = call->out[0];
    int axis = axis_of(call), size = (int)cup_dtype_size(in->dtype);
    part p = {.vec = 0};
    if (in->count == 0 || !find_rows(in, axis, &p))
        return p;
    int64_t inner = p.length / in->shape[axis], y_row = out->shape[axis] * inner;
    p.before = before * inner;
    int64_t steps = p.length | p.before | (p.rows > 1 ? p.step | y_row : 0);
    uintptr_t address = (uintptr_t)in->data | (uintptr_t)out->data;
    int vec = 16 / size;
    while (vec > 1 && (steps % vec || address % (uintptr_t)(vec * size)))
        vec /= 2;
    p.vec = in->count / vec < INT32_MAX / 2 ? vec : 0;
    return p;
}

static cup_status launch(cup__call *call, concat_call *c, int vec, int64_t words, int64_t y_row)
{
    int unroll = words > MANY_WORDS ? 4 : 1;
    int64_t block = (int64_t)CONCAT_THREADS * unroll, blocks = 0;
    for (int i = 0; i < c->parts; i++) {
        c->part[i].first_block = (unsigned)blocks;
        blocks += (c->part[i].count + block - 1) / block;
    }
    c->y = call->out[0]->data;
    c->y_row = y_row / vec;
    cup__knob knobs[] = {
        {"SIZE", cup_dtype_size(call->out[0]->dtype)}, {"VEC", vec}, {"UNROLL", unroll}};
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "concat.cu", "concat_fwd", knobs, 3);
    cup__grid grid = {.x = blocks, .threads = CONCAT_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(*c));
}

/* All parts that can be moved in words of `vec` elements, as many as a launch takes at once; with
 * 0 those that have no rows. */
static cup_status run_width(cup__call *call, int vec)
{
    concat_call c = {.parts = 0};
    int axis = axis_of(call);
    int64_t before = 0, words = 0, y_row = 1;
    for (int d = axis; d < call->out[0]->ndim; d++)
        y_row *= call->out[0]->shape[d];
    for (int k = 0; k < call->in_count; before += call->in[k++]->shape[axis]) {
        cup_tensor *in = call->in[k];
        part p = part_of(call, k, before);
        if (in->count == 0 || p.vec != vec)
            continue;
        if (vec == 0) {
            CUP_TRY(copy_part(call, in, before));
            continue;
        }
        if (c.parts == CONCAT_PARTS || words > INT32_MAX) {
            CUP_TRY(launch(call, &c, vec, words, y_row));
            c.parts = 0;
            words = 0;
        }
        words += in->count / vec;
        c.part[c.parts++] = (concat_part){.x = in->data,
                                          .x_row = p.step / vec,
                                          .before = p.before / vec,
                                          .count = (unsigned)(in->count / vec),
                                          .length = divisor_of(p.length / vec)};
    }
    return c.parts ? launch(call, &c, vec, words, y_row) : CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    for (int vec = 16; vec > 0; vec /= 2)
        CUP_TRY(run_width(call, vec));
    return run_width(call, 0);
}

static cup_status gradient(cup__grad *g)
{
    const cup__concat_attributes *a = g->attributes;
    int ndim = g->in_shape[0].ndim, axis = a->axis < 0 ? a->axis + ndim : a->axis;
    int64_t starts[CUP_MAX_DIMS] = {0};
    for (int k = 0; k < g->in_count; k++) {
        const int64_t *sizes = g->in_shape[k].size;
        if (g->wanted[k])
            g->d_in[k] = cup_slice(g->c, g->d_out[0], starts, ndim, sizes, ndim);
        starts[axis] += sizes[axis];
    }
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "parts", .place = CUP__CUDA, CUP__THRESHOLDS(8, 16), .strided = true, .run = run_cuda},
    {.name = "copies", .place = CUP__CPU, .strided = true, .run = run},
    {0},
};
#define AXIS(i) &(const cup__concat_attributes){i}
static const cup__sample samples[] = {
    {"7 4", AXIS(0)}, {"3x5 3x2 3x1", AXIS(1)}, {"2x3x4 2x1x4", AXIS(-2)},
    {"5x3", AXIS(0)}, {"0x5 2x5 0x5", AXIS(0)}, {"64x100 64x28", AXIS(1)},
    {"3x2x8 3x5x8 3x1x8", AXIS(1)}, {"3x4x6 3x4x2 3x4x8", AXIS(2)},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"32768x768 32768x768 32768x768", AXIS(1)}, {"8192x4096 8192x4096", AXIS(0)}, {NULL, NULL}};

static uint32_t by_texts(const cup__op *op, cup_tensor *const *in, int in_count,
                         const void *attributes)
{
    const cup__concat_attributes *a = attributes;
    (void)op;
    return a->axis == 0 || a->axis == -in[0]->ndim ? 0 : (1u << in_count) - 1;
}

const cup__op cup__op_concat = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .promotes = ~0u,
    .impls = impls,
    .by_texts = by_texts,
    .samples = samples,
    .bench = bench,
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX, CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX,
                  CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX},
};
