#include <math.h>

#include "cupola/ops.h"
#include "ops/linalg/cusolver.h"
#include "ops/linalg/lapack.h"
#include "ops/linalg/linalg.h"

#define MOST 4096 /* of the shorter side */

static int64_t shorter(int64_t m, int64_t n)
{
    return m < n ? m : n;
}

static cup_status infer(cup__call *call)
{
    CUP_TRY(cup__need_matrices(call, MOST));
    int d = call->in[0]->ndim - 2;
    call->result[0] = call->result[1] = cup__shape_of(call->in[0]);
    int64_t *q = call->result[0].size + d, *r = call->result[1].size + d;
    q[1] = r[0] = shorter(q[0], r[1]);
    return CUP_OK;
}

/* Makes 0 of what is below the first number of a column by the reflection 1 - tau v v^T, whose v
 * begins with 1 and takes their place; returns tau. Each column is reflected at its own scale, so
 * that no square is too large or too small. */
static double reflect(double *x, int64_t rows, int64_t step)
{
    double most = 0, below = 0;
    for (int64_t i = 0; i < rows; i++)
        most = fmax(most, fabs(x[i * step]));
    double scale = most > 0 ? most : 1;
    for (int64_t i = 1; i < rows; i++)
        below += x[i * step] / scale * (x[i * step] / scale);
    if (below == 0 && isfinite(most))
        return 0;
    double first = x[0] / scale, norm = scale * sqrt(first * first + below);
    double beta = x[0] > 0 ? -norm : norm, tau = (beta - x[0]) / beta, reach = x[0] - beta;
    for (int64_t i = 1; i < rows; i++)
        x[i * step] /= reach;
    x[0] = beta;
    return tau;
}

static void apply(const double *v, int64_t v_step, double tau, double *y, int64_t y_step,
                  int64_t rows)
{
    double sum = y[0];
    for (int64_t i = 1; i < rows; i++)
        sum += v[i * v_step] * y[i * y_step];
    sum *= tau;
    y[0] -= sum;
    for (int64_t i = 1; i < rows; i++)
        y[i * y_step] -= sum * v[i * v_step];
}

static void factor(const cup__call *call, double *a)
{
    const cup_tensor *t = call->in[0];
    int64_t m = t->shape[t->ndim - 2], n = t->shape[t->ndim - 1], k = shorter(m, n);
    double *q = a + m * n, *r = q + m * k, *tau = r + k * n;
    for (int64_t j = 0; j < k; j++) {
        double *v = &a[j * n + j];
        tau[j] = reflect(v, m - j, n);
        for (int64_t i = 1; i < n - j; i++)
            apply(v, n, tau[j], v + i, n, m - j);
    }
    for (int64_t i = 0; i < m * k; i++)
        q[i] = i / k == i % k;
    for (int64_t j = k; j-- > 0;)
        for (int64_t i = j; i < k; i++)
            apply(&a[j * n + j], n, tau[j], &q[j * k + i], k, m - j);
    for (int64_t j = 0; j < k; j++) {
        double sign = a[j * n + j] < 0 ? -1 : 1;
        for (int64_t i = 0; i < n; i++)
            r[j * n + i] = i < j ? 0 : sign * a[j * n + i];
        for (int64_t i = 0; i < m; i++)
            q[i * k + j] *= sign;
    }
}

static void factor_lapack(const cup__call *call, double *a)
{
    const cup_tensor *t = call->in[0];
    int64_t m = t->shape[t->ndim - 2], n = t->shape[t->ndim - 1];
    double *q = a + m * n;
    if (!cup__lapack_qr(a, (int)m, (int)n, q, q + m * shorter(m, n)))
        factor(call, a);
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *a = call->in[0], *q = call->out[0], *r = call->out[1];
    double k = (double)shorter(a->shape[a->ndim - 2], a->shape[a->ndim - 1]);
    *bytes = (double)(a->count * 2 * cup_dtype_size(a->dtype));
    if (q && r)
        *bytes = (double)((a->count + q->count + r->count) * cup_dtype_size(a->dtype));
    *flops = 4 * (double)a->count * k;
}

static cup_status each(cup__call *call, void (*body)(const cup__call *, double *), bool parallel)
{
    const cup_tensor *t = call->in[0];
    int64_t m = t->shape[t->ndim - 2], n = t->shape[t->ndim - 1], k = shorter(m, n);
    cup__linalg how = {.body = body, .results = m * n, .room = (m + n + 1) * k};
    return cup__linalg_each(call, &how, 4.0 * (double)m * (double)n * (double)k, parallel);
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
    const cup_tensor *t = call->in[0];
    int64_t m = t->shape[t->ndim - 2], n = t->shape[t->ndim - 1], k = shorter(m, n);
    cup__linalg_columns by = cup__linalg_columns_of(m, k, n);
    return cup__linalg_launch(call, "qr.cu", "qr_fwd", &by, by.distance * n + 2 * k);
}

static cup_tensor *columns(cup_context *c, cup_tensor *t, int64_t from, int64_t count)
{
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS];
    if (!t)
        return NULL;
    for (int d = 0; d < t->ndim; d++)
        sizes[d] = -1;
    starts[t->ndim - 1] = from;
    sizes[t->ndim - 1] = count;
    return cup_slice(c, t, starts, t->ndim, sizes, t->ndim);
}

