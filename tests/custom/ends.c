/* Formulas against the ops of their names where numbers end: at infinity, at 0, and where squares
 * and exponentials overflow. */
#include <math.h>

#include "formula.h"

static const double places[] = {-INFINITY, -1e30, -1e5, -100, -20, -0.0, 0,
                                20,        100,   1e5,  1e30, INFINITY};
enum { PLACES = sizeof places / sizeof *places };

static cup_tensor *elu(cup_context *c, cup_tensor *x)
{
    return cup_elu(c, x, 0.5);
}

static cup_tensor *leaky_relu(cup_context *c, cup_tensor *x)
{
    return cup_leaky_relu(c, x, 0.5);
}

static cup_tensor *clamp(cup_context *c, cup_tensor *x)
{
    return cup_clamp(c, x, -3, 3);
}

static const struct {
    const char *text;
    cup_tensor *(*op)(cup_context *c, cup_tensor *x);
} rows[] = {{"relu(x)", cup_relu},           {"silu(x)", cup_silu},
            {"gelu(x)", cup_gelu},           {"gelu_erf(x)", cup_gelu_erf},
            {"hardswish(x)", cup_hardswish}, {"mish(x)", cup_mish},
            {"elu(x, 0.5)", elu},            {"leaky_relu(x, 0.5)", leaky_relu},
            {"clamp(x, -3, 3)", clamp},      {"softplus(x)", cup_softplus},
            {"sigmoid(x)", cup_sigmoid},     {"tanh(x)", cup_tanh},
            {"swiglu(x, 1)", cup_silu},      {"geglu(x, 1)", cup_gelu}};

static void expect_near(const char *what, int row, double x, double got, double want)
{
    if (got != want && !(isnan(got) && isnan(want)) &&
        !(fabs(got - want) <= 1e-6 * fabs(want) + 1e-37))
        test_fail(__FILE__, __LINE__, "%s of %s at %g is %g, not %g", what, rows[row].text, x, got,
                  want);
}

/* Values, and gradients where x is finite. */
static void expect_alike(cup_context *c, int row, cup_dtype dtype)
{
    cup_tensor *x = cup_tensor_new(c, dtype, 1, (int64_t[]){PLACES});
    for (int i = 0; i < PLACES; i++)
        cup__store(x, i, places[i]);
    cup_require_grad(x);
    cup_expr *e = cup_expr_new(c, "x", "", rows[row].text);
    cup_tensor *y[2], *d[2] = {NULL};
    for (int i = 0; i < 2; i++) {
        y[i] = i ? rows[row].op(c, x) : cup_expr_call(e, &x, NULL, NULL);
        cup_gradients(c, cup_sum(c, y[i], NULL, 0, false), &x, 1, &d[i]);
    }
    CHECK(c);
    for (int i = 0; i < PLACES; i++) {
        expect_near("value", row, places[i], at(y[0], i), at(y[1], i));
        if (isfinite(places[i]))
            expect_near("gradient", row, places[i], at(d[0], i), at(d[1], i));
    }
    cup_expr_free(e);
}

TEST(expr_ends_as_the_ops_do)
{
    cup_context *c = open_cpu();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        expect_alike(c, (int)i, CUP_F32);
        expect_alike(c, (int)i, CUP_F64);
    }
    cup_context_free(c);
}
