/* The calls of one dtype, as REAL, CALL(name) and OWN(name) say. Included twice by cusolver.c. */

cusolverStatus_t CALL(potrf_bufferSize)(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n,
                                        REAL *a, int lda, int *lwork)
{
    ENTER;
    *lwork = ROOM;
    return handle && a && uplo == CUBLAS_FILL_MODE_UPPER && lda >= n ? CUSOLVER_STATUS_SUCCESS
                                                                     : WRONG;
}

/* u^T u = a of the upper triangle; the lower one is left as it is. */
static int OWN(upper)(int n, REAL *a, int lda)
{
    for (int j = 0; j < n; j++)
        for (int i = 0; i <= j; i++) {
            double sum = (double)a[i + j * lda];
            for (int k = 0; k < i; k++)
                sum -= (double)a[k + i * lda] * (double)a[k + j * lda];
            if (i == j && !(sum > 0))
                return j + 1;
            a[i + j * lda] = (REAL)(i == j ? sqrt(sum) : sum / (double)a[i + i * lda]);
        }
    return 0;
}

cusolverStatus_t CALL(potrf)(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, REAL *a,
                             int lda, REAL *work, int lwork, int *info)
{
    ENTER;
    if (!handle || uplo != CUBLAS_FILL_MODE_UPPER || lda < n || !work || lwork != ROOM)
        return WRONG;
    rest(handle);
    *info = OWN(upper)(n, a, lda);
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t CALL(potrfBatched)(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n,
                                    REAL *all[], int lda, int *info, int count)
{
    ENTER;
    if (!handle || uplo != CUBLAS_FILL_MODE_UPPER || lda < n || !all)
        return WRONG;
    rest(handle);
    for (int i = 0; i < count && !handle->stream; i++)
        info[i] = OWN(upper)(n, all[i], lda);
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t CALL(getrf_bufferSize)(cusolverDnHandle_t handle, int m, int n, REAL *a, int lda,
                                        int *lwork)
{
    ENTER;
    *lwork = ROOM;
    return handle && a && m == n && lda >= m ? CUSOLVER_STATUS_SUCCESS : WRONG;
}

static void OWN(swap)(REAL *a, REAL *b, int count, int step)
{
    for (int i = 0; i < count; i++) {
        REAL own = a[i * step];
        a[i * step] = b[i * step];
        b[i * step] = own;
    }
}

cusolverStatus_t CALL(getrf)(cusolverDnHandle_t handle, int m, int n, REAL *a, int lda, REAL *work,
                             int *pivots, int *info)
{
    ENTER;
    if (!handle || m != n || lda < n || !work)
        return WRONG;
    rest(handle);
    *info = 0;
    for (int j = 0; j < n; j++) {
        int at = j;
        for (int i = j; i < n; i++)
            if (fabs((double)a[i + j * lda]) > fabs((double)a[at + j * lda]))
                at = i;
        pivots[j] = at + 1;
        if (a[at + j * lda] == 0 && !*info)
            *info = j + 1;
        OWN(swap)(a + j, a + at, n, lda);
        for (int i = j + 1; i < n; i++) {
            a[i + j * lda] /= a[j + j * lda];
            for (int k = j + 1; k < n; k++)
                a[i + k * lda] -= a[i + j * lda] * a[j + k * lda];
        }
    }
    return CUSOLVER_STATUS_SUCCESS;
}

/* a^T x = b: u^T y = b, l^T z = y, and then the exchanges backwards. */
cusolverStatus_t CALL(getrs)(cusolverDnHandle_t handle, cublasOperation_t trans, int n, int nrhs,
                             const REAL *a, int lda, const int *pivots, REAL *b, int ldb, int *info)
{
    ENTER;
    if (!handle || trans != CUBLAS_OP_T || lda < n || ldb < n || !pivots)
        return WRONG;
    rest(handle);
    *info = 0;
    for (int r = 0; r < nrhs; r++) {
        REAL *x = b + r * ldb;
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < i; k++)
                x[i] -= a[k + i * lda] * x[k];
            x[i] /= a[i + i * lda];
        }
        for (int i = n; i-- > 0;)
            for (int k = i + 1; k < n; k++)
                x[i] -= a[k + i * lda] * x[k];
        for (int i = n; i-- > 0 && !handle->stream;)
            OWN(swap)(x + i, x + pivots[i] - 1, 1, 1);
    }
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t CALL(geqrf_bufferSize)(cusolverDnHandle_t handle, int m, int n, REAL *a, int lda,
                                        int *lwork)
{
    ENTER;
    *lwork = ROOM;
    return handle && a && n > 0 && lda >= m ? CUSOLVER_STATUS_SUCCESS : WRONG;
}

static void OWN(reflect)(const REAL *v, REAL tau, REAL *y, int rows)
{
    REAL sum = y[0];
    for (int i = 1; i < rows; i++)
        sum += v[i] * y[i];
    y[0] -= tau * sum;
    for (int i = 1; i < rows; i++)
        y[i] -= tau * sum * v[i];
}

cusolverStatus_t CALL(geqrf)(cusolverDnHandle_t handle, int m, int n, REAL *a, int lda, REAL *tau,
                             REAL *work, int lwork, int *info)
{
    ENTER;
    if (!handle || lda < m || !tau || !work || lwork != ROOM)
        return WRONG;
    rest(handle);
    *info = 0;
    for (int j = 0; j < m && j < n; j++) {
        REAL *x = a + j + j * lda;
        double below = 0;
        for (int i = 1; i < m - j; i++)
            below += (double)x[i] * (double)x[i];
        double norm = sqrt((double)x[0] * (double)x[0] + below), beta = x[0] > 0 ? -norm : norm;
        tau[j] = below > 0 ? (REAL)((beta - (double)x[0]) / beta) : 0;
        for (int i = 1; i < m - j && below > 0; i++)
            x[i] /= x[0] - (REAL)beta;
        x[0] = below > 0 ? (REAL)beta : x[0];
        for (int k = j + 1; k < n; k++)
            OWN(reflect)(x, tau[j], a + j + k * lda, m - j);
    }
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t CALL(orgqr_bufferSize)(cusolverDnHandle_t handle, int m, int n, int k,
                                        const REAL *a, int lda, const REAL *tau, int *lwork)
{
    ENTER;
    *lwork = ROOM + 2;
    return handle && a && tau && m >= n && n == k && lda >= m ? CUSOLVER_STATUS_SUCCESS : WRONG;
}

cusolverStatus_t CALL(orgqr)(cusolverDnHandle_t handle, int m, int n, int k, REAL *a, int lda,
                             const REAL *tau, REAL *work, int lwork, int *info)
{
    ENTER;
    if (!handle || m < n || n != k || lda < m || !tau || !work || lwork != ROOM + 2)
        return WRONG;
    rest(handle);
    *info = 0;
    REAL *q = calloc((size_t)m * (size_t)n, sizeof *q);
    for (int j = 0; j < n; j++) {
        q[j + j * m] = 1;
        for (int i = j; i >= 0; i--)
            OWN(reflect)(a + i + i * lda, tau[i], q + i + j * m, m - i);
    }
    for (int j = 0; j < n; j++)
        memcpy(a + j * lda, q + j * m, (size_t)m * sizeof *q);
    free(q);
    return CUSOLVER_STATUS_SUCCESS;
}

/* Turns columns p and q of x into each other by their angle, and those of v with them. */
static void OWN(turn)(double *x, double *v, int rows, int count, int p, int q)
{
    double aa = 0, bb = 0, ab = 0;
    for (int i = 0; i < rows; i++) {
        aa += x[i + p * rows] * x[i + p * rows];
        bb += x[i + q * rows] * x[i + q * rows];
        ab += x[i + p * rows] * x[i + q * rows];
    }
    double angle = 0.5 * atan2(2 * ab, aa - bb), c = cos(angle), s = sin(angle);
    for (int i = 0; i < rows + count; i++) {
        double *a = i < rows ? &x[i + p * rows] : &v[i - rows + p * count];
        double *b = i < rows ? &x[i + q * rows] : &v[i - rows + q * count], own = *a;
        *a = c * own + s * *b;
        *b = c * *b - s * own;
    }
}

/* m >= n, or the transpose; vectors of the first sign that comes, columns of u and v ldu and ldv
 * apart. */
static void OWN(factor)(int m, int n, const REAL *a, int lda, REAL *s, REAL *u, int ldu, REAL *v,
                        int ldv)
{
    int rows = m > n ? m : n, count = m > n ? n : m;
    double *x = calloc((size_t)(rows * count), sizeof *x);
    double *w = calloc((size_t)(count * count), sizeof *w);
    for (int i = 0; i < m * n; i++)
        x[m >= n ? i : i / m + i % m * rows] = (double)a[i % m + i / m * lda];
    for (int i = 0; i < count; i++)
        w[i + i * count] = 1;
    for (int i = 0; i < 30 * count * count; i++)
        if (i / count % count < i % count)
            OWN(turn)(x, w, rows, count, i / count % count, i % count);
    for (int j = 0; j < count; j++) {
        double square = 0;
        for (int i = 0; i < rows; i++)
            square += x[i + j * rows] * x[i + j * rows];
        s[j] = (REAL)sqrt(square);
        for (int i = 0; i < rows; i++)
            *(m >= n ? &u[i + j * ldu] : &v[i + j * ldv]) = (REAL)(x[i + j * rows] / sqrt(square));
        for (int i = 0; i < count; i++)
            *(m >= n ? &v[i + j * ldv] : &u[i + j * ldu]) = (REAL)w[i + j * count];
    }
    free(x);
    free(w);
}

cusolverStatus_t CALL(gesvdj_bufferSize)(cusolverDnHandle_t handle, cusolverEigMode_t jobz,
                                         int econ, int m, int n, const REAL *a, int lda,
                                         const REAL *s, const REAL *u, int ldu, const REAL *v,
                                         int ldv, int *lwork, gesvdjInfo_t params)
{
    ENTER;
    *lwork = ROOM;
    return handle && jobz == CUSOLVER_EIG_MODE_VECTOR && econ == 1 && a && s && u && v &&
                   lda >= m && ldu >= m && ldv >= n && params
               ? CUSOLVER_STATUS_SUCCESS
               : WRONG;
}

cusolverStatus_t CALL(gesvdj)(cusolverDnHandle_t handle, cusolverEigMode_t jobz, int econ, int m,
                              int n, REAL *a, int lda, REAL *s, REAL *u, int ldu, REAL *v, int ldv,
                              REAL *work, int lwork, int *info, gesvdjInfo_t params)
{
    ENTER;
    if (!handle || jobz != CUSOLVER_EIG_MODE_VECTOR || econ != 1 || !work || lwork != ROOM ||
        !params)
        return WRONG;
    rest(handle);
    *info = 0;
    OWN(factor)(m, n, a, lda, s, u, ldu, v, ldv);
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t CALL(gesvdjBatched_bufferSize)(cusolverDnHandle_t handle, cusolverEigMode_t jobz,
                                                int m, int n, const REAL *a, int lda,
                                                const REAL *s, const REAL *u, int ldu,
                                                const REAL *v, int ldv, int *lwork,
                                                gesvdjInfo_t params, int count)
{
    ENTER;
    *lwork = ROOM;
    return handle && jobz == CUSOLVER_EIG_MODE_VECTOR && m <= 32 && n <= 32 && a && s && u && v &&
                   lda >= m && ldu >= m && ldv >= n && params && count > 0
               ? CUSOLVER_STATUS_SUCCESS
               : WRONG;
}

/* All vectors of both sides have room; of those that are no more than what m and n share none is
 * needed, and they are left as they are. */
cusolverStatus_t CALL(gesvdjBatched)(cusolverDnHandle_t handle, cusolverEigMode_t jobz, int m,
                                     int n, REAL *a, int lda, REAL *s, REAL *u, int ldu, REAL *v,
                                     int ldv, REAL *work, int lwork, int *info,
                                     gesvdjInfo_t params, int count)
{
    ENTER;
    int k = m < n ? m : n;
    if (!handle || jobz != CUSOLVER_EIG_MODE_VECTOR || !work || lwork != ROOM || !params)
        return WRONG;
    rest(handle);
    for (int i = 0; i < count; i++) {
        info[i] = 0;
        OWN(factor)(m, n, a + i * lda * n, lda, s + i * k, u + i * ldu * m, ldu, v + i * ldv * n,
                    ldv);
    }
    return CUSOLVER_STATUS_SUCCESS;
}
