/* Layers in 8 bits that are more than cup_linear_fp8. */
#ifndef CUP_NN_FUNCTIONS_FP8_H
#define CUP_NN_FUNCTIONS_FP8_H

#include "cupola/layers.h"

/* down(gelu(up(x))), where what stands between has no place in memory but as codes: as
 * cup_linear_fp8 and gelu would do it, but that the result of gelu, and in backward what comes back
 * through it, is not rounded to the dtype before it is rounded to codes. */
cup_tensor *cup__mlp_fp8(cup_context *c, cup_tensor *x, const cup_linear_layer *up,
                         const cup_linear_layer *down);

#endif
