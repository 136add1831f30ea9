#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(relu_i64, x[0] < 0 ? 0 : x[0])

CUP__FORMULA(1, relu_fwd, x[0] < 0 ? 0 : x[0], p < 0.0f ? 0.0f : p, x[0] < 0 ? (real)0 : x[0],
             .i64 = relu_i64)
CUP__FORMULA(2, relu_bwd, x[0] > 0 ? x[1] : 0, p > 0.0f ? q : 0.0f, x[0] > 0 ? x[1] : (real)0)
CUP__UNARY(relu, out, -2, 2, -2, 2)
