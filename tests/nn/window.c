/* Attention in a window, of which a position is the last. bench/published.py holds whole models
 * with one to PyTorch's. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "nn/sharp.h"
#include "test.h"

#define LENGTH 24

static const cup_gpt_config windowed = {.size = sizeof(cup_gpt_config),
                                        .layers = 3,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .width = 16,
                                        .context = LENGTH,
                                        .vocabulary = WORDS,
                                        .positions = CUP_POSITIONS_ROTARY,
                                        .norm = CUP_NORM_KIND_RMSNORM,
                                        .mlp = CUP_MLP_KIND_SWIGLU,
                                        .window = 5,
                                        .window_from = 1};

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
}

static void logits_of(cup_gpt *m, int64_t from, int64_t to, float (*out)[WORDS])
{
    EXPECT_INT(cup_tensor_read(cup_gpt_logits(m, sharp_tokens(m->context, 1, from, to)), out,
                               (size_t)(to - from) * sizeof *out),
               CUP_OK);
}

static bool near(const float *a, const float *b, double most)
{
    double worst = 0;
    for (int i = 0; i < WORDS; i++)
        worst = fmax(worst, fabs((double)a[i] - b[i]));
    return worst <= most;
}

/* The layer against the op with a bias that hides what the window does, in values and gradients. */
TEST(window_hides_what_stands_before_it)
{
    enum { T = 9, W = 8, WINDOW = 3 };
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_attention_layer layer;
    EXPECT_INT(cup_attention_layer_new(&layer, list, "a", W, 2,
                                       CUP_OPTIONS(cup_attention_layer_options, .causal = true,
                                                   .window = WINDOW)),
               CUP_OK);
    float hidden[T][T], got[T * W], want[T * W];
    for (int q = 0; q < T; q++)
        for (int k = 0; k < T; k++)
            hidden[q][k] = k <= q - WINDOW ? -INFINITY : 0;
    cup_tensor *bias = cup_tensor_from(c, CUP_F32, 4, (int64_t[]){1, 1, T, T}, hidden);
    for (int k = 0; k < 2; k++) {
        cup_tensor *x = cup_normal(c, CUP_F32, 3, (int64_t[]){2, T, W}, 0, 1);
        cup_tensor *other = cup_copy(c, x);
        cup_require_grad(x);
        cup_require_grad(other);
        cup_tensor *y = cup_attention_layer_call(&layer, x);
        cup_tensor *o = cup_qkv_attention(
            c, cup_linear_layer_call(&layer.qkv, other), 2,
            CUP_OPTIONS(cup_qkv_attention_options, .causal = true, .bias = bias));
        cup_tensor *z = cup_linear_layer_call(&layer.out, o);
        cup_tensor *squares = cup_add(c, cup_mul(c, y, y), cup_mul(c, z, z));
        EXPECT_INT(cup_backward(c, cup_sum(c, squares, NULL, 0, false)), CUP_OK);
        cup_tensor *pairs[2][2] = {{y, z}, {cup_grad(x), cup_grad(other)}};
        for (int p = 0; p < 2; p++) {
            cup_tensor *first = cup_slice(c, pairs[p][0], (int64_t[]){0, 0, 0}, 3,
                                          (int64_t[]){1, T, W}, 3);
            EXPECT_INT(cup_tensor_read(cup_copy(c, first), got, sizeof got), CUP_OK);
            first = cup_slice(c, pairs[p][1], (int64_t[]){0, 0, 0}, 3, (int64_t[]){1, T, W}, 3);
            EXPECT_INT(cup_tensor_read(cup_copy(c, first), want, sizeof want), CUP_OK);
            for (int i = 0; i < T * W; i++)
                EXPECT_NEAR(got[i], want[i], 1e-5);
        }
    }
    cup_parameters_free(list);
    cup_context_free(c);
}

/* A block with a window tells the last token of nothing before it, the first block here of all. */
TEST(window_of_a_gpt_begins_with_a_block)
{
    static float all[LENGTH][WORDS], some[LENGTH][WORDS];
    cup_context *c = cpu();
    for (int from = 0; from < 2; from++) {
        cup_gpt_config config = windowed;
        config.layers = 1;
        config.window_from = from;
        cup_gpt *m = sharp_gpt(c, &config, 15, 0);
        logits_of(m, 0, LENGTH, all);
        logits_of(m, LENGTH - 5, LENGTH, some);
        EXPECT_INT(near(all[LENGTH - 1], some[4], 1e-4), !from);
        logits_of(m, LENGTH - 4, LENGTH, some);
        EXPECT(!near(all[LENGTH - 1], some[3], 1e-3));
        cup_gpt_free(m);
    }
    cup_context_free(c);
}

