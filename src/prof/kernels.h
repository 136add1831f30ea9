/* Which kernels the ops need on an architecture, and getting them compiled, without a GPU. */
#ifndef CUP_PROF_KERNELS_H
#define CUP_PROF_KERNELS_H

#include "cuda/kernels.h"
#include "dispatch/op.h"

/* Makes every call that the check and the benchmark know, of one op or of all when `op` is NULL,
 * on a dry GPU of the architecture, and compiles what was asked for into the cache folder, on
 * `threads` threads (0: one a core). `count` takes the number of compilations. The first failure
 * is returned, the others are worked on all the same. `progress` may be NULL. */
cup_status cup__kernels_build(cup__error *error, const char *arch, const char *op, int threads,
                              cup__kernel_progress progress, void *user, int *count);

/* Gets what the check's calls of a sample need on a GPU, in this thread. What fails is met again
 * when they are made. */
void cup__kernels_for_check(const cup__gpu_facts *facts, cup__precision precision,
                            const cup__row *row, const cup__sample *sample, cup_dtype dtype);

/* A dry GPU that answers as a card does: what is run on it is noted. */
cup_context *cup__kernels_note(const cup__gpu_facts *facts, cup__precision precision);

/* Gets in this thread what was asked of a dry GPU and no other thread is getting, and frees the
 * context, which may be NULL. */
void cup__kernels_get_noted(cup_context *c);

/* Runs every implementation for a GPU that takes the call as a check does, with results that lie
 * `out_offset` elements behind where vectors begin; goes on where one fails. */
void cup__kernels_run_all(cup_context *c, const cup__row *row, cup_tensor **in, int count,
                          const void *attributes, int out_offset);

/* As cup__kernels_build, what programs commonly ask for: of each op the implementation that is
 * taken at the benchmark's shapes, in f32, f16 and bf16; and the steps of all presets of trainings.
 */
cup_status cup__kernels_build_common(cup__error *error, const char *arch, int threads,
                                     cup__kernel_progress progress, void *user, int *count);

/* Gets what the benchmark's calls of an op need on the context's GPU, on all cores, before they are
 * made. What fails is met again then. */
void cup__kernels_for_bench(cup_context *c, const cup__row *row, const cup__sample *samples,
                            cup_dtype dtype, bool only_taken);

#endif
