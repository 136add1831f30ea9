#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/lowbit/scaled.h"

typedef cup__dequantize_attributes attributes;

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    cup__scale_layout layout;
    if (call->in[0]->dtype != CUP_F64)
        CUP_TRY(cup__need_code(call, call->in[0]->dtype));
    CUP_TRY(cup__need_ndim(call, 0, 1, CUP_MAX_DIMS));
    if (t->dtype != CUP_F32 && t->dtype != CUP_BF16 && t->dtype != CUP_F16)
        return cup__call_fail(call, CUP_DTYPE, "the result must be bf16, f16 or f32, not %s",
                              cup_dtype_name(t->dtype));
    CUP_TRY(cup__scale_layout_of(call, 0, 1, &layout));
    call->result[0] = cup__shape_of(call->in[0]);
    call->result[0].dtype = t->dtype;
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *x = call->in[0], *scale = call->in[1];
    cup__scale_layout s;
    CUP_TRY(cup__scale_layout_of(call, 0, 1, &s));
    for (int64_t i = 0; i < x->count; i++)
        cup__store(call->out[0], i,
                   cup__load(x, cup__offset_of(x, i)) *
                       cup__load(scale, cup__scale_at(&s, i / s.columns, i % s.columns)));
    return CUP_OK;
}

#define CHUNK PRODUCT_SCALE_DEPTH

static void run_rows(int64_t begin, int64_t end, void *user)
{
    cup__call *call = user;
    const cup_tensor *x = call->in[0];
    cup_tensor *y = call->out[0];
    cup__scale_layout s;
    cup__scale_layout_of(call, 0, 1, &s);
    const float *scales = call->in[1]->data;
    float run[CHUNK];
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = 0; k < s.columns; k += CHUNK) {
            int64_t count = s.columns - k < CHUNK ? s.columns - k : CHUNK, at = i * s.columns + k;
            float scale = scales[cup__scale_at(&s, i, k)];
            cup__load_f32(run, (const char *)x->data + at, x->dtype, count);
            for (int64_t j = 0; j < count; j++)
                run[j] *= scale;
            cup__store_f32((char *)y->data + at * cup_dtype_size(y->dtype), run, y->dtype, count);
        }
}

static cup_status run(cup__call *call)
{
    cup__scale_layout s;
    CUP_TRY(cup__scale_layout_of(call, 0, 1, &s));
    cup__parallel_for(s.rows, 65536 / (s.columns + 1) + 1, run_rows, call);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(128, 1024),
     .refuses = cup__scaled_refuses, .run = run},
    {.name = "vectors",
     .place = CUP__CUDA,
     .refuses = cup__scaled_refuses,
     .run = cup__dequantize_cuda},
    {0},
};
#define TO(dtype)                                                                                  \
    &(const attributes)                                                                            \
    {                                                                                              \
        CUP_##dtype                                                                                \
    }
static const cup__sample samples[] = {
    {"0x5 1x1", TO(F32)},     {"7 ()", TO(F32)},         {"3x41 3x1", TO(BF16)},
    {"2x3x40 6x1", TO(F16)},  {"33x264 33x3", TO(BF16)}, {"130x270 2x3", TO(F32)},
    {"9x1024 1x8", TO(BF16)}, {"70x1000 70x8", TO(F32)}, {NULL, NULL}};
static const cup__sample bench[] = {
    {"8192x8192 1x1", TO(BF16)}, {"8192x8192 8192x64", TO(BF16)}, {NULL, NULL}};

const cup__op cup__op_dequantize = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-4, 4}, {0.5, 2}},
    .in_dtypes = {CUP__DTYPES_CODE, CUP__DTYPE(F32)},
};
