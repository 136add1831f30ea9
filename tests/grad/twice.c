/* Second derivatives against differences of first ones, in f64. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

enum { ROWS = 3, WIDTH = 4 };

typedef cup_tensor *(*function)(cup_context *c, cup_tensor *x, cup_tensor *w, cup_tensor *b);

static cup_tensor *of_sin(cup_context *c, cup_tensor *x, cup_tensor *w, cup_tensor *b)
{
    return cup_add(c, cup_sin(c, cup_mul(c, x, w)), cup_cos(c, cup_sub(c, x, b)));
}

static cup_tensor *of_div(cup_context *c, cup_tensor *x, cup_tensor *w, cup_tensor *b)
{
    return cup_div(c, cup_mul(c, x, b), w);
}

static cup_tensor *of_roots(cup_context *c, cup_tensor *x, cup_tensor *w, cup_tensor *b)
{
    return cup_mul(c, cup_sqrt(c, cup_exp(c, cup_mul(c, x, w))), cup_neg(c, cup_log(c, b)));
}

static cup_tensor *of_linear(cup_context *c, cup_tensor *x, cup_tensor *w, cup_tensor *b)
{
    return cup_tanh(c, cup_linear(c, x, w, b));
}

static cup_tensor *of_two_layers(cup_context *c, cup_tensor *x, cup_tensor *w, cup_tensor *b)
{
    cup_tensor *h = cup_sigmoid(c, cup_linear(c, x, w, b));
    return cup_relu(c, cup_scale(c, cup_linear(c, h, w, NULL), 1.5));
}

static cup_tensor *of_matmul(cup_context *c, cup_tensor *x, cup_tensor *w, cup_tensor *b)
{
    cup_tensor *y = cup_matmul(c, x, w, false, true), *z = cup_matmul(c, y, w, false, false);
    cup_tensor *turned = cup_permute(c, cup_mul(c, z, z), (int64_t[]){1, 0}, 2);
    return cup_add(c, cup_mean(c, turned, (int64_t[]){1}, 1, false), b);
}

/* The sum of squares of d loss / d x, where the loss is a weighed sum; recorded. */
static cup_tensor *penalty_of(cup_context *c, function f, cup_tensor *x, cup_tensor *w,
                              cup_tensor *b)
{
    cup_tensor *y = f(c, x, w, b), *d;
    cup_tensor *loss = cup_sum(c, cup_mul(c, y, cup_mul(c, y, y)), NULL, 0, false);
    cup_gradients_recorded(c, loss, &x, 1, &d);
    return cup_sum(c, cup_mul(c, d, d), NULL, 0, false);
}

/* Of a part of the values, moved by a step: the penalty. */
static double moved(cup_context *c, function f, cup_tensor *const *all, int which, int at,
                    double step)
{
    double values[WIDTH * WIDTH], kept;
    size_t bytes = (size_t)cup_tensor_count(all[which]) * sizeof *values;
    cup_tensor_read(all[which], values, bytes);
    kept = values[at];
    values[at] += step;
    cup_tensor_write(all[which], values, bytes);
    cup_scope_open(c);
    double penalty = cup_tensor_item(penalty_of(c, f, all[0], all[1], all[2]));
    cup_scope_close(c);
    values[at] = kept;
    cup_tensor_write(all[which], values, bytes);
    return penalty;
}

