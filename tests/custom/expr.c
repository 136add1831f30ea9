/* Formulas: their texts, their values against a plain evaluation, their gradients. */
#include "formula.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "custom/expr.h"

static double value_of(cup_context *c, const char *text, double x, double y)
{
    cup_expr *e = cup_expr_new(c, "x y", "k", text);
    CHECK(c);
    cup_tensor *in[] = {cup_tensor_from(c, CUP_F64, 0, NULL, &x),
                        cup_tensor_from(c, CUP_F64, 0, NULL, &y)};
    cup_tensor *out = cup_expr_call(e, in, (double[]){0.25}, NULL);
    CHECK(c);
    double value = at(out, 0);
    cup_expr_free(e);
    return value;
}

TEST(expr_values)
{
    static const struct {
        const char *text;
        double value;
    } rows[] = {
        {"x + 2*y", 3.5},
        {"x-y-1", -1.625},
        {"-x^2", -0.5625},
        {"2^-1*x", 0.375},
        {"2^3^2", 512},
        {"x / y / 2", 0.75 / 1.375 / 2},
        {"x < y", 1},
        {"x > y", 0},
        {"x >= 0.75 && y != x || 0 == 1", 1},
        {"!(x <= y)", 0},
        {"where(x < 1, x, y)", 0.75},
        {"min(x, y) + max(x, y)", 2.125},
        {"h = x*k; h = h + 1; h*h", 1.1875 * 1.1875},
        {"pi*x", 3.14159265358979323846 * 0.75},
        {"clamp(x, -0.5, 0.5)", 0.5},
        {"sqrt(x) * rsqrt(x)", 1},
        {"exp(log(x)) + expm1(log1p(y))", 2.125},
        {"sin(x)^2 + cos(x)^2 + tan(x) - sin(x)/cos(x)", 1},
        {"relu(-x) + relu(y)", 1.375},
        {"gelu(x)", 0.57996056},
        {"0.5*x*(1+tanh(0.7978845608028654*(x+0.044715*x^3)))", 0.57996056},
        {"gelu_erf(x) - x*0.5*(1+erf(x/sqrt(2)))", 0},
        {"silu(x) - x/(1+exp(-x))", 0},
        {"swiglu(x, y) - silu(x)*y + geglu(x,y) - gelu(x)*y", 0},
        {"mish(x) - x*tanh(softplus(x))", 0},
        {"hardswish(x)", 0.75 * 3.75 / 6},
        {"elu(-x, 2)", 2 * (0.47236655274101469 - 1)},
        {"leaky_relu(-x, 0.5)", -0.375},
        {"abs(-x) + sign(-y) + floor(y) + ceil(x) + square(y) + reciprocal(x)",
         0.75 - 1 + 1 + 1 + 1.890625 + 1 / 0.75},
        {"bf16(1 + x/1000)", 1},
        {"f32(0.1) != 0.1", 1},
        {"x * 1e-3 + .5", 0.50075},
        {"inf * x > 3", 1},
    };
    cup_context *c = open_cpu();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double value = value_of(c, rows[i].text, 0.75, 1.375);
        if (!(fabs(value - rows[i].value) < 1e-5))
            test_fail(__FILE__, __LINE__, "%s gives %.9g, not %.9g", rows[i].text, value,
                      rows[i].value);
    }
    cup_context_free(c);
}

