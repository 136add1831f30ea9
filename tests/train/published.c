/* Models written as others publish them, and read again. bench/published.py holds them to PyTorch's
 * formulas. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/cupola.h"
#include "test.h"

static const cup_gpt_config gpt2 = {.size = sizeof(cup_gpt_config),
                                    .layers = 2,
                                    .heads = 2,
                                    .width = 16,
                                    .context = 12,
                                    .vocabulary = 29,
                                    .bias = true};
static const cup_gpt_config llama = {.size = sizeof(cup_gpt_config),
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .width = 16,
                                     .context = 12,
                                     .vocabulary = 29,
                                     .positions = CUP_POSITIONS_ROTARY,
                                     .norm = CUP_NORM_KIND_RMSNORM,
                                     .mlp = CUP_MLP_KIND_SWIGLU,
                                     .untied = true};

static void logits_of(cup_gpt *m, float *out)
{
    int32_t ids[12];
    for (int i = 0; i < 12; i++)
        ids[i] = i * 5 % 29;
    cup_tensor *tokens = cup_tensor_from(m->context, CUP_I32, 2, (int64_t[]){1, 12}, ids);
    EXPECT_INT(cup_tensor_read(cup_gpt_logits(m, tokens), out, 12 * 29 * sizeof *out), CUP_OK);
}

TEST(published_models_are_read_as_they_were_written)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    cup_gpt_config qwen2 = llama, qwen3 = llama, llama3 = llama, mixtral, qwen3_moe;
    qwen2.qkv_bias = true;
    qwen3.qk_norm = true;
    qwen3.head_size = 6;
    llama3.head_size = 8;
    llama3.rope_scaling = (cup_rope_scaling){.factor = 8, .low = 1, .high = 4, .original = 16};
    mixtral = llama;
    mixtral.experts = 5;
    mixtral.balance = 0.02;
    qwen3_moe = qwen3;
    qwen3_moe.experts = 4;
    qwen3_moe.experts_each = 1;
    const cup_gpt_config *configs[] = {&gpt2,   &llama,   &qwen2,    &qwen3,
                                       &llama3, &mixtral, &qwen3_moe};
    const char *base = test_folder();
    for (int i = 0; i < 14; i++) {
        static float own[12 * 29], read[12 * 29];
        char folder[512];
        snprintf(folder, sizeof folder, "%s/%d", base, i);
        cup_gpt_config config = *configs[i / 2];
        config.untied = i % 2;
        cup_gpt *m = cup_gpt_new(c, CUP_F32, &config);
        /* Biases begin as 0, which would hide their places. */
        bool was = cup_grad_recording(c, false);
        if (m->blocks->attention.qkv.bias)
            cup_copy_into(c, m->blocks->attention.qkv.bias,
                          cup_normal(c, CUP_F32, 1, (int64_t[]){i < 4 ? 48 : 32}, 0, 1));
        cup_grad_recording(c, was);
        EXPECT_INT(cup_gpt_export(m, folder), CUP_OK);
        logits_of(m, own);
        cup_gpt *again = i % 2 ? cup_gpt_load(c, folder) : cup_gpt_import(c, folder, CUP_F32);
        EXPECT_INT(cup_error(c), CUP_OK);
        logits_of(again, read);
        EXPECT(!memcmp(own, read, sizeof own));
        EXPECT_NEAR(again->config.epsilon, m->config.epsilon, 0);
        EXPECT_INT(again->config.experts_each, m->config.experts_each);
        EXPECT_NEAR(again->config.balance, i < 10 || i > 11 ? 0 : 0.02, 0);
        EXPECT_INT(again->config.head_size, m->config.head_size);
        EXPECT_NEAR(again->config.rope_scaling.high, m->config.rope_scaling.high, 0);
        cup_gpt *rounded = cup_gpt_import(c, folder, CUP_BF16);
        EXPECT(rounded && rounded->dtype == CUP_BF16);
        cup_gpt_free(rounded);
        cup_gpt_free(again);
        cup_gpt_free(m);
    }
    cup_gpt_config neither = gpt2;
    neither.bias = false;
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &neither);
    EXPECT_INT(cup_gpt_export(m, base), CUP_UNSUPPORTED);
    EXPECT_CONTAINS(cup_error_text(c), "neither");
    cup_gpt_free(m);
    cup_context_free(c);
}

/* Biases where a Llama's file says so, in all of which numbers are put, and the families that have
 * the same inside. */
