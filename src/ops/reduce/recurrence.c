/* Recurrences of first order, of which running products and filters are cases. */
#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "dispatch/loop.h"
#include "ops/reduce/recurrence_call.cuh"

#define GRAIN 16384 /* elements that are worth a thread */

static cup_status infer(cup__call *call)
{
    const cup__recurrence_attributes *a = call->attributes;
    int axis;
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    CUP_TRY(cup__need_axis(call, 0, a->axis, &axis));
    cup__shape one = cup__shape_of(call->in[0]), other = cup__shape_of(call->in[1]);
    if (!cup__shape_equal(&one, &other))
        return cup__call_fail(call, CUP_SHAPE, "a and x must have one shape");
    call->result[0] = one;
    return CUP_OK;
}

typedef struct lines {
    const cup_tensor *a, *x;
    cup_tensor *y;
    int64_t outer, length, inner;
    bool reverse;
} lines;

static lines lines_of(const cup__call *call)
{
    const cup__recurrence_attributes *a = call->attributes;
    lines l = {call->in[0], call->in[1], call->out[0], 1, 1, 1, a->reverse};
    int axis = a->axis < 0 ? a->axis + l.y->ndim : a->axis;
    for (int i = 0; i < l.y->ndim; i++)
        *(i < axis ? &l.outer : i == axis ? &l.length : &l.inner) *= l.y->shape[i];
    return l;
}

static cup_status specification(cup__call *call)
{
    lines l = lines_of(call);
    for (int64_t line = 0; line < l.outer * l.inner; line++) {
        double y = 0;
        for (int64_t i = 0; i < l.length; i++) {
            int64_t at = l.reverse ? l.length - 1 - i : i;
            int64_t index = (line / l.inner * l.length + at) * l.inner + line % l.inner;
            y = y * cup__load(l.a, cup__offset_of(l.a, index)) +
                cup__load(l.x, cup__offset_of(l.x, index));
            cup__store(l.y, index, y);
        }
    }
    return CUP_OK;
}

typedef struct job {
    lines l;
    bool failed;
} job;

/* A slab of one outer index at a time: `inner` columns, in double. */
static void run_outer(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const lines *l = &j->l;
    int64_t size = cup_dtype_size(l->x->dtype), inner = l->inner;
    double *sum = cup__malloc((size_t)inner * (sizeof(double) + 2 * sizeof(float)));
    float *a = sum ? (float *)(void *)(sum + inner) : NULL, *x = sum ? a + inner : NULL;
    if (!sum) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t o = begin; o < end; o++) {
        for (int64_t k = 0; k < inner; k++)
            sum[k] = 0;
        for (int64_t i = 0; i < l->length; i++) {
            int64_t at = l->reverse ? l->length - 1 - i : i;
            int64_t offset = (o * l->length + at) * inner * size;
            cup__load_f32(a, (const char *)l->a->data + offset, l->a->dtype, inner);
            cup__load_f32(x, (const char *)l->x->data + offset, l->x->dtype, inner);
            for (int64_t k = 0; k < inner; k++) {
                sum[k] = sum[k] * (double)a[k] + (double)x[k];
                x[k] = (float)sum[k];
            }
            cup__store_f32((char *)l->y->data + offset, x, l->y->dtype, inner);
        }
    }
    cup__free(sum);
}

static cup_status run(cup__call *call)
{
    job j = {.l = lines_of(call)};
    cup__parallel_for(j.l.outer, GRAIN / (j.l.length * j.l.inner + 1) + 1, run_outer, &j);
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    lines l = lines_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    bool rows = l.inner == 1;
    const recurrence_call argument = {l.a->data, l.x->data, l.y->data, l.outer, l.length, l.inner};
    cup__knob knobs[] = {{"CUP_T", l.x->dtype}, {"REVERSE", l.reverse}};
    cup__kernel *kernel = cup__kernel_get(
        gpu, "recurrence.cu", rows ? "recurrence_rows" : "recurrence_columns", knobs, 2);
    int64_t threads = l.outer * (rows ? 32 : l.inner);
    cup__grid grid = {.x = (threads + RECURRENCE_THREADS - 1) / RECURRENCE_THREADS,
                      .threads = RECURRENCE_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

/* Each element in the place of the one behind it, or with `back` before it; 0 at the end. */
static cup_tensor *moved(cup_context *c, cup_tensor *t, int axis, bool back)
{
    int64_t start[CUP_MAX_DIMS] = {0}, size[CUP_MAX_DIMS];
    int64_t before[CUP_MAX_DIMS] = {0}, after[CUP_MAX_DIMS] = {0};
    for (int d = 0; d < t->ndim; d++)
        size[d] = t->shape[d] - (d == axis);
    start[axis] = back;
    (back ? after : before)[axis] = 1;
    return cup_pad(c, cup_slice(c, t, start, t->ndim, size, t->ndim), before, t->ndim, after,
                   t->ndim, NULL);
}

/* What comes to y[i] goes on to y[i - 1], a[i] times. */
static cup_status gradient(cup__grad *g)
{
    const cup__recurrence_attributes *a = g->attributes;
    cup_context *c = g->c;
    int axis = a->axis < 0 ? a->axis + g->in_shape[0].ndim : a->axis;
    if (g->in_shape[0].size[axis] == 0)
        return cup__no_slopes(g);
    cup_tensor *dx = cup_recurrence(c, moved(c, g->in[0], axis, !a->reverse), g->d_out[0], axis,
                                    !a->reverse);
    if (g->wanted[0])
        g->d_in[0] = cup_mul(c, dx, moved(c, g->out[0], axis, a->reverse));
    g->d_in[1] = dx;
    return c->error.status;
}

static const cup__impl impls[] = {
    {.name = "lines", .place = CUP__CPU, CUP__THRESHOLDS(16, 1024),
     .refuses = cup__refuses_f64, .run = run},
    {.name = "lines", .place = CUP__CUDA, CUP__THRESHOLDS(8, 128), .run = run_cuda},
    {0}};
#define ALONG(axis, reverse) &(const cup__recurrence_attributes){axis, reverse}
static const cup__sample samples[] = {
    {"7 7", ALONG(0, false)},           {"3x5 3x5", ALONG(1, true)},
    {"4x3x5 4x3x5", ALONG(1, false)},   {"0x5 0x5", ALONG(0, true)},
    {"1x1 1x1", ALONG(-1, false)},      {"33x40 33x40", ALONG(0, true)},
    {"9x1025 9x1025", ALONG(-1, false)}, {"5x512 5x512", ALONG(-1, true)},
    {"300x2 300x2", ALONG(0, false)},   {"2x100x3 2x100x3", ALONG(1, true)},
    {"16411 16411", ALONG(0, false)},   {NULL, NULL}};
static const cup__sample bench[] = {{"32768x1024 32768x1024", ALONG(1, false)},
                                    {"64x1024x512 64x1024x512", ALONG(1, false)},
                                    {NULL, NULL}};

const cup__op cup__op_recurrence = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_OUT(0),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-1, 1}, {-2, 2}},
    .tolerance = 16, /* sums of many elements, which may cancel */
};
