/* The tape: accumulation, sharing, views, recompute and misuse. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static cup_tensor *numbers(cup_context *c, int count)
{
    double values[64];
    for (int i = 0; i < count; i++)
        values[i] = 0.25 * i - 1;
    return cup_require_grad(cup_tensor_from(c, CUP_F64, 1, (int64_t[]){count}, values));
}

static cup_tensor *total(cup_context *c, cup_tensor *x)
{
    return cup_sum(c, x, NULL, 0, false);
}

static double at(cup_tensor *t, int i)
{
    double values[64];
    EXPECT_INT(cup_tensor_read(t, values, (size_t)cup_tensor_count(t) * 8), CUP_OK);
    return values[i];
}

TEST(grad_adds_over_uses_and_backwards)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, 5);
    for (int round = 1; round <= 3; round++) {
        cup_scope_open(c);
        EXPECT_INT(cup_backward(c, total(c, cup_add(c, cup_mul(c, x, x), x))), CUP_OK);
        cup_scope_close(c);
        EXPECT_NEAR(at(cup_grad(x), 4), round * (2 * 0.0 + 1), 1e-12);
        EXPECT_NEAR(at(cup_grad(x), 0), round * (2 * -1.0 + 1), 1e-12);
    }
    cup_grad_clear(x);
    EXPECT(cup_grad(x) == NULL);
    cup_context_free(c);
}

TEST(grad_of_two_parameters_do_not_share_memory)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, 4), *y = numbers(c, 4);
    EXPECT_INT(cup_backward(c, total(c, cup_add(c, x, y))), CUP_OK);
    EXPECT(cup_tensor_data(cup_grad(x)) != cup_tensor_data(cup_grad(y)));
    EXPECT_INT(cup_backward(c, total(c, x)), CUP_OK);
    EXPECT_NEAR(at(cup_grad(x), 0), 2, 0);
    EXPECT_NEAR(at(cup_grad(y), 0), 1, 0);
    cup_context_free(c);
}

TEST(grad_flows_through_views)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, 6);
    cup_tensor *m = cup_reshape(c, x, 2, (int64_t[]){2, 3});
    cup_tensor *wide =
        cup_broadcast(c, cup_reshape(c, m, 2, (int64_t[]){1, 6}), 2, (int64_t[]){4, 6});
    EXPECT_INT(cup_backward(c, total(c, cup_mul(c, wide, wide))), CUP_OK);
    EXPECT_NEAR(at(cup_grad(x), 0), 4 * 2 * -1.0, 1e-12);
    cup_context_free(c);
}

static cup_tensor *block(cup_context *c, cup_tensor *const *in, int count, void *user)
{
    (void)count;
    return cup_mul(c, cup_gelu(c, in[0]), (cup_tensor *)user);
}

TEST(grad_of_slices_that_overlap)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, 6);
    cup_scope_open(c);
    cup_tensor *y = cup_scale(c, x, 2), *loss = NULL;
    for (int64_t i = 0; i < 3; i++) {
        cup_tensor *part = cup_slice(c, i ? y : x, &i, 1, (int64_t[]){3}, 1);
        part = total(c, cup_scale(c, part, (double)(i + 1)));
        loss = loss ? cup_add(c, loss, part) : part;
    }
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    cup_scope_close(c);
    const double want[] = {1, 5, 11, 10, 6, 0};
    for (int i = 0; i < 6; i++)
        EXPECT_NEAR(at(cup_grad(x), i), want[i], 1e-12);
    cup_context_free(c);
}

TEST(grad_recompute_equals_keeping)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, 8), *w = numbers(c, 8);
    double plain[2][8];
    for (int recompute = 0; recompute < 2; recompute++) {
        cup_scope_open(c);
        cup_tensor *h = cup_mul(c, x, x);
        h = recompute ? cup_recompute(c, block, &h, 1, w) : block(c, &h, 1, w);
        EXPECT_INT(cup_backward(c, total(c, cup_mul(c, h, h))), CUP_OK);
        cup_scope_close(c);
        for (int i = 0; i < 8; i++) {
            double dx = at(cup_grad(x), i), dw = at(cup_grad(w), i);
            if (recompute)
                EXPECT(dx == plain[0][i] && dw == plain[1][i]);
            plain[0][i] = dx;
            plain[1][i] = dw;
        }
        cup_grad_clear(x);
        cup_grad_clear(w);
    }
    cup_context_free(c);
}

/* Elementwise ops and norms, one made of what another one gives, used twice, and changed in place
 * by nobody. */
