/* bf16 parameters without master copies: the mean of their random roundings is right. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"

enum { COUNT = 5000 };

/* Steps of a quarter of what lies between 1 and the bf16 below it. */
static double mean_after(int steps, cup_method method)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int64_t shape[] = {COUNT}, states;
    cup_tensor *p = cup_keep(cup_full(c, CUP_BF16, 1, shape, 1));
    cup_parameter list[] = {{.name = "p", .tensor = p}};
    cup_optimizer_options options = {.size = sizeof options, .method = method, .stochastic = true};
    cup_optimizer *o = cup_optimizer_new(c, list, 1, &options);
    cup_optimizer_state(o, &states);
    EXPECT_INT(states, method == CUP_METHOD_SGD ? 1 : 2); /* no master copy */
    EXPECT_INT(cup_optimizer_set(o, 0.25 / 256, 1), CUP_OK);
    for (int i = 0; i < steps; i++) {
        cup_scope_open(c);
        cup_random_step(c, (uint64_t)i);
        cup_tensor *loss = cup_sum(c, cup_cast(c, p, CUP_F32), NULL, 0, false);
        EXPECT_INT(cup_backward(c, loss), CUP_OK);
        EXPECT_INT(cup_optimizer_step(o), CUP_OK);
        cup_optimizer_clear(o);
        cup_scope_close(c);
    }
    double mean = cup_tensor_item(cup_mean(c, cup_cast(c, p, CUP_F32), NULL, 0, false));
    cup_optimizer_free(o);
    cup_tensor_free(p);
    cup_context_free(c);
    return mean;
}

TEST(stochastic_rounding_has_the_right_mean)
{
    double ulp = 1.0 / 256, deviation = ulp * sqrt(0.25 * 0.75 / COUNT);
    EXPECT_NEAR(mean_after(1, CUP_METHOD_SGD), 1 - 0.25 * ulp, 5 * deviation);
    EXPECT_NEAR(mean_after(1, CUP_METHOD_LION), 1 - 0.25 * ulp, 5 * deviation);
    /* Numbers of another step each time. */
    EXPECT_NEAR(mean_after(8, CUP_METHOD_SGD), 1 - 2 * ulp, 5 * sqrt(8) * deviation);
}
