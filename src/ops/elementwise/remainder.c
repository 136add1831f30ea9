/* Division that gives whole numbers, and what it leaves. A rest of fmod has the sign of a, that of
 * remainder the sign of b, and goes with floor_div: a = b floor_div(a, b) + remainder(a, b). */
#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

/* fmod is exact, so that the quotients of what it takes off are whole but for a rounding. */
#define OF(type, suffix, fmod_of, round_of, sign_of)                                               \
    static type rest_##suffix(type a, type b)                                                      \
    {                                                                                              \
        return fmod_of(a, b);                                                                      \
    }                                                                                              \
    static type modulo_##suffix(type a, type b)                                                 \
    {                                                                                              \
        type rest = fmod_of(a, b);                                                                 \
        return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;                               \
    }                                                                                              \
    static type cut_##suffix(type a, type b)                                                       \
    {                                                                                              \
        return round_of((a - fmod_of(a, b)) / b);                                                  \
    }                                                                                              \
    static type floor_##suffix(type a, type b)                                                     \
    {                                                                                              \
        type rest = fmod_of(a, b), q = round_of((a - rest) / b);                                   \
        if (b == 0)                                                                                \
            return a / b;                                                                          \
        if (rest != 0 && (rest < 0) != (b < 0))                                                    \
            q -= 1;                                                                                \
        return q == 0 ? sign_of(0, a / b) : q;                                                     \
    }

OF(double, f64, fmod, rint, copysign)
OF(float, f32, fmodf, rintf, copysignf)

/* The least of all numbers by -1 stays itself, as it wraps around. */
static int64_t rest_i64(int64_t a, int64_t b)
{
    return b == 0 || b == -1 ? 0 : a % b;
}

static int64_t modulo_i64(int64_t a, int64_t b)
{
    int64_t rest = rest_i64(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static int64_t floor_i64(int64_t a, int64_t b)
{
    if (b == 0 || b == -1)
        return b == 0 ? 0 : (int64_t)(0 - (uint64_t)a);
    return a / b - (modulo_i64(a, b) != rest_i64(a, b));
}

#define KIND(name, inputs, in_double, in_float, define, ...)                                       \
    CUP__ELEMENT(name##_f64, in_double)                                                            \
    CUP__FLOATS_##inputs(name##_f32, in_float)                                                     \
    static const cup__pointwise name##_kind = {.source = "remainder.cu",                           \
                                               .knob = define,                                     \
                                               .f64 = name##_f64,                                  \
                                               .f32 = name##_f32,                                  \
                                               .entry = "remainder_fwd",                           \
                                               __VA_ARGS__};

CUP__ELEMENT_I64(fmod_i64, rest_i64(x[0], x[1]))
CUP__ELEMENT_I64(remainder_i64, modulo_i64(x[0], x[1]))
CUP__ELEMENT_I64(floor_div_i64, floor_i64(x[0], x[1]))
KIND(fmod, 2, rest_f64(x[0], x[1]), rest_f32(p, q), "FMOD", .i64 = fmod_i64)
KIND(remainder, 2, modulo_f64(x[0], x[1]), modulo_f32(p, q), "REMAINDER",
     .i64 = remainder_i64)
KIND(floor_div, 2, floor_f64(x[0], x[1]), floor_f32(p, q), "FLOOR_DIV", .i64 = floor_div_i64)
KIND(fmod_grad, 3, -x[2] * cut_f64(x[0], x[1]), -r * cut_f32(p, q), "FMOD_GRAD")
KIND(remainder_grad, 3, -x[2] * floor_f64(x[0], x[1]), -r * floor_f32(p, q), "REMAINDER_GRAD")

/* Along b the slope of a rest is minus the whole quotient; where it jumps, that of one side. */
static cup_status gradient(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *dy = g->d_out[0];
    bool is_fmod = g->row->op == &cup__op_fmod;
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(c, dy, &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(c, (is_fmod ? cup__fmod_grad : cup__remainder_grad)(
                                        c, g->in[0], g->in[1], dy),
                                 &g->in_shape[1]);
    return CUP_OK;
}

static cup_status composed(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *a = g->in[0], *b = g->in[1], *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(c, dy, &g->in_shape[0]);
    if (!g->wanted[1])
        return CUP_OK;
    cup_tensor *quotient = g->row->op == &cup__op_fmod ? cup_trunc(c, cup_div(c, a, b))
                                                       : cup_floor_div(c, a, b);
    g->d_in[1] = cup__sum_to(c, cup_neg(c, cup_mul(c, dy, quotient)), &g->in_shape[1]);
    return CUP_OK;
}

#define NUMBERS (CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX | CUP__DTYPE(U8) | CUP__DTYPE(I8))
#define PARTS(of, ...)                                                                             \
    {CUP__POINTWISE(of), .samples = cup__binary_few_samples, .bench = cup__binary_bench,           \
     .domain = {{-40, 40}, {1, 9}}, .in_dtypes = {NUMBERS, NUMBERS}, __VA_ARGS__}

#define BOTH CUP__SAVE_IN(0) | CUP__SAVE_IN(1)
const cup__op cup__op_fmod = PARTS(&fmod_kind, .gradient = gradient, .composed = composed,
                                   .saves = BOTH);
const cup__op cup__op_remainder = PARTS(&remainder_kind, .gradient = gradient, .composed = composed,
                                   .saves = BOTH);
const cup__op cup__op_floor_div = PARTS(&floor_div_kind, .gradient = cup__no_slope,
                                        .composed = cup__no_slope);

#define SLOPE(of)                                                                                  \
    {CUP__POINTWISE(of), .samples = cup__binary_grad_samples, .bench = cup__binary_grad_bench,     \
     .domain = {{-40, 40}, {1, 9}}}
const cup__op cup__op_fmod_grad = SLOPE(&fmod_grad_kind);
const cup__op cup__op_remainder_grad = SLOPE(&remainder_grad_kind);
