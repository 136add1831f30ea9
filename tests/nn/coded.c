/* Keys and values that are kept in 8 bits while a GPT reads and writes. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "nn/sharp.h"
#include "test.h"

#define LENGTH 20
#define TEXTS 2

static const cup_gpt_config sizes = {.size = sizeof(cup_gpt_config),
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .width = 32,
                                     .context = LENGTH,
                                     .vocabulary = WORDS,
                                     .positions = CUP_POSITIONS_ROTARY,
                                     .window = 9,
                                     .window_from = 1,
                                     .soft_cap = 3,
                                     .sinks = true};

/* Largest difference of the logits that follow the last token, read in pieces, from those of the
 * whole texts, over the largest of these. Some is read twice, behind a cut. */
static double error_of(cup_gpt *m, const char *dtype)
{
    cup_context *c = m->context;
    cup_tensor *all = cup_gpt_logits(m, sharp_tokens(c, TEXTS, 0, LENGTH)), *y = NULL;
    cup_tensor *want = cup_slice(c, all, (int64_t[]){0, LENGTH - 1, 0}, 3,
                                 (int64_t[]){TEXTS, 1, WORDS}, 3);
    want = cup_reshape(c, want, 2, (int64_t[]){TEXTS, WORDS});
    m->cache_dtype = dtype;
    cup_gpt_cache *cache = cup_gpt_cache_new(m, TEXTS, 0);
    for (int64_t at = 0, step = 7; at < LENGTH; at += step, step = step > 2 ? step - 2 : 1) {
        if (at == 12) {
            cup_gpt_cache_cut(cache, 10);
            at = 10;
        }
        y = cup_gpt_read(cache, sharp_tokens(c, TEXTS, at, at + step));
    }
    EXPECT_INT(cup_gpt_cache_used(cache), LENGTH);
    cup_gpt_cache_free(cache);
    double size = cup_tensor_item(cup_max(c, cup_abs(c, want), NULL, 0, false));
    double apart = cup_tensor_item(cup_max(c, cup_abs(c, cup_sub(c, y, want)), NULL, 0, false));
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT(size > 0.5);
    return apart / size;
}

TEST(coded_keys_and_values_have_the_errors_of_their_codes)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
    cup_gpt *m = sharp_gpt(c, &sizes, 8, 0);
    double plain = error_of(m, NULL), i8 = error_of(m, "i8");
    double e4m3 = error_of(m, "f8e4m3"), e5m2 = error_of(m, "f8e5m2");
    EXPECT(plain < 1e-5);
    EXPECT(i8 > 1e-4 && i8 < 0.02);
    EXPECT(e4m3 > i8 && e4m3 < 0.1);
    EXPECT(e5m2 > e4m3 && e5m2 < 0.2);
    m->cache_dtype = "i8";
    cup_generator *g = cup_generator_new(m, CUP_OPTIONS(cup_sampling, .temperature = -1));
    for (int i = 0; i < 3 * LENGTH; i++) {
        int32_t token = i % 5;
        if (i < LENGTH)
            EXPECT_INT(cup_generator_feed(g, &token, 1), CUP_OK);
        else
            EXPECT(cup_generator_next(g) >= 0);
    }
    cup_generator_free(g);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(coded_keys_and_values_that_cannot_be_are_refused)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
    cup_gpt_config config = sizes;
    cup_gpt *m = sharp_gpt(c, &config, 8, 0);
    static const char *const wrong[] = {"f32", "f7", ""};
    for (int i = 0; i < 3; i++) {
        m->cache_dtype = wrong[i];
        EXPECT(!cup_gpt_cache_new(m, 1, 0));
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), "or in i8, f8e4m3 or f8e5m2");
        cup_error_clear(c);
    }
    cup_gpt_free(m);
    config.positions = CUP_POSITIONS_ALIBI;
    m = sharp_gpt(c, &config, 8, 0);
    m->cache_dtype = "i8";
    EXPECT(!cup_gpt_cache_new(m, 1, 0));
    EXPECT_INT(cup_error(c), CUP_UNSUPPORTED);
    cup_gpt_free(m);
    cup_context_free(c);
}
