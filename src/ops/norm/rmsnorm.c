#include "dispatch/attributes.h"
#include "ops/norm/layernorm.h"

static const cup__rmsnorm_attributes eps = {1e-5};
static const cup__sample samples[] = {
    {"3x5 5", &eps},   {"2x3x8 8", &eps},       {"7 -", &eps},         {"2x1 1", &eps},
    {"0x5 5", &eps},   {"65x768 768", &eps},    {"5x1025 1025", &eps}, {"2x5120 5120", &eps},
    {"33x64 64", &eps}, {"3x20001 20001", &eps}, {"3x2x0 0", &eps}, {NULL, NULL}};
static const cup__sample bench[] = {{"1024x768 768", &eps},
                                    {"32768x768 768", &eps},
                                    {"8192x4096 4096", &eps},
                                    {"8192x8192 8192", &eps},
                                    {NULL, NULL}};

const cup__op cup__op_rmsnorm = {
    CUP__LAYERNORM(0),
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_OUT(1),
    .samples = samples,
    .bench = bench,
};
