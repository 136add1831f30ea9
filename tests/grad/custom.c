/* Ops of the user's own with gradients of the user's own. */
#include <math.h>
#include <string.h>

#include "six.h"

/* k sin(a) b, and a + b: two results. */
typedef struct wave {
    double k;
} wave;

static cup_status wave_forward(cup_context *c, cup_tensor *const *in, int count,
                               const void *attributes, cup_tensor **out)
{
    const wave *w = attributes;
    EXPECT_INT(count, 2);
    out[0] = cup_scale(c, cup_mul(c, cup_sin(c, in[0]), in[1]), w->k);
    out[1] = cup_add(c, in[0], in[1]);
    return CUP_OK;
}

static cup_tensor *plus(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    return a && b ? cup_add(c, a, b) : a ? a : b;
}

static cup_status wave_backward(cup_context *c, const cup_custom_grad *g)
{
    const wave *w = g->attributes;
    cup_tensor *a = g->inputs[0], *b = g->inputs[1], *d = g->d_outputs[0], *parts[2] = {NULL};
    EXPECT(!g->outputs[0] && !g->outputs[1]);
    if (d) {
        d = cup_scale(c, d, w->k);
        parts[0] = cup_mul(c, d, cup_mul(c, cup_cos(c, a), b));
        parts[1] = cup_mul(c, d, cup_sin(c, a));
    }
    for (int i = 0; i < 2; i++)
        if (g->wanted[i])
            g->d_inputs[i] = plus(c, parts[i], g->d_outputs[1]);
    return CUP_OK;
}

static const cup_custom_op wave_op = {
    .size = sizeof wave_op,
    .name = "wave",
    .output_count = 2,
    .saves_inputs = 3,
    .attributes_size = sizeof(wave),
    .forward = wave_forward,
    .backward = wave_backward,
};

static cup_tensor *loss_of(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    wave w = {1.5};
    cup_tensor *in[] = {a, b}, *out[2];
    EXPECT_INT(cup_custom(c, &wave_op, in, 2, &w, out), CUP_OK);
    w.k = 0; /* backward has its own */
    return total(c, cup_mul(c, out[0], out[1]));
}

static double plain_loss(const double *a, const double *b)
{
    double sum = 0;
    for (int i = 0; i < COUNT; i++)
        sum += 1.5 * sin(a[i]) * b[i] * (a[i] + b[i]);
    return sum;
}

TEST(custom_gradient_is_the_slope)
{
    cup_context *c = cpu();
    cup_tensor *a = cup_require_grad(numbers(c, -1)), *b = cup_require_grad(numbers(c, 0.5));
    double values[2][COUNT];
    EXPECT_INT(cup_tensor_read(a, values[0], sizeof values[0]), CUP_OK);
    EXPECT_INT(cup_tensor_read(b, values[1], sizeof values[1]), CUP_OK);
    cup_scope_open(c);
    cup_tensor *loss = loss_of(c, a, b);
    EXPECT_NEAR(cup_tensor_item(loss), plain_loss(values[0], values[1]), 1e-12);
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    cup_scope_close(c);
    for (int i = 0; i < 2 * COUNT; i++) {
        const double step = 1e-5;
        double *x = &values[i / COUNT][i % COUNT], here = *x;
        *x = here + step;
        double slope = plain_loss(values[0], values[1]);
        *x = here - step;
        slope = (slope - plain_loss(values[0], values[1])) / (2 * step);
        *x = here;
        EXPECT_NEAR(at(cup_grad(i / COUNT ? b : a), i % COUNT), slope, 1e-8);
    }
    cup_context_free(c);
}

static cup_tensor *block(cup_context *c, cup_tensor *const *in, int count, void *user)
{
    (void)count;
    return loss_of(c, in[0], user);
}

TEST(custom_within_a_recomputed_block)
{
    cup_context *c = cpu();
    cup_tensor *a = cup_require_grad(numbers(c, -1)), *b = cup_require_grad(numbers(c, 0.5));
    cup_tensor *out[2], *again[2], *in[] = {a, b};
    EXPECT_INT(cup_gradients(c, loss_of(c, a, b), in, 2, out), CUP_OK);
    cup_tensor *loss = cup_recompute(c, block, &a, 1, b);
    EXPECT_INT(cup_gradients(c, loss, in, 2, again), CUP_OK);
    for (int i = 0; i < COUNT; i++)
        EXPECT(at(out[0], i) == at(again[0], i) && at(out[1], i) == at(again[1], i));
    cup_context_free(c);
}

/* Straight through: rounds to hundredths, and hands the gradient back as it came. */
static cup_status round_forward(cup_context *c, cup_tensor *const *in, int count,
                                const void *attributes, cup_tensor **out)
{
    (void)count, (void)attributes;
    cup_expr *e = cup_expr_new(c, "x", NULL, "floor(x*100 + 0.5) / 100");
    out[0] = cup_expr_call(e, in, NULL, NULL);
    cup_expr_free(e);
    return CUP_OK;
}

