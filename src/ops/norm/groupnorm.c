#include "dispatch/attributes.h"
#include "ops/norm/channelnorm.h"

static const cup__groupnorm_attributes one = {1, 1, 1e-5}, two = {2, 1, 1e-5},
                                       eight = {8, 1, 1e-5}, each = {0, 1, 1e-5},
                                       two_last = {2, -1, 1e-5}, many_last = {32, -1, 1e-5},
                                       each_last = {0, -1, 1e-5};
static const cup__sample samples[] = {
    {"3x2x5 2 2", &two},
    {"2x4x3x5 4 -", &two},
    {"2x3x4x5 - 3", &each},
    {"5x6 6 6", &two_last},
    {"2x4x5x6 - -", &two_last},
    {"2x5x3 3 3", &each_last},
    {"0x4x4 4 4", &two},
    {"3x16x7x7 16 16", &eight},
    {"2x3x65x33 3 3", &one},
    {"2x4x64x64 4 4", &each},
    {"3x9x11x64 64 64", &many_last},
    {"2x70x130 130 130", &two_last},
    {"6x64x16x32 64 64", &eight},
    {"4x80x8x64 80 80", &each},
    {NULL, NULL}};
static const cup__sample bench[] = {{"32x64x128x128 64 64", &eight},
                                    {"32x64x128x128 64 64", &each},
                                    {"32x64x32x32 64 64", &eight},
                                    {"32x128x128x64 64 64", &many_last},
                                    {NULL, NULL}};

const cup__op cup__op_groupnorm = {
    CUP__CHANNELNORM,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_OUT(1) | CUP__SAVE_OUT(2),
    .samples = samples,
    .bench = bench,
    .domain = {{-1, 3}},
};
