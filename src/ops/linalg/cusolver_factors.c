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

/* The factor is l^T, as its columns are our rows. Of the upper triangle it would be l as it is
 * wanted, which took the library twice as long for a large one as others' calls of it. */
static void give_lower(cup__cusolver_work *w, cup_tensor *across)
{
    cup__cusolver_give(w, 0, cup_tril(w->c, cup__linalg_turned(w->c, across), 0));
}

void cup__cholesky_cusolver(cup__cusolver_work *w)
{
    cup_tensor *l = symmetric(w);
    int n = w->n, size = 0;
    CUP__SOLVE(w, potrf_bufferSize, w->handle, CUBLAS_FILL_MODE_LOWER, n,
               cup__cusolver_at(l, 0, 0), n, &size);
    cup__cusolver_room(w, size);
    for (int64_t i = 0; i < w->count; i++)
        CUP__SOLVE(w, potrf, w->handle, CUBLAS_FILL_MODE_LOWER, n,
                   cup__cusolver_at(l, i, (int64_t)n * n), n, cup__cusolver_at(w->space, 0, 0),
                   size, cup__cusolver_at(w->info, i, 1));
    give_lower(w, l);
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
    CUP__SOLVE(w, potrfBatched, w->handle, CUBLAS_FILL_MODE_LOWER, w->n,
               cup__cusolver_at(list, 0, 0), w->n, cup__cusolver_at(w->info, 0, 1), (int)w->count);
    give_lower(w, l);
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

/* How far x is from y, in the whole of each matrix. */
static cup_tensor *farthest(cup_context *c, cup_tensor *x, cup_tensor *y)
{
    return cup_max(c, cup_abs(c, cup_sub(c, x, y)), (int64_t[]){1, 2}, 2, false);
}

/* The library tells of few of its failures, so that vectors that are not upright, and factors that
 * do not make the matrix, are none. */
static void expect_factors(cup__cusolver_work *w, cup_tensor *a, cup_tensor *u, cup_tensor *s,
                           cup_tensor *v)
{
    cup_context *c = w->c;
    cup_tensor *eye = cup_eye(c, CUP_F64, w->k, w->k, NULL);
    cup_tensor *most = cup_max(c, cup_abs(c, a), (int64_t[]){1, 2}, 2, false);
    cup_tensor *product = cup_matmul(c, cup_mul(c, cup__linalg_turned(c, u), s), v, false, false);
    cup_tensor *off[] = {cup_div(c, farthest(c, product, a), most),
                         farthest(c, cup_matmul(c, u, u, false, true), eye),
                         farthest(c, cup_matmul(c, v, v, false, true), eye)};
    for (int i = 0; i < 3; i++) {
        cup_tensor *near = off[i] ? cup_less_equal(c, off[i], cup__number(c, off[i], 1e-9)) : NULL;
        cup_tensor *fine = cup_cast(c, near, CUP_I32);
        w->info = cup_add(c, w->info, cup_sub(c, cup_ones(c, CUP_I32, 1, &w->count), fine));
    }
}

/* The factors of the transpose, as which a lies column by column, are ours the other way round:
 * rows of v are its left vectors. Of f32 in double, as the library's vectors of f32 are less
 * upright than ours. */
void cup__svd_cusolver(cup__cusolver_work *w)
{
    cup_context *c = w->c;
    int m = w->m, n = w->n, k = w->k, size = 0;
    gesvdjInfo_t how = NULL;
    cup_tensor *a = cup_cast(c, cup__cusolver_flat(w, w->call->in[0]), CUP_F64);
    cup_tensor *t = cup_copy(c, a), *u = cup__cusolver_new(w, CUP_F64, k, m);
    cup_tensor *s = cup__cusolver_new(w, CUP_F64, 1, k), *v = cup__cusolver_new(w, CUP_F64, k, n);
    if (!t || !u || !s || !v)
        return;
    if (cup__cusolver_ready(w))
        w->status = cup__cusolver.cusolverDnCreateGesvdjInfo(&how);
    if (cup__cusolver_ready(w))
        w->status = cup__cusolver.cusolverDnDgesvdj_bufferSize(
            w->handle, CUSOLVER_EIG_MODE_VECTOR, 1, n, m, t->data, n, s->data, v->data, n, u->data,
            m, &size, how);
    cup_tensor *space = cup_tensor_new(c, CUP_F64, 1, (int64_t[]){size > 0 ? size : 1});
    for (int64_t i = 0; i < w->count && space; i++)
        if (cup__cusolver_ready(w))
            w->status = cup__cusolver.cusolverDnDgesvdj(
                w->handle, CUSOLVER_EIG_MODE_VECTOR, 1, n, m,
                cup__cusolver_at(t, i, (int64_t)m * n), n, cup__cusolver_at(s, i, k),
                cup__cusolver_at(v, i, (int64_t)k * n), n, cup__cusolver_at(u, i, (int64_t)k * m),
                m, space->data, size, cup__cusolver_at(w->info, i, 1), how);
    if (how)
        cup__cusolver.cusolverDnDestroyGesvdjInfo(how);
    expect_factors(w, a, u, s, v);
    const int64_t last = 2;
    cup_tensor *sign = sign_of(c, cup_add(c, cup_max(c, v, &last, 1, true),
                                          cup_min(c, v, &last, 1, true)));
    cup__cusolver_give(w, 0, cup_cast(c, cup__linalg_turned(c, cup_mul(c, u, sign)), w->dtype));
    cup__cusolver_give(w, 1, cup_cast(c, s, w->dtype));
    cup__cusolver_give(w, 2, cup_cast(c, cup_mul(c, v, sign), w->dtype));
}
