#include "optim/rule.h"

CUP__RULE(adagrad, 1, (),
    g += n.decay * value;
    first = first + g * g;
    value = value - n.rate * g / (sqrt(first) + n.a[0]);
)

static const cup__adagrad_attributes usual = {1e-10, false}, random = {1e-3, true};
static const cup__sample samples[] = {
    {"5 2x2 3x5 3x5 3x5 3x5 - 1025 1025 1025 1025 -", &usual},
    {"5 4x2 () () - () - 0x4 0x4 - 0x4 - 9 - - 9 - 20001 20001 - 20001 -", &random},
    {NULL, NULL}};
static const cup__sample bench[] = {{"5 1x2 124354560 124354560 - 124354560 -", &usual},
                                    {NULL, NULL}};

const cup__op cup__op_adagrad = {
    CUP__UPDATE_FROM(&adagrad_update, 0.01), .samples = samples, .bench = bench};
