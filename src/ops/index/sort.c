#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/index/order.h"

#define SHORT 2048   /* as in sort.cu */
#define ROW_LEAST 16 /* rows longer than this have a warp each */
#define THREADS 256
#define DIGIT_BITS 8
#define DIGITS 256

static cup_status infer(cup__call *call)
{
    int axis;
    CUP_TRY(cup__need_ordered(call, 0));
    CUP_TRY(cup__need_axis(call, 0, ((const cup__sort_attributes *)call->attributes)->axis, &axis));
    call->result[0] = call->result[1] = cup__shape_of(call->in[0]);
    call->result[1].dtype = CUP_I64;
    return CUP_OK;
}

static int axis_of(const cup__call *call)
{
    int axis = ((const cup__sort_attributes *)call->attributes)->axis;
    return axis < 0 ? axis + call->in[0]->ndim : axis;
}

static bool is_descending(const cup__call *call)
{
    return ((const cup__sort_attributes *)call->attributes)->descending;
}

static cup_status specification(cup__call *call)
{
    int axis = axis_of(call);
    return cup__order_specification(call, axis, call->in[0]->shape[axis], is_descending(call));
}

typedef struct sorting {
    cup__cuda *gpu;
    cup__knob knobs[2];
    cup_tensor *x, *values, *indices;
    int64_t rows, length;
    cup_tensor *key[2], *place[2], *counts, *totals;
} sorting;

static cup__kernel *kernel_of(const sorting *s, const char *entry)
{
    return cup__kernel_get(s->gpu, "sort.cu", entry, s->knobs, 2);
}

static cup_status sort_short(const sorting *s)
{
    int32_t length = (int32_t)s->length, padded = 2;
    while (padded < length)
        padded *= 2;
    int32_t each = SHORT / 2 / padded;
    if (each < 1)
        each = 1;
    cup__grid grid = {.x = (s->rows + each - 1) / each, .threads = THREADS};
    return cup__launch(s->gpu, kernel_of(s, "sort_short"), grid, CUP__ARG(s->x->data),
                       CUP__ARG(s->values->data), CUP__ARG(s->indices->data), CUP__ARG(s->rows),
                       CUP__ARG(length), CUP__ARG(padded), CUP__ARG(each));
}

/* A warp for each row, whose registers hold it. */
static cup_status sort_rows(const sorting *s)
{
    int64_t items = 1;
    int32_t length = (int32_t)s->length;
    while (items * 32 < length)
        items *= 2;
    cup__knob knobs[] = {s->knobs[0], s->knobs[1], {"ITEMS", items}};
    cup__kernel *kernel = cup__kernel_get(s->gpu, "sort_rows.cu", "sort_rows", knobs, 3);
    cup__grid grid = {.x = (s->rows + 3) / 4, .threads = 128};
    return cup__launch(s->gpu, kernel, grid, CUP__ARG(s->x->data), CUP__ARG(s->values->data),
                       CUP__ARG(s->indices->data), CUP__ARG(s->rows), CUP__ARG(length));
}

/* One digit, from key[0] to key[1]. */
static cup_status sort_digit(const sorting *s, int32_t shift, int64_t tiles)
{
    cup__grid by_tile = {.x = tiles, .y = s->rows, .threads = THREADS};
    cup__grid by_digit = {.x = DIGITS, .y = s->rows, .threads = THREADS};
    int32_t count = (int32_t)tiles;
    CUP_TRY(cup__launch(s->gpu, kernel_of(s, "sort_count"), by_tile, CUP__ARG(s->key[0]->data),
                        CUP__ARG(s->counts->data), CUP__ARG(s->length), CUP__ARG(shift)));
    CUP_TRY(cup__launch(s->gpu, kernel_of(s, "sort_scan"), by_digit, CUP__ARG(s->counts->data),
                        CUP__ARG(s->totals->data), CUP__ARG(count)));
    return cup__launch(s->gpu, kernel_of(s, "sort_move"), by_tile, CUP__ARG(s->key[0]->data),
                       CUP__ARG(s->place[0]->data), CUP__ARG(s->key[1]->data),
                       CUP__ARG(s->place[1]->data), CUP__ARG(s->counts->data),
                       CUP__ARG(s->totals->data), CUP__ARG(s->length), CUP__ARG(shift));
}

static void swap(cup_tensor *pair[2])
{
    cup_tensor *first = pair[0];
    pair[0] = pair[1];
    pair[1] = first;
}

