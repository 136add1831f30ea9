/* What config.json says of rotary positions. bench/published.py holds such models to
 * transformers. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/cupola.h"
#include "test.h"

/* Of a Llama of 64 positions. */
static cup_status load(cup_context *c, const char *folder, const char *words,
                       cup_gpt_config *config)
{
    char path[512], text[1000];
    snprintf(path, sizeof path, "%s/config.json", folder);
    int length = snprintf(text, sizeof text,
                          "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, "
                          "\"num_attention_heads\": 2, \"hidden_size\": 32, "
                          "\"intermediate_size\": 24, \"vocab_size\": 29, "
                          "\"max_position_embeddings\": 64, %s}",
                          words);
    EXPECT_INT(cup__file_write(NULL, path, text, (size_t)length), CUP_OK);
    return cup_gpt_config_load(c, folder, config);
}

static void expect_scaling(const cup_rope_scaling *a, const cup_rope_scaling *b)
{
    EXPECT_NEAR(a->factor, b->factor, 0);
    EXPECT_NEAR(a->low, b->low, 0);
    EXPECT_NEAR(a->high, b->high, 0);
    EXPECT_NEAR(a->amplitude, b->amplitude, 1e-12);
    EXPECT_INT(a->original, b->original);
    EXPECT_INT(a->yarn, b->yarn);
    EXPECT_INT(a->untruncated, b->untruncated);
    EXPECT_INT(a->dynamic, b->dynamic);
}

TEST(published_rotary_positions_are_read)
{
    static const struct {
        const char *words;
        int64_t context;
        cup_rope_scaling scaling;
    } cases[] = {
        {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
         "\"original_max_position_embeddings\": 64}",
         256, {.factor = 4, .original = 64, .yarn = true}},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.5}",
         160, {.factor = 2.5, .original = 64, .yarn = true}},
        {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": null, "
         "\"original_max_position_embeddings\": 16}",
         64, {.factor = 4, .original = 16, .yarn = true}},
        {"\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 500, \"factor\": 2, "
         "\"original_max_position_embeddings\": 16, \"beta_fast\": 24, \"beta_slow\": 2, "
         "\"attention_factor\": 1.5, \"mscale\": 3, \"mscale_all_dim\": 1, \"truncate\": false}",
         64,
         {.factor = 2, .original = 16, .low = 2, .high = 24, .yarn = true, .untruncated = true,
          .amplitude = 1.5}},
        {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, \"mscale\": 2, "
         "\"mscale_all_dim\": 0.5, \"attention_factor\": null, \"truncate\": true, "
         "\"original_max_position_embeddings\": 8}",
         /* (0.2 log 8 + 1) / (0.05 log 8 + 1) */
         64, {.factor = 8, .original = 8, .yarn = true, .amplitude = 1.2825399643040467}},
        {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"mscale\": 2, "
         "\"original_max_position_embeddings\": 16}",
         64, {.factor = 4, .original = 16, .yarn = true}},
        {"\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 3}",
         192, {.factor = 3, .original = 64, .dynamic = true}},
        {"\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 3}", 64, {.factor = 3}},
        {"\"rope_parameters\": {\"rope_theta\": 10000, \"partial_rotary_factor\": 1}",
         64, {.factor = 0}},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 3}, "
         "\"rope_parameters\": {\"rope_type\": \"default\"}", 64, {.factor = 3}},
        /* What stands beside both counts. */
        {"\"original_max_position_embeddings\": 16, \"rope_scaling\": {\"rope_type\": \"yarn\", "
         "\"original_max_position_embeddings\": 32}", 64,
         {.factor = 4, .original = 16, .yarn = true}},
    };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const char *folder = test_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cup_gpt_config config;
        EXPECT_INT(load(c, folder, cases[i].words, &config), CUP_OK);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(config.context, cases[i].context);
        EXPECT_NEAR(config.rope_base, i == 3 ? 500 : 10000, 0);
        expect_scaling(&config.rope_scaling, &cases[i].scaling);
    }
    cup_context_free(c);
}

