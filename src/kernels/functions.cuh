/* The functions of formulas, one a row of custom/functions.def. */
#ifndef CUP_FUNCTIONS_CUH
#define CUP_FUNCTIONS_CUH

#include "real_math.cuh"

DEVICE float power_of(float a, float b) { return powf(a, b); }
DEVICE double power_of(double a, double b) { return pow(a, b); }
DEVICE float floor_of(float a) { return floorf(a); }
DEVICE double floor_of(double a) { return floor(a); }
DEVICE float expm1_of(float a) { return expm1f(a); }
DEVICE double expm1_of(double a) { return expm1(a); }
DEVICE float log1p_of(float a) { return log1pf(a); }
DEVICE double log1p_of(double a) { return log1p(a); }
DEVICE float sine_of(float a) { return sinf(a); }
DEVICE double sine_of(double a) { return sin(a); }
DEVICE float cosine_of(float a) { return cosf(a); }
DEVICE double cosine_of(double a) { return cos(a); }
DEVICE float error_of(float a) { return erff(a); }
DEVICE double error_of(double a) { return erf(a); }
DEVICE float inverse_root_of(float a) { return rsqrtf(a); }
DEVICE double inverse_root_of(double a) { return rsqrt(a); }

/* The smaller and the larger, NaN when one is. */
template <typename R> DEVICE R least_of(R a, R b) { return a < b || a != a ? a : b; }
template <typename R> DEVICE R most_of(R a, R b) { return a > b || a != a ? a : b; }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
DEVICE float least_of(float a, float b)
{
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
DEVICE float most_of(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#endif

#define UNARY(name, expression)                                                                    \
    template <typename R> DEVICE R f_##name(R a) { return expression; }
#define BINARY(name, expression)                                                                   \
    template <typename R> DEVICE R f_##name(R a, R b) { return expression; }

BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a * b)
BINARY(div, quotient_of(a, b))
BINARY(pow, power_of(a, b))
BINARY(min, least_of(a, b))
BINARY(max, most_of(a, b))
BINARY(equal, (R)(a == b))
BINARY(not_equal, (R)(a != b))
BINARY(less, (R)(a < b))
BINARY(less_equal, (R)(a <= b))
BINARY(and, (R)(a != 0 && b != 0))
BINARY(or, (R)(a != 0 || b != 0))
UNARY(not, (R)(a == 0))
template <typename R> DEVICE R f_where(R a, R b, R c) { return a != 0 ? b : c; }
UNARY(neg, -a)
UNARY(abs, a < 0 ? -a : a == 0 ? (R)0 : a)
UNARY(sign, a > 0 ? (R)1 : a < 0 ? (R)-1 : a)
UNARY(floor, floor_of(a))
UNARY(sqrt, sqrt_of(a))
UNARY(rsqrt, inverse_root_of(a))
UNARY(exp, exp_of(a))
UNARY(expm1, expm1_of(a))
UNARY(log, log_of(a))
UNARY(log1p, log1p_of(a))
UNARY(sin, sine_of(a))
UNARY(cos, cosine_of(a))
UNARY(tanh, tanh_of(a))
UNARY(sigmoid, sigmoid_of(a))
UNARY(erf, error_of(a))
UNARY(normal_cdf, normal_below(a))
UNARY(softplus, softplus_of(a))
UNARY(to_f32, (R)(float)a)
UNARY(to_bf16, (R)convert<float>(convert<bf16>(a)))
UNARY(to_f16, (R)convert<float>(convert<f16>(a)))

#endif
