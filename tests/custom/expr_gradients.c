/* Gradients of formulas against finite differences. */
#include <math.h>

#include "formula.h"

/* The loss by the formula; its gradients against finite differences. */
static double loss_of(cup_context *c, cup_expr *e, cup_tensor *const *in, const double *k,
                      cup_tensor **loss)
{
    cup_tensor *out[CUP_EXPR_RESULTS] = {NULL}, *sum = NULL;
    cup_expr_call(e, in, k, out);
    for (int j = 0; j < CUP_EXPR_RESULTS && out[j]; j++) {
        cup_tensor *part = cup_sum(c, cup_mul(c, out[j], cup_sin(c, out[j])), NULL, 0, false);
        sum = sum ? cup_add(c, sum, part) : part;
    }
    CHECK(c);
    if (loss)
        *loss = sum;
    return cup_tensor_item(sum);
}

static void check_gradient(const char *text)
{
    cup_context *c = open_cpu();
    static const int64_t shapes[3][3] = {{2, 3, 4}, {3, 1}, {4}};
    static const int ndim[] = {3, 2, 1};
    cup_tensor *in[3], *loss;
    double k = 0.75, step = 1e-5;
    for (int i = 0; i < 3; i++)
        in[i] = cup_require_grad(cup_keep(filled(c, CUP_F64, ndim[i], shapes[i], 0.2, 1.9)));
    cup_expr *e = cup_expr_new(c, "a b c", "k", text);
    cup_scope_open(c);
    loss_of(c, e, in, &k, &loss);
    EXPECT(cup_backward(c, loss) == CUP_OK);
    cup_scope_close(c);
    cup_grad_recording(c, false);
    for (int i = 0; i < 3; i++)
        for (int64_t n = 0; n < cup_tensor_count(in[i]); n++) {
            double was = at(in[i], n), up, down;
            cup_scope_open(c);
            cup__store(in[i], n, was + step);
            up = loss_of(c, e, in, &k, NULL);
            cup__store(in[i], n, was - step);
            down = loss_of(c, e, in, &k, NULL);
            cup__store(in[i], n, was);
            cup_scope_close(c);
            double want = (up - down) / (2 * step);
            double got = cup_grad(in[i]) ? at(cup_grad(in[i]), n) : 0;
            if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want))))
                test_fail(__FILE__, __LINE__, "%s: input %d, element %d: gradient %.9g, not %.9g",
                          text, i, (int)n, got, want);
        }
    cup_expr_free(e);
    cup_context_free(c);
}

TEST(expr_gradients)
{
    check_gradient("a*b + c/a");
    check_gradient("gelu(a)*b, silu(c) + k*a");
    check_gradient("sqrt(a) + rsqrt(b) + exp(c) + expm1(a) + log(b) + log1p(c)");
    check_gradient("sin(a) + cos(b) + tan(c*0.5) + tanh(a) + sigmoid(b) + erf(c)");
    check_gradient("normal_cdf(a) + softplus(b) + mish(c) + abs(a - 1) + floor(b)");
    check_gradient("pow(a, b) + a^3 + b^-2 + pow(c, k) + k*2^a");
    check_gradient("min(a, b) + max(b, c) + where(a < b, a*c, b)");
    check_gradient("clamp(a, 0.5, 1.5) + elu(b - 1, 0.5) + leaky_relu(c - 1, 0.1) + hardswish(a)");
    check_gradient("sum[-1](a*b*c), mean[-1](a + c)");
    check_gradient("sum[0,keep](a*b), mean[0,keep](c + a)");
    check_gradient("mean[](a*b + exp(c))");
    check_gradient("max[-1](a*b), min[-1](a + c), sum[-1](b)");
    check_gradient("b + c");
    check_gradient("a*a, a*b, a*c, b*c, b - c");
}

/* The sum of the gradients, each times its input, and these; recorded where asked for. */
static cup_tensor *mix_of(cup_context *c, cup_expr *e, cup_tensor *const *in, bool recorded,
                          cup_tensor **d)
{
    cup_tensor *loss, *sum = NULL;
    double k = 0.75;
    loss_of(c, e, in, &k, &loss);
    EXPECT_INT(recorded ? cup_gradients_recorded(c, loss, in, 3, d)
                        : cup_gradients(c, loss, in, 3, d), CUP_OK);
    for (int i = 0; i < 3; i++) {
        if (!d[i])
            continue;
        cup_tensor *part = cup_sum(c, cup_mul(c, d[i], in[i]), NULL, 0, false);
        sum = sum ? cup_add(c, sum, part) : part;
    }
    CHECK(c);
    return sum;
}

