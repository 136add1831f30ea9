/* Sequences that find no place, numbers that are none, and what is refused. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_tensor *whole(cup_context *c, int ndim, const int64_t *shape, const int64_t *values)
{
    return cup_tensor_from(c, CUP_I64, ndim, shape, values);
}

/* Two equal targets need a step between them; no targets are all blanks. */
TEST(ctc_loss_without_a_way)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    float losses[4], slopes[24];
    cup_tensor *x = cup_full(c, CUP_F32, 3, (int64_t[]){3, 4, 2}, log(0.5)), *grad;
    cup_tensor *targets = whole(c, 2, (int64_t[]){4, 2}, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1});
    cup_tensor *steps = whole(c, 1, (int64_t[]){4}, (int64_t[]){3, 2, 3, 0});
    cup_tensor *lengths = whole(c, 1, (int64_t[]){4}, (int64_t[]){2, 2, 0, 0});
    cup_tensor *loss = cup_ctc_loss(c, cup_require_grad(x), targets, steps, lengths, 0);
    EXPECT_INT(cup_tensor_read(loss, losses, sizeof losses), CUP_OK);
    EXPECT_NEAR(losses[0], 3 * log(2), 1e-6);
    EXPECT(losses[1] == INFINITY);
    EXPECT_NEAR(losses[2], 3 * log(2), 1e-6);
    EXPECT_NEAR(losses[3], 0, 0);
    EXPECT_INT(cup_gradients(c, cup_sum(c, loss, NULL, 0, false), &x, 1, &grad), CUP_OK);
    EXPECT_INT(cup_tensor_read(grad, slopes, sizeof slopes), CUP_OK);
    for (int i = 0; i < 24; i++) { /* of step i / 8, sequence i / 2 mod 4 and class i mod 2 */
        int sequence = i / 2 % 4, class = sequence == 0 && i / 8 != 1;
        EXPECT_NEAR(slopes[i], sequence % 2 || i % 2 != class ? 0 : -1, 1e-6);
    }
    cup_context_free(c);
}

TEST(ctc_loss_passes_nan)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *one = whole(c, 1, (int64_t[]){1}, (int64_t[]){1});
    cup_tensor *x = cup_full(c, CUP_F32, 3, (int64_t[]){1, 1, 2}, NAN);
    cup_tensor *loss = cup_ctc_loss(c, x, cup_reshape(c, one, 2, (int64_t[]){1, 1}), one, one, 0);
    EXPECT(isnan(cup_tensor_item(cup_reshape(c, loss, 0, NULL))));
    cup_context_free(c);
}

TEST(ctc_loss_refuses)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_zeros(c, CUP_F32, 3, (int64_t[]){2, 1, 3});
    cup_tensor *target = whole(c, 2, (int64_t[]){1, 1}, (int64_t[]){3});
    cup_tensor *one = whole(c, 1, (int64_t[]){1}, (int64_t[]){1});
    cup_tensor *many = whole(c, 1, (int64_t[]){1}, (int64_t[]){3});
    EXPECT(!cup_ctc_loss(c, x, target, one, one, 0));
    EXPECT_CONTAINS(cup_error_text(c), "target 0 of sequence 0 is 3; there are 3 classes");
    cup_error_clear(c);
    EXPECT(!cup_ctc_loss(c, x, cup_reshape(c, one, 2, (int64_t[]){1, 1}), many, one, 0));
    EXPECT_CONTAINS(cup_error_text(c), "3 steps");
    cup_error_clear(c);
    EXPECT(!cup_ctc_loss(c, x, target, one, one, 3));
    EXPECT_CONTAINS(cup_error_text(c), "blank is 3");
    cup_error_clear(c);
    EXPECT(!cup_ctc_loss(c, x, one, one, one, 0));
    EXPECT_INT(cup_error(c), CUP_SHAPE);
    cup_context_free(c);
}
