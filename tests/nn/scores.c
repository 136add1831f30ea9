/* What layers and GPTs make of the scores of attention: soft caps, slopes by distance, sinks; and
 * caps of logits. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "nn/sharp.h"
#include "test.h"

#define LENGTH 20

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
}

static void expect_near(cup_tensor *a, cup_tensor *b, double most)
{
    static float x[4096], y[4096];
    EXPECT(a && b && cup_tensor_count(a) == cup_tensor_count(b) && cup_tensor_count(a) <= 4096);
    size_t bytes = (size_t)cup_tensor_count(a) * sizeof *x;
    EXPECT_INT(cup_tensor_read(a, x, bytes), CUP_OK);
    EXPECT_INT(cup_tensor_read(b, y, bytes), CUP_OK);
    for (int64_t i = 0; i < cup_tensor_count(a); i++)
        EXPECT_NEAR(x[i], y[i], most);
}

static cup_tensor *numbers(cup_context *c, int64_t n, const float *values)
{
    return cup_tensor_from(c, CUP_F32, 1, &n, values);
}

/* The layer against the op with all that is said to it, in values and gradients. Six heads have the
 * slopes of four, and two of eight. */
TEST(scores_of_a_layer_are_capped_sloped_and_sunk)
{
    enum { T = 9, W = 24, HEADS = 6 };
    static const float slopes[] = {0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f};
    static const float logits[] = {0.5f, -1, 2, 0, 1, 0.25f};
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_attention_layer layer;
    EXPECT_INT(cup_attention_layer_new(&layer, list, "a", W, HEADS,
                                       CUP_OPTIONS(cup_attention_layer_options, .causal = true,
                                                   .soft_cap = 0.3, .alibi = true, .sinks = true,
                                                   .deviation = 1,
                                                   .initializer = CUP_INITIALIZER_NORMAL)),
               CUP_OK);
    EXPECT(cup_parameters_find(list, "a.sinks") == layer.sinks);
    EXPECT_INT(cup_tensor_write(layer.sinks, logits, sizeof logits), CUP_OK);
    cup_tensor *sinks = cup_require_grad(numbers(c, HEADS, logits));
    cup_tensor *x = cup_normal(c, CUP_F32, 3, (int64_t[]){2, T, W}, 0, 1);
    cup_tensor *other = cup_require_grad(cup_copy(c, x));
    cup_require_grad(x);
    cup_tensor *y = cup_attention_layer_call(&layer, x);
    cup_tensor *o = cup_qkv_attention(
        c, cup_linear_layer_call(&layer.qkv, other), HEADS,
        CUP_OPTIONS(cup_qkv_attention_options, .causal = true, .soft_cap = 0.3,
                    .slopes = numbers(c, HEADS, slopes), .sinks = sinks));
    cup_tensor *z = cup_linear_layer_call(&layer.out, o);
    EXPECT_TEXT(cup_error_text(c), "");
    expect_near(y, z, 1e-5);
    cup_tensor *squares = cup_add(c, cup_mul(c, y, y), cup_mul(c, z, z));
    EXPECT_INT(cup_backward(c, cup_sum(c, squares, NULL, 0, false)), CUP_OK);
    expect_near(cup_grad(x), cup_grad(other), 2e-3);
    expect_near(cup_grad(layer.sinks), cup_grad(sinks), 2e-3);
    cup_parameters_free(list);
    cup_context_free(c);
}

/* Made once, for all layers of a list that have the same heads: what is written over them is what
 * counts from then on, outside of the scope that the layers were made in. */