TEST(expr_errors_name_the_place)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"x + ", "at its end: a number, a name or \"(\" is missing"},
        {"x + z", "at character 5, \"z\": there is no input, parameter or name \"z\""},
        {"foo(x)", "at character 1, \"foo(x)\": there is no function \"foo\""},
        {"exp(x, y)", "exp takes 1 argument"},
        {"min(x)", "\",\" is missing between the arguments"},
        {"(x", "\")\" is missing"},
        {"x y", "at character 3, \"y\": this does not belong to a formula"},
        {"2x", "an operator is missing after the number"},
        {"0x10", "numbers are decimal"},
        {"x < y < 1", "comparisons do not chain"},
        {"1 + sum[0](x)", "a fold can only be around a whole result"},
        {"sum[a](x)", "axes are up to 8 whole numbers"},
        {"sum[0](x), y", "not all folded over the same axes"},
        {"h = x", "\";\" is missing"},
        {"x, x, x, x, x, x", "at most"},
        {"", "at its end"},
        {"sum[0](x) + 1", "does not belong"},
        {"bf16(sum[0](x)) + 1", "a fold can only be around a whole result"},
    };
    cup_context *c = open_cpu();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        EXPECT(!cup_expr_new(c, "x y", NULL, rows[i].text));
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), rows[i].words);
        cup_error_clear(c);
    }
    static const char *const names[] = {"", "x x", "1x", "x,y", "a b c d e f g h i j k",
                                        "a_name_that_is_longer_than_names_may_be"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        EXPECT(!cup_expr_new(c, names[i], NULL, "1"));
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);
        cup_error_clear(c);
    }
    char deep[2 * CUP_EXPR_DEPTH + 3];
    memset(deep, '(', sizeof deep);
    deep[sizeof deep - 1] = 0;
    EXPECT(!cup_expr_new(c, "x", NULL, deep));
    EXPECT_CONTAINS(cup_error_text(c), "nested more than");
    cup_context_free(c);
}

TEST(expr_size_is_limited)
{
    cup_context *c = open_cpu();
    cup_expr *e = cup_expr_new(c, "x", NULL, NULL);
    cup_term term = cup_expr_name(e, "x");
    for (int i = 0; term && i < 2 * CUP_EXPR_NODES; i++)
        term = cup_expr_apply(e, "sin", &term, 1);
    EXPECT_INT(term, 0);
    EXPECT_INT(cup_error(c), CUP_UNSUPPORTED);
    EXPECT_CONTAINS(cup_error_text(c), "make several of it");
    cup_expr_free(e);
    cup_error_clear(c);
    /* What is shared counts once, however often it would stand in a tree. */
    e = cup_expr_new(c, "x", NULL, NULL);
    term = cup_expr_name(e, "x");
    for (int i = 0; i < 500; i++)
        term = cup_expr_apply(e, "+", (cup_term[]){term, term}, 2);
    cup_expr_result(e, term, NULL);
    CHECK(c);
    EXPECT(strlen(cup_expr_words(e)) < 20000);
    cup_expr_free(e);
    cup_context_free(c);
}

static void expect_words(cup_context *c, const char *text, const char *words)
{
    cup_expr *e = cup_expr_new(c, "x y", "k", text);
    CHECK(c);
    EXPECT_TEXT(cup_expr_words(e), words);
    /* What is written can be read. */
    cup_expr *again = cup_expr_new(c, "x y", "k", words);
    CHECK(c);
    cup_expr_free(again);
    cup_expr_free(e);
}

TEST(expr_simplifies)
{
    cup_context *c = open_cpu();
    expect_words(c, "x*1 + 0", "x");
    expect_words(c, "2*(3*x)", "x * 6");
    expect_words(c, "x - -y", "x + y");
    expect_words(c, "--x / 4", "x * 0.25");
    expect_words(c, "x^2 + x*x", "_4 = x * x; _4 + _4");
    expect_words(c, "where(1 < 2, x, y)", "x");
    expect_words(c, "exp(x)*y, y*exp(x)", "_4 = y * exp(x); _4, _4");
    expect_words(c, "bf16(sum[-1,keep](x*y)), f32(max[-1,keep](x))",
                 "bf16(sum[-1,keep](x * y)), f32(max[-1,keep](x))");
    cup_context_free(c);
}

static void expect_derivative(cup_context *c, const char *text, const char *words)
{
    cup_expr *e = cup_expr_new(c, "x y", "k", text);
    cup_expr *d = cup_expr_derivative(e, 0, 0);
    CHECK(c);
    EXPECT_TEXT(cup_expr_words(d), words);
    cup_expr_free(d);
    cup_expr_free(e);
}

TEST(expr_derives)
{
    cup_context *c = open_cpu();
    expect_derivative(c, "x*y + k*x", "y + k");
    expect_derivative(c, "y", "0");
    expect_derivative(c, "exp(2*x)", "2 * exp(x * 2)");
    expect_derivative(c, "tanh(x)", "_3 = tanh(x); 1 - (_3 * _3)");
    expect_derivative(c, "log(x)", "1 / x");
    expect_derivative(c, "x < y", "0");
    cup_context_free(c);
}

