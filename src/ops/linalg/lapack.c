#include "ops/linalg/lapack.h"

#include <math.h>
#include <string.h>

#include "base/blas.h"
#include "base/memory.h"

#define LEAST 16 /* of the shorter side: below, our own code is done before a call has begun */

const char *cup__lapack_refuses(const cup__call *call)
{
    const cup_tensor *a = call->in[0];
    int64_t m = a->shape[a->ndim - 2], n = a->shape[a->ndim - 1];
    if (!cup__blas_get()->lapack)
        return cup__blas_get()->text;
    return (m < n ? m : n) < LEAST ? "of matrices so small our own code is faster" : NULL;
}

static bool all_finite(const double *a, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(a[i]))
            return false;
    return true;
}

/* Numbers of its own, if they are finite. */
static double *copy_of(const double *a, size_t count)
{
    double *own = all_finite(a, count) ? cup__malloc(count * sizeof *own) : NULL;
    if (own)
        memcpy(own, a, count * sizeof *own);
    return own;
}

/* As many numbers as a call that was asked for its room wants. */
static double *room_of(double wanted, int *count)
{
    *count = wanted < INT32_MAX ? (int)wanted : INT32_MAX;
    return cup__malloc((size_t)*count * sizeof(double));
}

/* The lower triangle row by row is the upper one column by column. */
bool cup__lapack_cholesky(double *a, int n)
{
    size_t all = (size_t)n * (size_t)n;
    double *own = copy_of(a, all);
    int info = 1;
    if (own)
        cup__blas_get()->dpotrf("U", &n, own, &n, &info, 1);
    if (info == 0)
        memcpy(a, own, all * sizeof *a);
    cup__free(own);
    return info == 0;
}

static void turn(const double *from, int rows, int columns, double *to)
{
    for (size_t i = 0; i < (size_t)rows; i++)
        for (size_t j = 0; j < (size_t)columns; j++)
            to[j * (size_t)rows + i] = from[i * (size_t)columns + j];
}

/* a column by column is its transpose. */
bool cup__lapack_solve(double *a, double *b, int n, int columns)
{
    size_t all = (size_t)n * (size_t)n, right = (size_t)n * (size_t)columns;
    double *lu = copy_of(a, all), *x = cup__malloc((right + 1) * sizeof *x);
    int *pivots = cup__malloc((size_t)n * sizeof *pivots), info = 1;
    if (lu && x && pivots && all_finite(b, right)) {
        turn(b, n, columns, x);
        cup__blas_get()->dgetrf(&n, &n, lu, &n, pivots, &info);
        if (info == 0)
            cup__blas_get()->dgetrs("T", &n, &columns, lu, &n, pivots, x, &n, &info, 1);
        if (info == 0)
            turn(x, columns, n, b);
    }
    cup__free(lu);
    cup__free(x);
    cup__free(pivots);
    return info == 0;
}

/* Into q and r, of the reflected matrix column by column and its vectors. */
static bool finish_qr(double *t, const double *tau, int m, int n, double *q, double *r)
{
    int k = m < n ? m : n, count = -1, info;
    double wanted, *room, *sign = cup__malloc((size_t)k * sizeof *sign);
    for (size_t j = 0; sign && j < (size_t)k; j++) {
        sign[j] = t[j + j * (size_t)m] < 0 ? -1 : 1;
        for (size_t i = 0; i < (size_t)n; i++)
            r[j * (size_t)n + i] = i < j ? 0 : sign[j] * t[j + i * (size_t)m];
    }
    cup__blas_get()->dorgqr(&m, &k, &k, t, &m, tau, &wanted, &count, &info);
    room = room_of(wanted, &count);
    info = 1;
    if (room && sign)
        cup__blas_get()->dorgqr(&m, &k, &k, t, &m, tau, room, &count, &info);
    for (size_t i = 0; i < (size_t)m && info == 0; i++)
        for (size_t j = 0; j < (size_t)k; j++)
            q[i * (size_t)k + j] = sign[j] * t[i + j * (size_t)m];
    cup__free(room);
    cup__free(sign);
    return info == 0;
}

bool cup__lapack_qr(const double *a, int m, int n, double *q, double *r)
{
    size_t all = (size_t)m * (size_t)n;
    int count = -1, info = 1;
    double wanted, *tau = cup__malloc((size_t)(m < n ? m : n) * sizeof *tau), *room = NULL;
    double *t = all_finite(a, all) ? cup__malloc(all * sizeof *t) : NULL;
    if (t && tau) {
        turn(a, m, n, t);
        cup__blas_get()->dgeqrf(&m, &n, t, &m, tau, &wanted, &count, &info);
        room = room_of(wanted, &count);
        info = 1;
    }
    if (room)
        cup__blas_get()->dgeqrf(&m, &n, t, &m, tau, room, &count, &info);
    cup__free(room);
    bool done = info == 0 && finish_qr(t, tau, m, n, q, r);
    cup__free(t);
    cup__free(tau);
    return done;
}

/* The factors of the transpose, as which a lies column by column, are ours the other way round. */
bool cup__lapack_svd(const double *a, int m, int n, double *u, double *s, double *vt)
{
    int k = m < n ? m : n, count = -1, info = 1;
    double wanted, *own = copy_of(a, (size_t)m * (size_t)n), *room = NULL;
    int *whole = cup__malloc(8 * (size_t)k * sizeof *whole);
    if (own && whole) {
        cup__blas_get()->dgesdd("S", &n, &m, own, &n, s, vt, &n, u, &k, &wanted, &count, whole,
                                &info, 1);
        room = room_of(wanted, &count);
        info = 1;
    }
    if (room)
        cup__blas_get()->dgesdd("S", &n, &m, own, &n, s, vt, &n, u, &k, room, &count, whole, &info,
                                1);
    cup__free(room);
    cup__free(own);
    cup__free(whole);
    return info == 0;
}
