/* What the ways of batchnorm and groupnorm on a GPU share. */
#ifndef CUP_OPS_NORM_CHANNELNORM_CUDA_H
#define CUP_OPS_NORM_CHANNELNORM_CUDA_H

#include "ops/norm/channels.cuh"
#include "ops/norm/channelnorm.h"

/* Planes cut into parts of at most `most` elements, multiples of `vec`: the numbers that do not
 * depend on the kernel. */
channels_call cup__channelnorm_planes(const cup__channels *at, int64_t most, int vec);

#endif
