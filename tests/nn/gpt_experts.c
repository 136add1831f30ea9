/* A GPT with experts in place of its MLPs. */
#include <math.h>

#include "cupola/cupola.h"
#include "test.h"

enum { BATCH = 2, LENGTH = 6, VOCABULARY = 11 };

static cup_gpt_config small(bool gated)
{
    return (cup_gpt_config){.size = sizeof(cup_gpt_config),
                            .layers = 2,
                            .heads = 2,
                            .width = 8,
                            .context = 8,
                            .vocabulary = VOCABULARY,
                            .hidden = 6,
                            .bias = !gated,
                            .mlp = gated ? CUP_MLP_KIND_SWIGLU : CUP_MLP_KIND_GELU,
                            .norm = gated ? CUP_NORM_KIND_RMSNORM : CUP_NORM_KIND_LAYERNORM,
                            .positions = gated ? CUP_POSITIONS_ROTARY : CUP_POSITIONS_LEARNED,
                            .experts = 4,
                            .experts_each = 2,
                            .balance = 0.5,
                            .router_z = gated ? 0.25 : 0};
}

static cup_tensor *ids(cup_context *c, int from)
{
    int32_t all[BATCH * LENGTH];
    for (int i = 0; i < BATCH * LENGTH; i++)
        all[i] = (i * 7 + from + i * i) % VOCABULARY;
    return cup_tensor_from(c, CUP_I32, 2, (int64_t[]){BATCH, LENGTH}, all);
}

/* Larger than they begin, so that experts and rows of the router differ. */
static cup_gpt *make(cup_context *c, const cup_gpt_config *config)
{
    cup_gpt *m = cup_gpt_new(c, CUP_F64, config);
    int64_t count;
    const cup_named *named = cup_parameters_named(m ? m->parameters : NULL, &count);
    for (int64_t i = 0; named && i < count; i++) {
        double *at = cup_tensor_data(named[i].tensor);
        for (int64_t k = 0; k < cup_tensor_count(named[i].tensor); k++)
            at[k] *= 12;
    }
    return m;
}

static double loss_at(cup_gpt *m)
{
    cup_scope_open_without_grad(m->context);
    double loss = cup_tensor_item(cup_gpt_loss(m, ids(m->context, 1), ids(m->context, 4), true));
    cup_scope_close(m->context);
    return loss;
}

TEST(gpt_experts_have_the_slopes_of_differences)
{
    static const char *const names[] = {
        "h.0.mlp.router.weight", "h.1.mlp.router.weight", "h.0.mlp.experts.c_fc.weight",
        "h.1.mlp.experts.c_proj.weight", "wte.weight", "h.1.attn.c_attn.weight"};
    const double step = 1e-6;
    for (int run = 0; run < 10; run++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 2));
        cup_gpt_config config = small(run % 2);
        cup_gpt *m = make(c, &config);
        m->recompute = (cup_recompute_policy)(run / 2); /* all of them */
        EXPECT_INT(cup_backward(c, cup_gpt_loss(m, ids(c, 1), ids(c, 4), true)), CUP_OK);
        for (int i = 0; i < 6; i++) {
            cup_tensor *t = cup_parameters_find(m->parameters, names[i]);
            EXPECT(t && cup_grad(t));
            for (int64_t k = 1; k < cup_tensor_count(t); k += 1 + cup_tensor_count(t) / 7) {
                double *at = (double *)cup_tensor_data(t) + k, was = *at, ends[2];
                for (int e = 0; e < 2; e++) {
                    *at = was + (e ? step : -step);
                    ends[e] = loss_at(m);
                }
                *at = was;
                double slope = ((const double *)cup_tensor_data(cup_grad(t)))[k];
                EXPECT_NEAR(slope, (ends[1] - ends[0]) / (2 * step), 1e-6 * (1 + fabs(slope)));
            }
        }
        cup_gpt_free(m);
        cup_context_free(c);
    }
}

