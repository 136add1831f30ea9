/* What both kernels of layernorm's gradient take as knobs. */
#ifndef CUP_OPS_NORM_LAYERNORM_BACK_CUH
#define CUP_OPS_NORM_LAYERNORM_BACK_CUH

#include "rows.cuh"

/* Knobs: PARAM (dtype of gamma), CENTRED, DSUM, PARTS (partial rows a block: dgamma, then dbeta).
 * */

typedef dtype_of<PARAM>::type P;
typedef vec<T, VEC> unit;
typedef two<real> pair;

#endif
