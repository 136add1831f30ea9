#include "dispatch/attributes.h"
#include "ops/grouped/grouped.h"

typedef cup__grouped_matmul_attributes attributes;

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    const cup_tensor *x = call->in[0], *weight = call->in[1];
    for (int i = 0; i < 2; i++)
        CUP_TRY(cup__need_float(call, i));
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    CUP_TRY(cup__need_ndim(call, 0, 2, 2));
    CUP_TRY(cup__need_ndim(call, 1, 3, 3));
    CUP_TRY(cup__need_offsets(call, 2));
    int64_t k = weight->shape[t->transpose_weight ? 2 : 1];
    if (x->shape[1] != k)
        return cup__call_fail(call, CUP_SHAPE,
                              "x has %lld features and the matrices of weight take %lld",
                              (long long)x->shape[1], (long long)k);
    if (call->in[2]->shape[0] != weight->shape[0])
        return cup__call_fail(call, CUP_SHAPE, "there are %lld offsets for %lld matrices",
                              (long long)call->in[2]->shape[0], (long long)weight->shape[0]);
    call->result[0] = cup__shape_of(x);
    call->result[0].size[1] = weight->shape[t->transpose_weight ? 1 : 2];
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const attributes *t = call->attributes;
    const cup_tensor *x = call->in[0], *w = call->in[1];
    cup_tensor *y = call->out[0];
    int64_t rows = x->shape[0], n = y->shape[1], groups = w->shape[0];
    CUP_TRY(cup__offsets_check(call, call->in[2], rows));
    int64_t step_k = w->stride[t->transpose_weight ? 2 : 1];
    int64_t step_n = w->stride[t->transpose_weight ? 1 : 2], g = 0;
    for (int64_t i = 0; i < rows; i++) {
        while (g < groups && i >= cup__group_begin(call->in[2], g + 1, rows))
            g++;
        for (int64_t j = 0; j < n; j++) {
            long double sum = 0;
            for (int64_t k = 0; g < groups && k < x->shape[1]; k++)
                sum += cup__load(x, i * x->stride[0] + k * x->stride[1]) *
                       cup__load(w, g * w->stride[0] + k * step_k + j * step_n);
            cup__store(y, i * n + j, (double)sum);
        }
    }
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    const attributes *t = g->attributes;
    cup_tensor *x = g->in[0], *w = g->in[1], *offsets = g->in[2], *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] = cup_grouped_matmul(g->c, dy, w, offsets, !t->transpose_weight);
    if (g->wanted[1])
        g->d_in[1] = t->transpose_weight ? cup__grouped_weight_grad(g->c, dy, x, offsets)
                                         : cup__grouped_weight_grad(g->c, x, dy, offsets);
    return CUP_OK;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *x = call->in[0], *w = call->in[1], *y = call->out[0];
    *flops = 2.0 * (double)y->count * (double)x->shape[1];
    *bytes = (double)((x->count + w->count + y->count) * cup_dtype_size(y->dtype));
}

static const attributes plain = {false}, turned = {true};
static const cup__sample samples[] = {{"0x5 2x5x3 2", &plain},
                                      {"5x0 2x0x3 2", &plain},
                                      {"7x3 1x3x5 1", &plain},
                                      {"7x3 1x5x3 1", &turned},
                                      {"33x40 3x40x24 3", &plain},
                                      {"160x33 5x33x17 5", &plain},
                                      {"160x72 6x136x72 6", &turned},
                                      {"150x64 4x64x264 4", &plain},
                                      {"130x1 3x1x9 3", &plain},
                                      {"40x1 5x1x64 5", &plain},
                                      {"40x64 5x1x64 5", &turned},
                                      {"100x136 12x200x136 12", &turned},
                                      {"7x5 0x5x3 0", &plain},
                                      {"7x5 2x5x0 2", &plain},
                                      {"7x0 2x3x0 2", &turned},
                                      {"90x8 3x8x16 3", &plain},
                                      {"90x64 3x130x64 3", &turned},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"8192x4096 8x4096x4096 8", &plain},
                                    {"8192x4096 8x4096x4096 8", &turned},
                                    {"4096x2048 64x1024x2048 64", &turned},
                                    {NULL, NULL}};

const cup__op cup__op_grouped_matmul = {
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
