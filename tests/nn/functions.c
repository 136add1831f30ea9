/* Functions made of ops, on numbers whose answers are known. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = 5));
    if (!strcmp(name, "cuda") && cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

static cup_tensor *floats(cup_context *c, int rows, int columns, const float *values)
{
    return cup_tensor_from(c, CUP_F32, rows ? 2 : 1,
                           rows ? (int64_t[]){rows, columns} : (int64_t[]){columns}, values);
}

static cup_tensor *wholes(cup_context *c, int count, const int64_t *values)
{
    return cup_tensor_from(c, CUP_I64, 1, (int64_t[]){count}, values);
}

/* The numbers of a tensor of any dtype, row by row, in words. */
static void expect_numbers(cup_tensor *t, const char *want)
{
    char got[1000] = "";
    double values[64];
    if (!t)
        test_fail(__FILE__, __LINE__, "there is no tensor; expected %s", want);
    cup_context *c = cup_tensor_context(t);
    EXPECT(cup_tensor_count(t) <= 64);
    for (int d = 0; d < cup_tensor_ndim(t); d++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", d ? "x" : "",
                 (int)cup_tensor_size(t, d));
    EXPECT_INT(cup_tensor_read(cup_cast(c, cup_copy(c, t), CUP_F64), values,
                               sizeof *values * (size_t)cup_tensor_count(t)),
               CUP_OK);
    for (int i = 0; i < cup_tensor_count(t); i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%g", i ? " " : ": ", values[i]);
    EXPECT_TEXT(got, want);
}

static void check_moves(const char *name)
{
    cup_context *c = device(name);
    cup_tensor *x = cup_require_grad(floats(c, 2, 3, (float[]){1, 2, 3, 4, 5, 6})), *out[2];
    cup_tensor *mask = cup_greater(c, x, cup_full(c, CUP_F32, 0, NULL, 4));
    expect_numbers(cup_masked_fill(c, x, mask, -INFINITY), "2x3: 1 2 3 4 -inf -inf");
    cup_tensor *twice[] = {x, cup_neg(c, x)};
    expect_numbers(cup_stack(c, twice, 2, 1), "2x2x3: 1 2 3 -1 -2 -3 4 5 6 -4 -5 -6");
    expect_numbers(cup_stack(c, twice, 2, -1), "2x3x2: 1 -1 2 -2 3 -3 4 -4 5 -5 6 -6");
    EXPECT_INT(cup_split_along(c, x, (int64_t[]){1, 2}, 2, -1, out), CUP_OK);
    expect_numbers(out[0], "2x1: 1 4");
    expect_numbers(out[1], "2x2: 2 3 5 6");
    expect_numbers(cup_roll(c, x, 1, 1), "2x3: 3 1 2 6 4 5");
    expect_numbers(cup_roll(c, x, -4, 1), "2x3: 2 3 1 5 6 4");
    expect_numbers(cup_roll(c, x, 2, 0), "2x3: 1 2 3 4 5 6");
    expect_numbers(cup_one_hot(c, wholes(c, 3, (int64_t[]){2, 0, 7}), CUP_BF16, 3),
                   "3x3: 0 0 1 1 0 0 0 0 0");
    cup_tensor *some = floats(c, 2, 3, (float[]){0, 0, NAN, 0, 0, 0});
    expect_numbers(cup_any(c, some, (int64_t[]){1}, 1, false), "2: 1 0");
    expect_numbers(cup_all(c, x, NULL, 0, false), ": 1");
    expect_numbers(cup_all(c, some, (int64_t[]){0}, 1, true), "1x3: 0 0 0");
    cup_tensor *none = cup_zeros(c, CUP_F32, 2, (int64_t[]){0, 2});
    expect_numbers(cup_any(c, none, (int64_t[]){0}, 1, false), "2: 0 0");
    expect_numbers(cup_all(c, none, (int64_t[]){0}, 1, false), "2: 1 1");
    /* Gradients: of the stack twice, of the filled only where it was not. */
    cup_tensor *y = cup_add(c, cup_sum(c, cup_masked_fill(c, x, mask, 7), NULL, 0, false),
                            cup_sum(c, cup_stack(c, (cup_tensor *[]){x, x}, 2, 0), NULL, 0, false));
    y = cup_add(c, y, cup_sum(c, cup_roll(c, x, 1, 0), NULL, 0, false));
    EXPECT_INT(cup_backward(c, y), CUP_OK);
    expect_numbers(cup_grad(x), "2x3: 4 4 4 4 3 3");
    cup_tensor *table = cup_require_grad(floats(c, 3, 2, (float[]){1, 2, 3, 4, 5, 6}));
    cup_tensor *rows = cup_embedding_padded(c, table, wholes(c, 3, (int64_t[]){1, 2, 1}), 1);
    expect_numbers(rows, "3x2: 3 4 5 6 3 4");
    EXPECT_INT(cup_backward(c, cup_sum(c, rows, NULL, 0, false)), CUP_OK);
    expect_numbers(cup_grad(table), "3x2: 0 0 0 0 1 1");
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(functions_that_move_elements)
{
    check_moves("cpu");
}

TEST(gpu_functions_that_move_elements)
{
    check_moves("cuda");
}

static void check_order(const char *name)
{
    cup_context *c = device(name);
    cup_tensor *x =
        cup_require_grad(floats(c, 2, 4, (float[]){4, 1, 3, 2, NAN, 1, 0, -1}));
    expect_numbers(cup_median(c, x, 1, false), "2: 2 nan");
    expect_numbers(cup_median(c, wholes(c, 3, (int64_t[]){9, -3, 5}), 0, true), "1: 5");
    expect_numbers(cup_quantile(c, x, 0.25, -1, true), "2x1: 1.75 nan");
    expect_numbers(cup_quantile(c, x, 1, 1, false), "2: 4 nan");
    cup_tensor *first = cup_slice(c, x, (int64_t[]){0, 0}, 2, (int64_t[]){1, 4}, 2);
    cup_tensor *y = cup_quantile(c, first, 0.5, 1, false);
    EXPECT_INT(cup_backward(c, cup_sum(c, y, NULL, 0, false)), CUP_OK);
    expect_numbers(cup_grad(x), "2x4: 0 0 0.5 0.5 0 0 0 0");
    cup_tensor *bins = wholes(c, 5, (int64_t[]){3, 0, 3, 1, 3});
    expect_numbers(cup_bincount(c, bins, NULL, 5), "5: 1 1 0 3 0");
    expect_numbers(cup_bincount(c, bins, floats(c, 0, 5, (float[]){1, 2, 0.5f, 4, -1}), 4),
                   "4: 2 4 0 0.5");
    cup_tensor *z = floats(c, 2, 3, (float[]){0, 5, 0, NAN, 0, -1});
    expect_numbers(cup_nonzero(c, z), "3x2: 0 1 1 0 1 2");
    expect_numbers(cup_nonzero(c, cup_zeros(c, CUP_I32, 1, (int64_t[]){4})), "0x1");
    expect_numbers(cup_nonzero(c, cup_ones(c, CUP_F32, 0, NULL)), "1x0");
    cup_tensor *column = cup_tensor_from(c, CUP_BOOL, 2, (int64_t[]){2, 1}, (bool[]){false, true});
    cup_tensor *w = cup_require_grad(floats(c, 2, 3, (float[]){1, 2, 3, 4, 5, 6}));
    cup_tensor *taken = cup_masked_select(c, w, column);
    expect_numbers(taken, "3: 4 5 6");
    EXPECT_INT(cup_backward(c, cup_sum(c, cup_mul(c, taken, taken), NULL, 0, false)), CUP_OK);
    expect_numbers(cup_grad(w), "2x3: 0 0 0 8 10 12");
    cup_tensor *values, *inverse, *counts;
    cup_tensor *v = floats(c, 2, 3, (float[]){5, -2, 5, 5, 7, -2});
    EXPECT_INT(cup_unique(c, v, &values, &inverse, &counts), CUP_OK);
    expect_numbers(values, "3: -2 5 7");
    expect_numbers(inverse, "2x3: 1 0 1 1 2 0");
    expect_numbers(counts, "3: 2 3 1");
    EXPECT_INT(cup_unique(c, cup_zeros(c, CUP_I64, 1, (int64_t[]){0}), &values, NULL, &counts),
               CUP_OK);
    expect_numbers(values, "0");
    expect_numbers(counts, "0");
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(functions_that_order_and_count)
{
    check_order("cpu");
}

TEST(gpu_functions_that_order_and_count)
{
    check_order("cuda");
}

/* Of 40,000 draws the shares are those of the parts, to five deviations, and 0 never comes. */
static void check_multinomial(const char *name)
{
    enum { DRAWS = 40000 };
    cup_context *c = device(name);
    cup_tensor *x = floats(c, 1, 4, (float[]){1, 0, 3, 6});
    int64_t counts[4];
    cup_tensor *drawn = cup_multinomial(c, x, DRAWS, true);
    EXPECT_INT(cup_tensor_read(cup_bincount(c, drawn, NULL, 4), counts, sizeof counts), CUP_OK);
    static const double part[] = {0.1, 0, 0.3, 0.6};
    for (int i = 0; i < 4; i++)
        EXPECT_NEAR((double)counts[i], DRAWS * part[i],
                    5 * sqrt(DRAWS * part[i] * (1 - part[i])));
    /* Without replacement: all of the three that can come, in any order. */
    expect_numbers(cup_sum(c, cup_multinomial(c, x, 3, false), NULL, 0, false), ": 5");
    cup_tensor *rows = cup_broadcast(c, x, 2, (int64_t[]){DRAWS, 4});
    drawn = cup_multinomial(c, rows, 2, false);
    drawn = cup_slice(c, drawn, (int64_t[]){0, 1}, 2, (int64_t[]){DRAWS, 1}, 2);
    EXPECT_INT(cup_tensor_read(cup_bincount(c, drawn, NULL, 4), counts, sizeof counts), CUP_OK);
    /* The second is 0 after 2 or 3: 0.3 0.1 / 0.7 + 0.6 0.1 / 0.4. */
    EXPECT_NEAR((double)counts[0], DRAWS * (0.03 / 0.7 + 0.06 / 0.4), 400);
    EXPECT_INT(counts[1], 0);
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(multinomial_draws_by_the_parts)
{
    check_multinomial("cpu");
}

TEST(gpu_multinomial)
{
    check_multinomial("cuda");
}

static void check_einsum(const char *name)
{
    static const struct {
        const char *text;
        int count;
        const char *want;
    } cases[] = {
        {"ij,jk->ik", 2, "2x2: 22 28 49 64"},
        {"ij , jk", 2, "2x2: 22 28 49 64"},
        {"ij,jk->ki", 2, "2x2: 22 49 28 64"},
        {"ij,jk->", 2, ": 163"},
        {"ij,jk->j", 2, "3: 15 49 99"},
        {"ij,jk->ijk", 2, "2x3x2: 1 2 6 8 15 18 4 8 15 20 30 36"},
        {"ij,jk,kl->il", 3, "2x3: 134 184 234 305 418 531"},
        {"ij,kl,kl->ij", 3, "2x3: 91 182 273 364 455 546"},
        {"ij->ji", 1, "3x2: 1 4 2 5 3 6"},
        {"ij->i", 1, "2: 6 15"},
        {"ba", 1, "3x2: 1 4 2 5 3 6"},
        {"ij->ij", 1, "2x3: 1 2 3 4 5 6"},
    };
    cup_context *c = device(name);
    cup_tensor *x = cup_require_grad(floats(c, 2, 3, (float[]){1, 2, 3, 4, 5, 6}));
    cup_tensor *y = floats(c, 3, 2, (float[]){1, 2, 3, 4, 5, 6});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool alike = strstr(cases[i].text, "kl,kl");
        cup_tensor *in[] = {x, y, alike ? y : x};
        cup_tensor *got = cup_einsum(c, in, cases[i].count, cases[i].text);
        if (!got)
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i].text, cup_error_text(c));
        expect_numbers(got, cases[i].want);
    }
    cup_tensor *in[] = {x, y};
    EXPECT_INT(cup_backward(c, cup_einsum(c, in, 2, "ij,jk->")), CUP_OK);
    expect_numbers(cup_grad(x), "2x3: 3 7 11 3 7 11");
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(einsum_by_letters)
{
    check_einsum("cpu");
}

TEST(gpu_einsum)
{
    check_einsum("cuda");
}

TEST(einsum_of_hostile_texts)
{
    static const char *const texts[] = {
        "",          "ij",        "ij,jk,",       "ij,jk-",    "ij,jk->ik->", "ij,jk->iz", "ii,jk",
        "ij,jk->ii", "i1,jk",     "ij,kj->ik",    "ijk,jk",    "ij;jk",       "ij,jk->ik ,",
        "\xff\xfe,jk", "ij,...k",   "abcdefghijk,j", "ij,jk->ik%s", ",",      "->",
        "ij,jk>ik"};
    cup_context *c = device("cpu");
    cup_tensor *in[] = {floats(c, 2, 3, (float[]){1, 2, 3, 4, 5, 6}),
                        floats(c, 3, 2, (float[]){1, 2, 3, 4, 5, 6})};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (cup_einsum(c, in, 2, texts[i]))
            test_fail(__FILE__, __LINE__, "\"%s\" was taken", texts[i]);
        EXPECT_CONTAINS(cup_error_text(c), "einsum: ");
        cup_error_clear(c);
    }
    char long_text[5000];
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    EXPECT(!cup_einsum(c, in, 2, long_text));
    cup_error_clear(c);
    EXPECT(!cup_einsum(c, in, 17, "a"));
    EXPECT_CONTAINS(cup_error_text(c), "at most 16");
    cup_context_free(c);
}

static void expect_error(cup_context *c, const char *part)
{
    EXPECT_CONTAINS(cup_error_text(c), part);
    cup_error_clear(c);
}

TEST(functions_refuse_with_a_sentence)
{
    cup_context *c = device("cpu");
    cup_tensor *x = floats(c, 2, 3, (float[]){1, 2, 3, 4, 5, 6}), *out[3];
    cup_tensor *row = floats(c, 0, 3, (float[]){1, 2, 3});
    EXPECT(!cup_stack(c, (cup_tensor *[]){x, row}, 2, 0));
    expect_error(c, "tensor 1 has another shape");
    EXPECT(!cup_stack(c, (cup_tensor *[]){x, NULL}, 2, 0));
    expect_error(c, "a tensor is NULL");
    EXPECT(!cup_stack(c, (cup_tensor *[]){x}, 1, 4));
    expect_error(c, "there is no axis 4");
    EXPECT_INT(cup_split_along(c, x, (int64_t[]){1, INT64_MAX}, 2, 1, out), CUP_ARGUMENT);
    expect_error(c, "part 1");
    EXPECT_INT(cup_split_along(c, x, (int64_t[]){1, 1}, 2, 1, out), CUP_ARGUMENT);
    expect_error(c, "have 2 of the 3");
    EXPECT(!cup_roll(c, x, 1, 2));
    expect_error(c, "no axis 2");
    EXPECT(!cup_one_hot(c, x, CUP_F32, 3));
    expect_error(c, "must be i32 or i64");
    EXPECT(!cup_one_hot(c, wholes(c, 1, (int64_t[]){0}), CUP_F32, -1));
    expect_error(c, "-1 classes");
    EXPECT(!cup_embedding_padded(c, x, wholes(c, 1, (int64_t[]){0}), 2));
    expect_error(c, "row 2 is none");
    EXPECT(!cup_quantile(c, x, 1.5, 0, false));
    expect_error(c, "the part is 1.5");
    EXPECT(!cup_median(c, cup_zeros(c, CUP_F32, 1, (int64_t[]){0}), 0, false));
    expect_error(c, "there are no elements");
    EXPECT(!cup_multinomial(c, x, 4, false));
    expect_error(c, "4 cannot be drawn");
    EXPECT(!cup_bincount(c, wholes(c, 1, (int64_t[]){0}), NULL, 0));
    expect_error(c, "0 bins");
    EXPECT(!cup_bincount(c, wholes(c, 1, (int64_t[]){5}), NULL, 2));
    EXPECT(cup_error(c) != CUP_OK);
    cup_error_clear(c);
    EXPECT(!cup_masked_select(c, x, x));
    expect_error(c, "the mask must be bool");
    cup_context_free(c);
}
