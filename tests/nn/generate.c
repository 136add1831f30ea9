/* Reading with a cache, and drawing tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/cupola.h"
#include "test.h"

static const cup_gpt_config configs[] = {
    {.size = sizeof(cup_gpt_config),
     .layers = 2,
     .heads = 2,
     .width = 16,
     .context = 24,
     .vocabulary = 29,
     .bias = true},
    {.size = sizeof(cup_gpt_config),
     .layers = 2,
     .heads = 4,
     .kv_heads = 2,
     .width = 16,
     .context = 24,
     .vocabulary = 29,
     .positions = CUP_POSITIONS_ROTARY,
     .norm = CUP_NORM_KIND_RMSNORM,
     .mlp = CUP_MLP_KIND_SWIGLU,
     .untied = true},
    {.size = sizeof(cup_gpt_config),
     .layers = 2,
     .heads = 4,
     .kv_heads = 2,
     .width = 16,
     .context = 24,
     .vocabulary = 29,
     .positions = CUP_POSITIONS_ROTARY,
     .norm = CUP_NORM_KIND_RMSNORM,
     .mlp = CUP_MLP_KIND_SWIGLU,
     .qkv_bias = true},
    {.size = sizeof(cup_gpt_config),
     .layers = 2,
     .heads = 4,
     .kv_heads = 2,
     .width = 16,
     .context = 24,
     .vocabulary = 29,
     .positions = CUP_POSITIONS_ROTARY,
     .norm = CUP_NORM_KIND_RMSNORM,
     .mlp = CUP_MLP_KIND_SWIGLU,
     .head_size = 6,
     .qk_norm = true,
     .rope_scaling = {.factor = 4, .original = 12}},
    {.size = sizeof(cup_gpt_config),
     .layers = 2,
     .heads = 2,
     .width = 16,
     .context = 24,
     .vocabulary = 29,
     .positions = CUP_POSITIONS_ROTARY,
     .bias = true,
     .rope_scaling = {.factor = 3, .original = 8, .low = 0.2, .high = 2, .yarn = true}},
};
#define CONFIGS ((int)(sizeof configs / sizeof *configs))

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = 3));
    if (!strcmp(name, "cuda") && cup_error(c) != CUP_OK)
        test_skip("no GPU");
    EXPECT_INT(cup_error(c), CUP_OK);
    return c;
}

static cup_context *cpu(void)
{
    return device("cpu");
}

static int32_t token(int64_t i)
{
    return (int32_t)((5 * i + i * i) % 29);
}

static cup_tensor *tokens(cup_context *c, int64_t from, int64_t to)
{
    int32_t values[2 * 24];
    for (int64_t row = 0; row < 2; row++)
        for (int64_t i = from; i < to; i++)
            values[row * (to - from) + i - from] = token(i + 3 * row);
    return cup_tensor_from(c, CUP_I32, 2, (int64_t[]){2, to - from}, values);
}

/* Weights so large that every token leaves its trace, and biases of queries, keys and values. */
static void enlarge(cup_gpt *m)
{
    int64_t weights;
    const cup_named *weight = cup_parameters_named(m->parameters, &weights);
    for (int64_t i = 0; i < weights; i++) {
        cup_tensor *t = weight[i].tensor;
        float *w = cup_tensor_data(t);
        for (int64_t k = 0; cup_tensor_ndim(t) == 2 && k < cup_tensor_count(t); k++)
            w[k] *= 15;
        for (int64_t k = 0; strstr(weight[i].name, "c_attn.bias") && k < cup_tensor_count(t); k++)
            w[k] = (float)sin((double)k);
    }
}

