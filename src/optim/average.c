/* The moving average of parameters: `average_step` is the rule of one step, in which the place of
 * the gradient has the parameter, or its master copy, as the step has left it. */
#include "optim/average.h"

#include <math.h>

#include "base/memory.h"
#include "cupola/ops.h"
#include "optim/rule.h"

CUP__RULE(average_step, 0, (.unscaled = true),
    value = n.a[0] * value + n.rest[0] * g;
)

static const cup__average_step_attributes usual = {0.875}, slow = {0.999};
static const cup__sample samples[] = {
    {"5 2x2 7 7 - - - 3x5 3x5 - - -", &usual},
    {"5 3x2 () () - - - 0x4 0x4 - - - 20001 20001 - - -", &slow},
    {NULL, NULL}};
static const cup__sample bench[] = {{"5 1x2 124354560 124354560 - - -", &slow}, {NULL, NULL}};

const cup__op cup__op_average_step = {
    CUP__UPDATE(&average_step_update), .samples = samples, .bench = bench};

double cup__average_scale(double decay, int64_t steps)
{
    return steps > 0 ? 1 / (1 - pow(decay, (double)steps)) : 0;
}

cup_status cup__average_take(cup_context *c, cup_tensor *parameter, cup_tensor *average,
                             double scale)
{
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    cup_tensor *value = cup_cast(c, cup_scale(c, average, scale), parameter->dtype);
    if (value)
        cup_copy_into(c, parameter, value);
    cup_scope_return(c, NULL);
    cup_grad_recording(c, was);
    return c->error.status;
}
