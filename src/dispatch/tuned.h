/* Ways that were measured to be the fastest for a call, where an op has several that take it: its
 * implementations, and of one that has plans each plan. */
#ifndef CUP_DISPATCH_TUNED_H
#define CUP_DISPATCH_TUNED_H

#include "base/text.h"
#include "dispatch/op.h"

/* Sets call->tuned to the measured way; to none where nothing was measured, or it refuses. */
void cup__tuned_of(cup__call *call);

/* Measures all ways, which overwrites the results, and takes the fastest from now on, in this
 * context and by the user's file in later ones. *out is none where there is no choice; *count says
 * how many ways there were. */
cup_status cup__tune_call(cup__call *call, cup__way *out, double *us, int *count);

/* A way as it stands in a record: "wgmma tile_m=128 parts=2". Numbers that are 0 are left out. */
void cup__way_text(const cup__way *way, cup__text *text);
bool cup__way_parse(const cup__op *op, const char *text, cup__way *out);

/* For the words of an op's own: " bf16:64x256 -", of each input its dtype, sizes, steps where it
 * does not lie row by row, and whether it is aligned. */
void cup__words_of_inputs(const cup__call *call, cup__text *to);

/* Says in the log which measured way a call takes. */
void cup__tuned_log(const cup__call *call);

#endif
