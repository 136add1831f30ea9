/* Moving averages of an optimizer's parameters. */
#include <string.h>

#include "comm/together.h"
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

#define PARTS 3 /* parameters, of which two are hidden matrices */

/* A few steps of Muon, and what the parameters are in the end, as averages and as they are. */
static void step_some(cup_context *c, cup_comm *comm, int stage, float out[2][PARTS * 4])
{
    cup_tensor *p[PARTS];
    cup_parameter list[PARTS];
    static const char *const names[PARTS] = {"a", "b", "c"};
    for (int i = 0; i < PARTS; i++) {
        const float start[] = {1, -2, (float)(3 + i), 0.5f};
        p[i] = cup_keep(cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 2}, start));
        list[i] = (cup_parameter){.name = names[i], .tensor = p[i], .hidden = i != 1};
    }
    cup_optimizer *o = cup_optimizer_new(
        c, list, PARTS,
        CUP_OPTIONS(cup_optimizer_options, .method = CUP_METHOD_MUON, .average = 0.75,
                    .split = stage ? comm : NULL, .stage = stage));
    cup_optimizer_set(o, 0.125, stage > 1 ? 1.0 / cup_comm_count(comm) : 1);
    for (int step = 0; step < 6; step++) {
        if (step == 3) {
            cup_optimizer_show_average(o, true);
            cup_optimizer_show_average(o, false);
        }
        for (int i = 0; i < PARTS; i++)
            cup_backward(c, cup_sum(c, cup_square(c, p[i]), NULL, 0, false));
        cup_optimizer_step(o);
        cup_optimizer_clear(o);
    }
    for (int k = 0; k < 2; k++) {
        cup_optimizer_show_average(o, k == 0);
        for (int i = 0; i < PARTS; i++) {
            /* At stage 3 a call brings them, of which what it makes is here. */
            cup_tensor *shown = cup_copy(c, p[i]);
            cup_tensor_read(shown, out[k] + (size_t)i * 4, 4 * sizeof(float));
        }
    }
    cup_optimizer_free(o);
}

static void average_split(cup_context *c, cup_comm *comm, void *user)
{
    float one[2][PARTS * 4] = {{0}}, split[2][PARTS * 4] = {{0}};
    (void)user;
    step_some(c, NULL, 0, one);
    if (!memcmp(one[0], one[1], sizeof one[0]))
        wrong("the averages are the parameters");
    /* The last: a context's parameters stay away. */
    for (int stage = 1; stage <= 3; stage++) {
        step_some(c, comm, stage, split);
        if (cup_error(c) || memcmp(one, split, sizeof one))
            wrong("stage %d: %g and %g, as averages %g and %g; %s", stage, one[1][0], split[1][0],
                  one[0][0], split[0][0], cup_error_text(c));
    }
}

/* Each process has some of them, and all see all. */
TEST(optimizer_averages_that_are_split)
{
    together(2, average_split, NULL);
    together(4, average_split, NULL);
}
