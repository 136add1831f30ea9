#include "optim/rule.h"

/* Both states are corrected for their start at 0. */
CUP__RULE(adamw, 2, (),
    first = n.a[0] * first + n.rest[0] * g;
    second = n.a[1] * second + n.rest[1] * g * g;
    real length = sqrt(second) * n.root + n.a[2];
    value = value - (n.rate * n.decay * value + n.corrected * first / length);
)

#define USUAL                                                                                      \
    &(const cup__adamw_attributes)                                                                 \
    {                                                                                              \
        0.9, 0.999, 1e-8, false                                                                    \
    }
static const cup__sample samples[] = {
    {"5 1x2 7 7 - 7 7", USUAL},
    {"5 3x2 3x5 3x5 3x5 3x5 3x5 1 1 1 1 1 0x4 0x4 0x4 0x4 0x4", USUAL},
    {"5 3x2 4099 4099 - 4099 4099 () () - () () 20001 20001 - 20001 20001",
     &(const cup__adamw_attributes){0.8, 0.95, 1e-3, false}},
    {"5 3x2 4099 4099 - 4099 4099 () () - () () 20001 20001 - 20001 20001",
     &(const cup__adamw_attributes){0.9, 0.999, 1e-8, true}},
    {"5 2x2 9 - - 9 9 65x257 65x257 65x257 65x257 65x257", USUAL},
    {NULL, NULL}};
/* The 148 tensors of GPT-2's smallest model. */
#define GPT2                                                                                       \
    "5 148x2 2*50257x768 - 2*50257x768 2*1024x768 - 2*1024x768 12*(6*(2*768 - 2*768) "             \
    "2*2304 - 2*2304 2*3072 - 2*3072 2*2304x768 - 2*2304x768 2*768x768 - 2*768x768 "               \
    "2*3072x768 - 2*3072x768 2*768x3072 - 2*768x3072) 2*(2*768 - 2*768)"
static const cup__sample bench[] = {
    {"5 1x2 124354560 124354560 - 124354560 124354560", USUAL},
    {GPT2, USUAL},
    {NULL, NULL}};

const cup__op cup__op_adamw = {CUP__UPDATE(&adamw_update), .samples = samples, .bench = bench};
