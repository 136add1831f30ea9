#include "dispatch/attributes.h"
#include "ops/norm/channelnorm.h"

static const cup__batchnorm_attributes train = {1, true, 1e-5, 0.1, false},
                                       fixed = {1, false, 1e-5, 0.1, false},
                                       train_last = {-1, true, 1e-5, 0.1, false},
                                       fixed_last = {-1, false, 1e-3, 0.1, false},
                                       relu = {1, true, 1e-5, 0.1, true},
                                       relu_last = {-1, true, 1e-5, 0.1, true},
                                       relu_fixed = {1, false, 1e-5, 0.1, true},
                                       relu_fixed_last = {-1, false, 1e-5, 0.1, true};
static const cup__sample samples[] = {
    {"3x2x5 2 2 2 2", &train},
    {"2x3x4x5 3 - - -", &train},
    {"2x3x4x5 - 3 3 3", &fixed},
    {"4x3x1x2 3 3 3 3", &fixed},
    {"5x3 3 3 3 3", &train_last},
    {"2x4x5x3 3 3 3 3", &fixed_last},
    {"0x3x4 3 3 3 3", &train},
    {"7x33x7x7 33 33 33 33", &train},
    {"3x5x65x33 5 5 5 5", &train},
    {"2x3x128x128 3 3 3 3", &train},
    {"8x16x16x64 64 64 64 64", &train_last},
    {"9x11x13x130 130 130 130 130", &train_last},
    {"513x2x8 8 8 8 8", &train_last},
    {"300x70 70 - - -", &train},
    {"2x64x32x32 64 64 64 64", &train},
    {"1x300x8x64 300 300 300 300", &train},
    {"3x2x5 2 2 2 2 3x2x5", &train},
    {"3x2x5 2 2 2 2 -", &relu},
    {"7x33x7x7 33 33 33 33 7x33x7x7", &relu},
    {"2x64x32x32 64 64 64 64 2x64x32x32", &relu},
    {"8x16x16x64 64 64 64 64 8x16x16x64", &relu_last},
    {"8x16x16x64 64 64 64 64 -", &relu_last},
    {"9x11x13x130 130 130 130 130 9x11x13x130", &relu_last},
    {"2x4x5x24 24 24 24 24 2x4x5x24", &relu_fixed_last},
    {"2x6x5x7 6 6 6 6 -", &relu_fixed},
    {"0x3x4 3 3 3 3 0x3x4", &relu},
    {NULL, NULL}};
static const cup__sample bench[] = {{"32x64x128x128 64 64 64 64", &train},
                                    {"32x64x32x32 64 64 64 64", &train},
                                    {"32x64x128x128 64 64 64 64", &fixed},
                                    {"32x128x128x64 64 64 64 64", &train_last},
                                    {"32x7x7x2048 2048 2048 2048 2048", &train_last},
                                    {"32x128x128x64 64 64 64 64 32x128x128x64", &relu_last},
                                    {NULL, NULL}};
#define STATISTIC (CUP__DTYPE(F32) | CUP__DTYPE(F64))

const cup__op cup__op_batchnorm = {
    CUP__CHANNELNORM,
    .in_place = 1u << 3 | 1u << 4,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_OUT(1) | CUP__SAVE_OUT(2) |
             CUP__SAVE_OUT(3),
    .signs = true,
    .samples = samples,
    .bench = bench,
    .domain = {{-1, 3}, {0.5, 1.5}, {-1, 1}, {-1, 1}, {0.5, 1.5}},
    .in_dtypes = {0, 0, 0, STATISTIC, STATISTIC},
};
