#include "dispatch/attributes.h"
#include "ops/norm/layernorm.h"

cup__layernorm_back cup__layernorm_back_of(const cup__call *call)
{
    const cup__layernorm_grad_attributes *a = call->attributes;
    cup__layernorm_back b = {
        .dy = call->in[0],
        .x = call->in[1],
        .rstd = call->in[2],
        .mean = call->in[3],
        .gamma = call->in[4],
        .dsum = call->in[5],
        .dx = call->out[0],
        .dgamma = a->want_gamma ? call->out[1] : NULL,
        .dbeta = a->want_beta ? call->out[2] : NULL,
        .width = call->in[1]->shape[call->in[1]->ndim - 1],
    };
    b.rows = b.width ? b.x->count / b.width : 0;
    return b;
}

/* An internal op: its inputs come from a recorded call and fit. */
static cup_status infer(cup__call *call)
{
    const cup__layernorm_grad_attributes *a = call->attributes;
    const cup_tensor *x = call->in[1];
    CUP_TRY(cup__need_float(call, 1));
    CUP_TRY(cup__need_ndim(call, 1, 1, CUP_MAX_DIMS));
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    int64_t width = x->shape[x->ndim - 1];
    call->result[0] = cup__shape_of(x);
    call->result[1] = (cup__shape){a->dtype, 1, {a->want_gamma ? width : 0}};
    call->result[2] = (cup__shape){a->dtype, 1, {a->want_beta ? width : 0}};
    return CUP_OK;
}

typedef struct row {
    double rstd, mean, dy_mean, dot_mean; /* of gamma dy, and of gamma dy times x normalised */
} row;

static double scaled(const cup__layernorm_back *b, int64_t r, int64_t i)
{
    return cup__element(b->dy, r * b->width + i) * (b->gamma ? cup__element(b->gamma, i) : 1);
}

static double normalised(const cup__layernorm_back *b, const row *w, int64_t r, int64_t i)
{
    return (cup__element(b->x, r * b->width + i) - w->mean) * w->rstd;
}

static row row_of(const cup__layernorm_back *b, int64_t r)
{
    row w = {.rstd = cup__element(b->rstd, r), .mean = b->mean ? cup__element(b->mean, r) : 0};
    for (int64_t i = 0; i < b->width; i++) {
        w.dy_mean += b->mean ? scaled(b, r, i) / (double)b->width : 0;
        w.dot_mean += scaled(b, r, i) * normalised(b, &w, r, i) / (double)b->width;
    }
    return w;
}

static cup_status specification(cup__call *call)
{
    cup__layernorm_back b = cup__layernorm_back_of(call);
    for (int64_t r = 0; r < b.rows; r++) {
        row w = row_of(&b, r);
        for (int64_t i = 0; i < b.width; i++) {
            double dx = scaled(&b, r, i) - w.dy_mean - normalised(&b, &w, r, i) * w.dot_mean;
            double more = b.dsum ? cup__element(b.dsum, r * b.width + i) : 0;
            cup__store(b.dx, r * b.width + i, dx * w.rstd + more);
        }
    }
    for (int64_t i = 0; i < b.width; i++) {
        double dgamma = 0, dbeta = 0;
        for (int64_t r = 0; r < b.rows; r++) {
            row w = {.rstd = cup__element(b.rstd, r), .mean = b.mean ? cup__element(b.mean, r) : 0};
            double dy = cup__element(b.dy, r * b.width + i);
            dgamma += dy * normalised(&b, &w, r, i);
            dbeta += dy;
        }
        if (b.dgamma)
            cup__store(b.dgamma, i, dgamma);
        if (b.dbeta)
            cup__store(b.dbeta, i, dbeta);
    }
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(64, 4096),
     .refuses = cup__layernorm_cpu_refuses,
     .run = cup__layernorm_back_cpu},
    {.name = "ring", .place = CUP__CUDA, CUP__THRESHOLDS(256, 1024, 4096, 8192, 12288),
     .refuses = cup__layernorm_back_ring_refuses,
     .run = cup__layernorm_back_ring},
    {.name = "rows", .place = CUP__CUDA, CUP__THRESHOLDS(64, 256, 512, 1024, 4096, 8192),
     .refuses = cup__layernorm_cuda_refuses,
     .run = cup__layernorm_back_cuda},
    {0},
};
static const cup__layernorm_grad_attributes both = {CUP_F32, true, true},
                                            gamma_only = {CUP_F32, true, false},
                                            none = {CUP_F32, false, false};
static const cup__sample samples[] = {
    {"3x5 3x5 3 3 5 -", &both},
    {"3x5 3x5 3 - 5 3x5", &gamma_only},
    {"2x7 2x7 2 2 - 2x7", &none},
    {"4x7 4x7 4 4 - -", &both},
    {"0x5 0x5 0 0 5 -", &both},
    {"65x768 65x768 65 65 768 -", &both},
    {"2x66x1025 2x66x1025 2x66 - 1025 -", &gamma_only},
    {"3x5120 3x5120 3 3 5120 3x5120", &both},
    {"5x12288 5x12288 5 5 12288 5x12288", &both},
    {"9x20000 9x20000 9 9 20000 -", &both},
    {NULL, NULL}};
static const cup__sample bench[] = {{"1024x768 1024x768 1024 1024 768 -", &both},
                                    {"32768x768 32768x768 32768 32768 768 -", &both},
                                    {"8192x4096 8192x4096 8192 8192 4096 -", &both},
                                    {"8192x8192 8192x8192 8192 8192 8192 -", &both},
                                    {NULL, NULL}};
#define STATISTIC (CUP__DTYPE(F32) | CUP__DTYPE(F64))

const cup__op cup__op_layernorm_grad = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-2, 2}, {-1, 3}, {0.5, 1.5}, {0.5, 1.5}},
    .in_dtypes = {0, 0, STATISTIC, STATISTIC},
    .tolerance = 16, /* sums over the row and over the rows carry the rounding of their steps */
};
