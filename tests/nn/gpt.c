/* The GPT: its losses against another framework's, its sizes, its variants, what it refuses. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cuda/dry.h"
#include "cupola/cupola.h"
#include "tensor/context.h"
#include "test.h"

static cup_context *cpu(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    EXPECT_INT(cup_error(c), CUP_OK);
    return c;
}

/* Two small models that differ in everything that can differ. */
static const cup_gpt_config gpt2 = {.size = sizeof gpt2,
                                    .layers = 2,
                                    .heads = 2,
                                    .width = 16,
                                    .context = 12,
                                    .vocabulary = 29,
                                    .bias = true};
static const cup_gpt_config llama = {.size = sizeof llama,
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .width = 16,
                                     .context = 12,
                                     .vocabulary = 31,
                                     .positions = CUP_POSITIONS_ROTARY,
                                     .norm = CUP_NORM_KIND_RMSNORM,
                                     .mlp = CUP_MLP_KIND_SWIGLU,
                                     .untied = true};

/* Weights that any program can make again. */
static void set_weights(cup_gpt *m)
{
    int64_t weights;
    const cup_named *weight = cup_parameters_named(m->parameters, &weights);
    for (int64_t j = 0; j < weights; j++) {
        cup_tensor *t = weight[j].tensor;
        int64_t count = cup_tensor_count(t);
        double *w = cup__malloc((size_t)count * sizeof *w);
        bool is_gain = strstr(weight[j].name, "ln_") && strstr(weight[j].name, ".weight");
        for (int64_t k = 0; k < count; k++) {
            double wave = sin(1 + 0.37 * (double)k + 1.7 * (double)j);
            w[k] = cup_tensor_ndim(t) == 2 ? 0.3 * wave : is_gain ? 1 + 0.1 * wave : 0.05 * wave;
        }
        cup_tensor *wide = cup_tensor_from(m->context, CUP_F64, 1, &count, w);
        cup_tensor *cast = cup_cast(m->context, wide, m->dtype);
        size_t bytes = (size_t)(count * cup_dtype_size(m->dtype));
        EXPECT_INT(cup_tensor_write(t, cup_tensor_data(cast), bytes), CUP_OK);
        cup__free(w);
    }
}

static cup_tensor *text(cup_context *c, int64_t vocabulary, int64_t rows, int64_t length, int shift)
{
    int32_t tokens[512];
    for (int64_t b = 0; b < rows; b++)
        for (int64_t i = 0; i < length; i++) {
            int64_t t = i + shift;
            tokens[b * length + i] = (int32_t)((7 * b + 5 * t + t * t) % vocabulary);
        }
    if (shift)
        tokens[0] = -1; /* a target that does not count */
    return cup_tensor_from(c, CUP_I32, 2, (int64_t[]){rows, length}, tokens);
}

/* Trains eight steps and compares each loss with the recorded one. */
static void expect_losses_of(const cup_gpt_config *config, cup_dtype dtype,
                             cup_recompute_policy recompute,
                             int64_t logits_most, const double *want, double tolerance)
{
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, dtype, config);
    EXPECT(m != NULL);
    m->recompute = recompute;
    m->logits_most = logits_most;
    set_weights(m);
    cup_optimizer *o =
        cup_optimizer_of(m->parameters, CUP_OPTIONS(cup_optimizer_options, .beta2 = 0.95,
                                                    .weight_decay = 0.1, .clip = 1));
    cup_optimizer_set(o, 0.01, 1);
    for (int step = 0; step < 8; step++) {
        cup_scope_open(c);
        cup_tensor *loss = cup_gpt_loss(m, text(c, config->vocabulary, 3, 12, 0),
                                        text(c, config->vocabulary, 3, 12, 1), true);
        EXPECT_NEAR(cup_tensor_item(loss), want[step], tolerance);
        EXPECT_INT(cup_backward(c, loss), CUP_OK);
        EXPECT_INT(cup_optimizer_step(o), CUP_OK);
        cup_optimizer_clear(o);
        cup_scope_close(c);
    }
    cup_optimizer_free(o);
    cup_gpt_free(m);
    cup_context_free(c);
}

