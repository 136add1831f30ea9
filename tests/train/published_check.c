/* Published folders whose config.json and weights are not of one model, or not plain numbers. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/cupola.h"
#include "test.h"

static const cup_gpt_config qwen3 = {.size = sizeof(cup_gpt_config),
                                     .layers = 2,
                                     .heads = 2,
                                     .width = 16,
                                     .context = 12,
                                     .vocabulary = 29,
                                     .positions = CUP_POSITIONS_ROTARY,
                                     .norm = CUP_NORM_KIND_RMSNORM,
                                     .mlp = CUP_MLP_KIND_SWIGLU,
                                     .qk_norm = true};

/* What an export left in the folder before is replaced. */
static void export_to(cup_context *c, const char *folder, const cup_gpt_config *config)
{
    cup_gpt *m = cup_gpt_new(c, CUP_F32, config);
    EXPECT_INT(cup_gpt_export(m, folder), CUP_OK);
    cup_gpt_free(m);
}

/* Imports with one thing of config.json exchanged, and puts it back. */
static void expect(cup_context *c, const char *folder, const char *part, const char *by,
                   cup_status status, const char *words)
{
    char path[512], changed[4096], *text;
    snprintf(path, sizeof path, "%s/config.json", folder);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &text, NULL), CUP_OK);
    char *at = strstr(text, part);
    EXPECT(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, by, at + strlen(part));
    EXPECT_INT(cup__file_write(NULL, path, changed, strlen(changed)), CUP_OK);
    cup_gpt_free(cup_gpt_import(c, folder, CUP_F32));
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
    EXPECT_INT(cup__file_write(NULL, path, text, strlen(text)), CUP_OK);
    cup__free(text);
}

TEST(published_weights_that_config_leaves_out_are_refused)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    cup_gpt_config config = qwen3;
    const char *folder = test_folder(), *none = "and by config.json the model has none";
    export_to(c, folder, &config);
    expect(c, folder, "\"qwen3\"", "\"qwen3\"", CUP_OK, "");
    expect(c, folder, "\"qwen3\"", "\"llama\"", CUP_FORMAT, none);
    expect(c, folder, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", CUP_FORMAT,
           "have \"model.layers.1.input_layernorm.weight\"");
    config.qk_norm = false;
    config.qkv_bias = true;
    export_to(c, folder, &config);
    expect(c, folder, "\"qwen2\"", "\"llama\"", CUP_FORMAT,
           "have \"model.layers.0.self_attn.q_proj.bias\"");
    config.qkv_bias = false;
    config.untied = true;
    export_to(c, folder, &config);
    expect(c, folder, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", CUP_OK,
           "");
    config.experts = 3;
    export_to(c, folder, &config);
    expect(c, folder, "\"num_local_experts\": 3", "\"num_local_experts\": 2", CUP_FORMAT,
           "experts.2.w1.weight");
    cup_context_free(c);
}

TEST(published_keys_of_other_types_are_refused)
{
    static const struct {
        const char *part, *by, *words;
    } cases[] = {
        {"\"attention_bias\": false", "\"attention_bias\": 0",
         "\"attention_bias\" must be a boolean"},
        {"\"use_sliding_window\": false", "\"use_sliding_window\": \"no\"", "must be a boolean"},
        {"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": \"true\"", "must be a boolean"},
        {"\"silu\"", "7", "\"hidden_act\" must be a string"},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0",
         "\"rms_norm_eps\" must be above 0, not 0"},
        {"\"rope_theta\": 10000", "\"rope_theta\": 0", "\"rope_theta\" must be above 0, not 0"},
    };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const char *folder = test_folder();
    export_to(c, folder, &qwen3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(c, folder, cases[i].part, cases[i].by, CUP_FORMAT, cases[i].words);
    expect(c, folder, "\"attention_bias\": false", "\"attention_bias\": null", CUP_OK, "");
    expect(c, folder, "\"attention_bias\": false", "\"is_causal\": false", CUP_UNSUPPORTED,
           "\"is_causal\" asks for attention to what follows");
    expect(c, folder, "\"attention_bias\": false", "\"use_bidirectional_attention\": true",
           CUP_UNSUPPORTED, "attention to what follows");
    cup_context_free(c);
}

/* Codes without their scales have the right shapes, and are other numbers. */
TEST(published_weights_that_are_quantized_are_refused)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const char *folder = test_folder();
    export_to(c, folder, &qwen3);
    char path[512];
    expect(c, folder, "\"attention_bias\": false", "\"quantization_config\": {\"bits\": 8}",
           CUP_UNSUPPORTED, "\"quantization_config\" asks for quantized weights");
    expect(c, folder, "\"attention_bias\": false", "\"quantization_config\": null", CUP_OK, "");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    cup_tensors *all = cup_safetensors_load(c, folder);
    int64_t count = cup_tensors_count(all);
    cup_named list[64];
    EXPECT(count <= 64);
    for (int64_t i = 0; i < count; i++) {
        cup_tensor *t = cup_tensors_at(all, i);
        bool coded = strstr(cup_tensors_name(all, i), "up_proj") != NULL;
        list[i] = (cup_named){cup_tensors_name(all, i), coded ? cup_cast(c, t, CUP_F8E4M3) : t};
    }
    EXPECT_INT(cup_safetensors_save(c, path, list, count), CUP_OK);
    cup_tensors_free(all);
    expect(c, folder, "\"qwen3\"", "\"qwen3\"", CUP_UNSUPPORTED,
           "mlp.up_proj.weight\" is F8_E4M3: quantized weights are not read; take the model in "
           "bf16");
    cup_context_free(c);
}

/* As transformers 5 writes a Qwen 3 MoE. */
TEST(published_experts_may_be_counted_under_mixtrals_name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    cup_gpt_config config = qwen3;
    const char *folder = test_folder();
    config.experts = 3;
    export_to(c, folder, &config);
    expect(c, folder, "\"num_experts\": 3", "\"num_local_experts\": 3", CUP_OK, "");
    expect(c, folder, "\"num_experts\": 3", "\"num_local_experts\": 2", CUP_FORMAT,
           "the model has none");
    expect(c, folder, "\"num_experts\": 3", "\"experts\": 3", CUP_FORMAT, "no key \"num_experts\"");
    cup_context_free(c);
}
