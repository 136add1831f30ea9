/* Changes in place of what gradients flow through, and calls that have none, are refused. */
#include "../test.h"
#include "cupola/cupola.h"

static const int64_t shape[] = {2, 2};
static const float numbers[] = {1, 2, 3, 4};

static cup_tensor *matrix(cup_context *c)
{
    return cup_tensor_from(c, CUP_F32, 2, shape, numbers);
}

static void expect_error(cup_context *c, const char *part)
{
    EXPECT_CONTAINS(cup_error_text(c), part);
    cup_error_clear(c);
}

TEST(in_place_into_a_recorded_result)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *w = cup_require_grad(matrix(c)), *x = matrix(c);
    cup_tensor *h = cup_add(c, w, x), *turned = cup_permute(c, h, (int64_t[]){1, 0}, 2);
    EXPECT(cup_matmul_into(c, h, x, x, false, false) != CUP_OK);
    expect_error(c, "recorded result");
    EXPECT(cup_matmul_add(c, h, x, x, false, false) != CUP_OK);
    expect_error(c, "recorded result");
    EXPECT(cup_tensor_write(h, numbers, sizeof numbers) != CUP_OK);
    expect_error(c, "recorded result");
    EXPECT(cup_tensor_write(turned, numbers, sizeof numbers) != CUP_OK);
    expect_error(c, "recorded result");
    EXPECT(cup_matmul_list(c, (cup_tensor *[]){x, x, h}, 3, false, false) != CUP_OK);
    expect_error(c, "recorded result");
    cup_grad_recording(c, false);
    EXPECT(cup_matmul_into(c, h, x, x, false, false) != CUP_OK);
    expect_error(c, "recorded result");
    cup_grad_recording(c, true);
    EXPECT_INT(cup_backward(c, cup_sum(c, h, NULL, 0, false)), CUP_OK);
    EXPECT_INT(cup_matmul_into(c, h, x, x, false, false), CUP_OK);
    EXPECT_INT(cup_tensor_write(h, numbers, sizeof numbers), CUP_OK);
    cup_context_free(c);
}

TEST(in_place_by_a_formula)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *w = cup_require_grad(matrix(c)), *h = cup_add(c, w, matrix(c)), *out[] = {h};
    cup_tensor *x = matrix(c);
    cup_expr *e = cup_expr_new(c, "x", NULL, "2*x");
    EXPECT(!cup_expr_call(e, &x, NULL, out));
    expect_error(c, "recorded result");
    out[0] = matrix(c);
    EXPECT(!cup_expr_call(e, &w, NULL, out));
    expect_error(c, "cup_grad_recording");
    EXPECT(cup_expr_call(e, &x, NULL, out));
    cup_expr_free(e);
    cup_context_free(c);
}

TEST(in_place_of_a_view_of_a_parameter)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *w = cup_require_grad(matrix(c));
    cup_tensor *flat = cup_reshape(c, w, 1, (int64_t[]){4});
    EXPECT_INT(cup_tensor_write(w, numbers, sizeof numbers), CUP_OK);
    EXPECT(cup_tensor_write(flat, numbers, sizeof numbers) != CUP_OK);
    expect_error(c, "recorded result");
    cup_tape_clear(c);
    EXPECT_INT(cup_tensor_write(flat, numbers, sizeof numbers), CUP_OK);
    cup_context_free(c);
}

TEST(recording_of_calls_without_a_gradient)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *w = cup_require_grad(matrix(c)), *x = matrix(c), *codes, *scale;
    EXPECT(!cup_global_norm(c, &w, 1));
    expect_error(c, "it has no gradient");
    EXPECT(cup_matmul_into(c, x, matrix(c), w, false, false) != CUP_OK);
    expect_error(c, "it has no gradient");
    EXPECT(cup_quantize(c, w, CUP_I8, NULL, &codes, &scale) != CUP_OK);
    expect_error(c, "it has no gradient");
    EXPECT(cup_argmax(c, w, NULL, 0, false)); /* counts; nobody expects a gradient of these */
    EXPECT(cup_less(c, w, x));
    cup_grad_recording(c, false);
    EXPECT_NEAR(cup_tensor_item(cup_global_norm(c, &w, 1)), 5.4772255750516612, 1e-6);
    cup_context_free(c);
}

TEST(backward_misled)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *w = cup_require_grad(matrix(c)), *loss = cup_sum(c, w, NULL, 0, false);
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    EXPECT(cup_backward(c, loss) != CUP_OK);
    expect_error(c, "compute the loss again");
    EXPECT(cup_backward(c, NULL) != CUP_OK);
    expect_error(c, "the loss is NULL");
    cup_context_free(c);
}

TEST(optimizer_misled)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *w = matrix(c);
    cup_parameter twice[] = {{.name = "a", .tensor = w}, {.name = "b", .tensor = w}};
    EXPECT(!cup_optimizer_new(c, twice, 2, NULL));
    expect_error(c, "are one tensor");
    twice[1].tensor = cup_reshape(c, w, 1, (int64_t[]){4});
    cup_tape_clear(c);
    EXPECT(!cup_optimizer_new(c, twice, 2, NULL));
    cup_error_clear(c);
    cup_scope_open(c);
    twice[1].tensor = matrix(c);
    cup_optimizer *o = cup_optimizer_new(c, twice, 2, NULL);
    EXPECT_INT(cup_backward(c, cup_sum(c, cup_add(c, w, twice[1].tensor), NULL, 0, false)), CUP_OK);
    EXPECT(cup_optimizer_step(o) != CUP_OK);
    expect_error(c, "cup_optimizer_set");
    EXPECT_INT(cup_optimizer_set(o, 0.1, 1), CUP_OK);
    EXPECT_INT(cup_optimizer_step(o), CUP_OK);
    cup_scope_close(c);
    EXPECT(cup_optimizer_step(o) != CUP_OK);
    expect_error(c, "was freed");
    cup_context_free(c);
    cup_optimizer_free(o);
}
