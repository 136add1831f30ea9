/* What both kernels of layernorm's gradient take as knobs. */
#ifndef CUP_OPS_NORM_LAYERNORM_BACK_CUH
#define CUP_OPS_NORM_LAYERNORM_BACK_CUH

#include "rows.cuh"

#ifndef PARAM
#define PARAM CUP_T /* dtype of gamma */
#endif
#ifndef CENTRED
#define CENTRED 1
#endif
#ifndef DSUM
#define DSUM 0
#endif
#ifndef PARTS
#define PARTS 2 /* partial rows a block: dgamma, then dbeta */
#endif

typedef dtype_of<PARAM>::type P;
typedef vec<T, VEC> unit;
typedef two<real> pair;

#endif