TEST(published_models_keep_their_biases_and_family)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    static const struct {
        bool qk_norm, attention_bias, mlp_bias, bias;
        cup_gpt_family family, written;
        const char *words;
    } cases[] = {
        {false, true, false, false, CUP_GPT_FAMILY_LLAMA, CUP_GPT_FAMILY_LLAMA,
         "\"attention_bias\": true,\n  \"mlp_bias\": false"},
        {false, false, true, false, CUP_GPT_FAMILY_MISTRAL, CUP_GPT_FAMILY_LLAMA,
         "\"mlp_bias\": true"},
        {false, false, false, true, CUP_GPT_FAMILY_ANY, CUP_GPT_FAMILY_LLAMA,
         "\"attention_bias\": true,\n  \"mlp_bias\": true"},
        {true, true, false, false, CUP_GPT_FAMILY_LLAMA, CUP_GPT_FAMILY_QWEN3,
         "\"attention_bias\": true"},
        {false, false, false, false, CUP_GPT_FAMILY_MISTRAL, CUP_GPT_FAMILY_MISTRAL,
         "\"MistralForCausalLM\""},
        {false, false, false, false, CUP_GPT_FAMILY_ANY, CUP_GPT_FAMILY_LLAMA, "\"llama\""},
    };
    const char *base = test_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static float own[12 * 29], read[12 * 29];
        char folder[512], path[600], *text;
        snprintf(folder, sizeof folder, "%s/%zu", base, i);
        snprintf(path, sizeof path, "%s/config.json", folder);
        cup_gpt_config config = llama;
        config.qk_norm = cases[i].qk_norm;
        config.attention_bias = cases[i].attention_bias;
        config.mlp_bias = cases[i].mlp_bias;
        config.bias = cases[i].bias;
        config.family = cases[i].family;
        cup_gpt *m = cup_gpt_new(c, CUP_F32, &config);
        int64_t count;
        const cup_named *all = cup_parameters_named(m->parameters, &count);
        bool was = cup_grad_recording(c, false);
        for (int64_t k = 0; k < count; k++)
            if (cup_tensor_ndim(all[k].tensor) == 1)
                cup_copy_into(c, all[k].tensor,
                              cup_normal(c, CUP_F32, 1,
                                         (int64_t[]){cup_tensor_size(all[k].tensor, 0)}, 0, 1));
        cup_grad_recording(c, was);
        EXPECT_INT(cup_gpt_export(m, folder), CUP_OK);
        EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &text, NULL), CUP_OK);
        EXPECT_CONTAINS(text, cases[i].words);
        cup__free(text);
        cup_gpt *again = cup_gpt_import(c, folder, CUP_F32);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(again->config.family, cases[i].written);
        EXPECT_INT(cup_gpt_parameter_count(&again->config, true),
                   cup_gpt_parameter_count(&config, true));
        logits_of(m, own);
        logits_of(again, read);
        EXPECT(!memcmp(own, read, sizeof own));
        cup_gpt_free(again);
        cup_gpt_free(m);
    }
    cup_context_free(c);
}

/* Replaces a part of config.json, and expects a failure that says the words. */
static void expect_refused(cup_context *c, const char *folder, const char *part, const char *by,
                           cup_status status, const char *words)
{
    char path[512], changed[4096], *text;
    snprintf(path, sizeof path, "%s/config.json", folder);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &text, NULL), CUP_OK);
    char *at = strstr(text, part);
    EXPECT(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, by, at + strlen(part));
    EXPECT_INT(cup__file_write(NULL, path, changed, strlen(changed)), CUP_OK);
    EXPECT(!cup_gpt_import(c, folder, CUP_F32));
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
    EXPECT_INT(cup__file_write(NULL, path, text, strlen(text)), CUP_OK);
    cup__free(text);
}

/* A matrix of a published folder against rows of the model's, all experts one behind the other. */
static void expect_rows(cup_gpt *m, cup_tensors *published, const char *name, const char *own,
                        int64_t first)
{
    cup_tensor *theirs = cup_tensors_find(published, name);
    cup_tensor *ours = cup_parameters_find(m->parameters, own);
    EXPECT(theirs && ours);
    const float *at = cup_tensor_data(ours);
    int64_t width = cup_tensor_size(theirs, 1);
    EXPECT(!memcmp(cup_tensor_data(theirs), at + first * width,
                   (size_t)cup_tensor_count(theirs) * sizeof *at));
}

