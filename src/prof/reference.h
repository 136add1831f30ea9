/* What the calls of a check are held against: the specification, in double, on the CPU. It is
 * worked out ahead on all cores, and so are the kernels that a GPU needs for the calls. */
#ifndef CUP_PROF_REFERENCE_H
#define CUP_PROF_REFERENCE_H

#include "prof/ahead.h"
#include "prof/check.h"

#define CUP__CHECK_INPUTS 64
#define CUP__CHECK_SEED 20240229u

/* A call that is checked, whatever its layout and implementation. */
typedef struct cup__reference_call {
    const cup__row *row;
    const cup__sample *sample;
    cup_dtype dtype;
} cup__reference_call;

typedef struct cup__reference {
    cup_context *c; /* a CPU context of its own, with the error where there is one */
    cup_tensor *in[CUP__CHECK_INPUTS];
    cup__call call;
} cup__reference;

/* Lets a specification store what codes are roundings of; before results are allocated. */
void cup__reference_widen_codes(cup__call *call);

typedef struct cup__references cup__references;

/* Begins with the calls, which must live as long as it does. NULL: no memory. */
cup__references *cup__references_new(const cup_context *c, const cup__reference_call *calls,
                                     int64_t count);

/* What is known of call i; waits for it. Those of calls before it are gone. */
const cup__reference *cup__references_get(cup__references *r, int64_t i);

/* How long was waited, in seconds. */
double cup__references_waited(const cup__references *r);
void cup__references_free(cup__references *r);

/* A CPU context with an open scope and no tensors, record or error, for one call after the other:
 * `c`, or a new one where that is NULL. What it keeps of memory is little, since there is one for
 * each thread and calls of all sizes. NULL, or with an error: there is no memory. */
cup_context *cup__reference_context(cup_context *c, int threads);

/* Computes one, in `reference->c`, which must be there. */
cup_status cup__reference_run(cup__reference *reference, const cup__reference_call *call);

#endif
