#include "dispatch/attributes.h"
#include "dispatch/loop.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(where_i64, x[0] != 0 ? x[1] : x[2])
CUP__FORMULA(3, where_fwd, x[0] != 0 ? x[1] : x[2], p != 0.0f ? q : r, x[0] != 0 ? x[1] : x[2],
             .i64 = where_i64)

static cup_status infer(cup__call *call)
{
    if (call->in[0]->dtype != CUP_BOOL)
        return cup__call_fail(call, CUP_DTYPE,
                              "the condition must be bool; make one with cup_not_equal or another "
                              "comparison");
    CUP_TRY(cup__need_same_dtype(call, 1, 2));
    call->result[0].dtype = call->in[1]->dtype;
    return cup__broadcast_shape(call, 0, 3, &call->result[0]);
}

static cup_status gradient(cup__grad *g)
{
    cup_tensor *dy = g->d_out[0];
    cup_tensor *zero = cup__full(g->c, &(cup__shape){.dtype = dy->dtype, .ndim = 0}, 0);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(g->c, cup_where(g->c, g->in[0], dy, zero), &g->in_shape[1]);
    if (g->wanted[2])
        g->d_in[2] = cup__sum_to(g->c, cup_where(g->c, g->in[0], zero, dy), &g->in_shape[2]);
    return CUP_OK;
}

static const cup__sample samples[] = {{"7 7 7", NULL},
                                      {"3x5 5 ()", NULL},
                                      {"3x1 1x5 3x5", NULL},
                                      {"2x3x1025 3x1 1025", NULL},
                                      {"1025 2x1025 2x1025", NULL},
                                      {"0x5 5 5", NULL},
                                      {"4096 4096 ()", NULL},
                                      {NULL, NULL}};
#define TYPES (CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX)

const cup__op cup__op_where = {
    .pointwise = &where_fwd_kind,
    .infer = infer,
    .specification = cup__pointwise_specification,
    .impls = cup__pointwise_impls,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(0),
    .promotes = 6,
    .samples = samples,
    .bench = cup__binary_grad_bench,
    .in_dtypes = {CUP__DTYPE(BOOL), TYPES, TYPES},
};
