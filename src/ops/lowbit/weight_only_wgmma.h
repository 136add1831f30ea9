/* linear with weights of 8 or 4 bits by weight_only_wgmma.cu. */
#ifndef CUP_OPS_LOWBIT_WEIGHT_ONLY_WGMMA_H
#define CUP_OPS_LOWBIT_WEIGHT_ONLY_WGMMA_H

#include "cuda/cuda.h"
#include "ops/lowbit/pack_weight.h"

const char *cup__linear_codes_refuses(const cup__call *call);
cup_status cup__linear_codes_cuda(cup__call *call);

/* The same in tiles of so many rows of x, by clusters of `parts` blocks. */
cup_status cup__linear_codes_by(cup__call *call, int tokens, int parts);

#endif
