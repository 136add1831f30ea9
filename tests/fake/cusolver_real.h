/* The calls of one dtype, as REAL, CALL(name) and OWN(name) say. Included twice by cusolver.c. */

cusolverStatus_t CALL(potrf_bufferSize)(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n,
                                        REAL *a, int lda, int *lwork)
{
    ENTER;
    *lwork = ROOM;
    return handle && a && uplo == CUBLAS_FILL_MODE_LOWER && lda >= n ? CUSOLVER_STATUS_SUCCESS
                                                                     : WRONG;
}

/* l l^T = a of the lower triangle; the upper one is left as it is. */
static int OWN(lower)(int n, REAL *a, int lda)
{
    for (int j = 0; j < n; j++)
        for (int i = j; i < n; i++) {
            double sum = (double)a[i + j * lda];
            for (int k = 0; k < j; k++)
                sum -= (double)a[i + k * lda] * (double)a[j + k * lda];
            if (i == j && !(sum > 0))
                return j + 1;
            a[i + j * lda] = (REAL)(i == j ? sqrt(sum) : sum / (double)a[j + j * lda]);
        }
    return 0;
}

cusolverStatus_t CALL(potrf)(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, REAL *a,
                             int lda, REAL *work, int lwork, int *info)
{
    ENTER;
    if (!handle || uplo != CUBLAS_FILL_MODE_LOWER || lda < n || !work || lwork != ROOM)
        return WRONG;
    rest(handle);
    *info = OWN(lower)(n, a, lda);
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t CALL(potrfBatched)(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n,
                                    REAL *all[], int lda, int *info, int count)
{
    ENTER;
    if (!handle || uplo != CUBLAS_FILL_MODE_LOWER || lda < n || !all)
        return WRONG;
    rest(handle);
    for (int i = 0; i < count && !handle->stream; i++)
        info[i] = OWN(lower)(n, all[i], lda);
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
