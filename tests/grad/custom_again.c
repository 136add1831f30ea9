/* Ops of one's own whose result is made again in backward. */
#include <string.h>

#include "cupola/cupola.h"
#include "tensor/context.h"
#include "tensor/tensor.h"
#include "test.h"

#define SIZE ((int64_t)1 << 16)

static int calls, agains;
static const char *wrong;

static cup_status forward(cup_context *c, cup_tensor *const *in, int count, const void *no,
                          cup_tensor **out)
{
    (void)count, (void)no;
    calls++;
    out[0] = cup_exp(c, in[0]);
    return cup_error(c);
}

static cup_status backward(cup_context *c, const cup_custom_grad *g)
{
    g->d_inputs[0] = cup_mul(c, cup_exp(c, g->inputs[0]), g->d_outputs[0]);
    return cup_error(c);
}

static cup_tensor *again(cup_context *c, const cup_custom_grad *g)
{
    agains++;
    EXPECT(g->d_outputs == NULL && g->outputs == NULL && g->input_count == 1);
    if (wrong)
        return strcmp(wrong, "NULL") ? cup_sum(c, g->inputs[0], NULL, 0, false) : NULL;
    return cup_exp(c, g->inputs[0]);
}

static cup_custom_op op = {.size = sizeof op, .name = "growth", .output_count = 1,
                           .saves_inputs = 1, .forward = forward, .backward = backward,
                           .second_derivatives = true};

static cup_tensor *grow(cup_context *c, cup_tensor *const *in, int count, void *user)
{
    cup_tensor *y = NULL;
    (void)count, (void)user;
    cup_custom(c, &op, in, 1, NULL, &y);
    return cup_mul(c, y, y);
}

/* The gradient of x, and the most bytes that were there behind forward. */
static int64_t run(bool makes, bool block, float *out)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_require_grad(cup_full(c, CUP_F32, 1, (int64_t[]){SIZE}, 0.25));
    cup_tensor *y = cup_mul(c, x, x);
    calls = agains = 0;
    op.again = makes ? again : NULL;
    cup_scope_open(c);
    y = block ? cup_recompute(c, grow, &y, 1, NULL) : grow(c, &y, 1, NULL);
    cup_tensor *loss = cup_scope_return(c, cup_sum(c, y, NULL, 0, false));
    cup__memory_use use;
    c->device->calls->memory_use(c->device, &use);
    if (!wrong)
        EXPECT_INT(cup_backward(c, loss), CUP_OK);
    else
        EXPECT(cup_backward(c, loss) != CUP_OK);
    if (wrong)
        EXPECT_CONTAINS(cup_error_text(c), strcmp(wrong, "NULL") ? "no new tensor of the shape"
                                                                 : "its again failed");
    else
        EXPECT_INT(cup_tensor_read(cup_grad(x), out, SIZE * sizeof *out), CUP_OK);
    cup_context_free(c);
    return use.allocated;
}

/* Gradients have the same bits, a tensor less is kept, and it is made once for all who read it. */
TEST(custom_results_are_made_again)
{
    static float kept[SIZE], made[SIZE];
    int64_t more = run(false, false, kept), less = run(true, false, made);
    EXPECT_INT(calls, 1);
    EXPECT_INT(agains, 1);
    EXPECT(memcmp(kept, made, sizeof kept) == 0);
    EXPECT(more - less >= SIZE * (int64_t)sizeof *kept);
    /* A block that is computed again computes this anyway. */
    run(true, true, made);
    EXPECT_INT(calls, 2);
    EXPECT_INT(agains, 0);
    EXPECT(memcmp(kept, made, sizeof kept) == 0);
}

TEST(custom_results_that_are_made_wrongly_are_refused)
{
    float none[1];
    wrong = "NULL";
    run(true, false, none);
    wrong = "shape";
    run(true, false, none);
    wrong = NULL;
}

/* What reads it may be such an op itself, and gradients may be recorded through both. */
TEST(custom_results_are_made_again_for_each_other)
{
    float first[2][3], second[2][3];
    for (int makes = 0; makes < 2; makes++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        cup_tensor *x = cup_require_grad(
            cup_tensor_from(c, CUP_F32, 1, (int64_t[]){3}, (float[]){0.1F, -0.2F, 0.3F}));
        cup_tensor *y = NULL, *z = NULL, *d = NULL;
        op.again = makes ? again : NULL;
        cup_custom(c, &op, &x, 1, NULL, &y);
        cup_custom(c, &op, &y, 1, NULL, &z);
        cup_tensor *loss = cup_sum(c, cup_mul(c, z, z), NULL, 0, false);
        EXPECT_INT(cup_gradients_recorded(c, loss, &x, 1, &d), CUP_OK);
        EXPECT_INT(cup_tensor_read(d, first[makes], sizeof first[makes]), CUP_OK);
        EXPECT_INT(cup_backward(c, cup_sum(c, cup_mul(c, d, d), NULL, 0, false)), CUP_OK);
        EXPECT_INT(cup_tensor_read(cup_grad(x), second[makes], sizeof second[makes]), CUP_OK);
        EXPECT_TEXT(cup_error_text(c), "");
        cup_context_free(c);
    }
    EXPECT(memcmp(first[0], first[1], sizeof first[0]) == 0);
    EXPECT(memcmp(second[0], second[1], sizeof second[0]) == 0);
}