TEST(cache_gives_the_logits_of_the_whole_text)
{
    static const int64_t ends[] = {7, 8, 9, 13, 14, 24};
    for (int which = 0; which < CONFIGS; which++) {
        cup_context *c = cpu();
        cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[which]);
        enlarge(m);
        static float all[2 * 24 * 29];
        cup_tensor *logits = cup_gpt_logits(m, tokens(c, 0, 24));
        EXPECT_INT(cup_tensor_read(logits, all, sizeof all), CUP_OK);
        cup_gpt_cache *cache = cup_gpt_cache_new(m, 2, 0);
        int64_t from = 0;
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
            float last[2][29];
            cup_tensor *next = cup_gpt_read(cache, tokens(c, from, ends[i]));
            EXPECT_INT(cup_tensor_read(next, last, sizeof last), CUP_OK);
            for (int row = 0; row < 2; row++)
                for (int k = 0; k < 29; k++)
                    EXPECT_NEAR(last[row][k], all[(row * 24 + ends[i] - 1) * 29 + k], 2e-5);
            from = ends[i];
            EXPECT_INT(cup_gpt_cache_used(cache), from);
        }
        EXPECT(cup_gpt_read(cache, tokens(c, 0, 1)) == NULL);
        EXPECT_INT(cup_error(c), CUP_STATE);
        EXPECT_CONTAINS(cup_error_text(c), "cut it first");
        cup_error_clear(c);
        cup_gpt_cache_cut(cache, 20);
        EXPECT(cup_gpt_read(cache, tokens(c, 20, 24)) != NULL);
        cup_gpt_cache_free(cache);
        cup_gpt_free(m);
        cup_context_free(c);
    }
}

/* Texts of which one is three tokens behind the other. */
TEST(cache_reads_at_positions_in_device_memory)
{
    for (int which = 0; which < CONFIGS; which++) {
        cup_context *c = cpu();
        cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[which]);
        enlarge(m);
        static float all[2][24][29];
        cup_tensor *logits = cup_gpt_logits(m, tokens(c, 0, 24));
        EXPECT_INT(cup_tensor_read(logits, all, sizeof all), CUP_OK);
        cup_gpt_cache *cache = cup_gpt_cache_new(m, 2, 0);
        EXPECT(cup_gpt_read(cache, tokens(c, 0, 6)) != NULL);
        for (int64_t i = 6; i < 24; i++) {
            float last[2][29];
            int64_t at[2] = {i, i - 3};
            int32_t next[2] = {token(at[0]), token(at[1] + 3)};
            cup_tensor *position = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){2}, at);
            cup_tensor *column = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){2, 1}, next);
            cup_tensor *found = cup_gpt_read_at(cache, column, position);
            EXPECT_INT(cup_tensor_read(found, last, sizeof last), CUP_OK);
            for (int row = 0; row < 2; row++)
                for (int k = 0; k < 29; k++)
                    EXPECT_NEAR(last[row][k], all[row][at[row]][k], 2e-5);
        }
        EXPECT_INT(cup_gpt_cache_used(cache), 6);
        EXPECT_INT(cup_gpt_cache_set(cache, 21), CUP_OK);
        EXPECT(cup_gpt_read(cache, tokens(c, 21, 24)) != NULL);
        EXPECT_INT(cup_gpt_cache_set(cache, 25), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), "room for 24");
        cup_error_clear(c);
        cup_tensor *beyond = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){1}, (int64_t[]){24});
        EXPECT(!cup_gpt_read_at(cache, tokens(c, 0, 1), beyond));
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);
        cup_error_clear(c);
        EXPECT(!cup_gpt_read_at(cache, tokens(c, 0, 2), beyond));
        EXPECT_INT(cup_error(c), CUP_SHAPE);
        cup_error_clear(c);
        cup_gpt_cache_free(cache);
        cup_gpt_free(m);
        cup_context_free(c);
    }
}

TEST(draw_token_draws_as_the_host_does)
{
    static float logits[2][700];
    const double temperatures[] = {0, -1, 0.7, 3}, parts[] = {0, 0.4, 0.97};
    cup_context *c = cpu();
    for (int i = 0; i < 1400; i++)
        logits[i / 700][i % 700] = i % 97 == 5 ? NAN : (float)(i * 37 % 101) / 9;
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 700}, logits);
    cup_tensor *counters = cup_zeros(c, CUP_I64, 1, (int64_t[]){2});
    for (int64_t i = 0; i < 60; i++) {
        cup_sampling s = {.size = sizeof s, .temperature = temperatures[i % 4],
                          .top_k = i % 5 * 11, .top_p = parts[i % 3], .seed = (uint64_t)i % 2};
        cup_tensor *drawn = cup_draw_token(c, x, counters, i % 2,
                                           CUP_OPTIONS(cup_draw_token_options,
                                                       .temperature = s.temperature,
                                                       .top_k = s.top_k, .top_p = s.top_p));
        int32_t got[2];
        int64_t count[2];
        EXPECT_INT(cup_tensor_read(drawn, got, sizeof got), CUP_OK);
        EXPECT_INT(cup_tensor_read(counters, count, sizeof count), CUP_OK);
        for (int row = 0; row < 2; row++) {
            EXPECT_INT(got[row], cup_sample(logits[row], 700, (uint64_t)(2 * i + row), &s));
            EXPECT_INT(count[row], i + 1);
        }
    }
    cup_context_free(c);
}

