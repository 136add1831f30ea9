#include <math.h>

#include "cuda/cuda.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/linalg/cusolver.h"
#include "ops/linalg/lapack.h"
#include "ops/linalg/linalg.h"

static cup_status infer(cup__call *call)
{
    CUP_TRY(cup__need_square(call));
    call->result[0] = cup__shape_of(call->in[0]);
    return CUP_OK;
}

static int64_t rows_of(const cup__call *call)
{
    return call->in[0]->shape[call->in[0]->ndim - 1];
}

/* The lower triangle of what is factored, and zeros. */
static void prepare(const cup__call *call, double *m)
{
    int64_t n = rows_of(call);
    double ridge = ((const cup__cholesky_attributes *)call->attributes)->ridge;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double both = (m[i * n + j] + m[j * n + i]) / 2;
            m[j * n + i] = 0;
            m[i * n + j] = both + (i == j ? ridge : 0);
        }
}

/* A column at a time, then what it takes from all behind it. */
static void eliminate(double *m, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        double pivot = m[j * n + j], root = pivot > 0 ? sqrt(pivot) : NAN;
        for (int64_t i = j; i < n; i++)
            m[i * n + j] = i == j ? root : m[i * n + j] / root;
        for (int64_t i = j + 1; i < n; i++)
            for (int64_t k = j + 1; k <= i; k++)
                m[i * n + k] -= m[i * n + j] * m[k * n + j];
    }
}

static void factor(const cup__call *call, double *m)
{
    prepare(call, m);
    eliminate(m, rows_of(call));
}

static void factor_lapack(const cup__call *call, double *m)
{
    prepare(call, m);
    if (!cup__lapack_cholesky(m, (int)rows_of(call)))
        eliminate(m, rows_of(call));
}

static cup_status each(cup__call *call, void (*body)(const cup__call *, double *), bool parallel)
{
    double n = (double)rows_of(call);
    return cup__linalg_each(call, &(cup__linalg){.body = body}, n * n * n, parallel);
}

static cup_status specification(cup__call *call)
{
    return each(call, factor, false);
}

static cup_status run(cup__call *call)
{
    return each(call, factor, true);
}

static cup_status run_lapack(cup__call *call)
{
    return each(call, factor_lapack, true);
}

static cup_status run_cuda(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup_tensor *a = call->in[0];
    double ridge = ((const cup__cholesky_attributes *)call->attributes)->ridge;
    int n = (int)a->shape[a->ndim - 1], shared = cup__linalg_shared(call);
    cup__knob knobs[] = {{"CUP_T", a->dtype}, {"SHARED", shared > 0}};
    cup__grid grid = {.x = a->count / n / n, .threads = CUP__LINALG_THREADS, .shared = shared};
    return cup__launch(gpu, cup__kernel_get(gpu, "cholesky.cu", "cholesky_fwd", knobs, 2), grid,
                       CUP__ARG(a->data), CUP__ARG(call->out[0]->data), CUP__ARG(n),
                       CUP__ARG(ridge));
}

/* With p, the lower half of l^T dl and half of its diagonal, l^-T p l^-1 is that of the symmetric
 * matrix, and it and its transpose that of a by halves. */
static cup_status gradient(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *l = g->out[0], *across = cup__linalg_turned(c, l);
    cup_tensor *m = cup_matmul(c, l, g->d_out[0], true, false);
    cup_tensor *p = cup_scale(c, cup_add(c, cup_tril(c, m, 0), cup_tril(c, m, -1)), 0.5);
    cup_tensor *left = cup_solve(c, across, p, 0);
    cup_tensor *s = cup_solve(c, across, cup__linalg_turned(c, left), 0);
    g->d_in[0] = s ? cup_scale(c, cup_add(c, s, cup__linalg_turned(c, s)), 0.5) : NULL;
    return c->error.status;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *a = call->in[0];
    *bytes = 2.0 * (double)(a->count * cup_dtype_size(a->dtype));
    *flops = (double)a->count * (double)a->shape[a->ndim - 1] / 3;
}

static cup_status run_cusolver(cup__call *call)
{
    return cup__cusolver_run(call, cup__cholesky_cusolver, run_cuda);
}

static cup_status run_batched(cup__call *call)
{
    return cup__cusolver_run(call, cup__cholesky_cusolver_batched, run_cuda);
}

static const cup__impl impls[] = {
    {.name = "cusolver_best", .place = CUP__CUDA, .eager = true,
     .refuses = cup__cusolver_best_refuses, .run = run_cusolver},
    {.name = "blocks", .place = CUP__CUDA, CUP__THRESHOLDS(32, 78, 110), .run = run_cuda},
    {.name = "cusolver", .place = CUP__CUDA, CUP__THRESHOLDS(32, 64),
     .refuses = cup__cusolver_in_turn_refuses, .run = run_cusolver},
    {.name = "cusolver_batched", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32),
     .refuses = cup__cusolver_refuses, .run = run_batched},
    {.name = "lapack", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(16),
     .refuses = cup__lapack_refuses, .run = run_lapack, .varies = CUP__LAPACK_VARIES},
    {.name = "threads", .place = CUP__CPU, .strided = true, .run = run},
    {0}};
#define RIDGE(ridge) &(const cup__cholesky_attributes){ridge}
static const cup__sample samples[] = {
    {"1x1", RIDGE(2)},    {"3x7x7", RIDGE(9)},      {"2x3x16x16", RIDGE(20)}, {"0x4x4", RIDGE(1)},
    {"33x33", RIDGE(40)}, {"2x113x113", RIDGE(120)}, {"2x0x0", RIDGE(0)},      {NULL, NULL}};
static const cup__sample bench[] = {
    {"65536x8x8", RIDGE(10)}, {"4096x64x64", RIDGE(70)}, {"64x512x512", RIDGE(600)}, {NULL, NULL}};

const cup__op cup__op_cholesky = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_OUT(0),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-1, 1}},
    .in_dtypes = {CUP__DTYPE(F32) | CUP__DTYPE(F64)},
    .tolerance = 32, /* sums that elimination takes away from the diagonal */
    .cost = cost,
};