/* Texts read in pieces, token by token, and by a generator far beyond the window. */
TEST(window_is_kept_by_what_reads_token_by_token)
{
    static float all[LENGTH][WORDS], last[1][WORDS];
    cup_context *c = cpu();
    cup_gpt *m = sharp_gpt(c, &windowed, 15, 0);
    logits_of(m, 0, LENGTH, all);
    cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
    for (int64_t at = 0, step = 7; at < LENGTH; at += step, step = step > 2 ? step - 2 : 1) {
        cup_tensor *y = cup_gpt_read(cache, sharp_tokens(c, 1, at, at + step));
        EXPECT_INT(cup_tensor_read(y, last, sizeof last), CUP_OK);
        EXPECT(near(*last, all[at + step - 1], 1e-4));
    }
    cup_gpt_cache_free(cache);
    cup_generator *g = cup_generator_new(m, CUP_OPTIONS(cup_sampling, .temperature = -1));
    int32_t fed[LENGTH];
    for (int i = 0; i < LENGTH - 1; i++)
        fed[i] = sharp_token(0, i);
    EXPECT_INT(cup_generator_feed(g, fed, LENGTH - 1), CUP_OK);
    int best = 0;
    for (int i = 1; i < WORDS; i++)
        best = all[LENGTH - 2][i] > all[LENGTH - 2][best] ? i : best;
    EXPECT_INT(cup_generator_next(g), best);
    cup_generator_free(g);
    cup_gpt_free(m);
    cup_context_free(c);
}

#define LONG 300

/* Of blocks that see no more than a few positions behind. */
static cup_gpt *long_gpt(cup_context *c, int i)
{
    static const cup_positions positions[] = {CUP_POSITIONS_ROTARY, CUP_POSITIONS_LEARNED,
                                              CUP_POSITIONS_ALIBI, CUP_POSITIONS_ROTARY};
    cup_gpt_config config = windowed;
    config.context = LONG;
    config.positions = positions[i];
    config.window_from = i % 2;
    config.window = i == 3 ? 150 : i == 2 ? 1 : 5;
    return sharp_gpt(c, &config, 15, 0);
}

static int64_t bytes_of(cup_context *c)
{
    cup_memory memory;
    EXPECT_INT(cup_memory_use(c, &memory), CUP_OK);
    return memory.allocated;
}

/* Read in pieces, some larger than there is room for at once, and cut, against all that was. */
TEST(window_alone_is_kept)
{
    enum { TEXTS = 2 };
    static float all[TEXTS * WORDS], some[TEXTS * WORDS];
    static const int64_t steps[] = {1, 7, 140, 1, 1, 100, 3};
    for (int i = 0; i < 4; i++) {
        cup_context *c = cpu();
        cup_gpt *m = long_gpt(c, i);
        int64_t empty = bytes_of(c);
        cup_gpt_cache *whole = cup_gpt_cache_new(m, TEXTS, 0);
        int64_t more = bytes_of(c) - empty;
        cup_gpt_cache *near_one = cup_gpt_cache_window_new(m, TEXTS, 0);
        int64_t less = bytes_of(c) - empty - more, from = m->config.window_from;
        int64_t room = m->config.window - 1 + 128, layers = m->config.layers;
        EXPECT_NEAR((double)less / (double)more,
                    (double)(from * LONG + (layers - from) * room) / (double)(layers * LONG), 0.1);
        for (int64_t at = 0, k = 0; at < LONG; k++) {
            int64_t to = at + steps[k % 7] < LONG ? at + steps[k % 7] : LONG;
            cup_scope_open(c);
            cup_tensor *tokens = sharp_tokens(c, TEXTS, at, to);
            EXPECT_INT(cup_tensor_read(cup_gpt_read(whole, tokens), all, sizeof all), CUP_OK);
            EXPECT_INT(cup_tensor_read(cup_gpt_read(near_one, tokens), some, sizeof some), CUP_OK);
            cup_scope_close(c);
            EXPECT(near(all, some, 2e-4) && near(all + WORDS, some + WORDS, 2e-4));
            EXPECT_INT(cup_gpt_cache_used(near_one), to);
            at = k % 3 == 2 && to > 2 ? to - 1 : to;
            cup_gpt_cache_cut(whole, at);
            cup_gpt_cache_cut(near_one, at);
            EXPECT_INT(cup_gpt_cache_used(near_one), at);
            if (to == LONG)
                break;
        }
        if (m->config.window > 1) {
            cup_gpt_cache_cut(near_one, 20);
            EXPECT_INT(cup_gpt_cache_used(near_one), 0);
            EXPECT_INT(cup_gpt_cache_set(near_one, LONG), CUP_ARGUMENT);
            EXPECT_CONTAINS(cup_error_text(c), "see cup_gpt_cache_reserve");
            cup_error_clear(c);
            EXPECT_INT(cup_gpt_cache_reserve(near_one, LONG), CUP_ARGUMENT);
            EXPECT_CONTAINS(cup_error_text(c), "room for up to 128 more tokens at once");
            cup_error_clear(c);
        }
        cup_gpt_cache_free(near_one);
        cup_gpt_cache_free(whole);
        cup_gpt_free(m);
        cup_context_free(c);
    }
}