static void expect_losses(const cup_gpt_config *config, cup_dtype dtype,
                          cup_recompute_policy recompute, const double *want, double tolerance)
{
    expect_losses_of(config, dtype, recompute, 0, want, tolerance);
}

/* Computed once by a model written in another framework, in double. */
static const double gpt2_losses[] = {4.41140362153801, 3.67786569162247, 3.31822317192204,
                                     3.18611760031574, 3.10730125039608, 3.03103707584754,
                                     2.94961311919989, 2.87244040529625};
static const double llama_losses[] = {3.65595708976954, 3.30816689497087, 3.14258939543394,
                                      3.02440494480733, 2.90423553005716, 2.77896996247077,
                                      2.6779686760421,  2.59487259453602};

TEST(gpt_losses_are_those_of_another_framework)
{
    expect_losses(&gpt2, CUP_F64, CUP_RECOMPUTE_POLICY_NONE, gpt2_losses, 1e-6);
    expect_losses(&llama, CUP_F64, CUP_RECOMPUTE_POLICY_NONE, llama_losses, 1e-6);
    expect_losses(&gpt2, CUP_F32, CUP_RECOMPUTE_POLICY_NONE, gpt2_losses, 2e-5);
    expect_losses(&llama, CUP_F32, CUP_RECOMPUTE_POLICY_NONE, llama_losses, 2e-5);
    expect_losses(&gpt2, CUP_BF16, CUP_RECOMPUTE_POLICY_NONE, gpt2_losses, 0.05);
    expect_losses(&llama, CUP_BF16, CUP_RECOMPUTE_POLICY_NONE, llama_losses, 0.05);
}

TEST(gpt_recomputed_blocks_give_the_same_losses)
{
    expect_losses(&gpt2, CUP_F32, CUP_RECOMPUTE_POLICY_BLOCK, gpt2_losses, 2e-5);
    expect_losses(&llama, CUP_F32, CUP_RECOMPUTE_POLICY_BLOCK, llama_losses, 2e-5);
    expect_losses(&gpt2, CUP_BF16, CUP_RECOMPUTE_POLICY_NORMS, gpt2_losses, 0.05);
    expect_losses(&llama, CUP_BF16, CUP_RECOMPUTE_POLICY_POINTWISE, llama_losses, 0.05);
}

/* 36 rows of logits: in chunks of up to 10 rows, and row by row. */
TEST(gpt_logits_in_chunks_give_the_same_losses)
{
    int64_t row = 64 * (int64_t)sizeof(double);
    expect_losses_of(&gpt2, CUP_F64, CUP_RECOMPUTE_POLICY_NONE, 10 * row, gpt2_losses, 1e-6);
    expect_losses_of(&llama, CUP_F64, CUP_RECOMPUTE_POLICY_NONE, 1, llama_losses, 1e-6);
    expect_losses_of(&gpt2, CUP_F32, CUP_RECOMPUTE_POLICY_NONE, 1000, gpt2_losses, 2e-5);
}

/* All gradients of one batch, or of so many that are added up, one behind the other; and the last
 * loss behind them. */
