/* Rows that are read at positions in device memory, and text that is written so, against what is
 * read behind what the host knows of: of models with windows, changed scores and sinks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/support.h"
#include "cupola/cupola.h"
#include "nn/sharp.h"
#include "test.h"

#define LENGTH 200
#define TEXTS 2
#define RUN 15 /* read singly, and as many at once */

/* What differs between the models, of which some keep their windows alone. */
static const struct family {
    cup_positions positions;
    int64_t window, window_from;
    double soft_cap;
    bool sinks, bias;
    const char *cache_dtype;
    int64_t original; /* of dynamic rotary positions */
} families[] = {
    {CUP_POSITIONS_ROTARY, 5, 1, 0, false, false, NULL, 0},
    {CUP_POSITIONS_ROTARY, 120, 0, 0, false, false, NULL, 0},
    {CUP_POSITIONS_LEARNED, 7, 0, 0, false, true, NULL, 0},
    {CUP_POSITIONS_ALIBI, 0, 0, 0, false, true, NULL, 0},
    {CUP_POSITIONS_ALIBI, 150, 1, 0, false, false, NULL, 0},
    {CUP_POSITIONS_ROTARY, 0, 0, 2, false, false, NULL, 0},
    {CUP_POSITIONS_ROTARY, 40, 1, 0, true, true, NULL, 0},
    {CUP_POSITIONS_ALIBI, 1, 1, 1.5, true, false, NULL, 0},
    {CUP_POSITIONS_LEARNED, 0, 0, 0.5, true, false, NULL, 0},
    {CUP_POSITIONS_ROTARY, 0, 0, 0, false, false, NULL, 100},
    {CUP_POSITIONS_ROTARY, 150, 1, 0, false, false, NULL, 30},
    {CUP_POSITIONS_ROTARY, 0, 0, 0, false, false, "i8", 0},
    {CUP_POSITIONS_LEARNED, 9, 1, 3, true, true, "f8e4m3", 0},
    {CUP_POSITIONS_ROTARY, 70, 0, 0, false, false, "f8e5m2", 0},
};
#define DYNAMIC 9 /* one of them */
#define FAMILIES ((int)(sizeof families / sizeof *families))

static cup_gpt *family_gpt(cup_context *c, int i)
{
    const struct family *f = &families[i];
    const cup_gpt_config config = {.size = sizeof config,
                                   .layers = 3,
                                   .heads = 4,
                                   .kv_heads = i % 2 ? 4 : 2,
                                   .width = 16,
                                   .rope_scaling = {.dynamic = f->original > 0,
                                                    .factor = f->original ? 4 : 0,
                                                    .original = f->original},
                                   .context = LENGTH,
                                   .vocabulary = WORDS,
                                   .positions = f->positions,
                                   .norm = CUP_NORM_KIND_RMSNORM,
                                   .mlp = CUP_MLP_KIND_SWIGLU,
                                   .window = f->window,
                                   .window_from = f->window_from,
                                   .soft_cap = f->soft_cap,
                                   .sinks = f->sinks,
                                   .bias = f->bias};
    cup_gpt *m = sharp_gpt(c, &config, 15, 0.125);
    m->cache_dtype = f->cache_dtype;
    return m;
}

static bool are_near(const float *a, const float *b)
{
    double worst = 0;
    for (int i = 0; i < TEXTS * WORDS; i++)
        worst = fmax(worst, fabs((double)a[i] - b[i]));
    return worst <= 2e-4;
}

/* The next logits behind what both caches have read: of one by the host's count, of the other at a
 * position on the device, now and then one for each text. */
static void read_both(cup_context *c, cup_gpt_cache *host, cup_gpt_cache *device, int64_t at)
{
    static float want[TEXTS * WORDS], got[TEXTS * WORDS];
    const int64_t wide[TEXTS] = {at, at};
    const int32_t narrow[TEXTS] = {(int32_t)at, (int32_t)at};
    bool is_wide = at % 3 != 0;
    cup_scope_open(c);
    cup_tensor *tokens = sharp_tokens(c, TEXTS, at, at + 1);
    cup_tensor *position =
        cup_tensor_from(c, is_wide ? CUP_I64 : CUP_I32, 1, (int64_t[]){at % 2 ? TEXTS : 1},
                        is_wide ? (const void *)wide : (const void *)narrow);
    EXPECT_INT(cup_tensor_read(cup_gpt_read(host, tokens), want, sizeof want), CUP_OK);
    EXPECT_INT(cup_gpt_cache_reserve(device, 1), CUP_OK);
    cup_tensor *y = cup_gpt_read_at(device, tokens, position);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_tensor_read(y, got, sizeof got), CUP_OK);
    EXPECT_INT(cup_gpt_cache_set(device, at + 1), CUP_OK);
    EXPECT(are_near(want, got));
    cup_scope_close(c);
}

