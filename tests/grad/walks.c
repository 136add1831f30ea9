/* Backward from any tensors, several times, to results in the middle and to chosen inputs. */
#include <math.h>

#include "six.h"

/* sum of v gelu(x)^2, by plain arithmetic. */
static double value_of(const double *x, const double *v)
{
    double sum = 0;
    for (int i = 0; i < COUNT; i++) {
        double inner = x[i] + 0.044715 * x[i] * x[i] * x[i];
        double g = x[i] / (1 + exp(-1.5957691216057307118 * inner));
        sum += v[i] * g * g;
    }
    return sum;
}

TEST(grad_from_a_tensor_with_its_gradient)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(numbers(c, -1)), *v = numbers(c, 0.5);
    cup_tensor *g = cup_gelu(c, x), *y = cup_mul(c, g, g);
    EXPECT_INT(cup_backward_from(c, &y, &v, 1), CUP_OK);
    double xs[COUNT], vs[COUNT];
    EXPECT_INT(cup_tensor_read(x, xs, sizeof xs), CUP_OK);
    EXPECT_INT(cup_tensor_read(v, vs, sizeof vs), CUP_OK);
    for (int i = 0; i < COUNT; i++) {
        const double step = 1e-5, here = xs[i];
        xs[i] = here + step;
        double slope = value_of(xs, vs);
        xs[i] = here - step;
        slope = (slope - value_of(xs, vs)) / (2 * step);
        xs[i] = here;
        EXPECT_NEAR(at(cup_grad(x), i), slope, 1e-8);
        EXPECT_NEAR(at(v, i), vs[i], 0);
    }
    cup_context_free(c);
}

TEST(grad_from_several_tensors)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(numbers(c, -1)), *v = numbers(c, 2);
    cup_tensor *ends[] = {cup_mul(c, x, x), total(c, cup_scale(c, x, 3)), x};
    cup_tensor *gradients[] = {v, NULL, v};
    EXPECT_INT(cup_backward_from(c, ends, gradients, 3), CUP_OK);
    for (int i = 0; i < COUNT; i++)
        EXPECT_NEAR(at(cup_grad(x), i), 2 * at(x, i) * at(v, i) + 3 + at(v, i), 1e-12);
    EXPECT(cup_tensor_data(cup_grad(x)) != cup_tensor_data(v));
    cup_context_free(c);
}

TEST(grad_several_times_while_kept)
{
    cup_context *c = cpu();
    cup_scope_open(c);
    cup_tensor *x = cup_require_grad(numbers(c, 1));
    EXPECT(!cup_tape_keep(c, true));
    cup_tensor *y = cup_exp(c, x), *one = total(c, y), *other = total(c, cup_mul(c, y, x));
    EXPECT_INT(cup_backward(c, one), CUP_OK);
    EXPECT_NEAR(at(cup_grad(x), 2), exp(1.5), 1e-12);
    EXPECT_INT(cup_backward(c, other), CUP_OK);
    EXPECT_INT(cup_backward(c, one), CUP_OK);
    EXPECT_NEAR(at(cup_grad(x), 2), exp(1.5) * (1 + 1 + 1 + 1.5), 1e-12);
    EXPECT(cup_tensor_write(y, (double[COUNT]){0}, sizeof(double[COUNT])) != CUP_OK);
    expect_error(c, CUP_STATE, "recorded result");
    EXPECT(cup_tape_keep(c, false));
    EXPECT_INT(cup_backward(c, one), CUP_OK);
    EXPECT_INT(cup_backward(c, other), CUP_STATE);
    expect_error(c, CUP_STATE, "cup_tape_keep");
    cup_scope_close(c);
    cup_context_free(c);
}

TEST(grad_kept_sees_a_change_in_between)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(numbers(c, 1)), *loss;
    cup_tape_keep(c, true);
    loss = total(c, cup_mul(c, x, x));
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    EXPECT_INT(cup_tensor_write(x, (double[COUNT]){0}, sizeof(double[COUNT])), CUP_OK);
    EXPECT_INT(cup_backward(c, loss), CUP_STATE);
    expect_error(c, CUP_STATE, "changed in place");
    cup_tape_clear(c);
    loss = total(c, cup_mul(c, x, x));
    cup_grad_clear(x);
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    EXPECT_NEAR(at(cup_grad(x), 3), 0, 0);
    cup_context_free(c);
}

TEST(grad_stops_where_detached)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(numbers(c, 1)), *y = cup_mul(c, x, x);
    cup_tensor *flat = cup_detach(y);
    EXPECT(cup_tensor_data(flat) == cup_tensor_data(y));
    EXPECT(cup_tensor_write(flat, (double[COUNT]){0}, sizeof(double[COUNT])) != CUP_OK);
    expect_error(c, CUP_STATE, "recorded result");
    EXPECT_INT(cup_backward(c, total(c, cup_mul(c, flat, x))), CUP_OK);
    EXPECT_NEAR(at(cup_grad(x), 2), 1.5 * 1.5, 1e-12);
    EXPECT_INT(cup_backward(c, total(c, cup_detach(x))), CUP_STATE);
    cup_context_free(c);
}