static cup_tensor *cheap(cup_context *c, cup_tensor *x, cup_tensor *w)
{
    cup_tensor *y = NULL, *sum = NULL;
    cup_tensor *h = cup_silu(c, cup_gelu(c, cup_mul(c, x, x)));
    h = cup_mul(c, cup_layernorm(c, cup_mul(c, h, h), w, x, 1e-5), w);
    cup_add_layernorm(c, h, x, w, x, 1e-5, &y, &sum);
    h = cup_swiglu(c, cup_mul(c, y, w), cup_rmsnorm(c, sum, w, 1e-5));
    cup_add_rmsnorm(c, h, x, w, 1e-5, &y, &sum);
    return cup_mul(c, y, cup_mul(c, h, cup_mul(c, sum, y)));
}

TEST(grad_recomputed_norms_equal_keeping)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, 8), *w = numbers(c, 8), *in[] = {x, w};
    double plain[2][8], twice[8];
    EXPECT_INT(cup_recompute_results(c, CUP_RECOMPUTE_POLICY_NONE), CUP_RECOMPUTE_POLICY_NONE);
    for (int again = 0; again < 3; again++) {
        cup_recompute_policy was = again > 1 ? CUP_RECOMPUTE_POLICY_POINTWISE : 0;
        EXPECT_INT(cup_recompute_results(c, again ? CUP_RECOMPUTE_POLICY_POINTWISE : 0), was);
        cup_scope_open(c);
        cup_tensor *loss = total(c, cheap(c, x, w));
        cup_tape_keep(c, again > 1);
        for (int walk = 0; walk < 1 + (again > 1); walk++) {
            EXPECT_INT(cup_backward(c, loss), CUP_OK);
            for (int i = 0; i < 8; i++) {
                double dx = at(cup_grad(x), i), dw = at(cup_grad(w), i);
                EXPECT(!again || (dx == plain[0][i] && dw == plain[1][i]));
                plain[0][i] = dx;
                plain[1][i] = dw;
            }
            cup_grad_clear(x);
            cup_grad_clear(w);
        }
        cup_tape_keep(c, false);
        cup_tensor *d[2];
        loss = total(c, cheap(c, x, w));
        EXPECT_INT(cup_gradients_recorded(c, loss, in, 2, d), CUP_OK);
        EXPECT_INT(cup_backward(c, total(c, cup_mul(c, d[0], d[0]))), CUP_OK);
        for (int i = 0; i < 8; i++) {
            double dx = at(cup_grad(x), i);
            EXPECT(!again || fabs(dx - twice[i]) <= 1e-9 * fabs(twice[i]));
            twice[i] = dx;
        }
        cup_grad_clear(x);
        cup_grad_clear(w);
        cup_scope_close(c);
    }
    cup_context_free(c);
}

/* What follows a norm keeps nothing of it, and backward holds it for no longer than it needs it. */
TEST(grad_recomputed_norms_are_not_kept)
{
    int64_t kept[2], size = 64 << 10;
    for (int again = 0; again < 2; again++) {
        cup_memory before, after;
        cup_context *c = cpu();
        cup_tensor *w = cup_require_grad(cup_full(c, CUP_F32, 1, &size, 0.5));
        cup_recompute_results(c, again ? CUP_RECOMPUTE_POLICY_POINTWISE : 0);
        cup_scope_open(c);
        EXPECT_INT(cup_memory_use(c, &before), CUP_OK);
        cup_tensor *x = w;
        for (int i = 0; i < 8; i++) {
            cup_scope_open(c);
            x = cup_scope_return(c, cup_mul(c, cup_gelu(c, x), w));
        }
        EXPECT_INT(cup_memory_use(c, &after), CUP_OK);
        kept[again] = after.allocated - before.allocated;
        EXPECT_INT(cup_backward(c, total(c, x)), CUP_OK);
        cup_scope_close(c);
        cup_context_free(c);
    }
    EXPECT(kept[0] - kept[1] >= 8 * size * 4);
}