/* Compares a call with the specification, in several layouts and dtypes. */
static void compare(cup_context *c, const char *text, cup_tensor *const *in, int count,
                    double tolerance)
{
    static const char *const names[] = {"", "a", "a b", "a b c"};
    cup_expr *e = cup_expr_new(c, names[count], "k", text);
    CHECK(c);
    double k = 0.375;
    cup_tensor *out[CUP_EXPR_RESULTS] = {NULL};
    cup_expr_call(e, in, &k, out);
    CHECK(c);
    cup__expr_attributes attributes = {.program = e->program, .parameters = {k}};
    cup__call call;
    EXPECT(cup__call_begin(&call, c, &e->program->row, in, count, &attributes) == CUP_OK);
    for (int j = 0; j < e->program->results; j++)
        call.result[j].dtype = CUP_F64;
    EXPECT(cup__call_allocate(&call) == CUP_OK && cup__call_run(&call, NULL) == CUP_OK);
    for (int j = 0; j < e->program->results; j++)
        for (int64_t i = 0; i < cup_tensor_count(out[j]); i++) {
            double got = at(out[j], i), want = at(call.out[j], i);
            double most = cup_tensor_dtype(out[j]) == CUP_BF16 ? 4e-3 : tolerance;
            if (!(fabs(got - want) <= most * (1 + fabs(want))) && !(got != got && want != want))
                test_fail(__FILE__, __LINE__, "%s: result %d, element %d: %.9g, not %.9g", text, j,
                          (int)i, got, want);
        }
    cup_expr_free(e);
}

TEST(expr_calls_agree_with_the_specification)
{
    static const char *const texts[] = {
        "a*b + c, a - c > b, gelu(a) + k",
        "sin(a) + cos(b) + tanh(c) + sigmoid(a) + erf(b) + normal_cdf(c)",
        "softplus(a) + mish(b) + expm1(c) + log1p(abs(a)) + exp(b)",
        "max(a, b), min(b, c), floor(a) + sign(c) + pow(abs(b), 1.5)",
        "sum[-1](a*b*c), mean[-1](a + c), max[-1](a - b), min[-1](c)",
        "sum[0](a*b*c), mean[0](a + c), max[0](a - b), min[0](c)",
        "sum[](a*b + c), max[](a + k)",
        "sum[0,-1](a*b + c)",
        "sum[1,keep](a*b + c), max[1,keep](a*b)",
    };
    static const struct {
        int ndim[3];
        int64_t shape[3][3];
    } shapes[] = {
        {{3, 3, 3}, {{2, 3, 1100}, {2, 3, 1100}, {2, 3, 1100}}},
        {{3, 2, 1}, {{3, 5, 7}, {5, 1}, {7}}},
        {{3, 0, 2}, {{4, 1, 40}, {0}, {3, 1}}},
        {{3, 1, 1}, {{1, 1, 1}, {1}, {1}}},
        {{3, 3, 1}, {{1, 1, 40000}, {1, 2, 1}, {1}}},
        {{3, 1, 1}, {{300, 2, 33}, {33}, {1}}},
        {{3, 1, 1}, {{9000, 1, 40}, {40}, {1}}},
    };
    static const cup_dtype dtypes[][3] = {{CUP_F32, CUP_F32, CUP_F32},
                                          {CUP_BF16, CUP_F32, CUP_F16},
                                          {CUP_F64, CUP_F32, CUP_F32}};
    cup_context *c = open_cpu();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t d = 0; d < 3; d++) {
            cup_scope_open(c);
            cup_tensor *in[3];
            for (int i = 0; i < 3; i++)
                in[i] = filled(c, dtypes[d][i], shapes[s].ndim[i], shapes[s].shape[i], -2, 2);
            for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
                compare(c, texts[t], in, 3, d == 2 ? 1e-12 : 2e-5);
            /* Views whose elements do not lie side by side. */
            cup_tensor *turned = cup_permute(c, in[0], (int64_t[]){2, 1, 0}, 3);
            for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
                compare(c, texts[t], (cup_tensor *[]){turned, turned, turned}, 3,
                        d == 2 ? 1e-12 : 2e-5);
            CHECK(c);
            cup_scope_close(c);
        }
    cup_context_free(c);
}