static float *gradients(cup_context *c, const cup_gpt_config *config, cup_recompute_policy policy,
                        int batches, int64_t *count)
{
    float loss = 0;
    cup_gpt *m = cup_gpt_new(c, CUP_F32, config);
    m->recompute = policy;
    cup_random_step(c, 9);
    for (int i = 0; i < batches; i++) {
        cup_scope_open(c);
        cup_tensor *made = cup_gpt_loss(m, text(c, config->vocabulary, 3, 12, 0),
                                        text(c, config->vocabulary, 3, 12, i + 1), true);
        EXPECT_INT(cup_tensor_read(made, &loss, sizeof loss), CUP_OK);
        EXPECT_INT(cup_backward(c, made), CUP_OK);
        cup_scope_close(c);
    }
    int64_t weights;
    const cup_named *weight = cup_parameters_named(m->parameters, &weights);
    *count = cup_parameters_count(m->parameters, true) + 1;
    float *all = cup__malloc((size_t)*count * sizeof *all), *at = all;
    for (int64_t i = 0; i < weights; i++) {
        /* Of an embedding the tensor has more rows than count. */
        cup_tensor *t = strcmp(weight[i].name, "wte.weight") ? weight[i].tensor : m->embedding;
        t = strcmp(weight[i].name, "lm_head.weight") ? t : m->head;
        cup_tensor *g = cup_grad(t);
        EXPECT(g != NULL);
        size_t bytes = (size_t)cup_tensor_count(g) * sizeof *at;
        float *whole = cup__malloc(bytes);
        EXPECT_INT(cup_tensor_read(g, whole, bytes), CUP_OK);
        memcpy(at, whole, (size_t)cup_tensor_count(weight[i].tensor) * sizeof *at);
        at += cup_tensor_count(weight[i].tensor);
        cup__free(whole);
    }
    *at = loss;
    cup_gpt_free(m);
    return all;
}

static void expect_like_keeping(const cup_gpt_config *config, cup_recompute_policy policy,
                                int batches, double off)
{
    cup_context *c = cpu();
    int64_t count, again;
    float *kept = gradients(c, config, CUP_RECOMPUTE_POLICY_NONE, batches, &count);
    float *recomputed = gradients(c, config, policy, batches, &again);
    EXPECT_INT(again, count);
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)kept[i] - (double)recomputed[i]));
        largest = fmax(largest, fabs((double)kept[i]));
    }
    EXPECT(largest > 1e-3);
    EXPECT(worst <= off * largest);
    EXPECT(off > 0 || !memcmp(kept, recomputed, (size_t)count * sizeof *kept));
    cup__free(kept);
    cup__free(recomputed);
    cup_context_free(c);
}

TEST(gpt_recompute_draws_the_same_dropout)
{
    cup_gpt_config dropped = gpt2;
    dropped.dropout = 0.3;
    expect_like_keeping(&dropped, CUP_RECOMPUTE_POLICY_BLOCK, 1, 1e-6);
    expect_like_keeping(&dropped, CUP_RECOMPUTE_POLICY_NORMS, 1, 0);
    expect_like_keeping(&dropped, CUP_RECOMPUTE_POLICY_POINTWISE, 1, 0);
}

/* As are norms and activations the second time, and where rows of experts go. */
TEST(gpt_recomputed_experts_give_the_same_bits)
{
    for (int gated = 0; gated < 2; gated++) {
        cup_gpt_config mixed = gated ? llama : gpt2;
        mixed.experts = 4;
        mixed.balance = 0.1;
        mixed.router_z = 0.01;
        mixed.capacity = gated ? 1 : 0;
        expect_like_keeping(&mixed, CUP_RECOMPUTE_POLICY_BLOCK, 1, 0);
        expect_like_keeping(&mixed, CUP_RECOMPUTE_POLICY_NORMS, 2, 0);
        expect_like_keeping(&mixed, CUP_RECOMPUTE_POLICY_POINTWISE, 2, 0);
    }
}

/* Norms and activations are the same numbers the second time. */
TEST(gpt_recomputed_norms_give_the_same_bits)
{
    for (int batches = 1; batches <= 3; batches += 2) {
        expect_like_keeping(&gpt2, CUP_RECOMPUTE_POLICY_NORMS, batches, 0);
        expect_like_keeping(&gpt2, CUP_RECOMPUTE_POLICY_POINTWISE, batches, 0);
        expect_like_keeping(&llama, CUP_RECOMPUTE_POLICY_NORMS, batches, 0);
        expect_like_keeping(&llama, CUP_RECOMPUTE_POLICY_POINTWISE, batches, 0);
    }
}

