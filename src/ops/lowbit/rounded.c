#include "ops/lowbit/rounded.h"

cup_tensor *cup__rounded_formula(cup_context *c, const char *names, const char *text,
                                 cup_tensor **in, double number, cup_tensor *to)
{
    cup_expr *e = cup_expr_new(c, names, "n", text);
    cup_tensor *y = e ? cup_expr_call(e, in, &number, to ? &to : NULL) : NULL;
    cup_expr_free(e);
    return y;
}

cup_tensor *cup__round_off(cup_context *c, cup_tensor *x, double most, cup_tensor **scale)
{
    cup_tensor *in[] = {x, NULL};
    cup_tensor *largest = cup__rounded_formula(
        c, "x", "max[](where(abs(x) < inf, abs(x), 0))", in, 0, NULL);
    if (!largest)
        return NULL;
    *scale = cup__rounded_formula(c, "x", "f32(max(x, 1e-30) / n)", &largest, most, *scale);
    in[1] = *scale;
    return *scale ? cup__rounded_formula(c, "x scale", "f16(x / scale)", in, 0, NULL) : NULL;
}
