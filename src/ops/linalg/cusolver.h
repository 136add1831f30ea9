/* Factors by NVIDIA's cuSOLVER, which works on one matrix with the whole card: for few large ones,
 * of which a block of our own kernels each takes long. What is asked of it is made, and its results
 * are brought to our order, signs and NaN, by other ops. */
#ifndef CUP_OPS_LINALG_CUSOLVER_H
#define CUP_OPS_LINALG_CUSOLVER_H

#include "cuda/loader.h"
#include "ops/linalg/linalg.h"

/* A call as it is carried out. A step behind one that failed does nothing. */
typedef struct cup__cusolver_work {
    cup_context *c;
    cup__call *call;
    cusolverDnHandle_t handle;
    cup_dtype dtype;
    int64_t count; /* of matrices, */
    int m, n, k;   /* of m rows and n columns, of which k is the smaller */
    cup_tensor *info;  /* [count], i32: 0 where all went well */
    cup_tensor *space; /* what it wanted as room */
    int space_size;
    cusolverStatus_t status;
} cup__cusolver_work;

/* Does `body`, or `own` where a graph is captured, as the library may wait for the card, where it
 * fails, and where a matrix has no such factors or holds NaN or inf, as it does not say which
 * numbers are right then. To know that the host waits for the card. */
cup_status cup__cusolver_run(cup__call *call, void (*body)(cup__cusolver_work *w),
                             cup_status (*own)(cup__call *call));

/* Without doubts; where it takes one matrix after another, and there are many small ones; and with
 * doubts: whether the matrices are large and few. */
const char *cup__cusolver_refuses(const cup__call *call);
const char *cup__cusolver_in_turn_refuses(const cup__call *call);
const char *cup__cusolver_best_refuses(const cup__call *call);

/* Whether the next call of the library may be made; notes that it comes. */
bool cup__cusolver_ready(cup__cusolver_work *w);

/* Calls of f32 and f64 differ in a letter. */
#define CUP__SOLVE(w, name, ...)                                                                   \
    do {                                                                                           \
        if (cup__cusolver_ready(w))                                                                \
            (w)->status = (w)->dtype == CUP_F64 ? cup__cusolver.cusolverDnD##name(__VA_ARGS__)     \
                                                : cup__cusolver.cusolverDnS##name(__VA_ARGS__);    \
    } while (0)

/* Room for so many numbers, in w->space. */
void cup__cusolver_room(cup__cusolver_work *w, int size);
/* A new tensor of so many matrices, [count,rows,columns]. */
cup_tensor *cup__cusolver_new(cup__cusolver_work *w, cup_dtype dtype, int64_t rows,
                              int64_t columns);
/* Where matrix i of so many numbers begins; NULL where there is no tensor. */
void *cup__cusolver_at(const cup_tensor *t, int64_t i, int64_t size);
/* t as [count,rows,columns], where its own dimensions in front are others. */
cup_tensor *cup__cusolver_flat(cup__cusolver_work *w, cup_tensor *t);
/* Writes a result of the call. */
void cup__cusolver_give(cup__cusolver_work *w, int out, cup_tensor *t);

void cup__cholesky_cusolver(cup__cusolver_work *w);
void cup__cholesky_cusolver_batched(cup__cusolver_work *w);
void cup__solve_cusolver(cup__cusolver_work *w);
void cup__qr_cusolver(cup__cusolver_work *w);
void cup__svd_cusolver(cup__cusolver_work *w);

#endif