TEST(grad_recomputed_norms_know_what_was_changed)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, 3), *w = numbers(c, 3);
    double values[3] = {1, 2, 3};
    cup_recompute_results(c, CUP_RECOMPUTE_POLICY_POINTWISE);
    cup_tensor *loss = total(c, cup_mul(c, cup_layernorm(c, x, NULL, w, 1e-5), x));
    EXPECT_INT(cup_tensor_write(w, values, sizeof values), CUP_OK);
    EXPECT_INT(cup_backward(c, loss), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(c), "layernorm: a value it needs was changed in place");
    cup_context_free(c);
}

static cup_status two_of(cup_context *c, cup_tensor *const *in, int count, void *user,
                         cup_tensor **out)
{
    (void)count;
    out[0] = block(c, in, 1, user);
    out[1] = total(c, cup_mul(c, out[0], in[1]));
    return cup_error(c);
}

static cup_status none_of(cup_context *c, cup_tensor *const *in, int count, void *user,
                          cup_tensor **out)
{
    (void)count, (void)user;
    out[0] = cup_copy(c, in[0]);
    return cup_error(c);
}

/* Of a block with two results, both used or one alone. */
TEST(grad_recompute_of_several_results_equals_keeping)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, 8), *w = numbers(c, 8);
    double plain[2][8];
    for (int run = 0; run < 6; run++) {
        bool recompute = run % 2;
        int used = run / 2; /* 0: both, else one of them */
        cup_scope_open(c);
        cup_tensor *in[] = {cup_mul(c, x, x), cup_scale(c, x, 3)}, *out[2], *loss;
        if (recompute)
            EXPECT_INT(cup_recompute_all(c, two_of, in, 2, w, out, 2), CUP_OK);
        else
            EXPECT_INT(two_of(c, in, 2, w, out), CUP_OK);
        loss = total(c, cup_mul(c, out[0], out[0]));
        loss = used == 0 ? cup_add(c, loss, out[1]) : used == 1 ? loss : out[1];
        EXPECT_INT(cup_backward(c, loss), CUP_OK);
        cup_scope_close(c);
        for (int i = 0; i < 8; i++) {
            double dx = at(cup_grad(x), i), dw = at(cup_grad(w), i);
            if (recompute)
                EXPECT(dx == plain[0][i] && dw == plain[1][i]);
            plain[0][i] = dx;
            plain[1][i] = dw;
        }
        cup_grad_clear(x);
        cup_grad_clear(w);
    }
    cup_tensor *out[9];
    EXPECT_INT(cup_recompute_all(c, two_of, &x, 1, NULL, out, 9), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "from 1 to 8 tensors, not 9");
    cup_error_clear(c);
    EXPECT_INT(cup_recompute_all(c, none_of, &x, 1, NULL, out, 2), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(c), "left its result 1 of 2 NULL");
    EXPECT(!out[0] && !out[1]);
    cup_context_free(c);
}

TEST(grad_misuse_has_a_sentence)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, 3);
    EXPECT_INT(cup_backward(c, cup_mul(c, x, x)), CUP_SHAPE);
    EXPECT_CONTAINS(cup_error_text(c), "one element");
    cup_error_clear(c);
    EXPECT_INT(cup_backward(c, cup_full(c, CUP_F64, 0, NULL, 1)), CUP_STATE);
    cup_error_clear(c);
    cup_tensor *loss = total(c, cup_mul(c, x, x));
    double values[3] = {1, 2, 3};
    EXPECT_INT(cup_tensor_write(x, values, sizeof values), CUP_OK);
    EXPECT_INT(cup_backward(c, loss), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(c), "changed in place");
    cup_error_clear(c);
    EXPECT(cup_require_grad(cup_full(c, CUP_I32, 0, NULL, 1)) == NULL);
    EXPECT_INT(cup_error(c), CUP_DTYPE);
    cup_context_free(c);
}

TEST(grad_off_records_nothing)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, 3);
    EXPECT(cup_grad_recording(c, false));
    cup_tensor *loss = total(c, cup_mul(c, x, x));
    EXPECT(!cup_grad_recording(c, true));
    EXPECT_INT(cup_backward(c, loss), CUP_STATE);
    cup_context_free(c);
}
