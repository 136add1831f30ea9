/* One call held against its specification by every implementation of a device. */
#ifndef CUP_PROF_CHECK_CALL_H
#define CUP_PROF_CHECK_CALL_H

#include "prof/reference.h"

#define CUP__CHECK_IMPLS 64

typedef void (*cup__report)(const cup_check_result *result, void *user);

typedef struct cup__check_call {
    cup_context *c;
    const cup__row *row;
    const void *attributes;
    cup_dtype dtype;
    const char *layout, *shapes, *repeat; /* of the results that are reported */
    cup__report report;
    void *user;
    const cup__reference *want;
    cup_tensor *in[CUP__CHECK_INPUTS]; /* what the call changes is copied for it */
    int in_count;
    const char *only; /* the name of the one implementation that is run; NULL: all */
    long failures;  /* cup__memory_failures as the check began */
    int out_offset; /* elements by which results are off from where vectors begin */
    /* The least unit of an error, by result and by input that changes; 0: none. */
    double least_out[CUP__MAX_OUT], least_in[CUP__CHECK_INPUTS];
    char note[400];
    int accepted[CUP__CHECK_IMPLS];        /* calls, by the number of the implementation */
    const char *refusal[CUP__CHECK_IMPLS]; /* the last one; NULL: none */
} cup__check_call;

/* Runs every implementation of the device's place that takes the call, or on a CPU, where none
 * does, the specification in the dtype itself, and reports each. `made` is what came of making the
 * inputs. A call for which memory was short is not reported, and leaves CUP_MEMORY in the
 * context. */
void cup__check_run(cup__check_call *k, cup_status made);

/* Makes the same calls on a GPU and looks at no result, so that `want` may be NULL: on a dry one
 * for the kernels that it notes. Where `report` is set, tells which of them fail. */
void cup__check_launches(cup__check_call *k);

/* Reports the implementations that took none of the calls so far: they were not checked. */
void cup__check_unreached(cup__check_call *k);

#endif