TEST(cache_refuses_what_cannot_be)
{
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[0]);
    EXPECT(cup_gpt_cache_new(m, 0, 0) == NULL);
    cup_error_clear(c);
    EXPECT(cup_gpt_cache_new(m, 1, 25) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "context is 24");
    cup_error_clear(c);
    cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
    EXPECT(cup_gpt_read(cache, tokens(c, 0, 2)) == NULL);
    EXPECT_INT(cup_error(c), CUP_SHAPE);
    cup_error_clear(c);
    cup_gpt_cache_free(cache);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(sample_follows_the_odds)
{
    static const float logits[] = {0, 1.0986123f, NAN, -INFINITY, 0}; /* 1 : 3 : - : 0 : 1 */
    int count[5] = {0};
    cup_sampling s = {.size = sizeof s, .seed = 7};
    for (uint64_t i = 0; i < 20000; i++)
        count[cup_sample(logits, 5, i, &s)]++;
    EXPECT_NEAR(count[0] / 20000.0, 0.2, 0.015);
    EXPECT_NEAR(count[1] / 20000.0, 0.6, 0.015);
    EXPECT_INT(count[2] + count[3], 0);
    int again = 0, other = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        int64_t drawn = cup_sample(logits, 5, i, &s);
        again += drawn == cup_sample(logits, 5, i, &s);
        other += drawn == cup_sample(logits, 5, i, CUP_OPTIONS(cup_sampling, .seed = 8));
    }
    EXPECT_INT(again, 1000);
    EXPECT(other < 600);
}

typedef struct ranked {
    double weight;
    int64_t token;
} ranked;