/* The gradient of a where r is square, [x + q t] r^-T: x is what of dq stands outside of the space
 * of q, which is all of it where that has all rows. With p = q^T dq and l = r dr^T, t is below the
 * diagonal what p - p^T is, and l made symmetric from its lower half beside. Written so, nothing of
 * dq cancels where r is small. */
static cup_tensor *of_square(cup_context *c, cup_tensor *q, cup_tensor *r, cup_tensor *dq,
                             cup_tensor *dr)
{
    cup_tensor *x = NULL, *t = NULL;
    if (dr) {
        cup_tensor *l = cup_matmul(c, r, dr, false, true);
        t = cup_add(c, cup_tril(c, l, 0), cup__linalg_turned(c, cup_tril(c, l, -1)));
    }
    if (dq) {
        cup_tensor *p = cup_matmul(c, q, dq, true, false);
        cup_tensor *skew = cup_tril(c, cup_sub(c, p, cup__linalg_turned(c, p)), -1);
        t = t ? cup_add(c, t, skew) : skew;
        if (q->shape[q->ndim - 2] > q->shape[q->ndim - 1])
            x = cup_sub(c, dq, cup_matmul(c, q, p, false, false));
    }
    cup_tensor *b = cup_matmul(c, q, t, false, false);
    b = x ? cup_add(c, b, x) : b;
    return cup__linalg_turned(c, cup_solve(c, r, cup__linalg_turned(c, b), 0));
}

/* Columns behind the first square of a wide matrix are q r2, so that r2 = q^T a2. */
static cup_status gradient(cup__grad *g)
{
    cup_context *c = g->c;
    const cup__shape *shape = &g->in_shape[0];
    int64_t m = shape->size[shape->ndim - 2], n = shape->size[shape->ndim - 1];
    cup_tensor *q = g->out[0], *r = g->out[1], *dq = g->d_out[0], *dr = g->d_out[1];
    if (m >= n) {
        g->d_in[0] = of_square(c, q, r, dq, dr);
        return c->error.status;
    }
    cup__shape all = cup__shape_of(r);
    dr = dr ? dr : cup__full(c, &all, 0);
    cup_tensor *behind = columns(c, dr, m, n - m);
    cup_tensor *owed = cup_matmul(c, columns(c, r, m, n - m), behind, false, true);
    owed = cup_matmul(c, q, owed, false, false);
    dq = dq ? cup_add(c, dq, owed) : owed;
    cup_tensor *parts[2] = {
        of_square(c, q, columns(c, r, 0, m), dq, columns(c, dr, 0, m)),
        cup_matmul(c, q, behind, false, false)};
    g->d_in[0] = cup_concat(c, parts, 2, -1);
    return c->error.status;
}

/* Rounding turns q far where columns depend on each other, and never their product. */
static int steady(cup_context *c, cup_tensor *const *out, cup_tensor **made)
{
    cup_tensor *q = out[0], *r = out[1], *zero = cup__number(c, r, 0);
    cup_tensor *eye = cup_eye(c, r->dtype, r->shape[r->ndim - 2], r->shape[r->ndim - 1], NULL);
    made[0] = cup_matmul(c, q, r, false, false);
    made[1] = cup_matmul(c, q, q, true, false);
    made[2] = cup_tril(c, r, -1);
    made[3] = cup_minimum(c, cup_mul(c, r, eye), zero); /* what of the diagonal is below 0 */
    return 4;
}

static cup_status run_cusolver(cup__call *call)
{
    return cup__cusolver_run(call, cup__qr_cusolver, run_cuda);
}

static const cup__impl impls[] = {
    {.name = "cusolver_best", .place = CUP__CUDA, .eager = true,
     .refuses = cup__cusolver_best_refuses, .run = run_cusolver},
    {.name = "blocks", .place = CUP__CUDA, CUP__THRESHOLDS(16, 64, 108), .run = run_cuda},
    {.name = "cusolver", .place = CUP__CUDA, CUP__THRESHOLDS(32, 64),
     .refuses = cup__cusolver_in_turn_refuses, .run = run_cusolver},
    {.name = "lapack", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(16),
     .refuses = cup__lapack_refuses, .run = run_lapack, .varies = CUP__LAPACK_VARIES},
    {.name = "threads", .place = CUP__CPU, .strided = true, .run = run},
    {0}};
static const cup__sample samples[] = {
    {"1x1", NULL},   {"3x7x4", NULL},    {"3x4x7", NULL},   {"2x3x16x16", NULL},
    {"0x4x4", NULL}, {"2x5x0", NULL},    {"2x0x3", NULL},   {"33x17x9", NULL},
    {"65x6", NULL},  {"2x113x20", NULL}, {"113x113", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {
    {"65536x8x8", NULL}, {"4096x64x64", NULL}, {"4096x256x16", NULL}, {NULL, NULL}};

const cup__op cup__op_qr = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_OUT(0) | CUP__SAVE_OUT(1),
    .steady = steady,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-1, 1}},
    .in_dtypes = {CUP__DTYPE(F32) | CUP__DTYPE(F64)},
    .tolerance = 128, /* sums of a column, once for each reflection */
    .cost = cost,
};
