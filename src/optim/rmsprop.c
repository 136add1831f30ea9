#include "optim/rule.h"

/* The first state is the mean square of the gradients, the second what momentum keeps of steps. */
CUP__RULE(rmsprop, 2, (.last_for = 3),
    g += n.decay * value;
    first = n.a[0] * first + n.rest[0] * g * g;
    real step = g / (sqrt(first) + n.a[1]);
    if (STATES > 1) {
        second = n.a[2] * second + step;
        step = second;
    }
    value = value - n.rate * step;
)

static const cup__rmsprop_attributes usual = {0.99, 1e-8, 0, false},
                                     heavy = {0.9, 1e-3, 0.9, false},
                                     random = {0.9, 1e-3, 0.9, true};
static const cup__sample samples[] = {
    {"5 2x2 3x5 3x5 3x5 3x5 - 1025 1025 1025 1025 -", &usual},
    {"5 2x2 9 - - 9 9 3x5 3x5 3x5 3x5 3x5", &heavy},
    {"5 3x2 () () - () () 0x4 0x4 - 0x4 0x4 20001 20001 - 20001 20001", &random},
    {NULL, NULL}};
static const cup__sample bench[] = {{"5 1x2 124354560 124354560 - 124354560 -", &usual},
                                    {NULL, NULL}};

const cup__op cup__op_rmsprop = {
    CUP__UPDATE_FROM(&rmsprop_update, 0.01), .samples = samples, .bench = bench};
