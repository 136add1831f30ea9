#include "optim/rule.h"

/* Every element moves equally, but for its decay. */
CUP__RULE(lion, 1, (),
    real mix = n.a[0] * first + n.rest[0] * g;
    real sign = (mix > 0 ? 1 : 0) - (mix < 0 ? 1 : 0);
    first = n.a[1] * first + n.rest[1] * g;
    value = value - n.rate * (sign + n.decay * value);
)

#define USUAL                                                                                      \
    &(const cup__lion_attributes)                                                                  \
    {                                                                                              \
        0.9, 0.99, false                                                                           \
    }
static const cup__sample samples[] = {
    {"5 2x2 3x5 3x5 3x5 3x5 - 1025 1025 1025 1025 -", USUAL},
    {"5 3x2 () () - () - 0x4 0x4 - 0x4 - 20001 20001 - 20001 -", USUAL},
    {NULL, NULL}};
static const cup__sample bench[] = {{"5 1x2 124354560 124354560 - 124354560 -", USUAL},
                                    {NULL, NULL}};

const cup__op cup__op_lion = {CUP__UPDATE(&lion_update), .samples = samples, .bench = bench};