static int by_weight(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight < y->weight ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

/* How often one of all was drawn, from all put in order and cut. */
static void expect_odds(const float *logits, int count, const cup_sampling *s)
{
    ranked all[40];
    int drawn[40] = {0}, kept = count, draws = 20000;
    double sum = 0, part = 0;
    for (int i = 0; i < count; i++)
        all[i] = (ranked){exp(logits[i] / s->temperature), i};
    qsort(all, (size_t)count, sizeof *all, by_weight);
    kept = s->top_k > 0 && s->top_k < count ? (int)s->top_k : count;
    for (int i = 0; i < kept; i++)
        sum += all[i].weight;
    for (int i = 0; i < kept && s->top_p > 0; i++)
        if ((part += all[i].weight) >= s->top_p * sum) {
            kept = i + 1;
            sum = part;
        }
    for (int i = 0; i < draws; i++) {
        int64_t token = cup_sample(logits, count, (uint64_t)i, s);
        EXPECT(token >= 0 && token < count);
        drawn[token]++;
    }
    for (int i = 0; i < count; i++)
        EXPECT_NEAR((double)drawn[all[i].token] / draws, i < kept ? all[i].weight / sum : 0,
                    0.015 * (i < kept));
}

TEST(sample_cuts_like_an_ordered_list)
{
    float logits[40];
    for (int i = 0; i < 40; i++) /* some are equal */
        logits[i] = (float)((i * 17) % 23) / 5;
    const int ks[] = {0, 1, 2, 7, 39, 40, 50};
    const double ps[] = {0, 0.1, 0.5, 0.93};
    for (int k = 0; k < 7; k++)
        for (int p = 0; p < 4; p++)
            expect_odds(logits, 40, CUP_OPTIONS(cup_sampling, .temperature = 0.7 + 0.3 * p,
                                                .top_k = ks[k], .top_p = ps[p], .seed = 3));
}

TEST(sample_keeps_to_the_likeliest)
{
    static const float logits[] = {0, 2, 1, -1, 1.5f};
    for (uint64_t i = 0; i < 300; i++) {
        EXPECT_INT(cup_sample(logits, 5, i, CUP_OPTIONS(cup_sampling, .temperature = -1)), 1);
        EXPECT_INT(cup_sample(logits, 5, i, CUP_OPTIONS(cup_sampling, .top_k = 1)), 1);
        EXPECT_INT(cup_sample(logits, 5, i, CUP_OPTIONS(cup_sampling, .top_p = 0.01)), 1);
        EXPECT_INT(cup_sample(logits, 5, i, CUP_OPTIONS(cup_sampling, .temperature = 0.001)), 1);
        int64_t drawn = cup_sample(logits, 5, i, CUP_OPTIONS(cup_sampling, .top_k = 2));
        EXPECT(drawn == 1 || drawn == 4);
        /* The two likeliest make up 0.71 of all, the three likeliest 0.87. */
        drawn = cup_sample(logits, 5, i, CUP_OPTIONS(cup_sampling, .top_p = 0.8));
        EXPECT(drawn == 1 || drawn == 4 || drawn == 2);
    }
    EXPECT_INT(cup_sample((const float[]){NAN, NAN}, 2, 0, NULL), -1);
    EXPECT_INT(cup_sample(logits, 0, 0, NULL), -1);
    EXPECT_INT(cup_sample((const float[]){0, INFINITY}, 2, 0, NULL), 1);
}

static void write_some(int32_t *out, uint64_t seed, int64_t feed, int64_t count)
{
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[1]);
    cup_generator *g = cup_generator_new(m, CUP_OPTIONS(cup_sampling, .seed = seed));
    int32_t *prompt = cup__malloc((size_t)feed * sizeof *prompt);
    for (int64_t i = 0; i < feed; i++)
        prompt[i] = token(i);
    EXPECT_INT(cup_generator_feed(g, prompt, feed), CUP_OK);
    for (int64_t i = 0; i < count; i++) {
        out[i] = cup_generator_next(g);
        EXPECT(out[i] >= 0 && out[i] < 29);
    }
    cup__free(prompt);
    cup_generator_free(g);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(generator_writes_the_same_from_the_same_seed)
{
    int32_t first[60], second[60];
    write_some(first, 1, 3, 60); /* more than the context of 24 */
    write_some(second, 1, 3, 60);
    EXPECT(!memcmp(first, second, sizeof first));
    write_some(second, 2, 3, 60);
    EXPECT(memcmp(first, second, sizeof first) != 0);
    write_some(first, 1, 100, 5); /* a prompt that is longer than the context */
}

/* What the captured step of a GPU writes, beyond the context and with a second text in between, is
 * what the host makes of the CPU's logits. */
TEST(gpu_generator_writes_as_a_cpu)
{
    const cup_sampling samplings[] = {{.size = sizeof(cup_sampling), .seed = 4},
                                      {.size = sizeof(cup_sampling), .top_k = 5, .seed = 1},
                                      {.size = sizeof(cup_sampling), .temperature = -1}};
    for (int i = 0; i < 6; i++) {
        int32_t written[2][90];
        for (int which = 0; which < 2; which++) {
            cup_context *c = device(which ? "cuda" : "cpu");
            cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[i % 2]);
            cup_generator *g = cup_generator_new(m, &samplings[i / 2]);
            EXPECT_INT(cup_generator_feed(g, (int32_t[]){3, 1, 4}, 3), CUP_OK);
            for (int k = 0; k < 90; k++) {
                if (k == 13 || k == 50)
                    EXPECT_INT(cup_generator_feed(g, (int32_t[]){2, 7}, k == 13 ? 1 : 2), CUP_OK);
                written[which][k] = cup_generator_next(g);
            }
            EXPECT_INT(cup_error(c), CUP_OK);
            cup_generator_free(g);
            cup_gpt_free(m);
            cup_context_free(c);
        }
        EXPECT(!memcmp(written[0], written[1], sizeof written[0]));
    }
}

