/* Options of ops: what is not named has its default, in whatever version the caller was built. */
#include <stddef.h>
#include <string.h>

#include "../test.h"
#include "cupola/ops.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static void expect_error(cup_context *c, cup_status status, const char *words)
{
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

static void expect_same(cup_tensor *a, cup_tensor *b)
{
    float x[64], y[64];
    EXPECT(a && b && cup_tensor_count(a) == cup_tensor_count(b) && cup_tensor_count(a) <= 64);
    size_t bytes = (size_t)cup_tensor_count(a) * sizeof *x;
    EXPECT_INT(cup_tensor_read(a, x, bytes), CUP_OK);
    EXPECT_INT(cup_tensor_read(b, y, bytes), CUP_OK);
    EXPECT(!memcmp(x, y, bytes));
}

static cup_tensor *counted(cup_context *c, int ndim, const int64_t *shape)
{
    return cup_reshape(c, cup_arange(c, CUP_F32, 0, 64, NULL), ndim, shape);
}

TEST(options_that_are_0_are_defaults)
{
    const int64_t image[] = {1, 1, 8, 8}, rows[] = {4, 16}, window[] = {3, 2};
    cup_context *c = cpu();
    cup_tensor *x = counted(c, 4, image), *m = counted(c, 2, rows);
    cup_tensor *targets = cup_full(c, CUP_I32, 1, rows, 3);
    expect_same(cup_max_pool2d(c, x, window, 2, NULL),
                cup_max_pool2d(c, x, window, 2,
                               CUP_OPTIONS(cup_max_pool2d_options, .stride = CUP_INTS(3, 2),
                                           .padding = CUP_INTS(0), .dilation = CUP_INTS(1))));
    expect_same(cup_rope(c, x, NULL),
                cup_rope(c, x, CUP_OPTIONS(cup_rope_options, .base = 10000, .features = 8)));
    expect_same(cup_groupnorm(c, x, NULL, NULL, 1, 1, NULL),
                cup_groupnorm(c, x, NULL, NULL, 1, 1,
                              CUP_OPTIONS(cup_groupnorm_options, .eps = 1e-5)));
    expect_same(cup_cross_entropy(c, m, targets, -1, NULL),
                cup_cross_entropy(c, m, targets, -1,
                                  CUP_OPTIONS(cup_cross_entropy_options, .columns = 16)));
    expect_same(cup_attention(c, x, x, x, NULL),
                cup_attention(c, x, x, x,
                              &(cup_attention_options){.size = sizeof(cup_attention_options)}));
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

/* Options of which the caller's version has fewer fields, or more. */
TEST(options_of_other_versions)
{
    const int64_t image[] = {1, 1, 8, 8}, window[] = {2};
    struct {
        cup_max_pool2d_options known;
        int64_t later;
    } newer = {.known = {.size = sizeof newer, .padding = CUP_INTS(1)}};
    cup_max_pool2d_options older = {.size = offsetof(cup_max_pool2d_options, padding),
                                    .padding = CUP_INTS(99)};
    cup_context *c = cpu();
    cup_tensor *x = counted(c, 4, image);
    expect_same(cup_max_pool2d(c, x, window, 1, &older), cup_max_pool2d(c, x, window, 1, NULL));
    expect_same(cup_max_pool2d(c, x, window, 1, &newer.known),
                cup_max_pool2d(c, x, window, 1,
                               CUP_OPTIONS(cup_max_pool2d_options, .padding = CUP_INTS(1))));
    newer.later = 1;
    EXPECT(!cup_max_pool2d(c, x, window, 1, &newer.known));
    expect_error(c, CUP_UNSUPPORTED, "max_pool2d: its options have");
    EXPECT(!cup_max_pool2d(c, x, window, 1, &(cup_max_pool2d_options){.ceil_mode = true}));
    expect_error(c, CUP_ARGUMENT, "the size of its options is 0; make them with CUP_OPTIONS");
    older.size++;
    EXPECT(!cup_max_pool2d(c, x, window, 1, &older));
    expect_error(c, CUP_ARGUMENT, "; make them with CUP_OPTIONS");
    cup_context_free(c);
}

/* The results of a call that is refused for its options are NULL. */
TEST(options_refused_leave_no_results)
{
    cup_context *c = cpu();
    cup_tensor *x = counted(c, 1, (int64_t[]){64}), *values = x, *places = x;
    EXPECT_INT(cup_top_k(c, x, 2, 0, &(cup_top_k_options){.smallest = true}, &values, &places),
               CUP_ARGUMENT);
    EXPECT(!values && !places);
    cup_error_clear(c);
    EXPECT(!cup_max_pool2d(c, counted(c, 4, (int64_t[]){1, 1, 8, 8}), NULL, 0, NULL));
    expect_error(c, CUP_ARGUMENT, "window has 0 numbers");
    EXPECT(!cup_rope(NULL, x, &(cup_rope_options){.heads = 1}));
    cup_context_free(c);
}