/* Bytes that are in use between forward and backward. */
static int64_t bytes_kept(cup_recompute_policy policy, int64_t blocks)
{
    cup_memory before, after;
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &gpt2);
    m->recompute = policy;
    m->recompute_blocks = blocks;
    cup_scope_open(c);
    cup_tensor *tokens = text(c, gpt2.vocabulary, 3, 12, 0);
    EXPECT_INT(cup_memory_use(c, &before), CUP_OK);
    cup_tensor *loss = cup_gpt_loss(m, tokens, tokens, true);
    EXPECT_INT(cup_memory_use(c, &after), CUP_OK);
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    cup_scope_close(c);
    cup_gpt_free(m);
    cup_context_free(c);
    return after.allocated - before.allocated;
}

/* In each block two norms' results, and what is inside the MLP behind its activation; blocks one by
 * one, each of which keeps less with the next policy. */
TEST(gpt_results_computed_again_are_not_kept)
{
    int64_t rows = 3 * 12, row = gpt2.width * 4, last = INT64_MAX;
    int64_t none = bytes_kept(CUP_RECOMPUTE_POLICY_NONE, 0);
    int64_t norms = bytes_kept(CUP_RECOMPUTE_POLICY_NORMS, 0);
    int64_t pointwise = bytes_kept(CUP_RECOMPUTE_POLICY_POINTWISE, 0);
    EXPECT(none - norms >= gpt2.layers * rows * 2 * row);
    EXPECT(none - norms < gpt2.layers * rows * 3 * row);
    EXPECT(norms - pointwise >= gpt2.layers * rows * 4 * row);
    EXPECT(bytes_kept(CUP_RECOMPUTE_POLICY_BLOCK, 0) < pointwise);
    static const cup_recompute_policy order[] = {
        CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_POINTWISE, CUP_RECOMPUTE_POLICY_BLOCK};
    for (int i = 0; i < 3; i++)
        for (int64_t blocks = 1; blocks <= gpt2.layers; blocks++) {
            int64_t now = bytes_kept(order[i], blocks);
            EXPECT(now < last && (blocks < gpt2.layers || now == bytes_kept(order[i], 0)));
            last = now;
        }
}

TEST(gpt_counts_its_parameters)
{
    cup_gpt_config small = {.size = sizeof small,
                            .layers = 6,
                            .heads = 6,
                            .width = 384,
                            .context = 256,
                            .vocabulary = 65};
    EXPECT_INT(cup_gpt_parameter_count(&small, true), 10745088);
    cup_gpt_config large = {.size = sizeof large,
                            .layers = 12,
                            .heads = 12,
                            .width = 768,
                            .context = 1024,
                            .vocabulary = 50257,
                            .bias = true};
    EXPECT_INT(cup_gpt_parameter_count(&large, true), 124439808);
    EXPECT_INT(cup_gpt_parameter_count(&large, false), 124439808 - (50257 + 1024) * 768);
    cup_gpt_config none = {.size = sizeof none};
    EXPECT_INT(cup_gpt_parameter_count(&none, true), -1);
    cup_context *c = cpu();
    for (int i = 0; i < 2; i++) {
        const cup_gpt_config *config = i ? &llama : &gpt2;
        cup_gpt *m = cup_gpt_new(c, CUP_F32, config);
        EXPECT_INT(cup_parameters_count(m->parameters, true),
                   cup_gpt_parameter_count(config, true));
        cup_gpt_free(m);
    }
    cup_context_free(c);
}