TEST(published_experts_have_names_of_their_own)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const char *folder = test_folder();
    cup_gpt_config config = llama;
    config.experts = 3;
    config.hidden = 10;
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &config);
    EXPECT_INT(cup_gpt_export(m, folder), CUP_OK);
    cup_tensors *all = cup_safetensors_load(c, folder);
    const char *up = "h.1.mlp.experts.c_fc.weight", *down = "h.1.mlp.experts.c_proj.weight";
#define MOE "model.layers.1.block_sparse_moe."
    expect_rows(m, all, MOE "gate.weight", "h.1.mlp.router.weight", 0);
    expect_rows(m, all, MOE "experts.2.w1.weight", up, 2 * 20);
    expect_rows(m, all, MOE "experts.2.w3.weight", up, 2 * 20 + 10);
    expect_rows(m, all, MOE "experts.1.w2.weight", down, 16);
    cup_tensors_free(all);
    expect_refused(c, folder, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 1",
                   CUP_UNSUPPORTED, "one expert a token with a weight of 1");
    expect_refused(c, folder, "\"num_local_experts\": 3", "\"num_local_experts\": 4", CUP_FORMAT,
                   "by config.json it must be");
    cup_gpt_free(m);
    config.qk_norm = true;
    m = cup_gpt_new(c, CUP_F32, &config);
    EXPECT_INT(cup_gpt_export(m, folder), CUP_OK);
    all = cup_safetensors_load(c, folder);
    expect_rows(m, all, "model.layers.1.mlp.experts.2.up_proj.weight", up, 2 * 20 + 10);
    cup_tensors_free(all);
    expect_refused(c, folder, "\"norm_topk_prob\": true", "\"norm_topk_prob\": false",
                   CUP_UNSUPPORTED, "another sum than 1");
    expect_refused(c, folder, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2",
                   CUP_UNSUPPORTED, "MLPs in others");
    expect_refused(c, folder, "\"decoder_sparse_step\": 1", "\"mlp_only_layers\": [0]",
                   CUP_UNSUPPORTED, "MLPs in others");
    cup_gpt_free(m);
    config.qkv_bias = true;
    m = cup_gpt_new(c, CUP_F32, &config);
    EXPECT_INT(cup_gpt_export(m, folder), CUP_UNSUPPORTED);
    EXPECT_CONTAINS(cup_error_text(c), "with experts as a Mixtral");
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(published_models_are_refused_where_they_are_others)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const char *folder = test_folder();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &llama);
    EXPECT_INT(cup_gpt_export(m, folder), CUP_OK);
    const char *last = "\"attention_bias\": false";
    expect_refused(c, folder, "\"llama\"", "\"bert\"", CUP_UNSUPPORTED, "bert");
    expect_refused(c, folder, "\"head_dim\": 4", "\"head_dim\": 8", CUP_FORMAT,
                   "by config.json it must be");
    expect_refused(c, folder, last, "\"attention_bias\": true", CUP_FORMAT,
                   "have no \"model.layers.0.self_attn.q_proj.bias\"");
    expect_refused(c, folder, last, "\"rope_scaling\": {\"rope_type\": \"llama3\"}", CUP_FORMAT,
                   "factor");
    expect_refused(c, folder, last,
                   "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, "
                   "\"low_freq_factor\": 4, \"high_freq_factor\": 4, "
                   "\"original_max_position_embeddings\": 99}",
                   CUP_FORMAT, "/config.json: gpt: ");
    expect_refused(c, folder, "\"silu\"", "\"relu\"", CUP_UNSUPPORTED, "another function");
    expect_refused(c, folder, "\"hidden_size\": 16", "\"hidden_size\": 32", CUP_FORMAT,
                   "by config.json it must be");
    expect_refused(c, folder, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", CUP_FORMAT,
                   "have no \"model.layers.2.");
    expect_refused(c, folder, "\"vocab_size\": 29", "\"vocab_size\": -1", CUP_FORMAT, "vocab_size");
    EXPECT(!cup_gpt_import(c, "/nowhere", CUP_F32));
    EXPECT_INT(cup_error(c), CUP_IO);
    cup_error_clear(c);
    EXPECT(!cup_gpt_import(c, NULL, CUP_F32));
    EXPECT_INT(cup_error(c), CUP_ARGUMENT);
    cup_gpt_free(m);
    cup_context_free(c);
}

static bool is_in(const char *folder, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return cup__file_exists(path);
}

