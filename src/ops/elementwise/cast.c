#include <string.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

static cup_status infer(cup__call *call)
{
    const cup__cast_attributes *a = call->attributes;
    if (!cup_dtype_size(a->dtype))
        return cup__call_fail(call, CUP_DTYPE, "%d is no dtype", (int)a->dtype);
    call->result[0] = cup__shape_of(call->in[0]);
    call->result[0].dtype = a->dtype;
    return CUP_OK;
}

CUP__ELEMENT(cast_fwd_f64, x[0])
CUP__ELEMENT_I64(cast_i64, x[0])

static void cast_fwd_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    memcpy(y, x[0], (size_t)count * sizeof *y);
}

static cup_status gradient(cup__grad *g)
{
    if (cup__dtype_is_float(g->in_shape[0].dtype) && cup__dtype_is_float(g->out_shape[0].dtype))
        g->d_in[0] = cup_cast(g->c, g->d_out[0], g->in_shape[0].dtype);
    return CUP_OK;
}

CUP__KERNEL(cast_fwd, x[0], .i64 = cast_i64)

#define TO(name) &(const cup__cast_attributes){CUP_##name}
static const cup__sample samples[] = {
    {"0x5", TO(F32)},   {"()", TO(BF16)},      {"7", TO(F64)},         {"3x5", TO(F16)},
    {"33x17", TO(I32)}, {"2x3x1025", TO(F32)}, {"2x3x1025", TO(BF16)}, {"1000", TO(I64)},
    {"1000", TO(U8)},   {"1000", TO(BOOL)},    {"1000", TO(F8E4M3)},   {"1000", TO(F8E5M2)},
    {"999", TO(I8)},    {NULL, NULL}};
static const cup__sample bench[] = {
    {"67108864", TO(BF16)}, {"67108864", TO(F32)}, {"32768x3072", TO(F16)}, {NULL, NULL}};

const cup__op cup__op_cast = {
    .pointwise = &cast_fwd_kind,
    .infer = infer,
    .specification = cup__pointwise_specification,
    .impls = cup__pointwise_impls,
    .gradient = gradient,
    .composed = gradient,
    .samples = samples,
    .bench = bench,
    .domain = {{-300, 300}},
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX | CUP__DTYPE(U8) | CUP__DTYPE(BOOL) |
                  CUP__DTYPE(I8) | CUP__DTYPE(F8E4M3) | CUP__DTYPE(F8E5M2)},
};
