/* Steps that are not made where more than the gradients is not finite. */
#ifndef CUP_OPTIM_GUARD_H
#define CUP_OPTIM_GUARD_H

#include "optim/optimizer.h"

/* From now on a step changes nothing either where one of these f32 numbers, which are borrowed, is
 * not finite: the norm is then NaN. With `for_good` no step behind such a one, or behind one whose
 * gradients are not finite where the loss has no scale, changes anything. */
cup_status cup__optimizer_guard(cup_optimizer *o, cup_tensor *numbers, bool for_good);
void cup__guard_free(cup_optimizer *o);

/* Behind the norm of a step: makes it NaN where the guard says so. */
cup_status cup__guard_norm(cup_optimizer *o);

/* Whether the last step was made: one f32 number, 1 or 0; a view to be freed. */
cup_tensor *cup__optimizer_went(cup_optimizer *o);

#endif
