#include "dispatch/attributes.h"
#include "ops/grouped/grouped.h"

static cup_status infer(cup__call *call)
{
    const cup_tensor *a = call->in[0], *b = call->in[1];
    for (int i = 0; i < 2; i++) {
        CUP_TRY(cup__need_float(call, i));
        CUP_TRY(cup__need_ndim(call, i, 2, 2));
    }
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    CUP_TRY(cup__need_offsets(call, 2));
    if (a->shape[0] != b->shape[0])
        return cup__call_fail(call, CUP_SHAPE, "a and b have different numbers of rows");
    call->result[0] = (cup__shape){
        .dtype = a->dtype, .ndim = 3, .size = {call->in[2]->shape[0], a->shape[1], b->shape[1]}};
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *a = call->in[0], *b = call->in[1];
    int64_t rows = a->shape[0], m = a->shape[1], n = b->shape[1];
    CUP_TRY(cup__offsets_check(call, call->in[2], rows));
    for (int64_t g = 0; g < call->in[2]->shape[0]; g++) {
        int64_t begin = cup__group_begin(call->in[2], g, rows);
        int64_t end = cup__group_begin(call->in[2], g + 1, rows);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                long double sum = 0;
                for (int64_t k = begin; k < end; k++)
                    sum += cup__load(a, k * a->stride[0] + i * a->stride[1]) *
                           cup__load(b, k * b->stride[0] + j * b->stride[1]);
                cup__store(call->out[0], (g * m + i) * n + j, (double)sum);
            }
    }
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    cup_tensor *a = g->in[0], *b = g->in[1], *offsets = g->in[2], *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] = cup_grouped_matmul(g->c, b, dy, offsets, true);
    if (g->wanted[1])
        g->d_in[1] = cup_grouped_matmul(g->c, a, dy, offsets, false);
    return CUP_OK;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *a = call->in[0], *b = call->in[1], *y = call->out[0];
    *flops = 2.0 * (double)a->count * (double)b->shape[1];
    *bytes = (double)((a->count + b->count + y->count) * cup_dtype_size(y->dtype));
}

static const cup__sample samples[] = {{"0x5 0x3 2", NULL},          {"5x0 5x3 2", NULL},
                                      {"7x3 7x5 1", NULL},          {"33x40 33x24 3", NULL},
                                      {"160x33 160x17 5", NULL},    {"160x72 160x136 6", NULL},
                                      {"150x64 150x264 4", NULL},   {"130x1 130x9 3", NULL},
                                      {"100x136 100x200 12", NULL}, {"7x5 7x3 0", NULL},
                                      {"7x0 7x3 2", NULL},          {"7x3 7x0 2", NULL},
                                      {"90x8 90x16 3", NULL},       {"90x130 90x64 3", NULL},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"8192x4096 8192x4096 8", NULL}, {NULL, NULL}};

const cup__op cup__op_grouped_weight_grad = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_IN(2),
    .impls = cup__grouped_impls,
    .samples = samples,
    .bench = bench,
    .ascending = 1u << 2,
    .domain = {{0}, {0}, {0}},
    .in_dtypes = {0, 0, CUP__DTYPES_INDEX},
    .tolerance = 16, /* as matmul */
    .cost = cost,
};
