/* A BLAS with the cblas interface, found when it is first needed. */
#ifndef CUP_BASE_BLAS_H
#define CUP_BASE_BLAS_H

#include <stdbool.h>

enum { CUP__BLAS_ROW_MAJOR = 101, CUP__BLAS_PLAIN = 111, CUP__BLAS_TRANSPOSED = 112 };

typedef struct cup__blas {
    bool found;
    char text[320]; /* which library and where from, or why none is used; for people */
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, double alpha,
                  const double *a, int lda, const double *b, int ldb, double beta, double *c,
                  int ldc);
} cup__blas;

/* The library, asked to use one thread a call: the loops above it are already spread over all
 * cores. Never NULL; `found` is false when our own code is to be used. */
const cup__blas *cup__blas_get(void);

#endif
