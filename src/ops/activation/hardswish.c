#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(hardswish_fwd_f64, x[0] * fmin(fmax(x[0] + 3, 0), 6) / 6)
CUP__FLOATS_1(hardswish_fwd_f32,
              p * __builtin_fminf(__builtin_fmaxf(p + 3.0f, 0.0f), 6.0f) * (1.0f / 6))

CUP__ELEMENT(hardswish_bwd_f64, x[1] * (x[0] <= -3 ? 0 : x[0] >= 3 ? 1 : (2 * x[0] + 3) / 6))
CUP__FLOATS_2(hardswish_bwd_f32,
              q * (p <= -3.0f ? 0.0f : p >= 3.0f ? 1.0f : (2.0f * p + 3.0f) * (1.0f / 6)))

static const cup__pointwise hardswish_fwd_kind = {
    .source = "hardswish.cu", .f64 = hardswish_fwd_f64, .f32 = hardswish_fwd_f32,
    .entry = "hardswish_fwd"};
static const cup__pointwise hardswish_bwd_kind = {
    .source = "hardswish.cu", .knob = "GRAD", .f64 = hardswish_bwd_f64, .f32 = hardswish_bwd_f32,
    .entry = "hardswish_bwd"};
CUP__UNARY(hardswish, in, -5, 5, -5, 5)
