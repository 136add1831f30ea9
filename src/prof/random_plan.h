/* Which calls a random check makes where kernels must be compiled for them, which takes far longer
 * than all else: a budget of kernels is spent evenly over the ops and over the check, and between
 * come calls of kernels that are known by then, at other strides, offsets, values and sizes. */
#ifndef CUP_PROF_RANDOM_PLAN_H
#define CUP_PROF_RANDOM_PLAN_H

#include "cuda/cuda.h"
#include "prof/random.h"

typedef struct cup__random_plan cup__random_plan;

/* Plans all calls of a check, those before options->first too, for a card; on all cores. A function
 * of the options, the card and the library alone. NULL: no memory. */
cup__random_plan *cup__random_plan_new(const cup__random_options *options,
                                       const cup__gpu_facts *facts, cup__precision precision);
void cup__random_plan_free(cup__random_plan *plan);

/* Draws call i of the check by its plan, which may be NULL: then each as it comes. */
bool cup__random_plan_draw(const cup__random_plan *plan, const cup__random_options *options,
                           int64_t i, cup_context *scratch, cup__drawn *out, int *tries);

/* How many kernels the calls need, those that several ops need counted by each. */
int64_t cup__random_plan_kernels(const cup__random_plan *plan);

/* Runs a drawn call on a dry GPU as a check does, which notes its kernels. */
void cup__random_note(cup_context *dry, const cup__drawn *d);

#endif
