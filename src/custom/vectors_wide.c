/* The functions of formulas over vectors of doubles, by the C library where they are none of C. */
#include <math.h>

#include "custom/vectors.h"

#define LOOP_1(expression)                                                                         \
    for (int64_t i = 0; i < count; i++) {                                                          \
        double a = x[i];                                                                           \
        out[i] = expression;                                                                       \
    }
#define LOOP_2(expression)                                                                         \
    for (int64_t i = 0; i < count; i++) {                                                          \
        double a = x[i], b = y[i];                                                                 \
        out[i] = expression;                                                                       \
    }
#define LOOP_3(expression)                                                                         \
    for (int64_t i = 0; i < count; i++) {                                                          \
        double a = x[i], b = y[i], c = z[i];                                                       \
        out[i] = expression;                                                                       \
    }
#define FUNCTION(id, arity, name, f64, f32, da, db, dc)                                            \
    static void vector_##id(double *out, const double *x, const double *y, const double *z,        \
                            int64_t count)                                                         \
    {                                                                                              \
        (void)y, (void)z;                                                                          \
        LOOP_##arity(f64)                                                                          \
    }
#include "custom/functions.def"
#undef FUNCTION

typedef void vector_function(double *out, const double *x, const double *y, const double *z,
                             int64_t count);

static vector_function *const functions[] = {
#define FUNCTION(id, arity, name, f64, f32, da, db, dc) [CUP__##id] = vector_##id,
#include "custom/functions.def"
#undef FUNCTION
};

void cup__vector_apply_wide(cup__function function, double *out, const void *const x[3],
                            int64_t count)
{
    functions[function](out, x[0], x[1], x[2], count);
}
