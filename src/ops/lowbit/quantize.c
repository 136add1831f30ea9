#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "base/wide.h"
#include "dispatch/attributes.h"
#include "ops/lowbit/scaled.h"
#include "tensor/floats.h"

typedef cup__quantize_attributes attributes;

#define LEAST_SCALE 0x1p-126f /* so that its reciprocal is finite */

double cup__code_most(cup_dtype dtype)
{
    return dtype == CUP_F8E4M3 ? 448 : dtype == CUP_F8E5M2 ? 57344 : 127;
}

cup_status cup__need_code(cup__call *call, cup_dtype dtype)
{
    if (dtype == CUP_F8E4M3 || dtype == CUP_F8E5M2 || dtype == CUP_I8)
        return CUP_OK;
    return cup__call_fail(call, CUP_DTYPE, "codes are f8e4m3, f8e5m2 or i8, not %s",
                          cup_dtype_name(dtype));
}

cup__quantize_blocks cup__quantize_blocks_of(const cup__call *call)
{
    const attributes *t = call->attributes;
    const cup_tensor *x = call->in[0];
    cup__quantize_blocks b = {.rows = 1, .columns = x->shape[x->ndim - 1]};
    for (int i = 0; i < x->ndim - 1; i++)
        b.rows *= x->shape[i];
    b.block_rows = t->block_rows ? t->block_rows : b.rows > 0 ? b.rows : 1;
    b.block_columns = t->block_columns ? t->block_columns : b.columns > 0 ? b.columns : 1;
    b.down = t->block_rows ? (b.rows + b.block_rows - 1) / b.block_rows : 1;
    b.across = t->block_columns ? (b.columns + b.block_columns - 1) / b.block_columns : 1;
    return b;
}

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 1, CUP_MAX_DIMS));
    CUP_TRY(cup__need_code(call, t->dtype));
    bool all = t->block_rows == 0 && t->block_columns == 0;
    bool row = t->block_rows == 1 && t->block_columns == 0;
    bool block = (t->block_rows == 1 || t->block_rows == PRODUCT_SCALE_DEPTH) &&
                 t->block_columns == PRODUCT_SCALE_DEPTH;
    if (!all && !row && !block)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "blocks of %d rows and %d columns; they must be 0 and 0, 1 and 0, "
                              "1 and 128, or 128 and 128",
                              t->block_rows, t->block_columns);
    cup__quantize_blocks b = cup__quantize_blocks_of(call);
    call->result[0] = cup__shape_of(call->in[0]);
    call->result[0].dtype = t->dtype;
    call->result[1] = (cup__shape){.dtype = CUP_F32, .ndim = 2, .size = {b.down, b.across}};
    if (t->block_rows == 1 && t->block_columns)
        call->order[1] = "10"; /* as products read them */
    return CUP_OK;
}

static float scale_of(float most, double code_most)
{
    float scale = most / (float)code_most;
    return most == 0 ? 1.0f : scale < LEAST_SCALE ? LEAST_SCALE : scale;
}

/* Where block number `i` begins and ends. */
typedef struct place {
    int64_t row, rows, column, columns;
} place;

static place place_of(const cup__quantize_blocks *b, int64_t i)
{
    place p = {.row = i / b->across * b->block_rows, .column = i % b->across * b->block_columns};
    p.rows = b->rows - p.row < b->block_rows ? b->rows - p.row : b->block_rows;
    p.columns = b->columns - p.column < b->block_columns ? b->columns - p.column : b->block_columns;
    return p;
}

static cup_status specification(cup__call *call)
{
    const attributes *t = call->attributes;
    const cup_tensor *x = call->in[0];
    cup__quantize_blocks b = cup__quantize_blocks_of(call);
    for (int64_t i = 0; i < b.down * b.across; i++) {
        place p = place_of(&b, i);
        float most = 0;
        for (int64_t k = 0; k < p.rows * p.columns; k++) {
            int64_t at = (p.row + k / p.columns) * b.columns + p.column + k % p.columns;
            most = fmaxf(most, fabsf((float)cup__load(x, cup__offset_of(x, at))));
        }
        float scale = scale_of(most, cup__code_most(t->dtype)), factor = 1 / scale;
        cup__store(call->out[1], cup__offset_of(call->out[1], i), (double)scale);
        for (int64_t k = 0; k < p.rows * p.columns; k++) {
            int64_t at = (p.row + k / p.columns) * b.columns + p.column + k % p.columns;
            float v = (float)cup__load(x, cup__offset_of(x, at)) * factor;
            v = t->dtype == CUP_I8 ? fmaxf(-127, fminf(127, nearbyintf(v))) : v;
            cup__store(call->out[0], at, (double)v);
        }
    }
    return CUP_OK;
}