#define TEXTS 3

/* 50 tokens of each of some texts, more than the context has. */
static void write_texts(cup_gpt *m, const cup_sampling *sampling, int32_t (*to)[TEXTS])
{
    cup_generator *g = cup_generator_texts_new(m, TEXTS, sampling);
    EXPECT_INT(cup_generator_feed(g, (int32_t[]){3, 1, 4}, 3), CUP_OK);
    for (int i = 0; i < 50; i++)
        EXPECT_INT(cup_generator_next_texts(g, to[i]), CUP_OK);
    cup_generator_free(g);
}

/* Each token is the one that its own numbers draw behind what its text has, read alone. */
TEST(texts_written_together_are_each_its_own)
{
    int32_t written[50][TEXTS], seen[24];
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[1]);
    cup_sampling sampling = {.size = sizeof sampling, .temperature = 1.5, .seed = 9};
    write_texts(m, &sampling, written);
    EXPECT(written[5][0] != written[5][1] || written[6][0] != written[6][1]);
    for (int text = 0; text < TEXTS; text++)
        for (int64_t i = 0; i < 20; i++) {
            float logits[29];
            memcpy(seen, (int32_t[]){3, 1, 4}, 3 * sizeof *seen);
            for (int64_t k = 0; k < i; k++)
                seen[3 + k] = written[k][text];
            cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
            cup_scope_open(c);
            cup_tensor *all = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, 3 + i}, seen);
            cup_tensor_read(cup_gpt_read(cache, all), logits, sizeof logits);
            cup_scope_return(c, NULL);
            cup_gpt_cache_free(cache);
            EXPECT_INT(cup_sample(logits, 29, (uint64_t)(i * TEXTS + text), &sampling),
                       written[i][text]);
        }
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(gpu_texts_written_together_are_those_of_a_cpu)
{
    static const cup_sampling samplings[] = {
        {.size = sizeof(cup_sampling), .temperature = -1},
        {.size = sizeof(cup_sampling), .temperature = 1.5, .top_k = 7, .seed = 4}};
    for (int i = 0; i < 2 * CONFIGS; i++) {
        int32_t written[2][50][TEXTS];
        for (int which = 0; which < 2; which++) {
            cup_context *c = device(which ? "cuda" : "cpu");
            cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[i / 2]);
            write_texts(m, &samplings[i % 2], written[which]);
            EXPECT_INT(cup_error(c), CUP_OK);
            cup_gpt_free(m);
            cup_context_free(c);
        }
        EXPECT(!memcmp(written[0], written[1], sizeof written[0]));
    }
}

TEST(generator_refuses_what_cannot_be)
{
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[0]);
    cup_generator *g = cup_generator_new(m, NULL);
    EXPECT_INT(cup_generator_next(g), -1);
    EXPECT_CONTAINS(cup_error_text(c), "fed nothing");
    cup_error_clear(c);
    EXPECT_INT(cup_generator_feed(g, (int32_t[]){29}, 1), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "token 29 is none of the model's 29");
    cup_error_clear(c);
    ((float *)cup_tensor_data(m->norm))[0] = NAN;
    cup_generator_feed(g, (int32_t[]){3}, 1);
    EXPECT_INT(cup_generator_next(g), -1);
    EXPECT_CONTAINS(cup_error_text(c), "not a number");
    cup_generator_free(g);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(generator_survives_every_failed_allocation)
{
    for (long n = 1;; n += n < 40 ? 1 : 5) {
        cup_context *c = cpu();
        cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[1]);
        cup__memory_fail_at(n, false);
        cup_generator *g = cup_generator_new(m, NULL);
        cup_generator_feed(g, (int32_t[]){3, 4}, 2);
        int32_t got = cup_generator_next(g);
        cup__memory_fail_at(0, false);
        EXPECT(got >= 0 || cup_error(c) == CUP_MEMORY || cup_error(c) == CUP_STATE);
        cup_generator_free(g);
        cup_gpt_free(m);
        cup_context_free(c);
        if (got >= 0)
            break;
        EXPECT(n < 2000);
    }
}
