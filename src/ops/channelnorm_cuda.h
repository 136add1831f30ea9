/* What the ways of batchnorm and groupnorm on a GPU share. */
#ifndef CUP_OPS_CHANNELNORM_CUDA_H
#define CUP_OPS_CHANNELNORM_CUDA_H

#include "kernels/channels.cuh"
#include "ops/channelnorm.h"

/* Planes cut into parts of at most `most` elements, multiples of `vec`: the numbers that do not
 * depend on the kernel. */
channels_call cup__channelnorm_planes(const cup__channels *at, int64_t most, int vec);

#endif
