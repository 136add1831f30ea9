#include "optim/rule.h"

/* As adamw, but that the weight decay enters the states with the gradient. */
CUP__RULE(adam, 2, (),
    g += n.decay * value;
    first = n.a[0] * first + n.rest[0] * g;
    second = n.a[1] * second + n.rest[1] * g * g;
    value = value - n.corrected * first / (sqrt(second) * n.root + n.a[2]);
)

static const cup__adam_attributes usual = {0.9, 0.999, 1e-8, false},
                                  random = {0.8, 0.95, 1e-3, true};
static const cup__sample samples[] = {
    {"5 2x2 3x5 3x5 3x5 3x5 3x5 9 - - 9 9", &usual},
    {"5 3x2 4099 4099 - 4099 4099 () () - () () 20001 20001 - 20001 20001", &random},
    {NULL, NULL}};
static const cup__sample bench[] = {{"5 1x2 124354560 124354560 - 124354560 124354560", &usual},
                                    {NULL, NULL}};

const cup__op cup__op_adam = {CUP__UPDATE(&adam_update), .samples = samples, .bench = bench};
