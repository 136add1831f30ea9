#include "dispatch/attributes.h"
#include "ops/norm/layernorm.h"

static const cup__add_layernorm_attributes eps = {1e-5};
static const cup__sample samples[] = {{"3x5 3x5 5 5", &eps},
                                      {"2x3x8 2x3x8 8 -", &eps},
                                      {"7 7 - 7", &eps},
                                      {"0x5 0x5 5 5", &eps},
                                      {"307x3 307x3 - -", &eps},
                                      {"65x768 65x768 768 768", &eps},
                                      {"5x1025 5x1025 1025 1025", &eps},
                                      {"3x2x0 3x2x0 0 0", &eps},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"32768x768 32768x768 768 768", &eps},
                                    {"8192x4096 8192x4096 4096 4096", &eps},
                                    {NULL, NULL}};

const cup__op cup__op_add_layernorm = {
    CUP__LAYERNORM(CUP__LAYERNORM_MEAN | CUP__LAYERNORM_ADD),
    .saves = CUP__SAVE_IN(2) | CUP__SAVE_OUT(1) | CUP__SAVE_OUT(2) | CUP__SAVE_OUT(3),
    .rounds = true,
    .samples = samples,
    .bench = bench,
};
