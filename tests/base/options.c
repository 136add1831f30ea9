/* Structs that callers fill: without their size, or with what this library does not know. */
#include <stddef.h>

#include "../test.h"
#include "cupola/expr.h"
#include "cupola/grad.h"
#include "cupola/layers.h"
#include "cupola/loop.h"
#include "cupola/ops.h"

static void expect_error(cup_context *c, cup_status status, const char *words)
{
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

/* A caller's struct of a later version: one number more. */
#define LATER(type)                                                                                \
    struct {                                                                                       \
        type known;                                                                                \
        int64_t later;                                                                             \
    }

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    (void)batch;
    return cup_sum(c, user, NULL, 0, false);
}

static void told(const cup_training_point *point, void *user)
{
    (void)point;
    ++*(int *)user;
}

TEST(options_of_loops_have_a_size)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *x = cup_parameter_new(list, "x", 1, (int64_t[]){2}, NULL);
    const cup_loop_options options = {.size = sizeof options, .schedule = {0.1, 0.1, 0, 2}};
    LATER(cup_loop_calls) calls = {.known = {.loss = loss, .user = x}, .later = 1};
    int points = 0;
    LATER(cup_training_hooks) hooks = {.known = {.point = told, .user = &points}, .later = 1};
    EXPECT(!cup_loop_new(list, &calls.known, &options));
    expect_error(c, CUP_ARGUMENT, "training: its calls: the size of its options is 0");
    calls.known.size = sizeof calls;
    EXPECT(!cup_loop_new(list, &calls.known, &options));
    expect_error(c, CUP_UNSUPPORTED, "training: its calls: its options have");
    calls.later = 0;
    cup_loop *loop = cup_loop_new(list, &calls.known, &options);
    EXPECT_INT(cup_loop_run(loop, &hooks.known), CUP_ARGUMENT);
    expect_error(c, CUP_ARGUMENT, "training: its hooks: the size of its options is 0");
    hooks.known.size = sizeof hooks;
    EXPECT_INT(cup_loop_run(loop, &hooks.known), CUP_UNSUPPORTED);
    expect_error(c, CUP_UNSUPPORTED, "training: its hooks: its options have");
    /* An older caller's hooks end before `user`: the field is not read. */
    hooks.known = (cup_training_hooks){.size = offsetof(cup_training_hooks, point), .point = told};
    EXPECT_INT(cup_loop_run(loop, &hooks.known), CUP_OK);
    EXPECT_INT(points, 0);
    cup_loop_free(loop);
    cup_parameters_free(list);
    cup_context_free(c);
}

static cup_status twice(cup_context *c, cup_tensor *const *in, int count, const void *attributes,
                        cup_tensor **out)
{
    (void)count, (void)attributes;
    out[0] = cup_scale(c, in[0], 2);
    return cup_error(c);
}

static cup_status twice_back(cup_context *c, const cup_custom_grad *g)
{
    g->d_inputs[0] = cup_scale(c, g->d_outputs[0], 2);
    return cup_error(c);
}

/* An op may go before backward does; what it is stays with what was recorded. */
TEST(options_of_ops_have_a_size)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_require_grad(cup_full(c, CUP_F32, 1, (int64_t[]){3}, 1)), *y, *d;
    LATER(cup_custom_op) op = {
        .known = {.name = "twice", .output_count = 1, .attributes_size = 1, .forward = twice,
                  .backward = twice_back, .second_derivatives = true},
        .later = 1};
    EXPECT_INT(cup_custom(c, &op.known, &x, 1, "a", &y), CUP_ARGUMENT);
    expect_error(c, CUP_ARGUMENT, "custom: the size of its options is 0");
    op.known.size = sizeof op;
    EXPECT_INT(cup_custom(c, &op.known, &x, 1, "a", &y), CUP_UNSUPPORTED);
    expect_error(c, CUP_UNSUPPORTED, "custom: its options have");
    op.later = 0;
    EXPECT_INT(cup_custom(c, &op.known, &x, 1, "a", &y), CUP_OK);
    op.known = (cup_custom_op){0};
    EXPECT_INT(cup_gradients(c, cup_sum(c, y, NULL, 0, false), &x, 1, &d), CUP_OK);
    EXPECT_NEAR(cup_tensor_item(cup_max(c, d, NULL, 0, false)), 2, 0);
    cup_context_free(c);
}

TEST(options_of_formulas_and_tensors_have_a_size)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_expr *e = cup_expr_new(c, "x", NULL, NULL);
    cup_term x = cup_expr_name(e, "x");
    EXPECT_INT(cup_expr_result(e, x, &(cup_expr_end){.fold = CUP_EXPR_FOLD_SUM}), CUP_ARGUMENT);
    expect_error(c, CUP_ARGUMENT, "formula: the size of its options is 0");
    EXPECT_INT(cup_expr_result(e, x, CUP_OPTIONS(cup_expr_end, .fold = CUP_EXPR_FOLD_SUM)),
               CUP_OK);
    EXPECT_TEXT(cup_expr_words(e), "sum[](x)");
    cup_expr_free(e);
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_transformer_layer layer;
    EXPECT_INT(cup_transformer_layer_of(&layer, list, &(cup_transformer_tensors){0}, 1, NULL),
               CUP_ARGUMENT);
    expect_error(c, CUP_ARGUMENT, "transformer: its tensors: the size of its options is 0");
    cup_parameters_free(list);
    cup_context_free(c);
}