TEST(scores_have_slopes_that_are_made_once)
{
    enum { T = 9, W = 24, HEADS = 6 };
    static const float others[HEADS] = {1, 0.5f, 2, 0, 0.25f, 3};
    const cup_attention_layer_options *o = CUP_OPTIONS(
        cup_attention_layer_options, .causal = true, .alibi = true, .deviation = 1,
        .initializer = CUP_INITIALIZER_NORMAL);
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32), *wide = cup_parameters_new(c, CUP_F64);
    cup_attention_layer a, b, fewer, plain, doubles;
    cup_scope_open(c);
    EXPECT_INT(cup_attention_layer_new(&a, list, "a", W, HEADS, o), CUP_OK);
    EXPECT_INT(cup_attention_layer_new(&b, list, "b", W, HEADS, o), CUP_OK);
    EXPECT_INT(cup_attention_layer_new(&fewer, list, "fewer", W, HEADS / 2, o), CUP_OK);
    EXPECT_INT(cup_attention_layer_new(&plain, list, "plain", W, HEADS, NULL), CUP_OK);
    EXPECT_INT(cup_attention_layer_new(&doubles, wide, "wide", W, HEADS, o), CUP_OK);
    cup_scope_close(c);
    EXPECT(a.slopes && a.slopes == b.slopes && !plain.slopes);
    EXPECT(fewer.slopes != a.slopes && cup_tensor_count(fewer.slopes) == HEADS / 2);
    EXPECT_INT(cup_tensor_dtype(doubles.slopes), CUP_F64);
    EXPECT_INT(cup_parameters_count(list, false), 4 * (4 * W * W + 4 * W));
    EXPECT_INT(cup_tensor_write(a.slopes, others, sizeof others), CUP_OK);
    cup_tensor *x = cup_normal(c, CUP_F32, 3, (int64_t[]){2, T, W}, 0, 1);
    cup_tensor *heads = cup_qkv_attention(
        c, cup_linear_layer_call(&b.qkv, x), HEADS,
        CUP_OPTIONS(cup_qkv_attention_options, .causal = true,
                    .slopes = numbers(c, HEADS, others)));
    expect_near(cup_attention_layer_call(&b, x), cup_linear_layer_call(&b.out, heads), 1e-5);
    cup_parameters_free(wide);
    cup_parameters_free(list);
    cup_context_free(c);
}

static const cup_gpt_config capped = {.size = sizeof(cup_gpt_config),
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .width = 16,
                                      .context = LENGTH,
                                      .vocabulary = WORDS,
                                      .positions = CUP_POSITIONS_ALIBI,
                                      .window = 7,
                                      .window_from = 1,
                                      .soft_cap = 2,
                                      .logits_cap = 3,
                                      .sinks = true};

/* Each of them changes what the model gives; and what reads token by token knows of all. */
TEST(scores_of_a_gpt_are_those_of_what_reads_token_by_token)
{
    cup_context *c = cpu();
    cup_gpt *m = sharp_gpt(c, &capped, 15, 0.125);
    cup_tensor *all = cup_gpt_logits(m, sharp_tokens(c, 1, 0, LENGTH));
    cup_tensor *last = cup_slice(c, all, (int64_t[]){0, LENGTH - 1, 0}, 3,
                                 (int64_t[]){1, 1, WORDS}, 3);
    cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
    cup_tensor *y = NULL;
    for (int64_t at = 0, step = 7; at < LENGTH; at += step, step = step > 2 ? step - 2 : 1)
        y = cup_gpt_read(cache, sharp_tokens(c, 1, at, at + step));
    expect_near(y, cup_copy(c, last), 1e-5);
    float worst = cup_tensor_item(cup_max(c, cup_abs(c, all), NULL, 0, false));
    EXPECT(worst > 1 && worst < 3);
    cup_gpt_cache_free(cache);
    cup_generator *g = cup_generator_new(m, CUP_OPTIONS(cup_sampling, .temperature = -1));
    int32_t fed[LENGTH], best;
    for (int i = 0; i < LENGTH - 1; i++)
        fed[i] = (5 * i + i * i) % WORDS;
    EXPECT_INT(cup_generator_feed(g, fed, LENGTH - 1), CUP_OK);
    cup_tensor *row =
        cup_slice(c, all, (int64_t[]){0, LENGTH - 2, 0}, 3, (int64_t[]){1, 1, WORDS}, 3);
    cup_tensor *at = cup_cast(c, cup_argmax(c, row, (int64_t[]){2}, 1, false), CUP_I32);
    EXPECT_INT(cup_tensor_read(at, &best, sizeof best), CUP_OK);
    EXPECT_INT(cup_generator_next(g), best);
    cup_generator_free(g);
    for (int i = 0; i < 4; i++) {
        cup_gpt_config less = capped;
        less.soft_cap = i == 0 ? 0 : less.soft_cap;
        less.logits_cap = i == 1 ? 0 : less.logits_cap;
        less.sinks = i != 2;
        less.positions = i == 3 ? CUP_POSITIONS_ROTARY : less.positions;
        cup_gpt *n = sharp_gpt(c, &less, 15, 0.125);
        cup_tensor *apart = cup_sub(c, all, cup_gpt_logits(n, sharp_tokens(c, 1, 0, LENGTH)));
        EXPECT(cup_tensor_item(cup_max(c, cup_abs(c, apart), NULL, 0, false)) > 1e-3);
        cup_gpt_free(n);
    }
    cup_gpt_free(m);
    cup_context_free(c);
}

