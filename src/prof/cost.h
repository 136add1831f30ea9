/* What a call must move and do, for rooflines. */
#ifndef CUP_PROF_COST_H
#define CUP_PROF_COST_H

#include "dispatch/op.h"

/* Bytes and operations of an inferred call whose results are allocated: the op's own count, or
 * each input and result once and one operation an element. */
void cup__call_cost(const cup__call *call, double *bytes, double *flops);

#endif
