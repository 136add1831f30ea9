#include "optim/rule.h"

/* That of adamw. */
CUP__RULE_CODED(adamw8,
    first = n.a[0] * first + n.rest[0] * g;
    second = n.a[1] * second + n.rest[1] * g * g;
    real length = sqrt(second) * n.root + n.a[2];
    value = value - (n.rate * n.decay * value + n.corrected * first / length);
)

static const cup__adamw8_attributes usual = {0.9, 0.999, 1e-8, false},
                                    random = {0.8, 0.95, 1e-3, true};
static const cup__sample samples[] = {
    {"5 2x2 7 7 - 1x260 1x260 3x5 3x5 3x5 1x260 1x260", &usual},
    {"5 4x2 () () - 1x260 1x260 0x4 0x4 - 0x260 0x260 9 - - 1x260 1x260 "
     "20001 20001 - 79x260 79x260", &random},
    {"5 2x2 64x257 64x257 64x257 65x260 65x260 4096 4096 - 16x260 16x260", &usual},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"5 1x2 124354560 124354560 - 485760x260 485760x260", &usual}, {NULL, NULL}};

const cup__op cup__op_adamw8 = {
    CUP__UPDATE_CODED(&adamw8_update), .samples = samples, .bench = bench};