TEST(gpt_begins_as_it_should)
{
    cup_context *c = cpu();
    cup_gpt_config config = {.size = sizeof config,
                             .layers = 8,
                             .heads = 4,
                             .width = 64,
                             .context = 32,
                             .vocabulary = 203,
                             .bias = true};
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &config);
    int64_t weights;
    const cup_named *weight = cup_parameters_named(m->parameters, &weights);
    EXPECT_TEXT(weight[0].name, "wte.weight");
    EXPECT_INT(cup_tensor_size(weight[0].tensor, 0), 203);
    EXPECT_INT(cup_tensor_size(m->embedding, 0) % 8, 0);
    for (int64_t i = 0; i < weights; i++) {
        cup_tensor *t = weight[i].tensor;
        const char *name = weight[i].name;
        double mean = cup_tensor_item(cup_mean(c, t, NULL, 0, false));
        double deviation = sqrt(cup_tensor_item(cup_var(c, t, NULL, 0, 0, NULL)));
        double want = strstr(name, "ln_") || strstr(name, ".bias") ? 0
                      : strstr(name, "c_proj.weight")              ? 0.02 / 4
                                                                   : 0.02;
        EXPECT_NEAR(mean, strstr(name, "ln_") && strstr(name, ".weight") ? 1 : 0, 0.002);
        EXPECT_NEAR(deviation, want, 0.1 * want + 1e-9);
    }
    /* As good as guessing, and the spare rows of the embedding count for nothing. */
    cup_tensor *loss = cup_gpt_loss(m, text(c, 203, 3, 12, 0), text(c, 203, 3, 12, 1), false);
    EXPECT_NEAR(cup_tensor_item(loss), log(203), 0.1);
    EXPECT_INT(cup_tensor_size(cup_gpt_logits(m, text(c, 203, 3, 12, 0)), 2), 203);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(gpt_refuses_what_cannot_be)
{
    static const struct {
        cup_gpt_config change; /* fields that are not 0 replace those of a good one */
        const char *words;
    } bad[] = {
        {{.layers = -1}, "layers must be from 1"},
        {{.layers = 5000}, "layers must be from 1"},
        {{.heads = -3}, "heads must be from 1"},
        {{.heads = 3}, "the width 16 is not a multiple of the 3 heads; 18 would be"},
        {{.width = INT64_MAX}, "width must be from 1"},
        {{.context = -5}, "context must be from 1"},
        {{.vocabulary = 1 << 30}, "vocabulary must be from 1"},
        {{.kv_heads = 3}, "kv_heads"},
        {{.hidden = -1}, "hidden must be from 1"},
        {{.heads = 16, .positions = CUP_POSITIONS_ROTARY}, "even size"},
        {{.dropout = 1}, "dropout must be at least 0 and below 1"},
        {{.dropout = NAN}, "dropout"},
        {{.epsilon = 2}, "epsilon"},
        {{.rope_base = -1}, "rope_base"},
        {{.head_size = -1}, "head_size must be from 1 to"},
        {{.head_size = INT64_MAX}, "head_size must be from 1 to"},
        {{.head_size = 7, .positions = CUP_POSITIONS_ROTARY}, "even size, not 7"},
        {{.rope_scaling = {.factor = -1}}, "rope_scaling"},
        {{.rope_scaling = {.factor = 2, .low = 9}}, "high must be above low"},
        {{.mlp = 9}, "none of its kinds"},
    };
    cup_context *c = cpu();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cup_gpt_config config = gpt2;
        const cup_gpt_config *change = &bad[i].change;
#define CHANGE(field)                                                                              \
    if (change->field != 0)                                                                        \
    config.field = change->field
        CHANGE(layers);
        CHANGE(heads);
        CHANGE(width);
        CHANGE(context);
        CHANGE(vocabulary);
        CHANGE(kv_heads);
        CHANGE(hidden);
        CHANGE(positions);
        CHANGE(mlp);
        CHANGE(dropout);
        CHANGE(epsilon);
        CHANGE(rope_base);
        CHANGE(head_size);
        config.rope_scaling = change->rope_scaling;
        EXPECT(cup_gpt_new(c, CUP_F32, &config) == NULL);
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), bad[i].words);
        EXPECT_INT(cup_gpt_parameter_count(&config, true), -1);
        cup_error_clear(c);
    }
    cup_context_free(c);
}

