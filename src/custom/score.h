/* A formula as attention takes it. */
#ifndef CUP_CUSTOM_SCORE_H
#define CUP_CUSTOM_SCORE_H

#include "custom/expr.h"
#include "ops/attention/attention_formula.h"

/* The formula of a cup_expr; begins with a cup__score_formula. */
struct cup__score;

/* It may have been made before; NULL with an error. */
struct cup__score *cup__score_get(cup_expr *e);

/* Which of attention's vectors an input is; `tensors` counts those that are none of its own. */
int cup__score_reads(const cup_expr *e, int input, int *tensors);

#endif
