/* Cross-entropy where the table's samples do not go: in place, nothing to count, bad targets. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

#define ROWS 5
#define WIDTH 11

static cup_tensor *targets_of(cup_context *c, const int32_t *targets)
{
    return cup_tensor_from(c, CUP_I32, 1, (int64_t[]){ROWS}, targets);
}

/* The gradient of the logits, which come from a parameter by an addition of 0. */
static double step(const int32_t *targets, int64_t columns, bool in_place, float *gradient)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    float x[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)sin(i * 1.7);
    cup_tensor *p = cup_require_grad(cup_tensor_from(c, CUP_F32, 2, (int64_t[]){ROWS, WIDTH}, x));
    cup_tensor *zero = cup_full(c, CUP_F32, 0, NULL, 0), *half = cup_full(c, CUP_F32, 0, NULL, 0.5);
    cup_tensor *loss =
        cup_cross_entropy(c, cup_add(c, p, zero), targets_of(c, targets), -1,
                          CUP_OPTIONS(cup_cross_entropy_options, .label_smoothing = 0.1,
                                      .z_loss = 1e-2, .columns = columns, .in_place = in_place));
    double value = cup_tensor_item(loss);
    EXPECT(cup_backward(c, cup_mul(c, loss, half)) == CUP_OK);
    EXPECT(cup_tensor_read(cup_grad(p), gradient, ROWS * WIDTH * sizeof *gradient) == CUP_OK);
    cup_context_free(c);
    return value;
}

TEST(cross_entropy_in_place_gives_the_same)
{
    const int32_t targets[] = {0, 8, -1, 3, 3};
    float plain[ROWS * WIDTH], in_place[ROWS * WIDTH];
    double a = step(targets, 9, false, plain), b = step(targets, 9, true, in_place);
    EXPECT(a == b);
    for (int i = 0; i < ROWS * WIDTH; i++) {
        EXPECT_NEAR(in_place[i], plain[i], 1e-8);
        if (i % WIDTH >= 9 || i / WIDTH == 2)
            EXPECT(plain[i] == 0);
    }
}

TEST(cross_entropy_of_ignored_rows_is_zero)
{
    const int32_t targets[] = {-1, -1, -1, -1, -1};
    float gradient[ROWS * WIDTH];
    EXPECT(step(targets, 0, false, gradient) == 0);
    for (int i = 0; i < ROWS * WIDTH; i++)
        EXPECT(gradient[i] == 0);
    EXPECT(step(targets, 0, true, gradient) == 0);
    for (int i = 0; i < ROWS * WIDTH; i++)
        EXPECT(gradient[i] == 0);
}

TEST(cross_entropy_survives_large_logits)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    float x[] = {1e4f, -1e4f, 0, -INFINITY, 88, 88};
    int32_t targets[] = {0, 1};
    cup_tensor *logits = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 3}, x);
    cup_tensor *t = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){2}, targets);
    EXPECT_NEAR(cup_tensor_item(cup_cross_entropy(c, logits, t, -1, NULL)), log(2) / 2, 1e-6);
    cup_context_free(c);
}

TEST(cross_entropy_says_which_target_is_bad)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const int32_t bad[] = {0, 1, 2, WIDTH, 0}, good[ROWS] = {0};
    float x[ROWS * WIDTH] = {0};
    cup_tensor *logits = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){ROWS, WIDTH}, x);
    EXPECT(!cup_cross_entropy(c, logits, targets_of(c, bad), -1, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "target of row 3 is 11, which is none of the 11 classes");
    cup_error_clear(c);
    EXPECT(!cup_cross_entropy(c, logits, targets_of(c, good), -1,
                              CUP_OPTIONS(cup_cross_entropy_options, .columns = WIDTH + 1)));
    EXPECT_CONTAINS(cup_error_text(c), "columns is 12");
    cup_error_clear(c);
    EXPECT(!cup_cross_entropy(c, logits, targets_of(c, good), -1,
                              CUP_OPTIONS(cup_cross_entropy_options, .label_smoothing = 2)));
    EXPECT_CONTAINS(cup_error_text(c), "label_smoothing is 2");
    cup_error_clear(c);
    EXPECT(!cup_cross_entropy(c, cup_require_grad(logits), targets_of(c, good), -1,
                              CUP_OPTIONS(cup_cross_entropy_options, .in_place = true)));
    EXPECT_CONTAINS(cup_error_text(c), "no parameter");
    cup_context_free(c);
}