TEST(gpt_refuses_dtypes_and_texts)
{
    cup_context *c = cpu();
    EXPECT(cup_gpt_new(c, CUP_I32, &gpt2) == NULL);
    EXPECT_INT(cup_error(c), CUP_DTYPE);
    cup_error_clear(c);
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &gpt2);
    EXPECT(cup_gpt_logits(m, text(c, 29, 1, 13, 0)) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "T from 1 to the context 12");
    cup_error_clear(c);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(gpt_survives_every_failed_allocation)
{
    for (long n = 1;; n += n < 60 ? 1 : 7) {
        cup_context *c = cpu();
        cup__memory_fail_at(n, false);
        cup_gpt *m = cup_gpt_new(c, CUP_F32, &gpt2);
        cup_tensor *loss = NULL;
        if (m)
            loss = cup_gpt_loss(m, text(c, 29, 2, 12, 0), text(c, 29, 2, 12, 1), true);
        cup_status status = cup_backward(c, loss);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || cup_error(c) == CUP_MEMORY);
        cup_gpt_free(m);
        cup_context_free(c);
        if (status == CUP_OK)
            break;
        EXPECT(n < 5000);
    }
}

/* On a GPU that is not there every call gets as far as its launch, or says why it cannot. */
static void expect_kernels(const char *arch, const cup_gpt_config *config, cup_dtype dtype)
{
    cup_context *c = cup__context_dry(arch);
    cup_gpt *m = cup_gpt_new(c, dtype, config);
    cup_optimizer *o = m ? cup_optimizer_of(m->parameters, NULL) : NULL;
    cup_optimizer_set(o, 0.1, 1);
    cup_scope_open(c);
    cup_tensor *loss = NULL;
    if (m)
        loss = cup_gpt_loss(m, text(c, config->vocabulary, 3, 12, 0),
                            text(c, config->vocabulary, 3, 12, 1), true);
    cup_backward(c, loss);
    cup_optimizer_step(o);
    cup_optimizer_clear(o);
    cup_scope_close(c);
    cup_gpt_cache *cache = m ? cup_gpt_cache_new(m, 3, 0) : NULL;
    cup_gpt_read(cache, text(c, config->vocabulary, 3, 11, 0));
    cup_gpt_read(cache, text(c, config->vocabulary, 3, 1, 0));
    if (cup_error(c) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s, %s: %s", arch, cup_dtype_name(dtype), cup_error_text(c));
    cup_gpt_cache_free(cache);
    cup_optimizer_free(o);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(gpt_has_a_kernel_for_everything)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F16, CUP_F64};
    for (int i = 0; cup__architectures[i]; i++)
        for (int k = 0; k < 4; k++) {
            cup_gpt_config dropped = gpt2;
            dropped.dropout = 0.1;
            expect_kernels(cup__architectures[i], &dropped, dtypes[k]);
            expect_kernels(cup__architectures[i], &llama, dtypes[k]);
        }
}

/* The embedding has rows up to a multiple of 64, of which only the vocabulary's are tokens. */
TEST(gpt_knows_its_tokens)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const cup_gpt_config config = {
        .size = sizeof config, .layers = 1, .heads = 1, .width = 8, .context = 4, .vocabulary = 61};
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &config);
    cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
    static const int32_t bad[] = {61, 64, -1};
    for (int i = 0; i < 3; i++) {
        cup_tensor *tokens = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, 1}, &bad[i]);
        EXPECT(!cup_gpt_logits(m, tokens));
        EXPECT_CONTAINS(cup_error_text(c), "is none of the model's 61");
        cup_error_clear(c);
        EXPECT(!cup_gpt_loss(m, tokens, tokens, false));
        cup_error_clear(c);
        EXPECT(!cup_gpt_read(cache, tokens));
        EXPECT_CONTAINS(cup_error_text(c), "is none of the model's 61");
        cup_error_clear(c);
    }
    cup_gpt_cache_free(cache);
    cup_gpt_free(m);
    cup_context_free(c);
}
