/* Drawing tokens of what cannot be drawn from. */
#include <math.h>

#include "base/memory.h"
#include "cupola/cupola.h"
#include "test.h"

static const cup_gpt_config small = {.size = sizeof small,
                                     .layers = 1,
                                     .heads = 1,
                                     .width = 8,
                                     .context = 8,
                                     .vocabulary = 3};

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

TEST(sample_of_what_cannot_be)
{
    static const float logits[] = {0, 1, 2};
    const cup_sampling wrong[] = {{.size = sizeof *wrong, .temperature = NAN},
                                  {.size = sizeof *wrong, .top_p = NAN},
                                  {.size = sizeof *wrong, .top_k = -1}};
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &small);
    EXPECT_INT(cup_sample(NULL, 3, 0, NULL), -1);
    for (int i = 0; i < 3; i++) {
        EXPECT_INT(cup_sample(logits, 3, 0, &wrong[i]), -1);
        EXPECT(!cup_generator_new(m, &wrong[i]));
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), "must be numbers, and top_k not below 0");
        cup_error_clear(c);
    }
    cup_gpt_free(m);
    cup_context_free(c);
}

/* No memory to draw in is no fault of the model's. */
TEST(sample_without_memory)
{
    static const float logits[] = {0, 1, 2};
    int32_t token = 0;
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &small);
    cup_generator *g = cup_generator_new(m, NULL);
    cup__memory_fail_at(1, false);
    EXPECT_INT(cup_sample(logits, 3, 0, NULL), -2);
    for (int n = 1; n < 1000 && token >= 0; n++) { /* the last allocation of a token is that */
        cup__memory_fail_at(0, false);
        cup_error_clear(c);
        EXPECT_INT(cup_generator_feed(g, &(int32_t){1}, 1), CUP_OK);
        cup__memory_fail_at(n, false);
        token = cup_generator_next(g);
        EXPECT(token >= 0 || cup_error(c) == CUP_MEMORY);
        token = token < 0 ? 0 : n == 1 ? 0 : -1;
    }
    cup__memory_fail_at(0, false);
    cup_generator_free(g);
    cup_gpt_free(m);
    cup_context_free(c);
}