static cup_status sort_long(sorting *s, int64_t tiles)
{
    int bits = 8 * (int)cup_dtype_size(s->x->dtype);
    int64_t count = s->rows * s->length;
    cup__grid grid = {.x = (count + THREADS - 1) / THREADS, .threads = THREADS};
    CUP_TRY(cup__launch(s->gpu, kernel_of(s, "sort_begin"), grid, CUP__ARG(s->x->data),
                        CUP__ARG(s->key[0]->data), CUP__ARG(s->place[0]->data), CUP__ARG(count),
                        CUP__ARG(s->length)));
    for (int shift = 0; shift < bits; shift += DIGIT_BITS) {
        CUP_TRY(sort_digit(s, shift, tiles));
        swap(s->key);
        swap(s->place);
    }
    return cup__launch(s->gpu, kernel_of(s, "sort_end"), grid, CUP__ARG(s->key[0]->data),
                       CUP__ARG(s->place[0]->data), CUP__ARG(s->values->data),
                       CUP__ARG(s->indices->data), CUP__ARG(count));
}

static cup_tensor *scratch(cup_context *c, cup_dtype dtype, int64_t count)
{
    cup__shape shape = {dtype, 1, {count}};
    return cup__tensor_make(c, &shape, "sort");
}

/* Rows beyond what a grid has along y are further parts. */
static cup_status sort_part(cup__call *call, sorting *s)
{
    cup_context *c = call->c;
    int64_t size = cup_dtype_size(s->x->dtype), tile = THREADS * (size == 8 ? 8 : 16);
    int64_t tiles = (s->length + tile - 1) / tile, count = s->rows * s->length;
    for (int i = 0; i < 2; i++) {
        s->key[i] = scratch(c, size == 8 ? CUP_I64 : CUP_I32, count);
        s->place[i] = scratch(c, CUP_I32, count);
    }
    s->counts = scratch(c, CUP_I32, s->rows * DIGITS * tiles);
    s->totals = scratch(c, CUP_I32, s->rows * DIGITS);
    cup_status status = c->error.status;
    if (status == CUP_OK)
        status = sort_long(s, tiles);
    cup_tensor *used[] = {s->key[0], s->key[1], s->place[0], s->place[1], s->counts, s->totals};
    for (int i = 0; i < 6; i++)
        cup_tensor_free(used[i]);
    return status;
}

cup_status cup__sort_rows(cup__call *call, cup_tensor *x, cup_tensor *values, cup_tensor *indices,
                          bool descending)
{
    sorting s = {.gpu = cup__cuda_of(call->c->device), .x = x, .values = values,
                 .indices = indices, .length = x->shape[x->ndim - 1]};
    s.rows = s.length ? x->count / s.length : 0;
    s.knobs[0] = (cup__knob){"CUP_T", x->dtype};
    s.knobs[1] = (cup__knob){"DESCENDING", descending};
    if (s.length > ROW_LEAST && s.length <= SHORT && cup_dtype_size(x->dtype) <= 4)
        return sort_rows(&s);
    return s.length <= SHORT ? sort_short(&s) : sort_part(call, &s);
}

static const char *refuses(const cup__call *call)
{
    int64_t length = call->in[0]->shape[axis_of(call)];
    if (length > INT32_MAX)
        return "places in a row are 32 bits wide";
    return length > SHORT && call->in[0]->count / length > 65535
               ? "it takes 65535 long rows"
               : NULL;
}

static cup_status run_cuda(cup__call *call)
{
    return cup__order_rows(call, axis_of(call), is_descending(call), cup__sort_rows);
}

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__order_gradient(g, ((const cup__sort_attributes *)g->attributes)->axis);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "digits", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32, 2048, 4096),
     .refuses = refuses, .run = run_cuda}, {0}};
/* No long ones: neighbours in order are too near for finite differences. tests/ops/sort.c has. */
#define ALONG(axis, descending) &(const cup__sort_attributes){axis, descending}
static const cup__sample samples[] = {
    {"7", ALONG(0, false)},      {"3x5", ALONG(1, true)},     {"4x3x5", ALONG(1, false)},
    {"0x5", ALONG(1, true)},     {"1x1", ALONG(-1, false)},   {"33x40", ALONG(0, true)},
    {"9x129", ALONG(-1, true)}, {"300x2", ALONG(-1, false)}, {"300x7", ALONG(0, false)},
    {NULL, NULL}};
static const cup__sample bench[] = {{"1048576", ALONG(0, false)},
                                    {"67108864", ALONG(0, false)},
                                    {"8192x1024", ALONG(1, false)},
                                    {"1024x50304", ALONG(1, true)},
                                    {NULL, NULL}};

const cup__op cup__op_sort = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_OUT(1),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .in_dtypes = {CUP__DTYPES_ORDERED},
};