#define CHUNK 1024

CUP__WIDE static float most_of(const float *x, int64_t count, float most)
{
    for (int64_t i = 0; i < count; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

static void round_run(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = isnan(x[i]) ? 0 : fmaxf(-127, fminf(127, nearbyintf(x[i])));
}

/* One pass over a block: its largest size, or its codes when there is a factor. */
static float pass(const cup__call *call, const cup__quantize_blocks *b, place p,
                  const float *factor)
{
    const cup_tensor *x = call->in[0];
    cup_dtype to = ((const attributes *)call->attributes)->dtype;
    int64_t size = cup_dtype_size(x->dtype);
    float most = 0, run[CHUNK];
    for (int64_t i = p.row; i < p.row + p.rows; i++)
        for (int64_t j = 0; j < p.columns; j += CHUNK) {
            int64_t at = i * b->columns + p.column + j;
            int64_t count = p.columns - j < CHUNK ? p.columns - j : CHUNK;
            cup__load_f32(run, (const char *)x->data + at * size, x->dtype, count);
            if (!factor) {
                most = most_of(run, count, most);
                continue;
            }
            cup__floats_scale(run, *factor, count);
            if (to == CUP_I8)
                round_run(run, count);
            cup__store_f32((char *)call->out[0]->data + at, run, to, count);
        }
    return most;
}

static void run_blocks(int64_t begin, int64_t end, void *user)
{
    const cup__call *call = user;
    cup__quantize_blocks b = cup__quantize_blocks_of(call);
    double most = cup__code_most(((const attributes *)call->attributes)->dtype);
    for (int64_t i = begin; i < end; i++) {
        place p = place_of(&b, i);
        float scale = scale_of(pass(call, &b, p, NULL), most), factor = 1 / scale;
        ((float *)call->out[1]->data)[cup__offset_of(call->out[1], i)] = scale;
        pass(call, &b, p, &factor);
    }
}

static cup_status run(cup__call *call)
{
    cup__quantize_blocks b = cup__quantize_blocks_of(call);
    int64_t grain = 65536 / (b.block_rows * b.block_columns + 1) + 1;
    cup__parallel_for(b.down * b.across, grain, run_blocks, call);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "blocks", .place = CUP__CPU, CUP__THRESHOLDS(128, 1024), .run = run},
    {.name = "blocks", .place = CUP__CUDA, CUP__THRESHOLDS(128, 1024), .run = cup__quantize_cuda},
    {0},
};
#define AS(dtype, rows, columns)                                                                   \
    &(const attributes)                                                                            \
    {                                                                                              \
        CUP_##dtype, rows, columns                                                                 \
    }
static const cup__sample samples[] = {{"0x5", AS(F8E4M3, 0, 0)},
                                      {"1", AS(F8E4M3, 0, 0)},
                                      {"3x0", AS(I8, 1, 0)},
                                      {"33x17", AS(F8E5M2, 0, 0)},
                                      {"70x1000", AS(F8E4M3, 0, 0)},
                                      {"2x3x41", AS(I8, 1, 0)},
                                      {"9x1024", AS(F8E4M3, 1, 0)},
                                      {"3x5001", AS(F8E5M2, 1, 0)},
                                      {"5x128", AS(F8E4M3, 1, 128)},
                                      {"33x264", AS(F8E4M3, 1, 128)},
                                      {"7x129", AS(I8, 1, 128)},
                                      {"128x128", AS(F8E4M3, 128, 128)},
                                      {"130x270", AS(F8E5M2, 128, 128)},
                                      {"3x200", AS(I8, 128, 128)},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"8192x8192", AS(F8E4M3, 0, 0)},
                                    {"8192x8192", AS(F8E4M3, 1, 0)},
                                    {"8192x8192", AS(F8E4M3, 1, 128)},
                                    {"8192x8192", AS(F8E4M3, 128, 128)},
                                    {NULL, NULL}};

const cup__op cup__op_quantize = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-3, 5}},
    .strided_out = true,
    .tolerance = 1e-6, /* the same f32 arithmetic everywhere */
};