static void expect_same(cup_gpt *m, const char *folder)
{
    static float own[12 * 29], read[12 * 29];
    cup_gpt *again = cup_gpt_import(m->context, folder, CUP_F32);
    EXPECT_TEXT(cup_error_text(m->context), "");
    logits_of(m, own);
    logits_of(again, read);
    EXPECT(!memcmp(own, read, sizeof own));
    cup_gpt_free(again);
}

static cup_status write_parts(cup_gpt *m, const char *folder, int64_t bytes)
{
    return cup_gpt_publish(m, folder, CUP_OPTIONS(cup_publish_options, .part_bytes = bytes));
}

/* One export over another, in more parts or fewer, leaves nothing of it. */
TEST(published_weights_are_written_in_parts)
{
    static const char *const files[] = {"model.safetensors", "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    static const struct {
        int64_t bytes;
        bool there[4];
    } cases[] = {{0, {true}}, {20000, {false, true, true, true}}, {1, {false, true}}, {0, {true}}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const char *folder = test_folder();
    for (int k = 0; k < 2; k++) {
        cup_gpt *m = cup_gpt_new(c, CUP_F32, k ? &llama : &gpt2);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            EXPECT_INT(write_parts(m, folder, cases[i].bytes), CUP_OK);
            for (int f = 0; f < 4; f++)
                EXPECT_INT(is_in(folder, files[f]), cases[i].there[f]);
            expect_same(m, folder);
        }
        cup_gpt_free(m);
    }
    cup_context_free(c);
}

/* Whatever fails, what is in the folder is the older export or the newer one, as a whole. */
TEST(published_weights_in_parts_replace_older_ones_as_a_whole)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const char *folder = test_folder();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &llama);
    EXPECT_INT(write_parts(m, folder, -1), CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT_INT(write_parts(m, folder, 20000), CUP_OK);
    cup_status status = CUP_MEMORY;
    for (long n = 1; status != CUP_OK; n++) {
        cup__memory_fail_at(n, false);
        status = write_parts(m, folder, 1);
        cup__memory_fail_at(0, false);
        EXPECT((status == CUP_OK || cup_error(c) == CUP_MEMORY) && n < 5000);
        cup_error_clear(c);
        if (n % 16 == 1)
            expect_same(m, folder);
    }
    expect_same(m, folder);
    EXPECT(!is_in(folder, "model-00001-of-00002.safetensors"));
    cup_gpt_free(m);
    cup_context_free(c);
}

/* A window is said in the words of each family, and a Llama with one is a Mistral. */
TEST(published_models_keep_their_window)
{
    static const struct {
        bool qkv_bias, qk_norm;
        int64_t experts, from;
        cup_gpt_family family;
        const char *words;
    } cases[] = {
        {false, false, 0, 0, CUP_GPT_FAMILY_MISTRAL, "\"sliding_window\": 5"},
        {false, false, 3, 0, CUP_GPT_FAMILY_MIXTRAL, "\"sliding_window\": 5"},
        {true, false, 0, 1, CUP_GPT_FAMILY_QWEN2, "\"max_window_layers\": 1"},
        {false, true, 0, 0, CUP_GPT_FAMILY_QWEN3, "\"use_sliding_window\": true"},
        {false, true, 3, 0, CUP_GPT_FAMILY_QWEN3_MOE, "\"use_sliding_window\": true"},
    };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const char *base = test_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[512], path[600], *text;
        snprintf(folder, sizeof folder, "%s/%zu", base, i);
        snprintf(path, sizeof path, "%s/config.json", folder);
        cup_gpt_config config = llama;
        config.qkv_bias = cases[i].qkv_bias;
        config.qk_norm = cases[i].qk_norm;
        config.experts = cases[i].experts;
        config.window = 5;
        config.window_from = cases[i].from;
        cup_gpt *m = cup_gpt_new(c, CUP_F32, &config);
        EXPECT_INT(cup_gpt_export(m, folder), CUP_OK);
        EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &text, NULL), CUP_OK);
        EXPECT_CONTAINS(text, cases[i].words);
        cup__free(text);
        EXPECT_INT(cup_gpt_config_load(c, folder, &config), CUP_OK);
        EXPECT_INT(config.family, cases[i].family);
        EXPECT_INT(config.window, 5);
        EXPECT_INT(config.window_from, cases[i].from);
        EXPECT_INT(config.context, 12);
        expect_same(m, folder);
        cup_gpt_free(m);
    }
    cup_gpt_config neither = llama;
    neither.window = 5;
    for (int i = 0; i < 2; i++) {
        neither.window_from = !i;
        neither.sinks = i;
        cup_gpt *m = cup_gpt_new(c, CUP_F32, &neither);
        EXPECT_INT(cup_gpt_export(m, base), CUP_UNSUPPORTED);
        cup_error_clear(c);
        cup_gpt_free(m);
    }
    cup_context_free(c);
}

