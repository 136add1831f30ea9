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
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    const cup_tensor *a = call->in[0], *b = call->in[1];
    CUP_TRY(cup__need_ndim(call, 1, a->ndim, a->ndim));
    for (int d = 0; d < a->ndim - 1; d++)
        if (a->shape[d] != b->shape[d])
            return cup__call_fail(call, CUP_SHAPE, "b must be [..,N,K] for a of [..,N,N]");
    if (b->shape[b->ndim - 1] > INT32_MAX / 4096)
        return cup__call_fail(call, CUP_SHAPE, "b has too many columns; solve for some at a time");
    call->result[0] = cup__shape_of(b);
    return CUP_OK;
}

static void exchange(double *first, double *second, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double own = first[i];
        first[i] = second[i];
        second[i] = own;
    }
}

static void take(double *row, const double *from, double times, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        row[i] -= times * from[i];
}

static void add_ridge(const cup__call *call, double *m)
{
    int64_t n = call->in[0]->shape[call->in[0]->ndim - 1];
    for (int64_t i = 0; i < n; i++)
        m[i * n + i] += ((const cup__solve_attributes *)call->attributes)->ridge;
}

/* Elimination with the largest of a column as pivot, of equal ones the first. */
static void eliminate(double *m, double *x, int64_t n, int64_t columns)
{
    for (int64_t j = 0; j < n; j++) {
        int64_t at = j;
        double most = -1;
        for (int64_t i = j; i < n; i++)
            if (fabs(m[i * n + j]) > most) {
                most = fabs(m[i * n + j]);
                at = i;
            }
        if (at != j) {
            exchange(&m[j * n], &m[at * n], n);
            exchange(&x[j * columns], &x[at * columns], columns);
        }
        for (int64_t i = j + 1; i < n; i++) {
            double times = m[i * n + j] / m[j * n + j];
            take(&m[i * n + j], &m[j * n + j], times, n - j);
            take(&x[i * columns], &x[j * columns], times, columns);
        }
    }
    for (int64_t j = n; j-- > 0;) {
        for (int64_t i = 0; i < columns; i++)
            x[j * columns + i] /= m[j * n + j];
        for (int64_t i = 0; i < j; i++)
            take(&x[i * columns], &x[j * columns], m[i * n + j], columns);
    }
}

static void solve_by(const cup__call *call, double *m, bool lapack)
{
    const cup_tensor *b = call->in[1];
    int64_t n = b->shape[b->ndim - 2], columns = b->shape[b->ndim - 1];
    double *x = m + n * n;
    add_ridge(call, m);
    if (!lapack || !cup__lapack_solve(m, x, (int)n, (int)columns))
        eliminate(m, x, n, columns);
}

static void solve_own(const cup__call *call, double *m)
{
    solve_by(call, m, false);
}

static void solve_lapack(const cup__call *call, double *m)
{
    solve_by(call, m, true);
}

static cup_status each(cup__call *call, void (*body)(const cup__call *, double *), bool parallel)
{
    int64_t n = call->in[0]->shape[call->in[0]->ndim - 1];
    return cup__linalg_each(call, &(cup__linalg){.body = body, .results = n * n},
                            (double)n * (double)n * (double)n, parallel);
}

static cup_status specification(cup__call *call)
{
    return each(call, solve_own, false);
}

static cup_status run(cup__call *call)
{
    return each(call, solve_own, true);
}

static cup_status run_lapack(cup__call *call)
{
    return each(call, solve_lapack, true);
}

static cup_status run_cuda(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup_tensor *a = call->in[0], *b = call->in[1];
    double ridge = ((const cup__solve_attributes *)call->attributes)->ridge;
    int n = (int)a->shape[a->ndim - 1], columns = (int)b->shape[b->ndim - 1];
    int shared = cup__linalg_shared(call);
    cup__shape shape = cup__shape_of(a);
    cup_tensor *work = shared ? NULL : cup__tensor_make(call->c, &shape, "solve");
    if (!shared && !work)
        return call->c->error.status;
    void *memory = work ? work->data : NULL;
    cup__knob knobs[] = {{"CUP_T", a->dtype}, {"SHARED", shared > 0}};
    cup__grid grid = {.x = a->count / n / n, .threads = CUP__LINALG_THREADS, .shared = shared};
    cup_status status =
        cup__launch(gpu, cup__kernel_get(gpu, "solve.cu", "solve_fwd", knobs, 2), grid,
                    CUP__ARG(a->data), CUP__ARG(b->data), CUP__ARG(call->out[0]->data),
                    CUP__ARG(memory), CUP__ARG(n), CUP__ARG(columns), CUP__ARG(ridge));
    cup_tensor_free(work);
    return status;
}

/* The solution for the transposed matrix is the gradient of b; that of a is it, times -x^T. */
static cup_status gradient(cup__grad *g)
{
    cup_context *c = g->c;
    double ridge = ((const cup__solve_attributes *)g->attributes)->ridge;
    cup_tensor *db = cup_solve(c, cup__linalg_turned(c, g->in[0]), g->d_out[0], ridge);
    if (g->wanted[0])
        g->d_in[0] = cup_neg(c, cup_matmul(c, db, g->out[0], false, true));
    g->d_in[1] = db;
    return c->error.status;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *a = call->in[0], *b = call->in[1];
    double n = (double)a->shape[a->ndim - 1];
    *bytes = (double)((a->count + 2 * b->count) * cup_dtype_size(a->dtype));
    *flops = (double)a->count * n * 2 / 3 + 2 * (double)b->count * n;
}

static cup_status run_cusolver(cup__call *call)
{
    return cup__cusolver_run(call, cup__solve_cusolver, run_cuda);
}

static const cup__impl impls[] = {
    {.name = "cusolver_best", .place = CUP__CUDA, .eager = true,
     .refuses = cup__cusolver_best_refuses, .run = run_cusolver},
    {.name = "blocks", .place = CUP__CUDA, CUP__THRESHOLDS(32, 78, 110), .run = run_cuda},
    {.name = "cusolver", .place = CUP__CUDA, CUP__THRESHOLDS(32, 64),
     .refuses = cup__cusolver_in_turn_refuses, .run = run_cusolver},
    {.name = "lapack", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(16),
     .refuses = cup__lapack_refuses, .run = run_lapack, .varies = CUP__LAPACK_VARIES},
    {.name = "threads", .place = CUP__CPU, .strided = true, .run = run},
    {0}};
#define RIDGE(ridge) &(const cup__solve_attributes){ridge}
static const cup__sample samples[] = {
    {"1x1 1x1", RIDGE(2)},          {"3x7x7 3x7x2", RIDGE(9)},
    {"2x3x16x16 2x3x16x5", RIDGE(20)}, {"0x4x4 0x4x1", RIDGE(1)},
    {"33x33 33x40", RIDGE(40)},     {"2x113x113 2x113x3", RIDGE(120)},
    {"2x5x5 2x5x0", RIDGE(7)},      {NULL, NULL}};
static const cup__sample bench[] = {{"65536x8x8 65536x8x1", RIDGE(10)},
                                    {"4096x64x64 4096x64x64", RIDGE(70)},
                                    {NULL, NULL}};

const cup__op cup__op_solve = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_OUT(0),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-1, 1}, {-1, 1}},
    .in_dtypes = {CUP__DTYPE(F32) | CUP__DTYPE(F64), CUP__DTYPE(F32) | CUP__DTYPE(F64)},
    .tolerance = 32, /* sums that elimination takes away from the pivots */
    .cost = cost,
};