/* A generator writes what all that was read would make it write, token for token. */
TEST(window_alone_is_kept_by_generators)
{
    static float logits[WORDS];
    for (int i = 0; i < 4; i++) {
        cup_context *c = cpu();
        cup_gpt *m = long_gpt(c, i);
        cup_gpt_cache *whole = cup_gpt_cache_new(m, 1, 0);
        int64_t held = bytes_of(c);
        cup_generator *g = cup_generator_new(m, CUP_OPTIONS(cup_sampling, .temperature = -1));
        EXPECT(bytes_of(c) - held < held);
        int32_t token = 3;
        for (int k = 0; k < LONG; k++) {
            cup_scope_open(c);
            cup_tensor *one = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, 1}, &token);
            EXPECT_INT(cup_tensor_read(cup_gpt_read(whole, one), logits, sizeof logits), CUP_OK);
            cup_scope_close(c);
            EXPECT_INT(k ? CUP_OK : cup_generator_feed(g, &token, 1), CUP_OK);
            token = 0;
            for (int w = 1; w < WORDS; w++)
                token = logits[w] > logits[token] ? w : token;
            EXPECT_INT(cup_generator_next(g), token);
        }
        cup_generator_free(g);
        cup_gpt_cache_free(whole);
        cup_gpt_free(m);
        cup_context_free(c);
    }
}

/* What a window does not hide must be there. */
TEST(window_must_hide_what_is_gone)
{
    enum { W = 8 };
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_transformer_layer layer;
    EXPECT_INT(cup_transformer_layer_new(&layer, list, "a", W, 2,
                                         CUP_OPTIONS(cup_transformer_layer_options, .causal = true,
                                                     .window = 4)),
               CUP_OK);
    const int64_t shape[] = {1, 2, 6, W / 2};
    cup_tensor *x = cup_zeros(c, CUP_F32, 3, (int64_t[]){1, 1, W});
    cup_tensor *keys = cup_zeros(c, CUP_F32, 4, shape), *values = cup_zeros(c, CUP_F32, 4, shape);
    EXPECT(cup_transformer_layer_read_window(&layer, x, NULL, keys, values, 3, 7));
    EXPECT(!cup_transformer_layer_read_window(&layer, x, NULL, keys, values, 2, 1));
    EXPECT_CONTAINS(cup_error_text(c), "a window of 4 does not hide all, behind 2 that are");
    cup_error_clear(c);
    EXPECT(!cup_transformer_layer_read_window(&layer, x, NULL, keys, values, 2, -1));
    EXPECT_INT(cup_error(c), CUP_ARGUMENT);
    cup_error_clear(c);
    cup_parameters_free(list);
    cup_context_free(c);
}

/* Where the cache is no longer than the window there is nothing to hide. */
TEST(window_lets_short_texts_be_read_on_the_device)
{
    static float all[5][WORDS], last[1][WORDS];
    cup_context *c = cpu();
    cup_gpt *m = sharp_gpt(c, &windowed, 15, 0);
    logits_of(m, 0, 5, all);
    cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 5);
    for (int64_t i = 0; i < 5; i++) {
        cup_tensor *position = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){1}, &i);
        cup_tensor *y = cup_gpt_read_at(cache, sharp_tokens(c, 1, i, i + 1), position);
        EXPECT_INT(cup_tensor_read(y, last, sizeof last), CUP_OK);
        EXPECT(near(*last, all[i], 1e-4));
    }
    cup_gpt_cache_free(cache);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(window_that_cannot_be_is_refused)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_attention_layer layer;
    EXPECT_INT(cup_attention_layer_new(&layer, list, "a", 8, 2,
                                       CUP_OPTIONS(cup_attention_layer_options, .window = 3)),
               CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "of causal attention");
    cup_error_clear(c);
    cup_gpt_config config = windowed;
    config.window = -1;
    EXPECT_INT(cup_gpt_config_check(c, &config), CUP_ARGUMENT);
    cup_error_clear(c);
    config.window = 0;
    EXPECT_INT(cup_gpt_config_check(c, &config), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "window_from");
    cup_error_clear(c);
    cup_parameters_free(list);
    cup_context_free(c);
}
