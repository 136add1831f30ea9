/* Stages of a GPT: together they are the whole. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

static cup_gpt_config config_of(bool gated)
{
    cup_gpt_config g = {.size = sizeof g,
                        .vocabulary = 11,
                        .layers = 3,
                        .heads = 2,
                        .width = 8,
                        .context = 6,
                        .bias = !gated};
    if (gated) {
        g.untied = true;
        g.positions = CUP_POSITIONS_ROTARY;
        g.norm = CUP_NORM_KIND_RMSNORM;
        g.mlp = CUP_MLP_KIND_SWIGLU;
    }
    return g;
}

static bool alike(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_scope_open_without_grad(c);
    cup_tensor *d = a && b ? cup_max(c, cup_abs(c, cup_sub(c, a, b)), NULL, 0, false) : NULL;
    bool same = d && cup_tensor_item(d) < 1e-12;
    cup_scope_return(c, NULL);
    return same;
}

static void expect_stages(bool gated)
{
    static const int32_t ids[] = {1, 4, 2, 10, 0, 3, 7, 7};
    static const int64_t ends[] = {1, 3};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
    cup_gpt_config g = config_of(gated);
    cup_tensor *tokens = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){2, 4}, ids), *x = NULL;
    cup_seed(c, 3);
    cup_gpt *whole = cup_gpt_new(c, CUP_F64, &g);
    cup_tensor *loss = cup_gpt_loss(whole, tokens, tokens, true);
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    cup_gpt *stages[2];
    int64_t count, all = 0;
    for (int i = 0; i < 2; i++) {
        cup_seed(c, 3);
        stages[i] = cup_gpt_stage_new(c, CUP_F64, i ? ends[0] : 0, ends[i], &g, NULL);
        EXPECT(stages[i] != NULL);
        x = cup_gpt_stage_call(stages[i], tokens, x, tokens, true);
    }
    EXPECT(alike(c, x, loss));
    EXPECT_INT(cup_backward(c, x), CUP_OK);
    cup_tensor *both = NULL;
    for (int i = 0; i < 2; i++) {
        const cup_named *named = cup_parameters_named(stages[i]->parameters, &count);
        all += count;
        for (int64_t k = 0; k < count; k++) {
            cup_tensor *own = cup_parameters_find(stages[i]->parameters, named[k].name);
            cup_tensor *other = cup_parameters_find(whole->parameters, named[k].name);
            EXPECT(alike(c, own, other));
            if (gated || strcmp(named[k].name, "wte.weight"))
                EXPECT(alike(c, cup_grad(own), cup_grad(other)));
            else
                both = both ? cup_add(c, both, cup_grad(own)) : cup_grad(own);
        }
    }
    cup_parameters_named(whole->parameters, &count);
    EXPECT_INT(all, count + !gated);
    if (!gated)
        EXPECT(alike(c, both, cup_grad(cup_parameters_find(whole->parameters, "wte.weight"))));
    cup_gpt_free(stages[0]);
    cup_gpt_free(stages[1]);
    cup_gpt_free(whole);
    cup_context_free(c);
}

TEST(stages_of_a_gpt_are_the_whole)
{
    expect_stages(false);
    expect_stages(true);
}

static void refuse_one(cup_context *c, bool given, const char *words)
{
    if (given || !strstr(cup_error_text(c), words))
        printf("not \"%s\" but \"%s\"\n", words, cup_error_text(c));
    EXPECT(!given && strstr(cup_error_text(c), words));
    cup_error_clear(c);
}

TEST(stages_refuse_what_needs_the_whole)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_gpt_config g = config_of(false);
    cup_tensor *tokens = cup_zeros(c, CUP_I32, 2, (int64_t[]){1, 2});
    refuse_one(c, cup_gpt_stage_new(c, CUP_F32, 2, 2, &g, NULL), "blocks from 2 to 2");
    refuse_one(c, cup_gpt_stage_new(c, CUP_F32, -1, 2, &g, NULL), "blocks from -1 to 2");
    refuse_one(c, cup_gpt_stage_new(c, CUP_F32, 0, 4, &g, NULL), "and the model 3");
    static const int64_t close[] = {0, 1, 1, 2};
    refuse_one(c, cup_gpt_chunks_new(c, CUP_F32, close, 2, &g, NULL), "leave blocks for other");
    refuse_one(c, cup_gpt_chunks_new(c, CUP_F32, close, 0, &g, NULL), "has 0 chunks");
    refuse_one(c, cup_gpt_chunks_new(c, CUP_F32, NULL, 2, &g, NULL), "has 0 chunks");
    cup_gpt *m = cup_gpt_stage_new(c, CUP_F32, 1, 3, &g, NULL);
    refuse_one(c, cup_gpt_loss(m, tokens, tokens, false), "loss: this process has the blocks");
    refuse_one(c, cup_gpt_logits(m, tokens), "logits: this process has the blocks from 1 to 3");
    refuse_one(c, cup_gpt_cache_new(m, 1, 0), "cache: this process");
    refuse_one(c, cup_gpt_stage_call(m, tokens, NULL, tokens, false), "stage before has made is");
    refuse_one(c, cup_gpt_chunk_call(m, 1, tokens, NULL, tokens, false), "no chunk 1 of a stage");
    cup_tensor *narrow = cup_zeros(c, CUP_F32, 3, (int64_t[]){1, 2, 7});
    refuse_one(c, cup_gpt_stage_call(m, NULL, narrow, tokens, false), "must be f32 [B,T,8]");
    refuse_one(c, cup_gpt_adapters_load(m, "nowhere") == CUP_OK, "adapters: this process has");
    refuse_one(c, cup_gpt_export(m, "nowhere") == CUP_OK, "export: this process");
    cup_gpt_free(m);
    cup_context_free(c);
}