/* A linear layer behind a gelu hands its gradient past it, but not where somebody looks. */
TEST(grad_of_results_in_the_middle)
{
    cup_context *c = cpu();
    double plain[2], middle[2];
    for (int retain = 0; retain < 2; retain++) {
        cup_scope_open(c);
        cup_tensor *x = numbers(c, -1);
        cup_tensor *w = cup_full(c, CUP_F64, 2, (int64_t[]){COUNT, COUNT}, 0.3);
        cup_require_grad(w);
        cup_tensor *rows = cup_reshape(c, x, 2, (int64_t[]){1, COUNT});
        cup_tensor *h = cup_linear_gelu(c, rows, w, NULL);
        EXPECT(!retain || cup_retain_grad(h) == h);
        cup_tensor *y = cup_linear(c, h, w, NULL);
        EXPECT_INT(cup_backward(c, total(c, cup_mul(c, y, y))), CUP_OK);
        double d[COUNT * COUNT];
        EXPECT_INT(cup_tensor_read(cup_grad(w), d, sizeof d), CUP_OK);
        plain[retain] = d[7];
        EXPECT((cup_grad(h) != NULL) == retain);
        if (retain) /* y = w h, and the loss the sum of y^2 */
            for (int i = 0; i < 2; i++)
                middle[i] = at(cup_grad(h), i) - 2 * COUNT * 0.3 * at(y, 0);
        cup_scope_close(c);
    }
    EXPECT_NEAR(plain[0], plain[1], 1e-12);
    EXPECT_NEAR(middle[0], 0, 1e-12);
    EXPECT_NEAR(middle[1], 0, 1e-12);
    cup_context_free(c);
}

TEST(grad_of_a_result_adds_up_and_clears)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(numbers(c, 1));
    cup_tape_keep(c, true);
    cup_tensor *y = cup_retain_grad(cup_exp(c, x)), *loss = total(c, cup_mul(c, y, y));
    EXPECT(cup_retain_grad(y) == y && cup_retain_grad(x) == x);
    for (int round = 1; round <= 2; round++) {
        EXPECT_INT(cup_backward(c, loss), CUP_OK);
        EXPECT_NEAR(at(cup_grad(y), 1), round * 2 * exp(1.25), 1e-12);
    }
    cup_grad_clear(y);
    EXPECT(!cup_grad(y));
    cup_tensor_free(y);
    cup_tape_clear(c);
    EXPECT(!cup_retain_grad(numbers(c, 1)));
    expect_error(c, CUP_STATE, "cup_require_grad");
    cup_context_free(c);
}

TEST(gradients_are_returned_and_touch_nothing)
{
    cup_context *c = cpu();
    cup_scope_open(c);
    cup_tensor *x = cup_require_grad(numbers(c, 1)), *w = cup_require_grad(numbers(c, 2));
    cup_tensor *apart = cup_require_grad(numbers(c, 3)), *out[3];
    EXPECT_INT(cup_backward(c, total(c, w)), CUP_OK);
    cup_tape_keep(c, true);
    cup_tensor *h = cup_mul(c, x, w), *y = cup_exp(c, cup_scale(c, h, 0.1));
    cup_tensor *loss = total(c, cup_mul(c, y, y)), *in[] = {x, h, apart};
    cup_scope_open(c);
    EXPECT_INT(cup_gradients(c, loss, in, 3, out), CUP_OK);
    for (int i = 0; i < COUNT; i++) {
        double dh = 0.2 * exp(0.2 * at(h, i));
        EXPECT_NEAR(at(out[1], i), dh, 1e-12);
        EXPECT_NEAR(at(out[0], i), dh * at(w, i), 1e-12);
    }
    EXPECT(!out[2] && !cup_grad(x) && !cup_grad(h));
    cup_scope_close(c);
    EXPECT_NEAR(at(cup_grad(w), 1), 1, 0);
    EXPECT_INT(cup_gradients(c, loss, &loss, 1, out), CUP_OK);
    EXPECT_NEAR(cup_tensor_item(out[0]), 1, 0);
    cup_tape_keep(c, false);
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    EXPECT_NEAR(at(cup_grad(w), 2), 1 + 0.2 * exp(0.2 * at(h, 2)) * at(x, 2), 1e-12);
    cup_scope_close(c);
    cup_context_free(c);
}

static cup_tensor *block(cup_context *c, cup_tensor *const *inputs, int count, void *user)
{
    (void)count;
    return cup_mul(c, cup_exp(c, inputs[0]), (cup_tensor *)user);
}

TEST(gradients_through_recomputed_blocks)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(numbers(c, 1)), *w = cup_require_grad(numbers(c, 2));
    cup_tape_keep(c, true);
    cup_tensor *h = cup_scale(c, x, 0.5), *out[2], *in[] = {w, h};
    cup_tensor *loss = total(c, cup_recompute(c, block, &h, 1, w));
    for (int round = 0; round < 2; round++) {
        EXPECT_INT(cup_gradients(c, loss, in, 2, out), CUP_OK);
        EXPECT_NEAR(at(out[0], 3), exp(at(h, 3)), 1e-12);
        EXPECT_NEAR(at(out[1], 3), exp(at(h, 3)) * at(w, 3), 1e-12);
        EXPECT(!cup_grad(w) && !cup_grad(x));
    }
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    EXPECT_NEAR(at(cup_grad(x), 3), 0.5 * exp(at(h, 3)) * at(w, 3), 1e-12);
    EXPECT_NEAR(at(cup_grad(w), 3), exp(at(h, 3)), 1e-12);
    cup_context_free(c);
}

