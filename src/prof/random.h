/* Random calls of every op, each held against the specification by every implementation. */
#ifndef CUP_PROF_RANDOM_H
#define CUP_PROF_RANDOM_H

#include "prof/check_call.h"
#include "prof/draw.h"

typedef struct cup__random_options {
    const cup__row *const *rows; /* drawn in turn */
    int row_count;
    int64_t calls, first; /* calls first to calls - 1 */
    uint64_t seed;
    /* Told of each call before it is made, also while its specification is worked out in another
     * thread: what to say if the process does not survive it. May be NULL. */
    void (*begins)(const char *text, void *user);
    void (*done)(int64_t calls, void *user); /* after each of them; may be NULL */
    bool no_shrinking;
    bool large; /* now and then, as cup__draw_limits says */
    int64_t kernels; /* on a GPU, about how many are compiled for the calls; 0: any number */
} cup__random_options;

/* What became of the drawings of an op. */
typedef struct cup__random_count {
    int64_t drawn, refused, tries;
} cup__random_count;

/* Reports each implementation at each call. Of a failure, the first three of each implementation,
 * the smallest call is searched that still fails; `repeat` of what is reported then is that one.
 * `counts` has one for each row; NULL: not wanted. The status tells only whether the check itself
 * could run. On a dry GPU only kernels are compiled. */
cup_status cup__random_check(cup_context *c, const cup__random_options *options,
                             cup__random_count *counts, cup__report report, void *user);

/* One call, as its text says, with options of which only `begins` is looked at. */
cup_status cup__random_repeat(cup_context *c, const char *text, const cup__random_options *options,
                              cup__report report, void *user);

/* Makes the call smaller while `fails` says that it does. */
void cup__shrink(cup__drawn *d, cup_context *scratch,
                 bool (*fails)(const cup__drawn *d, void *user), void *user);

#endif
