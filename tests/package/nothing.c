/* What a chain of calls hands on when an earlier one failed is NULL: no function of the library may
 * fall over it. A result that is not wanted may be NULL as well. */
#include <math.h>

#include "cupola/cupola.h"
#include "test.h"

TEST(nothing_is_handed_on)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_gpt *m = cup_gpt_new(c, CUP_F32, NULL);
    EXPECT(!m && cup_error(c) == CUP_ARGUMENT);
    EXPECT(!cup_gpt_logits(m, NULL) && !cup_gpt_loss(m, NULL, NULL, true));
    EXPECT_INT(cup_gpt_parameter_count(NULL, true), -1);
    EXPECT(!cup_tokenizer_token(NULL, 0, NULL));
    EXPECT(!cup_recompute_results(NULL, CUP_RECOMPUTE_POLICY_NORMS));
    EXPECT(!cup_trainer_policy_text(NULL));
    EXPECT(!cup_recompute_policy_find(NULL, NULL));
    EXPECT_TEXT(cup_recompute_policy_name((cup_recompute_policy)9), "?");
    EXPECT(!cup_optimizer_state(NULL, NULL) && !cup_trainer_points(NULL, NULL));
    EXPECT(cup_schedule_rate(NULL, 1) == 0);
    EXPECT_INT(cup_dtype_find(NULL, NULL), CUP_ARGUMENT);
    EXPECT_INT(cup_method_find(NULL, NULL), CUP_ARGUMENT);
    cup_context_free(c);
}

#define EXPECT_SENTENCE(call, part)                                                                \
    do {                                                                                           \
        (void)(call);                                                                              \
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);                                                    \
        EXPECT_CONTAINS(cup_error_text(c), part);                                                  \
        cup_error_clear(c);                                                                        \
    } while (0)

TEST(nothing_is_named)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_SENTENCE(cup_gpt_load(c, NULL), "name one");
    EXPECT_SENTENCE(cup_gpt_tokenizer_load(c, NULL), "name one");
    EXPECT_SENTENCE(cup_gpt_corpus_load(c, NULL), "name one");
    EXPECT_SENTENCE(cup_training_load(c, NULL, NULL, NULL), "name one");
    EXPECT_SENTENCE(cup_recompute(c, NULL, NULL, 0, NULL), "no block");
    EXPECT_SENTENCE(cup_check(c, NULL, NULL, NULL), "report");
    EXPECT_SENTENCE(cup_bench(c, NULL, NULL, NULL, NULL, NULL), "no op");
    EXPECT_SENTENCE(cup_bench(c, "add", NULL, NULL, NULL, NULL), "report");
    EXPECT_SENTENCE(cup_tune(c, NULL, NULL, NULL, NULL), "no op");
    EXPECT_SENTENCE(cup_tuning_merge(c, NULL, 0, NULL), "name the files");
    EXPECT_SENTENCE(cup_ceiling_measure(c, NULL), "no place");
    EXPECT_INT(cup_memory_use(c, NULL), CUP_OK);
    cup_context_free(c);
}

TEST(results_that_are_not_wanted)
{
    const float values[] = {3, 1, 2};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){3}, values), *sorted;
    EXPECT_INT(cup_sort(c, x, 0, false, &sorted, NULL), CUP_OK);
    EXPECT(((const float *)cup_tensor_data(sorted))[2] == 3);
    EXPECT_INT(cup_sort(c, x, 0, false, NULL, NULL), CUP_OK);
    EXPECT_INT(
        cup_top_k(NULL, NULL, 1, 0, CUP_OPTIONS(cup_top_k_options, .smallest = true), NULL, NULL),
        CUP_MEMORY);
    cup_context_free(c);
}
