/* Factors by the LAPACK that comes with the BLAS library, one matrix on one thread, in double as
 * our own are. Matrices lie row by row. */
#ifndef CUP_OPS_LINALG_LAPACK_H
#define CUP_OPS_LINALG_LAPACK_H

#include "ops/linalg/linalg.h"

#define CUP__LAPACK_VARIES "a LAPACK library may add in another order each time"

const char *cup__lapack_refuses(const cup__call *call);

/* False where there are no such factors, numbers are not finite, or there is no memory: then what
 * was given is as it was, and our own code shall do it. */

/* Of the lower triangle, in place. */
bool cup__lapack_cholesky(double *a, int n);
/* x takes the place of b, of so many columns, and a is lost. */
bool cup__lapack_solve(double *a, double *b, int n, int columns);
/* q [m,k] and r [k,n], whose diagonal is at least 0; k is the smaller of both. */
bool cup__lapack_qr(const double *a, int m, int n, double *q, double *r);
/* u [m,k], s [k] and vt [k,n], of any signs. */
bool cup__lapack_svd(const double *a, int m, int n, double *u, double *s, double *vt);

#endif
