/* A BLAS with the cblas interface, and the LAPACK that comes with it, found when it is first
 * needed. */
#ifndef CUP_BASE_BLAS_H
#define CUP_BASE_BLAS_H

#include <stdbool.h>
#include <stddef.h>

enum { CUP__BLAS_ROW_MAJOR = 101, CUP__BLAS_PLAIN = 111, CUP__BLAS_TRANSPOSED = 112 };

typedef struct cup__blas {
    bool found; /* whether its products are used */
    char text[320]; /* which library and where from, or why none is used; for people */
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, double alpha,
                  const double *a, int lda, const double *b, int ldb, double beta, double *c,
                  int ldc);
    /* LAPACK's, column by column; the lengths of the words that they take come last. */
    bool lapack; /* whether all of them are there, which can be where `found` is not */
    void (*dpotrf)(const char *half, const int *n, double *a, const int *lda, int *info, size_t);
    void (*dgetrf)(const int *m, const int *n, double *a, const int *lda, int *pivots, int *info);
    void (*dgetrs)(const char *how, const int *n, const int *columns, const double *a,
                   const int *lda, const int *pivots, double *b, const int *ldb, int *info, size_t);
    void (*dgeqrf)(const int *m, const int *n, double *a, const int *lda, double *tau, double *work,
                   const int *size, int *info);
    void (*dorgqr)(const int *m, const int *n, const int *k, double *a, const int *lda,
                   const double *tau, double *work, const int *size, int *info);
    void (*dgesdd)(const char *which, const int *m, const int *n, double *a, const int *lda,
                   double *s, double *u, const int *ldu, double *vt, const int *ldvt, double *work,
                   const int *size, int *whole, int *info, size_t);
} cup__blas;

/* The library, asked to use one thread a call: the loops above it are already spread over all
 * cores. Never NULL; `found` is false when our own code is to be used. */
const cup__blas *cup__blas_get(void);

#endif
