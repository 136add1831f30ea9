/* Losses that are multiplied before backward, so that small gradients in f16 are not rounded to
 * nothing (Micikevicius and others 2018, "Mixed precision training"): by a power of two that is
 * halved behind a step whose gradients were not finite, which is skipped, and doubled behind many
 * that were. It is on the device, so that nobody waits for it and a captured step stays one graph,
 * and among the optimizer's states, as "loss_scale": the scale, and steps since it changed. */
#ifndef CUP_OPTIM_LOSS_SCALE_H
#define CUP_OPTIM_LOSS_SCALE_H

#include "optim/optimizer.h"

#define CUP__LOSS_SCALE_LEAST 1 /* what is not finite so is not finite for want of a scale */
#define CUP__LOSS_SCALE_MOST 1073741824.0
#define CUP__LOSS_SCALE_STEPS 2000
#define CUP__LOSS_SCALE_FIRST 65536

/* From now on the gradients of a step are those of losses times a scale, at first this one, a power
 * of two, which is doubled behind so many good steps. Before anything asks for the states. */
cup_status cup__loss_scale_make(cup_optimizer *o, double first, int64_t steps);
void cup__loss_scale_free(cup_optimizer *o);

/* Refuses dtypes in which no model is trained, and gives one in f16 the first scale where it has
 * none. */
cup_status cup__loss_scale_choose(cup_context *c, cup_dtype dtype, double *first);

/* The gradient of a loss, which is the scale, in the innermost scope; NULL where there is none, or
 * with an error. */
cup_tensor *cup__loss_scale_slope(cup_optimizer *o, const cup_tensor *loss);

/* Within a step: the norm becomes that without the scale; and behind its factors, that of gradients
 * is divided by the scale, which becomes the next one. Both do nothing where there is none. */
cup_status cup__loss_scale_norm(cup_optimizer *o);
cup_status cup__loss_scale_factors(cup_optimizer *o);

#endif