/* Which blocks have the window, by newer files and by older ones. */
TEST(published_windows_are_of_the_last_blocks)
{
    static const struct {
        const char *words;
        int64_t window, from;
        cup_status status;
    } cases[] = {
        {"\"max_window_layers\": 0", 5, 0, CUP_OK},
        {"\"max_window_layers\": 2", 0, 0, CUP_OK},
        {"\"rope_theta\": 10000", 0, 0, CUP_OK},
        {"\"layer_types\": [\"full_attention\", \"sliding_attention\"]", 5, 1, CUP_OK},
        {"\"layer_types\": [\"full_attention\", \"full_attention\"]", 0, 0, CUP_OK},
        {"\"layer_types\": [\"sliding_attention\", \"full_attention\"]", 0, 0, CUP_UNSUPPORTED},
        {"\"layer_types\": [\"sliding_attention\"]", 0, 0, CUP_UNSUPPORTED},
        {"\"layer_types\": [1, 2]", 0, 0, CUP_UNSUPPORTED},
        {"\"max_window_layers\": -1", 0, 0, CUP_FORMAT},
    };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const char *folder = test_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512], text[1000];
        snprintf(path, sizeof path, "%s/config.json", folder);
        int length = snprintf(text, sizeof text,
                              "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 2, "
                              "\"num_attention_heads\": 2, \"hidden_size\": 16, "
                              "\"intermediate_size\": 24, \"vocab_size\": 29, "
                              "\"use_sliding_window\": true, \"sliding_window\": 5, %s}",
                              cases[i].words);
        EXPECT_INT(cup__file_write(NULL, path, text, (size_t)length), CUP_OK);
        cup_gpt_config config;
        EXPECT_INT(cup_gpt_config_load(c, folder, &config), cases[i].status);
        if (cases[i].status == CUP_OK) {
            EXPECT_INT(config.window, cases[i].window);
            EXPECT_INT(config.window_from, cases[i].from);
        }
        cup_error_clear(c);
    }
    cup_context_free(c);
}

/* What begins and ends a text goes along. */
TEST(published_folders_have_their_tokenizer)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const char *folder = test_folder();
    cup_corpus *corpus = cup_corpus_new(c, "the cat and the hat", 19);
    cup_tokenizer *t = cup_tokenizer_bpe_new(c, corpus, 260);
    cup_tokenizer *characters = cup_tokenizer_char_new(c, corpus);
    cup_gpt_config config = llama;
    config.vocabulary = cup_tokenizer_size(t);
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &config);
    EXPECT_INT(cup_gpt_publish(m, folder, CUP_OPTIONS(cup_publish_options, .tokenizer = t)),
               CUP_OK);
    static const char *const parts[][2] = {{"config.json", "\"eos_token_id\": "},
                                           {"generation_config.json", "\"eos_token_id\": "},
                                           {"tokenizer_config.json", "\"<|endoftext|>\""},
                                           {"tokenizer.json", "\"vocab\""}};
    for (int i = 0; i < 4; i++) {
        char path[512], *text;
        snprintf(path, sizeof path, "%s/%s", folder, parts[i][0]);
        EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text, NULL), CUP_OK);
        EXPECT_CONTAINS(text, parts[i][1]);
        cup__free(text);
    }
    cup_tokenizer *again = cup_tokenizer_load(c, folder);
    EXPECT_TEXT(cup_error_text(c), "");
    int count;
    EXPECT_INT(*cup_tokenizer_ends(again, &count), cup_tokenizer_size(t) - 1);
    EXPECT_INT(count, 1);
    EXPECT_INT(
        cup_gpt_publish(m, folder, CUP_OPTIONS(cup_publish_options, .tokenizer = characters)),
        CUP_UNSUPPORTED);
    EXPECT_CONTAINS(cup_error_text(c), "kind char");
    cup_error_clear(c);
    cup_gpt_free(m);
    cup_tokenizer_free(again);
    cup_tokenizer_free(characters);
    cup_tokenizer_free(t);
    cup_corpus_free(corpus);
    cup_context_free(c);
}