/* What experts cost is of training alone, and 1 for each block where all are alike. */
TEST(gpt_experts_cost_in_training)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 2));
    cup_gpt_config config = small(false);
    config.experts_each = 4;
    cup_gpt *m = make(c, &config);
    double plain = cup_tensor_item(cup_gpt_loss(m, ids(c, 1), ids(c, 4), false));
    EXPECT_NEAR(loss_at(m) - plain, 2 * 0.5, 1e-12);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(gpt_experts_read_on)
{
    for (int gated = 0; gated < 2; gated++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 2));
        cup_gpt_config config = small(gated);
        config.capacity = 0.5; /* which writing does not heed */
        cup_gpt *m = make(c, &config);
        cup_tensor *tokens = ids(c, 1), *all = cup_gpt_logits(m, tokens), *logits = NULL;
        cup_gpt_cache *cache = cup_gpt_cache_new(m, BATCH, 0);
        for (int t = 0; t < LENGTH; t++)
            logits = cup_gpt_read(cache, cup_slice(c, tokens, (int64_t[]){0, t}, 2,
                                                   (int64_t[]){-1, 1}, 2));
        cup_tensor *last = cup_slice(c, all, (int64_t[]){0, LENGTH - 1, 0}, 3,
                                     (int64_t[]){-1, 1, -1}, 3);
        cup_tensor *d = cup_sub(c, logits, cup_reshape(c, last, 2, (int64_t[]){BATCH, VOCABULARY}));
        EXPECT(cup_tensor_item(cup_max(c, cup_abs(c, d), NULL, 0, false)) < 1e-12);
        cup_gpt_cache_cut(cache, LENGTH - 1);
        int64_t place = LENGTH - 1;
        cup_tensor *position = cup_tensor_from(c, CUP_I64, 0, NULL, &place);
        cup_tensor *again = cup_gpt_read_at(
            cache, cup_slice(c, tokens, (int64_t[]){0, place}, 2, (int64_t[]){-1, 1}, 2), position);
        d = cup_sub(c, again, logits);
        EXPECT(cup_tensor_item(cup_max(c, cup_abs(c, d), NULL, 0, false)) < 1e-12);
        cup_gpt_cache_free(cache);
        cup_gpt_free(m);
        cup_context_free(c);
    }
}

TEST(gpt_experts_are_counted)
{
    cup_gpt_config config = small(true), dense = config;
    config.layers = dense.layers = 3;
    dense.experts = dense.experts_each = 0;
    dense.balance = dense.router_z = 0;
    int64_t mlp = 3 * 6 * 8, router = 4 * 8, rest = cup_gpt_parameter_count(&dense, true) - 3 * mlp;
    EXPECT_INT(cup_gpt_parameter_count(&config, true), rest + 3 * (4 * mlp + router));
    EXPECT_INT(cup_gpt_active_count(&config, true), rest + 3 * (2 * mlp + router));
    EXPECT_INT(cup_gpt_active_count(&dense, false), cup_gpt_parameter_count(&dense, false));
    config.experts_each = 0;
    EXPECT_INT(cup_gpt_active_count(&config, true), rest + 3 * (2 * mlp + router));
}

TEST(gpt_experts_that_cannot_be_are_refused)
{
    const struct {
        int64_t experts, each;
        double capacity, balance;
        const char *words;
    } cases[] = {{-1, 0, 0, 0, "experts must be from 1"},
                 {1 << 26, 0, 0, 0, "experts must be from 1"},
                 {4, 5, 0, 0, "experts_each must be from 1 to 4, not 5"},
                 {4, 2, -1, 0, "must be at least 0, not -1"},
                 {4, 2, 0, NAN, "must be at least 0"},
                 {0, 2, 0, 0, "of which there are none; set experts"},
                 {0, 0, 0, 1, "of which there are none; set experts"}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cup_gpt_config config = small(false);
        config.experts = cases[i].experts;
        config.experts_each = cases[i].each;
        config.capacity = cases[i].capacity;
        config.balance = cases[i].balance;
        EXPECT(!cup_gpt_new(c, CUP_F32, &config));
        EXPECT_CONTAINS(cup_error_text(c), cases[i].words);
        cup_error_clear(c);
    }
    cup_gpt_config config = small(false);
    config.balance = 0.01;
    cup_gpt *stage = cup_gpt_stage_new(c, CUP_F32, 0, 1, &config, NULL);
    EXPECT(!cup_gpt_stage_call(stage, NULL, NULL, NULL, true));
    EXPECT_CONTAINS(cup_error_text(c), "call cup_gpt_chunk_call_cost");
    cup_error_clear(c);
    cup_gpt_free(stage);
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &config);
    /* Which have no adapters: attention has. */
    EXPECT_INT(cup_gpt_adapt(m, 2, 0, false), CUP_OK);
    int64_t count;
    cup_parameters_named(m->adapters, &count);
    EXPECT_INT(count, 4 * m->config.layers);
    EXPECT_INT(cup_gpt_merge(m), CUP_OK);
    cup_gpt_free(m);
    cup_context_free(c);
}
