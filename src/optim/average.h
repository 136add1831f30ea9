/* The moving average of an optimizer's parameters. */
#ifndef CUP_OPTIM_AVERAGE_H
#define CUP_OPTIM_AVERAGE_H

#include "cupola/grad.h"
#include "tensor/tensor.h"

#define CUP__AVERAGE_PART "average" /* of the name of a state */

/* Averages begin with zeros: what they are to be multiplied with behind so many steps. */
double cup__average_scale(double decay, int64_t steps);

/* Puts scale times an average in the place of its parameter. */
cup_status cup__average_take(cup_context *c, cup_tensor *parameter, cup_tensor *average,
                             double scale);

#endif