TEST(expr_dtypes_and_shapes)
{
    cup_context *c = open_cpu();
    int64_t shape[] = {3, 5};
    cup_tensor *h = filled(c, CUP_BF16, 2, shape, -1, 1), *f = filled(c, CUP_F16, 2, shape, -1, 1);
    cup_tensor *n = filled(c, CUP_I32, 1, shape + 1, 0, 9), *out[CUP_EXPR_RESULTS] = {NULL};
    cup_expr *e = cup_expr_new(c, "a b n", NULL,
                               "a + b, a < b, f64(a * n), bool(a), f16(a)");
    cup_expr_call(e, (cup_tensor *[]){h, f, n}, NULL, out);
    CHECK(c);
    static const cup_dtype want[] = {CUP_F32, CUP_BOOL, CUP_F64, CUP_BOOL, CUP_F16};
    for (int j = 0; j < 5; j++)
        EXPECT_INT(cup_tensor_dtype(out[j]), want[j]);
    cup_expr_free(e);
    memset(out, 0, sizeof out);
    e = cup_expr_new(c, "a", NULL, "sum[0](a*a), mean[0](a)");
    cup_expr_call(e, &h, NULL, out);
    CHECK(c);
    EXPECT_INT(cup_tensor_ndim(out[0]), 1);
    EXPECT_INT(cup_tensor_size(out[0], 0), 5);
    EXPECT_INT(cup_tensor_dtype(out[1]), CUP_BF16);
    cup_expr_free(e);
    /* Results that are there are written to, and must fit. */
    e = cup_expr_new(c, "a", NULL, "2 * a");
    cup_tensor *mine = cup_tensor_new(c, CUP_BF16, 2, shape);
    cup_tensor *wrong = cup_tensor_new(c, CUP_BF16, 1, shape);
    EXPECT(cup_expr_call(e, &h, NULL, &mine) == mine);
    EXPECT_NEAR(at(mine, 4), 2 * at(h, 4), 1e-6);
    EXPECT(!cup_expr_call(e, &h, NULL, &wrong));
    EXPECT_CONTAINS(cup_error_text(c), "does not fit");
    cup_error_clear(c);
    cup_expr_free(e);
    e = cup_expr_new(c, "a b", NULL, "sum[2](a + b)");
    EXPECT(!cup_expr_call(e, (cup_tensor *[]){h, h}, NULL, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "there is no axis 2 of 2 dimensions");
    cup_error_clear(c);
    cup_tensor *odd = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){4});
    EXPECT(!cup_expr_call(e, (cup_tensor *[]){h, odd}, NULL, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "do not broadcast");
    cup_expr_free(e);
    cup_context_free(c);
}

