#include "optim/rule.h"

CUP__RULE(sgd, 1, (.last_for = 1),
    g += n.decay * value;
    if (STATES > 0) {
        first = n.a[0] * first + g;
        g = n.a[1] != 0 ? g + n.a[0] * first : first;
    }
    value = value - n.rate * g;
)

static const cup__sgd_attributes plain = {0, false, false}, heavy = {0.9, false, false},
                                   nesterov = {0.9, true, true};
static const cup__sample samples[] = {
    {"5 2x2 7 7 - - - 3x5 3x5 - - -", &plain},
    {"5 2x2 3x5 3x5 3x5 3x5 - 1025 1025 1025 1025 -", &heavy},
    {"5 3x2 () () - () - 0x4 0x4 - 0x4 - 20001 20001 - 20001 -", &nesterov},
    {NULL, NULL}};
static const cup__sample bench[] = {{"5 1x2 124354560 124354560 - 124354560 -", &heavy},
                                    {NULL, NULL}};

const cup__op cup__op_sgd = {CUP__UPDATE(&sgd_update), .samples = samples, .bench = bench};
