/* A small network trained in f32 against the same in double. What a rectifier and the first steps
 * of AdamW make of a rounding is not continuous, so the numbers are such that four times the
 * rounding of f32 leads to the same steps; errors like those of tf32 never do. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"

enum { ROWS = 48, INPUTS = 20, HIDDEN = 24, CLASSES = 5, STEPS = 200, SEED = 4 };
enum { FIRST = HIDDEN * INPUTS, SECOND = CLASSES * HIDDEN };
enum { COUNT = FIRST + HIDDEN + SECOND + CLASSES, PARAMETERS = 4 };

/* Weights and biases, one after the other: gradients of the first step, values at the end. */
typedef struct trained {
    double gradient[COUNT], value[COUNT];
} trained;

static float draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / 8388608.0f - 1.0f;
}

static cup_tensor *take(cup_context *c, cup_dtype dtype, const float *values, int rows, int columns)
{
    int64_t shape[] = {rows, columns};
    cup_tensor *t =
        columns ? cup_tensor_from(c, CUP_F32, 2, shape, values) : cup_full(c, CUP_F32, 1, shape, 0);
    return cup_keep(dtype == CUP_F32 ? t : cup_cast(c, t, dtype));
}

static void read(cup_context *c, cup_tensor *const *t, double *to)
{
    for (int i = 0; i < PARAMETERS; i++) {
        int64_t count = cup_tensor_count(t[i]);
        EXPECT_INT(cup_tensor_read(cup_cast(c, t[i], CUP_F64), to, (size_t)count * 8), CUP_OK);
        to += count;
    }
}

static void make(cup_context *c, cup_dtype dtype, cup_tensor **x, cup_tensor **targets,
                 cup_tensor **parameters)
{
    static float rows[ROWS * INPUTS], first[FIRST], second[SECOND];
    static int64_t classes[ROWS];
    uint64_t state = SEED;
    for (int i = 0; i < ROWS * INPUTS; i++)
        rows[i] = draw(&state);
    for (int i = 0; i < FIRST; i++)
        first[i] = draw(&state) / sqrtf(INPUTS);
    for (int i = 0; i < SECOND; i++)
        second[i] = draw(&state) / sqrtf(HIDDEN);
    for (int i = 0; i < ROWS; i++) {
        classes[i] = i % CLASSES;
        rows[i * INPUTS + i % CLASSES] += 1;
    }
    *x = take(c, dtype, rows, ROWS, INPUTS);
    *targets = cup_keep(cup_tensor_from(c, CUP_I64, 1, (int64_t[]){ROWS}, classes));
    parameters[0] = take(c, dtype, first, HIDDEN, INPUTS);
    parameters[1] = take(c, dtype, NULL, HIDDEN, 0);
    parameters[2] = take(c, dtype, second, CLASSES, HIDDEN);
    parameters[3] = take(c, dtype, NULL, CLASSES, 0);
}

static void step(cup_context *c, cup_optimizer *o, cup_tensor *x, cup_tensor *targets,
                 cup_tensor *const *p, double *gradient)
{
    cup_scope_open(c);
    cup_tensor *hidden = cup_relu(c, cup_linear(c, x, p[0], p[1]));
    cup_tensor *logits = cup_linear(c, hidden, p[2], p[3]), *of[PARAMETERS];
    EXPECT_INT(cup_backward(c, cup_cross_entropy(c, logits, targets, -1, NULL)), CUP_OK);
    for (int i = 0; i < PARAMETERS; i++)
        of[i] = cup_grad(p[i]);
    if (gradient)
        read(c, of, gradient);
    EXPECT_INT(cup_optimizer_step(o), CUP_OK);
    cup_optimizer_clear(o);
    cup_scope_close(c);
}

static void train(const char *device, cup_dtype dtype, trained *to)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    EXPECT_INT(cup_precision(c, "highest"), CUP_OK);
    cup_tensor *x, *targets, *p[PARAMETERS];
    make(c, dtype, &x, &targets, p);
    cup_parameter list[PARAMETERS] = {{.name = "first"}, {.name = "b"}, {.name = "second"},
                                      {.name = "d"}};
    for (int i = 0; i < PARAMETERS; i++)
        list[i].tensor = p[i];
    cup_optimizer *o = cup_optimizer_new(c, list, PARAMETERS, NULL);
    EXPECT_INT(cup_optimizer_set(o, 3e-3, 1), CUP_OK);
    for (int i = 0; i < STEPS; i++)
        step(c, o, x, targets, p, i ? NULL : to->gradient);
    read(c, p, to->value);
    cup_optimizer_free(o);
    for (int i = 0; i < PARAMETERS; i++)
        cup_tensor_free(p[i]);
    cup_tensor_free(x);
    cup_tensor_free(targets);
    cup_context_free(c);
}

static void expect_close(const char *what, const double *got, const double *want, double tolerance)
{
    double squares = 0;
    for (int i = 0; i < COUNT; i++)
        squares += want[i] * want[i];
    for (int i = 0; i < COUNT; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * (fabs(want[i]) + sqrt(squares / COUNT))))
            test_fail(__FILE__, __LINE__, "%s %d is %.9g, not %.9g", what, i, got[i], want[i]);
}

static void check(const char *device)
{
    static trained single, exact;
    train(device, CUP_F32, &single);
    train("cpu", CUP_F64, &exact);
    expect_close("gradient", single.gradient, exact.gradient, 8 * 0x1p-23);
    expect_close("weight", single.value, exact.value, 5e-6);
}

TEST(training_in_f32_is_f32)
{
    check("cpu");
}

TEST(gpu_training_in_f32_is_f32)
{
    check("cuda");
}
