/* The gradient that max and min share. */
#ifndef CUP_OPS_EXTREME_H
#define CUP_OPS_EXTREME_H

#include "ops/reduce.h"

cup_status cup__extreme_gradient(cup__grad *g);

#endif