static cup_tensor *linear_of_user(cup_context *c, cup_tensor *const *inputs, int count, void *user)
{
    (void)count;
    return cup_linear(c, user, inputs[0], NULL);
}

/* A result that a recomputed block takes from outside, past an activation. */
TEST(gradients_of_what_a_block_takes_from_outside)
{
    cup_context *c = cpu();
    cup_tensor *w = cup_full(c, CUP_F64, 2, (int64_t[]){COUNT, COUNT}, 0.3), *out;
    cup_require_grad(w);
    cup_tensor *h =
        cup_linear_gelu(c, cup_reshape(c, numbers(c, -1), 2, (int64_t[]){1, COUNT}), w, NULL);
    cup_tensor *y = cup_recompute(c, linear_of_user, &w, 1, h);
    EXPECT_INT(cup_gradients(c, total(c, y), &h, 1, &out), CUP_OK);
    EXPECT(out != NULL);
    EXPECT_NEAR(at(out, 2), COUNT * 0.3, 1e-12);
    cup_context_free(c);
}

TEST(grad_walks_misled)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(numbers(c, 1)), *y = cup_mul(c, x, x), *loss = total(c, y);
    cup_tensor *out[2] = {x, x}, *twice[] = {x, x}, *plain = numbers(c, 1);
    EXPECT_INT(cup_backward(c, y), CUP_SHAPE);
    expect_error(c, CUP_SHAPE, "give its gradient to cup_backward_from");
    EXPECT_INT(cup_backward_from(c, &y, NULL, 1), CUP_SHAPE);
    expect_error(c, CUP_SHAPE, "give its gradient, a tensor of its shape");
    EXPECT_INT(cup_gradients(c, y, &x, 1, out), CUP_SHAPE);
    expect_error(c, CUP_SHAPE, "the sum of its product with the gradient it has");
    EXPECT_INT(cup_backward_from(c, &y, &loss, 1), CUP_SHAPE);
    expect_error(c, CUP_SHAPE, "its gradient cannot be [] f64; give one of its shape and dtype");
    EXPECT_INT(cup_backward_from(c, &y, &y, 0), CUP_ARGUMENT);
    expect_error(c, CUP_ARGUMENT, "no tensor");
    EXPECT_INT(cup_backward_from(c, &plain, &plain, 1), CUP_STATE);
    expect_error(c, CUP_STATE, "no parameter");
    EXPECT_INT(cup_gradients(c, loss, twice, 2, out), CUP_ARGUMENT);
    EXPECT(!out[0] && !out[1]);
    expect_error(c, CUP_ARGUMENT, "one tensor");
    EXPECT_INT(cup_gradients(c, loss, &plain, 1, out), CUP_STATE);
    expect_error(c, CUP_STATE, "was not recorded");
    EXPECT_INT(cup_gradients(c, loss, &x, 1, out), CUP_OK);
    EXPECT_INT(cup_gradients(c, loss, &x, 1, out), CUP_STATE);
    expect_error(c, CUP_STATE, "compute the loss again");
    cup_context_free(c);
}

/* Losses that leave their gradient with the call scale it in place, but not where backward comes
 * again. */
TEST(gradients_of_losses_come_twice)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(cup_uniform(c, CUP_F64, 2, (int64_t[]){3, 2}, -1, 1));
    cup_tensor *w = cup_require_grad(cup_uniform(c, CUP_F64, 2, (int64_t[]){3, 2}, -1, 1));
    cup_tensor *ids = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){3}, (int32_t[]){0, 2, 1});
    const cup_cross_entropy_options *over =
        CUP_OPTIONS(cup_cross_entropy_options, .in_place = true);
    cup_tensor *want[2], *got[2], *in[] = {x, w};
    cup_tensor *plain = cup_cross_entropy(c, cup_linear(c, x, w, NULL), ids, -1, NULL);
    EXPECT_INT(cup_gradients(c, cup_scale(c, plain, 3), in, 2, want), CUP_OK);
    cup_tape_keep(c, true);
    cup_tensor *losses[] = {cup_linear_cross_entropy(c, x, w, ids, -1, NULL),
                            cup_cross_entropy(c, cup_linear(c, x, w, NULL), ids, -1, over)};
    for (int round = 0; round < 4; round++) {
        cup_tensor *loss = cup_scale(c, losses[round / 2], 3);
        EXPECT_INT(cup_gradients(c, loss, in, 2, got), CUP_OK);
        EXPECT_TEXT(cup_error_text(c), "");
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < COUNT; i++)
                EXPECT_NEAR(at(got[k], i), at(want[k], i), 1e-12);
    }
    cup_context_free(c);
}