TEST(published_rotary_positions_are_refused_where_they_cannot_be)
{
    static const struct {
        const char *words, *sentence;
        cup_status status;
    } cases[] = {
        {"\"rope_type\": \"longrope\"", "scaled in another way", CUP_UNSUPPORTED},
        {"\"rope_type\": \"yarn\"", "factor", CUP_FORMAT},
        {"\"rope_type\": \"dynamic\"", "factor", CUP_FORMAT},
        {"\"rope_type\": \"dynamic\", \"factor\": 0", "\"factor\" must be above 0", CUP_FORMAT},
        {"\"rope_type\": \"yarn\", \"factor\": 0", "\"factor\" must be above 0", CUP_FORMAT},
        {"\"rope_type\": \"yarn\", \"factor\": 2, \"truncate\": 0",
         "\"truncate\" must be a boolean", CUP_FORMAT},
        {"\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 0, "
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 16",
         "\"low_freq_factor\" must be above 0", CUP_FORMAT},
        {"\"rope_type\": \"linear\", \"factor\": 2, \"rope_theta\": \"1e6\"",
         "\"rope_theta\" must be a number", CUP_FORMAT},
        {"\"rope_type\": 7", "\"rope_type\" must be a string", CUP_FORMAT},
        {"\"factor\": 8", "scaled in another way", CUP_UNSUPPORTED},
        {"\"rope_type\": \"linear\", \"factor\": 2}, \"rope_parameters\": {\"rope_type\": "
         "\"yarn\", \"factor\": 4",
         "both stretch rotary positions; take one of them out", CUP_FORMAT},
        {"\"rope_type\": \"default\"}, \"rope_parameters\": [7], \"x\": {",
         "\"rope_parameters\" must be an object", CUP_FORMAT},
        {"\"rope_type\": \"yarn\", \"factor\": 2, \"attention_factor\": 0",
         "the attention factor must be above 0, not 0", CUP_FORMAT},
        {"\"rope_type\": \"yarn\", \"factor\": 2, \"beta_fast\": 1, \"beta_slow\": 4",
         "high must be above low", CUP_FORMAT},
        {"\"rope_type\": \"yarn\", \"factor\": 2, \"original_max_position_embeddings\": 0",
         "original_max_position_embeddings", CUP_FORMAT},
        {"\"rope_type\": \"yarn\", \"factor\": \"2\"", "factor", CUP_FORMAT},
        {"\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5", "in a part of each head",
         CUP_UNSUPPORTED},
    };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const char *folder = test_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char words[300];
        cup_gpt_config config;
        snprintf(words, sizeof words, "\"rope_scaling\": {%s}", cases[i].words);
        EXPECT_INT(load(c, folder, words, &config), cases[i].status);
        EXPECT_CONTAINS(cup_error_text(c), cases[i].sentence);
        cup_error_clear(c);
    }
    cup_context_free(c);
}

/* What is exported has the words of the others, and is read again as it was. */
TEST(published_rotary_positions_are_written)
{
    static const struct {
        bool qk_norm, qkv_bias;
        cup_rope_scaling scaling;
        const char *words[3];
    } cases[] = {
        {false, true, {.factor = 4, .original = 8, .yarn = true},
         {"\"max_position_embeddings\": 32", "\"rope_type\": \"yarn\", \"factor\": 4, "
          "\"original_max_position_embeddings\": 8, \"beta_fast\": 32, \"beta_slow\": 1}",
          "\"qwen2\""}},
        {true, false,
         {.factor = 4, .original = 8, .low = 2, .high = 3, .yarn = true, .untruncated = true,
          .amplitude = 1.5},
         {"\"beta_fast\": 3, \"beta_slow\": 2", "\"attention_factor\": 1.5, \"truncate\": false}",
          "\"qwen3\""}},
        {false, false, {.factor = 4, .original = 8, .dynamic = true},
         {"\"max_position_embeddings\": 8", "{\"rope_type\": \"dynamic\", \"factor\": 4}",
          "\"llama\""}},
    };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 2));
    const char *folder = test_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512], *text;
        cup_gpt_config again;
        cup_gpt *m = cup_gpt_new(
            c, CUP_F32,
            CUP_OPTIONS(cup_gpt_config, .layers = 1, .heads = 2, .width = 16, .context = 32,
                        .vocabulary = 29, .positions = CUP_POSITIONS_ROTARY,
                        .norm = CUP_NORM_KIND_RMSNORM, .mlp = CUP_MLP_KIND_SWIGLU,
                        .qk_norm = cases[i].qk_norm, .qkv_bias = cases[i].qkv_bias,
                        .rope_scaling = cases[i].scaling));
        EXPECT_INT(cup_gpt_export(m, folder), CUP_OK);
        snprintf(path, sizeof path, "%s/config.json", folder);
        EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &text, NULL), CUP_OK);
        for (int k = 0; k < 3; k++)
            EXPECT_CONTAINS(text, cases[i].words[k]);
        cup__free(text);
        EXPECT_INT(cup_gpt_config_load(c, folder, &again), CUP_OK);
        EXPECT_INT(again.context, 32);
        cup_rope_scaling wanted = cases[i].scaling;
        wanted.low = wanted.yarn && wanted.low == 0 ? 1 : wanted.low;
        wanted.high = wanted.yarn && wanted.high == 0 ? 32 : wanted.high;
        expect_scaling(&again.rope_scaling, &wanted);
        cup_gpt_free(m);
    }
    cup_context_free(c);
}