/* Behind pieces of text that are read as the host counts, far beyond what windows alone keep. */
static void read_family(cup_context *c, int i)
{
    cup_gpt *m = family_gpt(c, i);
    for (int near = 0; near < (m->config.window ? 2 : 1); near++) {
        cup_gpt_cache *host = cup_gpt_cache_new(m, TEXTS, 0);
        cup_gpt_cache *device =
            near ? cup_gpt_cache_window_new(m, TEXTS, 0) : cup_gpt_cache_new(m, TEXTS, 0);
        for (int64_t at = 0; at < LENGTH; at++) {
            read_both(c, host, device, at);
            if (at % (2 * RUN) < RUN - 1)
                continue;
            int64_t to = at + 1 + RUN < LENGTH ? at + 1 + RUN : LENGTH;
            cup_scope_open(c);
            cup_tensor *some = sharp_tokens(c, TEXTS, at + 1, to);
            EXPECT(to == at + 1 || (cup_gpt_read(host, some) && cup_gpt_read(device, some)));
            cup_scope_close(c);
            at = to - 1;
        }
        cup_gpt_cache_free(device);
        cup_gpt_cache_free(host);
    }
    cup_gpt_free(m);
}

TEST(read_at_gives_what_the_host_would_count)
{
    for (int i = 0; i < FAMILIES; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
        read_family(c, i);
        EXPECT_TEXT(cup_error_text(c), "");
        cup_context_free(c);
    }
}

static cup_context *gpu(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda", .seed = 3));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

TEST(gpu_read_at_gives_what_the_host_would_count)
{
    for (int i = 0; i < FAMILIES; i++) {
        cup_context *c = gpu();
        read_family(c, i);
        EXPECT_TEXT(cup_error_text(c), "");
        cup_context_free(c);
    }
}

/* Nothing is computed there, but every family's step is captured and replayed. */
TEST(read_at_is_captured_on_the_fake_gpu)
{
    fake_begin();
    setenv("CUP_KERNELS", "", 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("CUP_LIBCUBLASLT", "off", 1);
    for (int i = 0; i < FAMILIES; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda", .seed = 3));
        cup_gpt *m = family_gpt(c, i);
        cup_generator *g = cup_generator_texts_new(m, TEXTS, NULL);
        int32_t tokens[TEXTS];
        long launches = fake_calls("cuGraphLaunch");
        EXPECT_INT(cup_generator_feed(g, (int32_t[]){3, 4}, 2), CUP_OK);
        for (int k = 0; k < 200; k++)
            EXPECT_INT(cup_generator_next_texts(g, tokens), CUP_OK);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT(!cup_generator_uncaptured(g));
        EXPECT(fake_calls("cuGraphLaunch") > launches + 20);
        cup_generator_free(g);
        cup_gpt_free(m);
        cup_context_free(c);
    }
    fake_expect_nothing_left();
}

/* What is not, and takes calls for each token, is told. */
TEST(generator_tells_why_it_is_not_captured)
{
    fake_begin();
    setenv("CUP_KERNELS", "", 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda", .seed = 3));
    cup_gpt *m = family_gpt(c, DYNAMIC);
    m->cache_dtype = "i8";
    cup_generator *g = cup_generator_new(m, NULL);
    EXPECT_CONTAINS(cup_generator_uncaptured(g), "dynamic rotary positions do not go with");
    cup_generator_free(g);
    cup_gpt_free(m);
    cup_context_free(c);
    c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
    m = family_gpt(c, DYNAMIC);
    m->cache_dtype = "i8";
    g = cup_generator_new(m, NULL);
    EXPECT(g && !cup_generator_uncaptured(g) && !cup_generator_uncaptured(NULL));
    cup_generator_free(g);
    cup_gpt_free(m);
    cup_context_free(c);
    fake_expect_nothing_left();
}

/* The likeliest tokens as the host draws them from logits of uncaptured calls. */
static void write_by_calls(cup_gpt *m, int64_t count, int32_t *out)
{
    static float logits[WORDS];
    cup_context *c = m->context;
    cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
    int32_t token = 3;
    for (int64_t i = 0; i < count; i++) {
        cup_scope_open(c);
        cup_tensor *one = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, 1}, &token);
        EXPECT_INT(cup_tensor_read(cup_gpt_read(cache, one), logits, sizeof logits), CUP_OK);
        cup_scope_close(c);
        token = 0;
        for (int w = 1; w < WORDS; w++)
            token = logits[w] > logits[token] ? w : token;
        out[i] = token;
    }
    cup_gpt_cache_free(cache);
}

/* The captured steps of each family write the text of uncaptured ones, behind what moved and behind
 * what was fed in between. */
TEST(gpu_generator_writes_what_calls_would_of_any_attention)
{
    static int32_t want[LENGTH], got[LENGTH];
    for (int i = 0; i < FAMILIES; i++) {
        cup_context *c = gpu();
        cup_gpt *m = family_gpt(c, i);
        write_by_calls(m, LENGTH - 1, want);
        cup_generator *g = cup_generator_new(m, CUP_OPTIONS(cup_sampling, .temperature = -1));
        EXPECT_INT(cup_generator_feed(g, (int32_t[]){3}, 1), CUP_OK);
        for (int k = 0; k < LENGTH - 1; k++) {
            got[k] = cup_generator_next(g);
            bool again = k == 20 || k == 170; /* drops what was drawn ahead */
            if (again) {
                EXPECT_INT(cup_generator_feed(g, want + k + 1, 1), CUP_OK);
                got[k + 1] = want[k + 1];
                k++;
            }
        }
        EXPECT(!memcmp(want, got, (LENGTH - 1) * sizeof *want));
        EXPECT(!cup_generator_uncaptured(g));
        EXPECT_TEXT(cup_error_text(c), "");
        cup_generator_free(g);
        cup_gpt_free(m);
        cup_context_free(c);
    }
}