static cup_status round_backward(cup_context *c, const cup_custom_grad *g)
{
    (void)c;
    g->d_inputs[0] = g->d_outputs[0];
    return CUP_OK;
}

TEST(custom_straight_through)
{
    cup_context *c = cpu();
    static const cup_custom_op op = {.size = sizeof op, .name = "round", .output_count = 1,
                                     .forward = round_forward, .backward = round_backward};
    cup_tensor *x = cup_require_grad(numbers(c, 0.123)), *y;
    cup_tensor *two = cup_full(c, CUP_F64, 0, NULL, 2);
    EXPECT_INT(cup_custom(c, &op, &x, 1, NULL, &y), CUP_OK);
    EXPECT_NEAR(at(y, 0), 0.12, 1e-12);
    EXPECT(cup_tensor_write(y, (double[COUNT]){0}, sizeof(double[COUNT])) != CUP_OK);
    expect_error(c, CUP_STATE, "recorded result");
    cup_tensor *h = cup_retain_grad(y);
    EXPECT_INT(cup_backward(c, total(c, cup_mul(c, y, two))), CUP_OK);
    EXPECT_NEAR(at(cup_grad(x), 3), 2, 0);
    EXPECT_NEAR(at(cup_grad(h), 3), 2, 0);
    EXPECT(cup_tensor_data(cup_grad(x)) != cup_tensor_data(cup_grad(h)));
    cup_context_free(c);
}

/* x^3, whose gradient is an op of its own, so that it may read values itself. */
static cup_status each(cup_context *c, cup_tensor *const *in, int count, double factor,
                       cup_tensor **out)
{
    double values[3][COUNT];
    for (int i = 0; i < count; i++)
        EXPECT_INT(cup_tensor_read(in[i], values[i], sizeof values[i]), CUP_OK);
    for (int i = 0; i < COUNT; i++)
        values[2][i] = factor * values[0][i] * values[0][i] *
                       (count > 1 ? values[1][i] : values[0][i]);
    out[0] = cup_tensor_from(c, CUP_F64, 1, (int64_t[]){COUNT}, values[2]);
    return cup_error(c);
}

static cup_status slope_forward(cup_context *c, cup_tensor *const *in, int count,
                                const void *attributes, cup_tensor **out)
{
    (void)attributes;
    return each(c, in, count, 3, out);
}

/* Of 3 x^2 d. */
static cup_status slope_backward(cup_context *c, const cup_custom_grad *g)
{
    cup_tensor *both = cup_mul(c, g->inputs[1], g->d_outputs[0]);
    g->d_inputs[0] = cup_scale(c, cup_mul(c, g->inputs[0], both), 6);
    g->d_inputs[1] =
        cup_scale(c, cup_mul(c, cup_mul(c, g->inputs[0], g->inputs[0]), g->d_outputs[0]), 3);
    return CUP_OK;
}

static const cup_custom_op slope = {.size = sizeof slope,
                                    .name = "slope of cube", .output_count = 1,
                                    .saves_inputs = 3, .forward = slope_forward,
                                    .backward = slope_backward, .second_derivatives = true};

static cup_status cube_forward(cup_context *c, cup_tensor *const *in, int count,
                               const void *attributes, cup_tensor **out)
{
    (void)attributes;
    return each(c, in, count, 1, out);
}

static cup_status cube_backward(cup_context *c, const cup_custom_grad *g)
{
    cup_tensor *in[] = {g->inputs[0], g->d_outputs[0]};
    return cup_custom(c, &slope, in, 2, NULL, &g->d_inputs[0]);
}

TEST(custom_second_derivatives)
{
    cup_custom_op cube = {.size = sizeof cube, .name = "cube", .output_count = 1, .saves_inputs = 1,
                          .forward = cube_forward, .backward = cube_backward};
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(numbers(c, -1)), *y, *d, *dd, *ddd;
    EXPECT_INT(cup_custom(c, &cube, &x, 1, NULL, &y), CUP_OK);
    EXPECT_INT(cup_gradients_recorded(c, total(c, y), &x, 1, &d), CUP_UNSUPPORTED);
    expect_error(c, CUP_UNSUPPORTED, "had through it; set its second_derivatives");
    cube.second_derivatives = true;
    EXPECT_INT(cup_custom(c, &cube, &x, 1, NULL, &y), CUP_OK);
    EXPECT_INT(cup_gradients_recorded(c, total(c, y), &x, 1, &d), CUP_OK);
    EXPECT_INT(cup_gradients_recorded(c, total(c, d), &x, 1, &dd), CUP_OK);
    EXPECT_INT(cup_gradients(c, total(c, dd), &x, 1, &ddd), CUP_OK);
    for (int i = 0; i < COUNT; i++) {
        double v = at(x, i);
        EXPECT_NEAR(at(d, i), 3 * v * v, 1e-12);
        EXPECT_NEAR(at(dd, i), 6 * v, 1e-12);
        EXPECT_NEAR(at(ddd, i), 6, 1e-12);
    }
    cup_context_free(c);
}

