/* Attention by a formula on the CPU: the same as what options say, where they do; gradients by
 * differences, where they do not; and what is refused. */
#include "attention_formula.h"

#include "base/memory.h"

static const sizes shapes[] = {{2, 4, 2, 7, 13, 6}, {1, 2, 1, 70, 130, 24}, {1, 2, 2, 5, 3, 8}};

static void expect_same(const variant *v, const char *what, cup_tensor *got, cup_tensor *want,
                        double most)
{
    EXPECT((got == NULL) == (want == NULL));
    EXPECT(!got || got->count == want->count);
    for (int64_t i = 0; got && i < got->count; i++)
        if (!(fabs(at(got, i) - at(want, i)) <= most * (1 + fabs(at(want, i)))))
            test_fail(__FILE__, __LINE__, "%s: %s, element %lld: %.17g, not %.17g", v->text, what,
                      (long long)i, at(got, i), at(want, i));
}

static void compare(cup_dtype dtype, double most)
{
    static const char *const names[GRADIENTS] = {"o",      "dq",     "dk",     "dv",   "tensor 1",
                                                 "tensor 2", "tensor 3", "tensor 4", "sinks"};
    for (int i = 0; i < VARIANTS; i++)
        for (int k = 0; k < 3 && !variants[i].is_own; k++) {
            cup_tensor *got[GRADIENTS], *want[GRADIENTS];
            cup_context *c = open_cpu(), *d = open_cpu();
            run_variant(c, &variants[i], &shapes[k], dtype, dtype, true, got);
            run_variant(d, &variants[i], &shapes[k], dtype, dtype, false, want);
            for (int n = 0; n < GRADIENTS; n++)
                expect_same(&variants[i], names[n], got[n], want[n], most);
            cup_context_free(c);
            cup_context_free(d);
        }
}

TEST(attention_formula_is_as_options_f64)
{
    compare(CUP_F64, 1e-12);
}

TEST(attention_formula_is_as_options_f32)
{
    compare(CUP_F32, 2e-5);
}

/* Those that no options say: in f32 as the specification in f64. */
TEST(attention_formula_own_f32)
{
    for (int i = 0; i < VARIANTS; i++)
        for (int k = 0; k < 2 && variants[i].is_own; k++) {
            cup_tensor *got[GRADIENTS], *want[GRADIENTS];
            cup_context *c = open_cpu();
            run_variant(c, &variants[i], &shapes[k], CUP_F32, CUP_F32, true, got);
            run_variant(c, &variants[i], &shapes[k], CUP_F32, CUP_F64, true, want);
            for (int n = 0; n < GRADIENTS; n++)
                expect_same(&variants[i], "own", got[n], want[n], 1e-4);
            cup_context_free(c);
        }
}

static double loss_of(cup_context *c, const variant *v, cup_tensor *const *in, cup_tensor *w,
                      cup_tensor *sinks)
{
    cup_tensor *o = call_formula(c, v, in,
                                 CUP_OPTIONS(cup_attention_options, .sinks = sinks));
    CHECK(c);
    double sum = 0;
    for (int64_t i = 0; i < o->count; i++)
        sum += at(o, i) * at(w, i);
    cup_tensor_free(o);
    return sum;
}

TEST(attention_formula_gradients_by_differences)
{
    const variant *v = &variants[VARIANTS - 2];
    const sizes s = {2, 2, 1, 4, 7, 3};
    cup_context *c = open_cpu();
    cup_tensor *in[3 + TENSORS], *got[GRADIENTS], *sinks;
    run_variant(c, v, &s, CUP_F64, CUP_F64, true, got);
    cup_grad_recording(c, false);
    const int64_t of_q[] = {2, 2, 4, 3}, of_k[] = {2, 1, 7, 3};
    for (int i = 0; i < 3; i++)
        in[i] = waves(c, i + 1, CUP_F64, CUP_F64, 4, i ? of_k : of_q);
    for (int i = 0; i < TENSORS; i++)
        in[3 + i] = tensor_of(c, v->tensors[i], &s, CUP_F64, CUP_F64, 11 + i);
    sinks = waves(c, 5, CUP_F32, CUP_F64, 1, &s.heads);
    cup_tensor *w = waves(c, 7, CUP_F64, CUP_F64, 4, of_q);
    for (int n = 0; n < 4 + TENSORS; n++) {
        cup_tensor *t = n < 3 + TENSORS ? in[n] : sinks;
        EXPECT(got[1 + n] != NULL);
        for (int64_t i = 0; i < t->count; i++) {
            double *x = (double *)t->data + i, value = *x, step = 1e-5;
            *x = value + step;
            double above = loss_of(c, v, in, w, sinks);
            *x = value - step;
            double slope = (above - loss_of(c, v, in, w, sinks)) / (2 * step);
            *x = value;
            EXPECT_NEAR(at(got[1 + n], i), slope, 1e-8);
        }
    }
    cup_context_free(c);
}

