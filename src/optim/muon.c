/* The two elementwise halves of Muon; between them stands the making of orthogonal matrices, which
 * optim/orthogonal.c does. `muon` fills the first tensor of each record with the direction of its
 * gradient and momentum, in Nesterov's form, `muon_step` goes along what came of it. */
#include "optim/rule.h"

CUP__RULE(muon, 1, (.others = CUP__OP_adamw),
    first = n.a[0] * first + g;
    value = g + n.a[0] * first;
)

CUP__RULE(muon_step, 0, (.unscaled = true),
    value = value - n.rate * (g + n.decay * value);
)

static const cup__muon_attributes usual = {0.95, false};
static const cup__muon_step_attributes nearest = {false}, random = {true};
static const cup__sample momentum_samples[] = {
    {"5 2x2 3x5 3x5 - 3x5 - 1025 1025 - 1025 -", &usual},
    {"5 3x2 () () - () - 0x4 0x4 - 0x4 - 20001 20001 - 20001 -", &usual},
    {NULL, NULL}};
static const cup__sample step_samples[] = {
    {"5 2x2 7 7 - - - 3x5 3x5 - - -", &nearest},
    {"5 2x2 7 7 - - - 4099 4099 - - -", &random},
    {"5 3x2 () () () - - 0x4 0x4 0x4 - - 20001 20001 20001 - -", &nearest},
    {NULL, NULL}};
static const cup__sample momentum_bench[] = {
    {"5 1x2 84934656 84934656 - 84934656 -", &usual}, {NULL, NULL}};
static const cup__sample step_bench[] = {{"5 1x2 84934656 84934656 - - -", &nearest}, {NULL, NULL}};

const cup__op cup__op_muon = {
    CUP__UPDATE(&muon_update), .samples = momentum_samples, .bench = momentum_bench};

const cup__op cup__op_muon_step = {
    CUP__UPDATE(&muon_step_update), .samples = step_samples, .bench = step_bench};