/* Composed gradients are those of the kernels, and theirs against finite differences. */
static void check_second(const char *text)
{
    cup_context *c = open_cpu();
    static const int64_t shapes[3][3] = {{2, 3, 4}, {3, 1}, {4}};
    static const int ndim[] = {3, 2, 1};
    cup_tensor *in[3], *fast[3], *composed[3], *second[3];
    double step = 1e-5;
    for (int i = 0; i < 3; i++)
        in[i] = cup_require_grad(cup_keep(filled(c, CUP_F64, ndim[i], shapes[i], 0.2, 1.9)));
    cup_expr *e = cup_expr_new(c, "a b c", "k", text);
    cup_scope_open(c);
    mix_of(c, e, in, false, fast);
    EXPECT_INT(cup_gradients(c, mix_of(c, e, in, true, composed), in, 3, second), CUP_OK);
    for (int i = 0; i < 3; i++)
        for (int64_t n = 0; n < cup_tensor_count(in[i]); n++) {
            double was = at(in[i], n), up, down;
            EXPECT_INT(!composed[i], !fast[i]);
            if (fast[i])
                EXPECT_NEAR(at(composed[i], n), at(fast[i], n), 1e-10 * (1 + fabs(at(fast[i], n))));
            cup_scope_open(c);
            cup__store(in[i], n, was + step);
            up = cup_tensor_item(mix_of(c, e, in, false, (cup_tensor *[3]){NULL}));
            cup__store(in[i], n, was - step);
            down = cup_tensor_item(mix_of(c, e, in, false, (cup_tensor *[3]){NULL}));
            cup__store(in[i], n, was);
            cup_scope_close(c);
            double want = (up - down) / (2 * step), got = second[i] ? at(second[i], n) : 0;
            if (!(fabs(got - want) <= 1e-5 * (1 + fabs(want))))
                test_fail(__FILE__, __LINE__, "%s: input %d, element %d: %.9g, not %.9g", text, i,
                          (int)n, got, want);
        }
    cup_scope_close(c);
    cup_expr_free(e);
    cup_context_free(c);
}

TEST(expr_second_derivatives)
{
    check_second("a*b + c/a");
    check_second("gelu(a)*b, silu(c) + k*a");
    check_second("sqrt(a) + rsqrt(b) + exp(c) + expm1(a) + log(b) + log1p(c)");
    check_second("sin(a) + cos(b) + tan(c*0.5) + tanh(a) + sigmoid(b) + erf(c)");
    check_second("normal_cdf(a) + softplus(b) + mish(c) + a*abs(a - 1) + b*floor(b)");
    check_second("pow(a, b) + a^3 + b^-2 + pow(c, k) + k*2^a");
    check_second("a*min(a, b) + c*max(b, c) + where(a < b && !(b < 0.3 || c <= 0.4), a*c, b)");
    check_second("clamp(a, 0.5, 1.5) + elu(b - 1, 0.5) + leaky_relu(c - 1, 0.1) + hardswish(a)");
    check_second("sum[-1](a*b*c), mean[-1](a + c)");
    check_second("mean[](a*b + exp(c))");
    check_second("max[-1](a*b), min[-1](a + c), sum[-1](b)");
    check_second("a*a, a*b, a*c, b*c, b - c");
}

/* Computed in 32 bits, as the kernel's: both round once. */
TEST(expr_composed_in_16_bits)
{
    cup_context *c = open_cpu();
    cup_tensor *in[2], *fast[2], *composed[2];
    for (int i = 0; i < 2; i++)
        in[i] = cup_require_grad(filled(c, CUP_BF16, 1, (int64_t[]){i ? 1 : 9}, 0.2, 1.9));
    cup_expr *e = cup_expr_new(c, "x b", NULL, "gelu(x + b) * b");
    for (int k = 0; k < 2; k++) {
        cup_tensor *loss = cup_sum(c, cup_expr_call(e, in, NULL, NULL), NULL, 0, false);
        EXPECT_INT((k ? cup_gradients_recorded : cup_gradients)(c, loss, in, 2,
                                                                k ? composed : fast), CUP_OK);
    }
    CHECK(c);
    for (int i = 0; i < 2; i++) {
        EXPECT_INT(cup_tensor_dtype(composed[i]), CUP_BF16);
        for (int64_t n = 0; n < cup_tensor_count(in[i]); n++)
            EXPECT_NEAR(at(composed[i], n), at(fast[i], n), 0x1p-7 * fabs(at(fast[i], n)));
    }
    cup_expr_free(e);
    cup_context_free(c);
}

/* What the tape has recorded outlives the formula. */
TEST(expr_is_freed_before_backward)
{
    cup_context *c = open_cpu();
    cup_tensor *x = cup_require_grad(cup_keep(filled(c, CUP_F64, 1, (int64_t[]){9}, -1, 1)));
    cup_expr *e = cup_expr_new(c, "x", "k", "sum[](k*sin(x))");
    cup_tensor *y = cup_expr_call(e, &x, (double[]){3}, NULL);
    cup_expr_free(e);
    EXPECT(cup_backward(c, y) == CUP_OK);
    for (int i = 0; i < 9; i++)
        EXPECT_NEAR(at(cup_grad(x), i), 3 * cos(at(x, i)), 1e-12);
    cup_context_free(c);
}