/* What goes wrong, by the number in the attributes. */
enum { FINE, SAYS, UNSET, SAME, AN_INPUT, KEPT, OPENS, SHAPE, SAYS_BACK, MINE, LAST };

static cup_tensor *mine;

static cup_status wrong_forward(cup_context *c, cup_tensor *const *in, int count,
                                const void *attributes, cup_tensor **out)
{
    int how = *(const int *)attributes;
    (void)count;
    out[0] = how == AN_INPUT ? in[0] : cup_scale(c, in[0], 2);
    out[1] = how == UNSET ? NULL : how == SAME ? out[0] : cup_scale(c, in[0], 3);
    if (how == KEPT)
        cup_keep(out[1]);
    if (how == OPENS)
        cup_scope_open(c);
    return how == SAYS ? CUP_FORMAT : CUP_OK;
}

static cup_status wrong_backward(cup_context *c, const cup_custom_grad *g)
{
    int how = *(const int *)g->attributes;
    EXPECT(!g->inputs[0] && g->outputs[1] && !g->d_outputs[1]);
    EXPECT(cup_tensor_is_contiguous(g->d_outputs[0])); /* sum's is one number for all */
    g->d_inputs[0] = how == SHAPE  ? total(c, g->d_outputs[0])
                     : how == MINE ? mine
                                   : cup_scale(c, g->d_outputs[0], 2);
    return how == SAYS_BACK ? CUP_FORMAT : CUP_OK;
}

static const cup_custom_op wrong = {
    .size = sizeof wrong,
    .name = "wrong",
    .output_count = 2,
    .saves_outputs = 2,
    .attributes_size = sizeof(int),
    .forward = wrong_forward,
    .backward = wrong_backward,
};

TEST(custom_misled)
{
    static const char *const words[LAST] = {
        [SAYS] = "its forward failed",         [UNSET] = "output 2 was not set",
        [SAME] = "output 2 must be a tensor of its own", [AN_INPUT] = "output 1 must be",
        [KEPT] = "output 2 must be",           [OPENS] = "must close the scopes",
        [SHAPE] = "the gradient of input 1 is [] f64 and should be [6] f64",
        [SAYS_BACK] = "its backward failed"};
    cup_context *c = cpu();
    cup_scope_open(c);
    cup_tensor *x = cup_require_grad(numbers(c, 1));
    mine = numbers(c, 7);
    for (int how = 0; how < LAST; how++) {
        cup_tensor *out[2] = {x, x};
        cup_status status = cup_custom(c, &wrong, &x, 1, &how, out);
        EXPECT((status == CUP_OK) == (out[0] != NULL));
        if (status == CUP_OK)
            status = cup_backward(c, total(c, out[0]));
        EXPECT_INT(status, cup_error(c));
        EXPECT((status == CUP_OK) == !words[how]);
        if (words[how])
            EXPECT_CONTAINS(cup_error_text(c), words[how]);
        cup_error_clear(c);
    }
    EXPECT_NEAR(at(cup_grad(x), 0), 2 + 7, 0);
    EXPECT_NEAR(at(mine, 0), 7, 0);
    EXPECT(cup_tensor_data(cup_grad(x)) != cup_tensor_data(mine));
    cup_scope_close(c);
    cup_context_free(c);
}

TEST(custom_bad_calls)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(numbers(c, 1)), *out[2];
    int how = FINE;
    cup_custom_op op = wrong;
    EXPECT(cup_custom(c, NULL, &x, 1, &how, out) != CUP_OK);
    expect_error(c, CUP_ARGUMENT, "the op is NULL");
    EXPECT(cup_custom(c, &wrong, &x, 1, NULL, out) != CUP_OK);
    expect_error(c, CUP_ARGUMENT, "attributes are NULL");
    EXPECT(cup_custom(c, &wrong, &x, 33, &how, out) != CUP_OK);
    expect_error(c, CUP_ARGUMENT, "0 to 32");
    EXPECT(cup_custom(c, &wrong, &x, 1, &how, NULL) != CUP_OK);
    expect_error(c, CUP_ARGUMENT, "no place");
    op.output_count = 0;
    EXPECT(cup_custom(c, &op, &x, 1, &how, out) != CUP_OK);
    expect_error(c, CUP_ARGUMENT, "0 outputs");
    op = wrong;
    op.backward = NULL;
    EXPECT(cup_custom(c, &op, &x, 1, &how, out) != CUP_OK);
    expect_error(c, CUP_UNSUPPORTED, "no backward");
    cup_grad_recording(c, false);
    EXPECT_INT(cup_custom(c, &op, &x, 1, &how, out), CUP_OK);
    EXPECT_NEAR(at(out[1], 0), 3, 0);
    cup_context_free(c);
}