TEST(expr_empty)
{
    cup_context *c = open_cpu();
    cup_tensor *x = cup_tensor_new(c, CUP_F32, 2, (int64_t[]){0, 5});
    cup_tensor *out[CUP_EXPR_RESULTS] = {NULL};
    cup_expr *e = cup_expr_new(c, "x", NULL, "sum[0](x), mean[0](x)");
    cup_expr_call(e, &x, NULL, out);
    CHECK(c);
    EXPECT_INT(cup_tensor_count(out[0]), 5);
    EXPECT_NEAR(at(out[0], 4), 0, 0);
    EXPECT(isnan(at(out[1], 0)));
    cup_expr_free(e);
    e = cup_expr_new(c, "x", NULL, "x + 1");
    EXPECT_INT(cup_tensor_count(cup_expr_call(e, &x, NULL, NULL)), 0);
    cup_expr_free(e);
    e = cup_expr_new(c, "x", NULL, "max[](x)");
    EXPECT(!cup_expr_call(e, &x, NULL, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "no elements have no smallest or largest");
    cup_expr_free(e);
    cup_context_free(c);
}

TEST(expr_structure_is_kept_once)
{
    cup_context *c = open_cpu();
    cup_tensor *x = filled(c, CUP_F32, 1, (int64_t[]){8}, 0, 1);
    cup_expr *a = cup_expr_new(c, "x", "k", "k*x + 1"), *b = cup_expr_new(c, "u", "v", "1 + v*u");
    cup_expr *other = cup_expr_new(c, "x", "k", "k*x + 2");
    cup_tensor *y = cup_expr_call(a, &x, (double[]){2}, NULL);
    cup_tensor *z = cup_expr_call(b, &x, (double[]){3}, NULL);
    cup_expr_call(other, &x, (double[]){3}, NULL);
    CHECK(c);
    EXPECT(a->program && b->program && other->program && a->program != other->program);
    EXPECT_NEAR(at(y, 3), 2 * at(x, 3) + 1, 1e-6);
    EXPECT_NEAR(at(z, 3), 3 * at(x, 3) + 1, 1e-6);
    double us = -1;
    EXPECT(cup_expr_time(a, &x, (double[]){1}, &us) == CUP_OK && us > 0);
    cup_expr_free(a);
    cup_expr *again = cup_expr_new(c, "x", "k", "k*x + 1");
    const cup__program *program = b->program;
    cup_expr_call(again, &x, (double[]){2}, NULL);
    EXPECT(again->program == program || again->program->count == program->count);
    cup_expr_free(again);
    cup_expr_free(b);
    cup_expr_free(other);
    cup_context_free(c);
}

TEST(expr_builder)
{
    cup_context *c = open_cpu();
    cup_expr *e = cup_expr_new(c, "x y", NULL, NULL);
    cup_term x = cup_expr_name(e, "x"), y = cup_expr_name(e, "y");
    cup_term h = cup_expr_apply(e, "*", (cup_term[]){x, cup_expr_number(e, 2)}, 2);
    cup_term all = cup_expr_apply(e, "where", (cup_term[]){cup_expr_text(e, "x < y"), h, y}, 3);
    int axes[] = {-1};
    EXPECT(cup_expr_result(e, all,
                           CUP_OPTIONS(cup_expr_end, .fold = CUP_EXPR_FOLD_SUM,
                                           .axes = axes,
                                           .axis_count = 1,
                                           .typed = true,
                                           .dtype = CUP_F64)) == CUP_OK);
    EXPECT_TEXT(cup_expr_words(e), "f64(sum[-1](where(x < y, x * 2, y)))");
    cup_tensor *in[] = {filled(c, CUP_F32, 1, (int64_t[]){9}, -1, 1),
                        filled(c, CUP_F32, 1, (int64_t[]){9}, -1, 1)};
    double sum = 0;
    for (int i = 0; i < 9; i++)
        sum += at(in[0], i) < at(in[1], i) ? 2 * at(in[0], i) : at(in[1], i);
    cup_tensor *out = cup_expr_call(e, in, NULL, NULL);
    CHECK(c);
    EXPECT_NEAR(at(out, 0), sum, 1e-12);
    EXPECT_INT(cup_expr_apply(e, "nothing", &x, 1), 0);
    EXPECT_CONTAINS(cup_error_text(c), "there is no function \"nothing\"");
    cup_error_clear(c);
    EXPECT_INT(cup_expr_apply(e, "exp", (cup_term[]){x, y}, 2), 0);
    EXPECT_CONTAINS(cup_error_text(c), "exp takes 1 terms, not 2");
    cup_error_clear(c);
    EXPECT_INT(cup_expr_name(e, "z"), 0);
    cup_error_clear(c);
    EXPECT_INT(cup_expr_apply(e, "exp", (cup_term[]){999}, 1), 0);
    cup_error_clear(c);
    cup_expr_free(e);
    e = cup_expr_new(c, "x", NULL, NULL);
    EXPECT(!cup_expr_call(e, in, NULL, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "it has no results");
    cup_expr_free(e);
    cup_context_free(c);
}

TEST(expr_out_of_memory)
{
    for (long n = 1; n < 400; n++) {
        cup_context *c = open_cpu();
        cup_tensor *x = cup_require_grad(cup_keep(filled(c, CUP_F32, 1, (int64_t[]){70}, 0, 1)));
        cup__memory_fail_at(n, false);
        cup_expr *e = cup_expr_new(c, "x", "k", "h = gelu(x); sum[0](h*k + sin(h))");
        cup_tensor *y = cup_expr_call(e, &x, (double[]){2}, NULL);
        cup_status status = y ? cup_backward(c, y) : cup_error(c);
        cup_expr *d = cup_expr_derivative(e, 0, 0);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || status == CUP_MEMORY);
        EXPECT(status != CUP_OK || cup_grad(x));
        cup_expr_free(d);
        cup_expr_free(e);
        cup_context_free(c);
    }
}

TEST(expr_in_place)
{
    cup_context *c = open_cpu();
    cup_tensor *x = filled(c, CUP_F32, 2, (int64_t[]){3, 700}, -1, 1), *out[CUP_EXPR_RESULTS] = {x};
    cup_tensor *row = cup_slice(c, x, (int64_t[]){1, 0}, 2, (int64_t[]){1, -1}, 2);
    cup_tensor *turned = cup_reshape(c, x, 2, (int64_t[]){700, 3});
    double was = at(x, 2000), first = at(x, 0);
    cup_expr *e = cup_expr_new(c, "x m", "k", "x - k*m, m*m");
    cup_tensor *m = filled(c, CUP_F32, 2, (int64_t[]){3, 700}, -1, 1);
    cup_expr_call(e, (cup_tensor *[]){x, m}, (double[]){0.5}, out);
    CHECK(c);
    EXPECT(!cup_expr_call(e, (cup_tensor *[]){m, m}, (double[]){0.5}, (cup_tensor *[]){x, row}));
    EXPECT_CONTAINS(cup_error_text(c), "results 1 and 2 would be written to one memory");
    cup_error_clear(c);
    EXPECT(out[0] == x);
    EXPECT_NEAR(at(x, 2000), was - 0.5 * at(m, 2000), 1e-6);
    EXPECT_NEAR(at(x, 0), first - 0.5 * at(m, 0), 1e-6);
    cup_expr_free(e);
    e = cup_expr_new(c, "x y", NULL, "x + y");
    EXPECT(!cup_expr_call(e, (cup_tensor *[]){x, row}, NULL, (cup_tensor *[]){x}));
    EXPECT_CONTAINS(cup_error_text(c), "result 1 would be written over input y");
    cup_error_clear(c);
    EXPECT(!cup_expr_call(e, (cup_tensor *[]){turned, turned}, NULL, (cup_tensor *[]){x}));
    cup_error_clear(c);
    /* Beside each other is not over each other. */
    cup_tensor *last = cup_slice(c, x, (int64_t[]){2, 0}, 2, (int64_t[]){1, -1}, 2);
    EXPECT(cup_expr_call(e, (cup_tensor *[]){row, row}, NULL, (cup_tensor *[]){last}) == last);
    CHECK(c);
    cup_expr_free(e);
    cup_context_free(c);
}

/* The same bits whatever the number of threads. */
TEST(expr_threads_do_not_show)
{
    float sums[2][40];
    for (int i = 0; i < 2; i++) {
        cup_context *c =
            cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = i + 1));
        cup_tensor *out[CUP_EXPR_RESULTS] = {NULL}, *more[CUP_EXPR_RESULTS] = {NULL};
        int64_t shape[] = {3000, 37};
        cup_tensor *x = cup_normal(c, CUP_F32, 2, shape, 0, 1);
        cup_expr *e = cup_expr_new(c, "x", NULL, "sum[0](x*x)");
        cup_expr *f = cup_expr_new(c, "x", NULL, "sum[](x*x), mean[](x), max[](x)");
        cup_expr_call(e, &x, NULL, out);
        cup_expr_call(f, &x, NULL, more);
        CHECK(c);
        for (int n = 0; n < 37; n++)
            sums[i][n] = (float)at(out[0], n);
        for (int n = 0; n < 3; n++)
            sums[i][37 + n] = (float)at(more[n], 0);
        cup_expr_free(e);
        cup_expr_free(f);
        cup_context_free(c);
    }
    EXPECT(!memcmp(sums[0], sums[1], sizeof sums[0]));
}
