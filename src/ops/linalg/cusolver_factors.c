/* The factors themselves. A matrix of ours, which lies row by row, is its transpose where it is
 * read column by column. */
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/linalg/cusolver.h"

/* With the ridge on its diagonal, in memory of its own. */
static cup_tensor *ridged(cup__cusolver_work *w, cup_tensor *a, double ridge)
{
    cup_context *c = w->c;
    if (ridge == 0)
        return cup_copy(c, a);
    return cup_add(c, a, cup_scale(c, cup_eye(c, w->dtype, w->n, w->n, NULL), ridge));
}

/* [a + a^T] / 2 with the ridge. */
static cup_tensor *symmetric(cup__cusolver_work *w)
{
    cup_context *c = w->c;
    cup_tensor *a = cup__cusolver_flat(w, w->call->in[0]);
    double ridge = ((const cup__cholesky_attributes *)w->call->attributes)->ridge;
    return ridged(w, cup_scale(c, cup_add(c, a, cup__linalg_turned(c, a)), 0.5), ridge);
}

/* The upper triangle column by column is the lower one row by row. */
void cup__cholesky_cusolver(cup__cusolver_work *w)
{
    cup_tensor *l = symmetric(w);
    int n = w->n, size = 0;
    CUP__SOLVE(w, potrf_bufferSize, w->handle, CUBLAS_FILL_MODE_UPPER, n,
               cup__cusolver_at(l, 0, 0), n, &size);
    cup__cusolver_room(w, size);
    for (int64_t i = 0; i < w->count; i++)
        CUP__SOLVE(w, potrf, w->handle, CUBLAS_FILL_MODE_UPPER, n,
                   cup__cusolver_at(l, i, (int64_t)n * n), n, cup__cusolver_at(w->space, 0, 0),
                   size, cup__cusolver_at(w->info, i, 1));
    cup__cusolver_give(w, 0, cup_tril(w->c, l, 0));
}

/* The list of matrices is numbers of a row: addresses are below 2^53. */
void cup__cholesky_cusolver_batched(cup__cusolver_work *w)
{
    cup_tensor *l = symmetric(w);
    if (!l)
        return;
    double first = (double)(uintptr_t)l->data;
    double step = (double)w->n * (double)w->n * (double)cup_dtype_size(w->dtype);
    cup_tensor *list = cup_arange(w->c, CUP_I64, first, first + step * (double)w->count,
                                  CUP_OPTIONS(cup_arange_options, .step = step));
    CUP__SOLVE(w, potrfBatched, w->handle, CUBLAS_FILL_MODE_UPPER, w->n,
               cup__cusolver_at(list, 0, 0), w->n, cup__cusolver_at(w->info, 0, 1), (int)w->count);
    cup__cusolver_give(w, 0, cup_tril(w->c, l, 0));
}

void cup__solve_cusolver(cup__cusolver_work *w)
{
    cup_context *c = w->c;
    cup_tensor *b = cup__cusolver_flat(w, w->call->in[1]);
    double ridge = ((const cup__solve_attributes *)w->call->attributes)->ridge;
    cup_tensor *lu = ridged(w, cup__cusolver_flat(w, w->call->in[0]), ridge);
    cup_tensor *x = cup_copy(c, cup__linalg_turned(c, b));
    cup_tensor *pivots = cup_tensor_new(c, CUP_I32, 1, (int64_t[]){w->n});
    cup_tensor *fine = cup_tensor_new(c, CUP_I32, 1, (int64_t[]){1});
    if (!lu || !x || !pivots || !fine)
        return;
    int n = w->n, columns = (int)b->shape[2], size = 0;
    CUP__SOLVE(w, getrf_bufferSize, w->handle, n, n, lu->data, n, &size);
    cup__cusolver_room(w, size);
    for (int64_t i = 0; i < w->count; i++) {
        void *m = cup__cusolver_at(lu, i, (int64_t)n * n);
        void *of = cup__cusolver_at(x, i, (int64_t)n * columns);
        CUP__SOLVE(w, getrf, w->handle, n, n, m, n, cup__cusolver_at(w->space, 0, 0),
                   pivots->data, cup__cusolver_at(w->info, i, 1));
        CUP__SOLVE(w, getrs, w->handle, CUBLAS_OP_T, n, columns, m, n, pivots->data, of, n,
                   fine->data);
    }
    cup__cusolver_give(w, 0, cup__linalg_turned(c, x));
}

/* The first `count` of dimension d. */
static cup_tensor *first(cup_context *c, cup_tensor *t, int d, int64_t count)
{
    int64_t starts[3] = {0}, sizes[3] = {-1, -1, -1};
    sizes[d] = count;
    return t ? cup_slice(c, t, starts, 3, sizes, 3) : NULL;
}

/* -1 where x is below 0, else 1. */
static cup_tensor *sign_of(cup_context *c, cup_tensor *x)
{
    if (!x)
        return NULL;
    return cup_where(c, cup_less(c, x, cup__number(c, x, 0)), cup__number(c, x, -1),
                     cup__number(c, x, 1));
}

/* The reflected matrix, transposed as it lies, has r^T in its lower triangle. */
void cup__qr_cusolver(cup__cusolver_work *w)
{
    cup_context *c = w->c;
    int m = w->m, n = w->n, k = w->k, size = 0, more = 0;
    cup_tensor *t =
        cup_copy(c, cup__linalg_turned(c, cup__cusolver_flat(w, w->call->in[0])));
    cup_tensor *tau = cup__cusolver_new(w, w->dtype, 1, k);
    if (!t || !tau)
        return;
    CUP__SOLVE(w, geqrf_bufferSize, w->handle, m, n, t->data, m, &size);
    CUP__SOLVE(w, orgqr_bufferSize, w->handle, m, k, k, t->data, m, tau->data, &more);
    cup__cusolver_room(w, size > more ? size : more);
    for (int64_t i = 0; i < w->count; i++)
        CUP__SOLVE(w, geqrf, w->handle, m, n, cup__cusolver_at(t, i, (int64_t)m * n), m,
                   cup__cusolver_at(tau, i, k), cup__cusolver_at(w->space, 0, 0), size,
                   cup__cusolver_at(w->info, i, 1));
    cup_tensor *lower = cup_tril(c, first(c, t, 2, k), 0);
    cup_tensor *eye = cup_eye(c, w->dtype, n, k, NULL);
    cup_tensor *sign = sign_of(c, cup_sum(c, cup_mul(c, lower, eye), (int64_t[]){1}, 1, true));
    for (int64_t i = 0; i < w->count; i++)
        CUP__SOLVE(w, orgqr, w->handle, m, k, k, cup__cusolver_at(t, i, (int64_t)m * n), m,
                   cup__cusolver_at(tau, i, k), cup__cusolver_at(w->space, 0, 0), more,
                   cup__cusolver_at(w->info, i, 1));
    cup_tensor *q = cup__linalg_turned(c, first(c, t, 1, k));
    cup__cusolver_give(w, 0, cup_mul(c, q, sign));
    cup__cusolver_give(w, 1, cup__linalg_turned(c, cup_mul(c, lower, sign)));
}