/* By differences, of the sinks and of what stands under all caps; and the same computed again. */
TEST(scores_of_a_gpt_have_gradients)
{
    cup_context *c = cpu();
    cup_gpt *m = sharp_gpt(c, &capped, 15, 0.125);
    cup_tensor *x = sharp_tokens(c, 1, 0, LENGTH), *t = sharp_tokens(c, 1, 1, LENGTH + 1);
    cup_tensor *probed[] = {m->blocks[0].attention.sinks, m->blocks[1].attention.qkv.weight};
    double slope[2][2];
    for (int again = 0; again < 2; again++) {
        m->recompute = again ? CUP_RECOMPUTE_POLICY_BLOCK : CUP_RECOMPUTE_POLICY_NONE;
        EXPECT_INT(cup_backward(c, cup_gpt_loss(m, x, t, true)), CUP_OK);
        for (int i = 0; i < 2; i++) {
            float first;
            cup_tensor *flat = cup_reshape(c, cup_grad(probed[i]), 1, (int64_t[]){-1});
            cup_tensor *one = cup_slice(c, flat, (int64_t[]){1}, 1, (int64_t[]){1}, 1);
            EXPECT_INT(cup_tensor_read(cup_copy(c, one), &first, sizeof first), CUP_OK);
            slope[again][i] = first;
            cup_grad_clear(probed[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        enum { MOST = 1024 };
        float values[MOST], loss[2];
        size_t bytes = (size_t)cup_tensor_count(probed[i]) * sizeof *values;
        EXPECT(bytes <= sizeof values);
        EXPECT_INT(cup_tensor_read(probed[i], values, bytes), CUP_OK);
        const float was = values[1];
        for (int side = 0; side < 2; side++) {
            values[1] = was + (side ? 0.01f : -0.01f);
            EXPECT_INT(cup_tensor_write(probed[i], values, bytes), CUP_OK);
            loss[side] = (float)cup_tensor_item(cup_gpt_loss(m, x, t, false));
        }
        values[1] = was;
        EXPECT_INT(cup_tensor_write(probed[i], values, bytes), CUP_OK);
        EXPECT(fabs(slope[0][i]) > 1e-4 && slope[0][i] == slope[1][i]);
        EXPECT_NEAR((loss[1] - loss[0]) / 0.02, slope[0][i], 2e-3 * fabs(slope[0][i]) + 1e-4);
    }
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(scores_that_cannot_be_are_refused)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_attention_layer layer;
    EXPECT_INT(cup_attention_layer_new(&layer, list, "a", 8, 2,
                                       CUP_OPTIONS(cup_attention_layer_options, .soft_cap = -1)),
               CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "a soft cap of -1 cannot be");
    cup_error_clear(c);
    cup_gpt_config config = capped;
    config.logits_cap = INFINITY;
    EXPECT_INT(cup_gpt_config_check(c, &config), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "not 2 and inf");
    cup_error_clear(c);
    cup_parameters_free(list);
    cup_context_free(c);
}
