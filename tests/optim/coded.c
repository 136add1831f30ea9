/* Optimizer states in codes of 8 bits. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "optim/codes.h"
#include "test.h"
#include "train/session.h"

/* A code is next to its number, and of both neighbours as often as keeps the mean; what has a code
 * keeps it. */
TEST(coded_states_are_right_in_the_mean)
{
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int i = 0; i < (is_signed ? 48 : 60); i++) {
            float x = (float)(test_uniform(1, 2) * ldexp(1, -i / 2));
            int top = cup__codes_top(cup__codes_bits(1.9f));
            x = is_signed && i % 2 ? -x : x;
            double sum = 0, step = fmax(ldexp(fabs(x), -3), ldexp(1, is_signed ? -16 : -32));
            for (uint32_t k = 0; k < 4096; k++) {
                uint8_t code = cup__code_of(x, top, is_signed, k << 4);
                float value = cup__code_value(code, top, is_signed);
                EXPECT(fabs(value - x) < step && (is_signed || value > 0));
                EXPECT_INT(cup__code_of(value, top, is_signed, k * 16), code);
                sum += value;
            }
            EXPECT_NEAR(sum / 4096, x, step / 2000);
        }
}

TEST(coded_states_say_what_is_not_finite)
{
    const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        int top = cup__codes_top(cup__codes_bits(bad[i]));
        EXPECT(isnan(cup__code_value(cup__code_of(bad[i], top, true, 0), top, true)));
    }
    EXPECT_INT(cup__code_of(0, 0, true, 0xffff), 0);
    EXPECT(cup__code_value(0, 0, true) == 0);
    /* Any byte is a number or NaN. */
    for (int top = 0; top < 256; top++)
        for (int code = 0; code < 256; code++)
            EXPECT(top == 255 || isfinite(cup__code_value((uint8_t)code, top, code % 2)));
}

static double loss_with(cup_method method, double *before)
{
    cup_training training = tiny;
    cup_training_point points[MOST_POINTS];
    training.optimizer.method = method;
    training.dtype = CUP_BF16;
    training.steps = training.evaluate_every = 50;
    training.rate = 0.01;
    session s;
    begin(&s, &training, sample_text(), NULL);
    EXPECT_INT(go(&s), CUP_OK);
    int64_t count = points_of(&s, points);
    end(&s);
    *before = points[0].validation;
    return points[count - 1].validation;
}

TEST(coded_states_learn_as_those_of_f32)
{
    double before, whole = loss_with(CUP_METHOD_ADAMW, &before);
    EXPECT(whole < before / 2);
    EXPECT_NEAR(loss_with(CUP_METHOD_ADAMW8, &before), whole, 0.01);
}
