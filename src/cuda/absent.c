/* Answers for a build without the CUDA layer. */
#include <stdio.h>

#include "cuda/cuda.h"

int cup__cuda_count(char why[512])
{
    snprintf(why, 512, "this build has no CUDA layer");
    return 0;
}

cup_status cup__cuda_open(cup__error *error, int index, int64_t memory_limit, cup__device **out)
{
    (void)memory_limit;
    *out = NULL;
    return cup__fail(error, CUP_NO_DEVICE, "cuda:%d: this build has no CUDA layer; use cpu", index);
}