static void expect_second(const char *device, function f)
{
    static const int64_t shapes[3][2] = {{ROWS, WIDTH}, {WIDTH, WIDTH}, {WIDTH}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    cup_tensor *all[3];
    for (int i = 0; i < 3; i++) {
        double values[WIDTH * WIDTH];
        for (int k = 0; k < WIDTH * WIDTH; k++)
            values[k] = 0.4 + 0.3 * sin(5 * i + 1.7 * k);
        all[i] = cup_keep(cup_tensor_from(c, CUP_F64, i < 2 ? 2 : 1, shapes[i], values));
        cup_require_grad(all[i]);
    }
    cup_scope_open(c);
    EXPECT_INT(cup_backward(c, penalty_of(c, f, all[0], all[1], all[2])), CUP_OK);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_scope_close(c);
    for (int i = 0; i < 3; i++) {
        double found[WIDTH * WIDTH] = {0};
        int count = (int)cup_tensor_count(all[i]);
        if (cup_grad(all[i]))
            cup_tensor_read(cup_grad(all[i]), found, (size_t)count * sizeof *found);
        for (int k = 0; k < count; k++) {
            double step = 1e-5, slope = (moved(c, f, all, i, k, step) -
                                         moved(c, f, all, i, k, -step)) / (2 * step);
            EXPECT_NEAR(found[k], slope, 1e-6 * (1 + fabs(slope)));
        }
    }
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

/* Shapes of w that go with x: a row of it stands for all. */
static cup_tensor *row_of(cup_context *c, cup_tensor *w)
{
    return cup_sum(c, w, (int64_t[]){0}, 1, false);
}

#define OVER_ROWS(name)                                                                            \
    static cup_tensor *name##_rows(cup_context *c, cup_tensor *x, cup_tensor *w, cup_tensor *b)    \
    {                                                                                              \
        return name(c, x, row_of(c, w), b);                                                        \
    }
OVER_ROWS(of_sin)
OVER_ROWS(of_div)
OVER_ROWS(of_roots)

TEST(twice_against_differences)
{
    static const function all[] = {of_sin_rows, of_div_rows,   of_roots_rows,
                                   of_linear,   of_two_layers, of_matmul};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        expect_second("cpu", all[i]);
}

/* d^2 x^3 = 6 x, and again what does not depend on x any more. */
TEST(twice_by_hand)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_require_grad(cup_tensor_from(c, CUP_F32, 0, NULL, (float[]){3}));
    cup_tensor *d, *dd, *ddd;
    cup_tensor *y = cup_mul(c, cup_mul(c, x, x), x);
    EXPECT_INT(cup_gradients_recorded(c, y, &x, 1, &d), CUP_OK);
    EXPECT_NEAR(cup_tensor_item(d), 27, 0);
    EXPECT_INT(cup_gradients_recorded(c, d, &x, 1, &dd), CUP_OK);
    EXPECT_NEAR(cup_tensor_item(dd), 18, 0);
    EXPECT_INT(cup_gradients(c, dd, &x, 1, &ddd), CUP_OK);
    EXPECT_NEAR(cup_tensor_item(ddd), 6, 0);
    EXPECT(!cup_grad(x));
    cup_context_free(c);
}

/* The loss of a linear layer in one op has the derivatives of the two that it is. */
TEST(twice_through_the_loss_of_a_linear_layer)
{
    double found[2][2][6];
    for (int joined = 0; joined < 2; joined++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
        const int64_t shape[] = {3, 2};
        cup_tensor *x = cup_require_grad(cup_uniform(c, CUP_F64, 2, shape, -1, 1));
        cup_tensor *w = cup_require_grad(cup_uniform(c, CUP_F64, 2, shape, -1, 1)), *d[2], *in[2];
        cup_tensor *ids = cup_tensor_from(c, CUP_I32, 1, shape, (int32_t[]){0, 2, 1});
        in[0] = x;
        in[1] = w;
        cup_tensor *loss = joined ? cup_linear_cross_entropy(c, x, w, ids, 1, NULL)
                                  : cup_cross_entropy(c, cup_linear(c, x, w, NULL), ids, 1, NULL);
        EXPECT_INT(cup_gradients_recorded(c, loss, in, 2, d), CUP_OK);
        cup_tensor *penalty = cup_add(c, cup_sum(c, cup_mul(c, d[0], d[0]), NULL, 0, false),
                                      cup_sum(c, cup_mul(c, d[1], d[1]), NULL, 0, false));
        EXPECT_INT(cup_gradients(c, penalty, in, 2, d), CUP_OK);
        for (int i = 0; i < 2; i++)
            EXPECT_INT(cup_tensor_read(d[i], found[joined][i], sizeof found[joined][i]), CUP_OK);
        cup_context_free(c);
    }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 6; k++)
            EXPECT_NEAR(found[1][i][k], found[0][i][k], 1e-12);
}

/* The sum of squared gradients of attention with dropout at x + step; the same random numbers each
 * time. Where `d` is given, the gradients are recorded and it takes those of the sum. */
static double penalty_of_attention(cup_context *c, cup_tensor *x, double step, cup_tensor **d)
{
    cup_tensor *slope, *loss;
    cup_seed(c, 5);
    cup_random_step(c, 1);
    x = cup_require_grad(cup_detach(cup_add(c, x, cup_full(c, CUP_F64, 0, NULL, step))));
    cup_tensor *y = cup_qkv_attention(c, x, 2, CUP_OPTIONS(cup_qkv_attention_options,
                                                           .causal = true, .dropout = 0.4));
    loss = cup_sum(c, cup_mul(c, y, y), NULL, 0, false);
    EXPECT_INT(d ? cup_gradients_recorded(c, loss, &x, 1, &slope)
                 : cup_gradients(c, loss, &x, 1, &slope), CUP_OK);
    cup_tensor *sum = cup_sum(c, cup_mul(c, slope, slope), NULL, 0, false);
    if (d)
        EXPECT_INT(cup_gradients(c, sum, &x, 1, d), CUP_OK);
    EXPECT_TEXT(cup_error_text(c), "");
    return cup_tensor_item(sum);
}

