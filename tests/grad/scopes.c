/* Scopes in which nothing is recorded, and several results of one scope. */
#include "../test.h"
#include "cupola/cupola.h"

static cup_tensor *ones(cup_context *c)
{
    return cup_ones(c, CUP_F32, 1, (int64_t[]){2});
}

TEST(scope_without_grad)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *w = cup_require_grad(ones(c)), *loss = cup_sum(c, cup_mul(c, w, w), NULL, 0, false);
    cup_scope_open_without_grad(c);
    cup_tensor *inside = cup_mul(c, w, w);
    EXPECT_INT(cup_copy_into(c, inside, w), CUP_OK); /* no recorded result */
    cup_scope_open_without_grad(c);
    EXPECT(!cup_add(c, w, NULL)); /* an error leaves no scope behind */
    cup_scope_close(c);
    cup_error_clear(c);
    EXPECT(!cup_grad_recording(c, false));
    inside = cup_scope_return(c, cup_mul(c, w, w));
    EXPECT(inside && cup_grad_recording(c, true));
    EXPECT_INT(cup_backward(c, loss), CUP_OK); /* what was recorded before is still there */
    EXPECT_NEAR(cup_tensor_item(cup_sum(c, cup_grad(w), NULL, 0, false)), 4, 0);
    cup_scope_open_without_grad(NULL);
    cup_context_free(c);
}

TEST(scope_with_several_results)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_scope_open(c);
    cup_scope_open(c);
    cup_tensor *results[] = {ones(c), NULL, ones(c)};
    EXPECT_INT(cup_scope_return_all(c, results, 3), CUP_OK);
    EXPECT_NEAR(cup_tensor_item(cup_sum(c, cup_add(c, results[0], results[2]), NULL, 0, false)), 4,
                0);
    EXPECT_INT(cup_scope_return_all(c, NULL, 2), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "NULL");
    cup_error_clear(c);
    EXPECT_INT(cup_scope_return_all(c, NULL, 0), CUP_OK); /* without a scope it does nothing */
    EXPECT_INT(cup_scope_return_all(NULL, results, 3), CUP_MEMORY);
    cup_context_free(c);
}
