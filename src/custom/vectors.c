/* The functions of formulas over vectors of floats; those of doubles are in vectors_wide.c. */
#include "custom/vectors.h"

#include <math.h>

#include "base/wide.h"
#include "base/wide_math.h"
#include "tensor/floats.h"

#define sine_of(a) cup__sin_f32(a)
#define cosine_of(a) cup__cos_f32(a)

#define FUNCTION(id, arity, name, f64, f32, da, db, dc)                                            \
    CUP__WIDE static void vector_##id(float *out, const float *x, const float *y, const float *z,  \
                                      int64_t count)                                               \
    {                                                                                              \
        (void)y, (void)z;                                                                          \
        LOOP_##arity(f32)                                                                          \
    }
#define LOOP_1(expression)                                                                         \
    for (int64_t i = 0; i < count; i++) {                                                          \
        float a = x[i];                                                                            \
        out[i] = expression;                                                                       \
    }
#define LOOP_2(expression)                                                                         \
    for (int64_t i = 0; i < count; i++) {                                                          \
        float a = x[i], b = y[i];                                                                  \
        out[i] = expression;                                                                       \
    }
#define LOOP_3(expression)                                                                         \
    for (int64_t i = 0; i < count; i++) {                                                          \
        float a = x[i], b = y[i], c = z[i];                                                        \
        out[i] = expression;                                                                       \
    }
#include "custom/functions.def"
#undef FUNCTION

typedef void vector_function(float *out, const float *x, const float *y, const float *z,
                             int64_t count);

static vector_function *const functions[] = {
#define FUNCTION(id, arity, name, f64, f32, da, db, dc) [CUP__##id] = vector_##id,
#include "custom/functions.def"
#undef FUNCTION
};

CUP__WIDE static int any_far(const float *x, int64_t count)
{
    int far = 0;
    for (int64_t i = 0; i < count; i++)
        far |= !(x[i] <= CUP__ANGLE_MOST && x[i] >= -CUP__ANGLE_MOST);
    return far;
}

/* Angles beyond what the short reduction can do, and infinities, go to the C library. */
static void correct(cup__function function, float *out, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(x[i]) <= CUP__ANGLE_MOST))
            out[i] = function == CUP__SIN ? sinf(x[i]) : cosf(x[i]);
}

void cup__vector_apply(bool wide, cup__function function, void *out, const void *const x[3],
                       int64_t count)
{
    if (wide) {
        cup__vector_apply_wide(function, out, x, count);
        return;
    }
    functions[function](out, x[0], x[1], x[2], count);
    if ((function == CUP__SIN || function == CUP__COS) && any_far(x[0], count))
        correct(function, out, x[0], count);
}

#define LANES 16

CUP__WIDE static double sum_of(const float *x, int64_t count)
{
    float lanes[LANES] = {0};
    int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int k = 0; k < LANES; k++)
            lanes[k] += x[i + k];
    double sum = 0;
    for (int64_t i = whole; i < count; i++)
        sum += (double)x[i];
    for (int k = 0; k < LANES; k++)
        sum += (double)lanes[k];
    return sum;
}

CUP__WIDE static float largest_of(const float *x, int64_t count, float sign)
{
    float most = sign * x[0];
    for (int64_t i = 0; i < count; i++) {
        float v = sign * x[i];
        most = most > v || most != most ? most : v;
    }
    return sign * most;
}

static double fold_wide(int fold, const double *x, int64_t count)
{
    double sum = x[0];
    for (int64_t i = 1; i < count; i++)
        sum = cup__fold_two(fold, sum, x[i]);
    return sum;
}

double cup__vector_fold(bool wide, int fold, const void *x, int64_t count)
{
    if (wide)
        return fold_wide(fold, x, count);
    if (fold == CUP_EXPR_FOLD_MIN || fold == CUP_EXPR_FOLD_MAX)
        return (double)largest_of(x, count, fold == CUP_EXPR_FOLD_MAX ? 1.0f : -1.0f);
    return sum_of(x, count);
}

static double pick(int fold, double a, double b)
{
    return cup__function_f64(fold == CUP_EXPR_FOLD_MAX ? CUP__MAX : CUP__MIN, a, b, 0);
}

CUP__WIDE static void pick_to(double *best, const float *x, int64_t count, double sign)
{
    for (int64_t i = 0; i < count; i++) {
        double v = (double)x[i];
        best[i] = sign * best[i] > sign * v || best[i] != best[i] ? best[i] : v;
    }
}

void cup__vector_fold_to(bool wide, int fold, double *sums, const void *x, int64_t count)
{
    const double *values = x;
    for (int64_t i = 0; wide && i < count; i++)
        sums[i] = cup__fold_two(fold, sums[i], values[i]);
    if (wide)
        return;
    if (fold == CUP_EXPR_FOLD_MIN || fold == CUP_EXPR_FOLD_MAX)
        pick_to(sums, x, count, fold == CUP_EXPR_FOLD_MAX ? 1 : -1);
    else
        cup__floats_add_f64(sums, x, count);
}

double cup__fold_two(int fold, double a, double b)
{
    return fold == CUP_EXPR_FOLD_MIN || fold == CUP_EXPR_FOLD_MAX ? pick(fold, a, b) : a + b;
}

double cup__fold_start(int fold)
{
    return fold == CUP_EXPR_FOLD_MIN ? INFINITY : fold == CUP_EXPR_FOLD_MAX ? -INFINITY : 0;
}