/* What dropout dropped is dropped again. */
TEST(twice_through_attention_with_dropout)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
    cup_tensor *x = cup_uniform(c, CUP_F64, 3, (int64_t[]){2, 19, 18}, -1, 1), *d;
    double recorded = penalty_of_attention(c, x, 0, &d);
    EXPECT_NEAR(recorded, penalty_of_attention(c, x, 0, NULL), 1e-12 * recorded);
    double above = penalty_of_attention(c, x, 1e-5, NULL),
           below = penalty_of_attention(c, x, -1e-5, NULL);
    double slope = cup_tensor_item(cup_sum(c, d, NULL, 0, false));
    EXPECT_NEAR(slope, (above - below) / 2e-5, 1e-6 * recorded);
    EXPECT(fabs(slope) > 1e-3 * recorded);
    cup_context_free(c);
}

/* In a block: dropout of a norm, an activation, and a product with a parameter of its own. */
static cup_tensor *block(cup_context *c, cup_tensor *const *inputs, int count, void *user)
{
    (void)count;
    cup_tensor *h = cup_layernorm(c, cup_mul(c, inputs[0], inputs[1]), NULL, NULL, 1e-5);
    return cup_linear(c, cup_dropout(c, cup_gelu(c, h), 0.3), user, NULL);
}

/* Gradients of a sum of squared gradients are the same with and without. */
TEST(twice_through_recomputed_blocks)
{
    double found[2][3][WIDTH * WIDTH];
    for (int recomputed = 0; recomputed < 2; recomputed++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 7));
        cup_tensor *all[3], *d[3], *y, *slope;
        for (int i = 0; i < 3; i++) {
            double values[WIDTH * WIDTH];
            for (int k = 0; k < WIDTH * WIDTH; k++)
                values[k] = sin(3 * i + 1.3 * k);
            all[i] = cup_require_grad(
                cup_tensor_from(c, CUP_F64, 2, (int64_t[]){WIDTH, WIDTH}, values));
        }
        cup_tensor *h = cup_tanh(c, cup_mul(c, all[0], all[1]));
        for (int i = 0; i < 2; i++) {
            cup_tensor *in[] = {h, all[1]};
            h = recomputed ? cup_recompute(c, block, in, 2, all[2]) : block(c, in, 2, all[2]);
        }
        y = cup_sum(c, cup_mul(c, h, h), NULL, 0, false);
        EXPECT_INT(cup_gradients_recorded(c, y, &all[0], 1, &slope), CUP_OK);
        slope = cup_sum(c, cup_mul(c, slope, slope), NULL, 0, false);
        EXPECT_INT(cup_gradients(c, slope, all, 3, d), CUP_OK);
        EXPECT_TEXT(cup_error_text(c), "");
        for (int i = 0; i < 3; i++)
            cup_tensor_read(d[i], found[recomputed][i], sizeof found[recomputed][i]);
        cup_context_free(c);
    }
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < WIDTH * WIDTH; k++)
            EXPECT_NEAR(found[1][i][k], found[0][i][k], 1e-12 * (1 + fabs(found[0][i][k])));
}

/* What overwrites its input has no values left to compose a gradient of. */
TEST(twice_is_refused_in_place)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_require_grad(cup_full(c, CUP_F32, 2, (int64_t[]){2, 3}, 0.5)), *d;
    cup_tensor *ids = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){2}, (int32_t[]){0, 2});
    const cup_cross_entropy_options *over =
        CUP_OPTIONS(cup_cross_entropy_options, .in_place = true);
    cup_tensor *y = cup_cross_entropy(c, cup_scale(c, x, 2), ids, -1, over);
    EXPECT_INT(cup_gradients_recorded(c, y, &x, 1, &d), CUP_UNSUPPORTED);
    EXPECT_CONTAINS(cup_error_text(c), "cross_entropy in place");
    EXPECT_CONTAINS(cup_error_text(c), "leave out in_place");
    cup_context_free(c);
}
