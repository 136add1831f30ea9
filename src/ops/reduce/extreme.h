/* The gradient that max and min share. */
#ifndef CUP_OPS_REDUCE_EXTREME_H
#define CUP_OPS_REDUCE_EXTREME_H

#include "ops/reduce/reduce.h"

cup_status cup__extreme_gradient(cup__grad *g);

#endif