/* A query that sees nothing has a result and gradients of 0, whatever hides the keys from it. */
TEST(attention_formula_hides_all)
{
    static const char *const texts[] = {"score, query > 3", "where(query > 3, score, -inf)",
                                        "score / 0, query > 3", "-inf"};
    for (int i = 0; i < 8; i++) {
        cup_context *c = open_cpu();
        cup_dtype dtype = i < 4 ? CUP_F32 : CUP_F64;
        const int64_t shape[] = {1, 1, 5, 2};
        cup_tensor *in[3];
        for (int k = 0; k < 3; k++)
            in[k] = waves(c, k + 1, dtype, dtype, 4, shape);
        cup_expr *e = cup_expr_new(c, "score query", NULL, texts[i % 4]);
        cup_tensor *o = cup_expr_attention(e, in[0], in[1], in[2], NULL, NULL, NULL);
        CHECK(c);
        EXPECT(i % 4 == 2 || i % 4 == 3 || at(o, 8) != 0);
        for (int64_t n = 0; n < 8; n++)
            EXPECT_NEAR(at(o, n), 0, 0);
        cup_backward(c, cup_sum(c, cup_slice(c, o, (int64_t[4]){0}, 4,
                                             (int64_t[]){1, 1, 4, 2}, 4), NULL, 0, false));
        CHECK(c);
        for (int k = 0; k < 3; k++)
            for (int64_t n = 0; n < 10 && i % 4 != 2; n++)
                EXPECT_NEAR(at(cup_grad(in[k]), n), 0, 0);
        cup_expr_free(e);
        cup_context_free(c);
    }
}

static void expect_refused(const char *inputs, const char *parameters, const char *text,
                           cup_attention_options options, cup_tensor *(*tensor)(cup_context *),
                           const char *words)
{
    cup_context *c = open_cpu();
    const int64_t shape[] = {1, 2, 4, 3};
    cup_tensor *x = waves(c, 1, CUP_F32, CUP_F32, 4, shape), *t = tensor ? tensor(c) : NULL;
    cup_expr *e = cup_expr_new(c, inputs, parameters, text);
    CHECK(c);
    options.size = sizeof options;
    EXPECT(!cup_expr_attention(e, x, x, x, tensor ? &t : NULL, NULL, &options));
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_expr_free(e);
    cup_context_free(c);
}

static cup_tensor *of_heads(cup_context *c)
{
    return cup_ones(c, CUP_F32, 1, (int64_t[]){2});
}

static cup_tensor *in_f16(cup_context *c)
{
    return cup_ones(c, CUP_F16, 3, (int64_t[]){2, 1, 1});
}

static cup_tensor *none(cup_context *c)
{
    (void)c;
    return NULL;
}

TEST(attention_formula_says_what_is_wrong)
{
    const cup_attention_options plain = {.size = 0};
    expect_refused("score", NULL, "sum[-1](score)", plain, NULL, "without folds");
    expect_refused("score", NULL, "score, score > 1, score", plain, NULL, "the condition");
    expect_refused("score", NULL, "bf16(score)", plain, NULL, "no dtypes");
    expect_refused("score", "k", "k * score", plain, NULL, "parameters are missing");
    expect_refused("score t", NULL, "score * t", plain, NULL, "tensor t is missing");
    expect_refused("score t", NULL, "score * t", plain, none, "tensor t is missing");
    expect_refused("score t", NULL, "score * t", plain, of_heads, "numbers of heads are [2,1,1]");
    expect_refused("score t", NULL, "score * t", plain, in_f16, "must be in f32");
    expect_refused("a b c d e f g h i", NULL, "a+b+c+d+e+f+g+h+i", plain, NULL, "up to 8 tensors");
    expect_refused("score", NULL, "score", (cup_attention_options){.soft_cap = 2}, NULL,
                   "soft_cap goes not with");
    expect_refused("score", NULL, "score", (cup_attention_options){.top_left = true}, NULL,
                   "top_left goes not with");
    EXPECT(!cup_expr_attention(NULL, NULL, NULL, NULL, NULL, NULL, NULL));
}

TEST(attention_formula_survives_a_lack_of_memory)
{
    for (long n = 1; n < 200; n++) {
        cup_context *c = open_cpu();
        cup_tensor *x = waves(c, 1, CUP_F32, CUP_F32, 4, (int64_t[]){1, 1, 3, 2});
        cup_tensor *t = waves(c, 2, CUP_F32, CUP_F32, 2, (int64_t[]){3, 3});
        cup__memory_fail_at(n, false);
        cup_expr *e = cup_expr_new(c, "score key t", "k", "score * t + k * sin(key), t > -0.5");
        cup_tensor *o = cup_expr_attention(e, x, x, x, &t, (double[]){2}, NULL);
        cup_status status = o ? cup_backward(c, cup_sum(c, o, NULL, 0, false)) : cup_error(c);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || status == CUP_MEMORY);
        cup_expr_free(e);
        cup_context_free(c);
    }
}
