/* Moving averages of an optimizer's parameters. */
#include "cupola/cupola.h"
#include "test.h"

/* Of values in bf16 too, whose masters are averaged. */
TEST(optimizer_averages_its_parameters)
{
    const cup_dtype dtypes[] = {CUP_F32, CUP_BF16};
    for (int k = 0; k < 2; k++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        const float start[] = {1, -2, 3};
        cup_tensor *p = cup_keep(cup_cast(
            c, cup_tensor_from(c, CUP_F32, 1, (int64_t[]){3}, start), dtypes[k]));
        const cup_parameter one = {.name = "p", .tensor = p};
        cup_optimizer *o = cup_optimizer_new(
            c, &one, 1,
            CUP_OPTIONS(cup_optimizer_options, .method = CUP_METHOD_SGD, .average = 0.75));
        double value[3] = {1, -2, 3}, sum[3] = {0, 0, 0}, parts = 0;
        cup_optimizer_set(o, 0.125, 1);
        for (int step = 0; step < 5; step++) {
            cup_backward(c, cup_sum(c, cup_cast(c, cup_square(c, p), CUP_F32), NULL, 0, false));
            EXPECT_INT(cup_optimizer_step(o), CUP_OK);
            cup_optimizer_clear(o);
            for (int i = 0; i < 3; i++) {
                value[i] *= 0.75;
                sum[i] = 0.75 * sum[i] + 0.25 * value[i];
            }
            parts = 0.75 * parts + 0.25;
        }
        EXPECT_INT(cup_optimizer_show_average(o, true), CUP_OK);
        EXPECT_INT(cup_optimizer_step(o), CUP_STATE);
        EXPECT_CONTAINS(cup_error_text(c), "put these back");
        cup_error_clear(c);
        double near = k ? 2e-2 : 1e-6;
        for (int i = 0; i < 3; i++) {
            cup_tensor *shown = cup_slice(c, p, (int64_t[]){i}, 1, (int64_t[]){1}, 1);
            EXPECT_NEAR(cup_tensor_item(shown), sum[i] / parts, near);
        }
        EXPECT_INT(cup_optimizer_show_average(o, false), CUP_OK);
        for (int i = 0; i < 3; i++) {
            cup_tensor *own = cup_slice(c, p, (int64_t[]){i}, 1, (int64_t[]){1}, 1);
            EXPECT_NEAR(cup_tensor_item(own), value[i], near);
        }
        cup_optimizer_free(o);
        EXPECT(!cup_optimizer_new(c, &one, 1, CUP_OPTIONS(cup_optimizer_options, .average = 1)));
        cup_error_clear(c);
        o = cup_optimizer_new(c, &one, 1, NULL);
        EXPECT_INT(cup_optimizer_show_average(o, true), CUP_STATE);
        cup_error_clear(c);
        cup_optimizer_free(o);
        cup_optimizer *none =
            cup_optimizer_new(c, &one, 1, CUP_OPTIONS(cup_optimizer_options, .average = 0.5,
                                                      .stochastic = true));
        EXPECT_INT(none != NULL, k == 0);
        cup_optimizer_free(none);
        cup_tensor_free(p);
        cup_context_free(c);
    }
}
