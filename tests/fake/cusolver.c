/* See cusolver.h. */
#include "cusolver.h"

#include <math.h>

#include "counted.h"

#define ROOM 7 /* numbers that are asked for */
#define WRONG CUSOLVER_STATUS_INVALID_VALUE

/* Declares each call as the library does, and so holds the two against each other. */
#define NEED(result, name, exported, arguments) EXPORT result name arguments;
#include "cuda/cusolver.def"
#undef NEED

EXPORT fake_cusolver_fail_function fake_cusolver_fail;
EXPORT fake_cusolver_calls_function fake_cusolver_calls;
EXPORT fake_cusolver_live_function fake_cusolver_live;

static long live;

struct cusolverDnContext {
    CUstream stream;
};

void fake_cusolver_fail(long n)
{
    fail_in = n;
}

long fake_cusolver_calls(const char *name)
{
    return counted(name);
}

long fake_cusolver_live(void)
{
    return live;
}

#define ENTER                                                                                      \
    do {                                                                                           \
        if (count_call(__func__))                                                                  \
            return CUSOLVER_STATUS_INTERNAL_ERROR;                                                 \
    } while (0)

/* Without a stream what it is given is memory of the host. */
static void rest(cusolverDnHandle_t handle)
{
    if (handle->stream)
        wait_for(handle->stream);
}

static double product_of(const double *a, const double *b, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static double length_of(const double *a, int count)
{
    return sqrt(product_of(a, a, count));
}

static void turn_pair(double *a, double *b, int count, double c, double s)
{
    for (int i = 0; i < count; i++) {
        double own = a[i];
        a[i] = c * own - s * b[i];
        b[i] = s * own + c * b[i];
    }
}

/* Until columns stand at right angles, the longest first; `turns` is what was made of 1. */
static void turn_columns(int rows, int count, double *x, double *turns)
{
    for (int j = 0; j < count; j++)
        turns[j + j * count] = 1;
    for (int sweep = 0; sweep < 60; sweep++)
        for (int p = 0; p < count; p++)
            for (int q = p + 1; q < count; q++) {
                double *a = x + p * rows, *b = x + q * rows, ab = product_of(a, b, rows);
                double aa = product_of(a, a, rows), bb = product_of(b, b, rows), c = 1, s = 0;
                if (fabs(ab) > 1e-16 * sqrt(aa * bb)) {
                    double z = (bb - aa) / (2 * ab);
                    double t = copysign(1 / (fabs(z) + sqrt(1 + z * z)), z);
                    c = 1 / sqrt(1 + t * t);
                    s = c * t;
                } else if (bb > aa) {
                    c = 0;
                    s = 1;
                }
                turn_pair(a, b, rows, c, s);
                turn_pair(turns + p * count, turns + q * count, count, c, s);
            }
}

cusolverStatus_t cusolverGetVersion(int *version)
{
    *version = 11705;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *handle)
{
    ENTER;
    *handle = calloc(1, sizeof **handle);
    live++;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle)
{
    free(handle);
    live--;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, CUstream stream)
{
    ENTER;
    handle->stream = stream;
    return CUSOLVER_STATUS_SUCCESS;
}

#define REAL float
#define CALL(name) cusolverDnS##name
#define OWN(name) s_##name
#include "cusolver_real.h"
#undef REAL
#undef CALL
#undef OWN

#define REAL double
#define CALL(name) cusolverDnD##name
#define OWN(name) d_##name
#include "cusolver_real.h"

struct gesvdjInfo {
    int none;
};

cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t *how)
{
    ENTER;
    *how = calloc(1, sizeof **how);
    live++;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnDestroyGesvdjInfo(gesvdjInfo_t how)
{
    free(how);
    live--;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnDgesvdj_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t vectors,
                                              int econ, int m, int n, const double *a, int lda,
                                              const double *s, const double *u, int ldu,
                                              const double *v, int ldv, int *lwork,
                                              gesvdjInfo_t how)
{
    ENTER;
    *lwork = ROOM + 4;
    return handle && vectors == CUSOLVER_EIG_MODE_VECTOR && econ == 1 && a && s && u && v && how &&
                   lda >= m && ldu >= m && ldv >= n
               ? CUSOLVER_STATUS_SUCCESS
               : WRONG;
}

/* Of the columns of a, or of a^T where it is wider than high. */
cusolverStatus_t cusolverDnDgesvdj(cusolverDnHandle_t handle, cusolverEigMode_t vectors, int econ,
                                   int m, int n, double *a, int lda, double *s, double *u, int ldu,
                                   double *v, int ldv, double *work, int lwork, int *info,
                                   gesvdjInfo_t how)
{
    ENTER;
    bool wide = m < n;
    int rows = wide ? n : m, count = wide ? m : n;
    if (!handle || vectors != CUSOLVER_EIG_MODE_VECTOR || econ != 1 || !how || lda < m || ldu < m ||
        ldv < n || !work || lwork != ROOM + 4)
        return WRONG;
    rest(handle);
    *info = 0;
    double *x = calloc((size_t)(rows * count), sizeof *x);
    double *turns = calloc((size_t)(count * count), sizeof *turns);
    for (int i = 0; i < rows * count; i++)
        x[i] = a[wide ? i / rows + i % rows * lda : i % rows + i / rows * lda];
    turn_columns(rows, count, x, turns);
    for (int j = 0; j < count; j++) {
        s[j] = length_of(x + j * rows, rows);
        for (int i = 0; i < rows; i++)
            (wide ? v + j * ldv : u + j * ldu)[i] = s[j] > 0 ? x[i + j * rows] / s[j] : 0;
        for (int i = 0; i < count; i++)
            (wide ? u + j * ldu : v + j * ldv)[i] = turns[i + j * count];
    }
    free(x);
    free(turns);
    return CUSOLVER_STATUS_SUCCESS;
}
