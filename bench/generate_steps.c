/* How long a token takes that cup_generator writes, and how far its step, a row at a time, is from
 * reading the same tokens at once.
 * Build and run: make build/bench/generate_steps && build/bench/generate_steps [device [model
 * [texts]]]; model is how a name below begins, and with texts so many side by side alone are
 * timed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cupola/cupola.h"

#define TOKENS 900
#define COMPARED 40
#define CALLS 400
#define TEXTS_MOST 256

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int32_t token_of(int64_t i, int64_t vocabulary)
{
    return (int32_t)((i * 7919 + 13) % vocabulary);
}

static void read_floats(cup_context *c, cup_tensor *logits, float *to)
{
    cup_tensor *all = cup_cast(c, logits, CUP_F32);
    if (all)
        cup_tensor_read(all, to, (size_t)cup_tensor_count(all) * sizeof *to);
}

/* The largest difference of logits, in deviations of them. */
static double difference(const float *a, const float *b, int64_t count)
{
    double most = 0, squares = 0, mean = 0;
    for (int64_t i = 0; i < count; i++)
        mean += a[i] / (double)count;
    for (int64_t i = 0; i < count; i++) {
        double d = fabs((double)a[i] - b[i]);
        most = d > most || d != d ? d : most;
        squares += (a[i] - mean) * (a[i] - mean);
    }
    return most / sqrt(squares / (double)count);
}

static void compare(cup_gpt *m)
{
    cup_context *c = m->context;
    int64_t vocabulary = m->config.vocabulary;
    int32_t tokens[COMPARED];
    float *whole = calloc((size_t)vocabulary, sizeof *whole);
    float *stepped = calloc((size_t)vocabulary, sizeof *stepped);
    for (int64_t i = 0; i < COMPARED; i++)
        tokens[i] = token_of(i, vocabulary);
    cup_gpt_cache *one = cup_gpt_cache_new(m, 1, 0), *other = cup_gpt_cache_new(m, 1, 0);
    cup_scope_open(c);
    read_floats(c, cup_gpt_read(one, cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, COMPARED},
                                                     tokens)), whole);
    for (int64_t i = 0; i < COMPARED && cup_error(c) == CUP_OK; i++) {
        cup_tensor *token = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, 1}, tokens + i);
        cup_tensor *position = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){1}, &i);
        read_floats(c, cup_gpt_read_at(other, token, position), stepped);
    }
    cup_scope_return(c, NULL);
    printf("  off by %.4f deviations of the logits\n", difference(whole, stepped, vocabulary));
    cup_gpt_cache_free(one);
    cup_gpt_cache_free(other);
    free(whole);
    free(stepped);
}

static void measure(cup_gpt *m, const char *how, const cup_sampling *sampling)
{
    int32_t first = 1, last = 0;
    uint32_t sum = 0;
    cup_generator *g = cup_generator_new(m, sampling);
    cup_generator_feed(g, &first, 1);
    for (int i = 0; i < 64; i++)
        cup_generator_next(g);
    double start = now();
    for (int i = 0; i < TOKENS && last >= 0; i++)
        sum = sum * 31 + (uint32_t)(last = cup_generator_next(g));
    double each = (now() - start) / TOKENS;
    printf("  %-24s %7.2f us a token, %6.0f tokens/s (%08x)\n", how, each * 1e6, 1 / each, sum);
    cup_generator_free(g);
}

/* As the host would write, by calls that are not captured. */
static void measure_calls(cup_gpt *m)
{
    cup_context *c = m->context;
    float *logits = calloc((size_t)m->config.vocabulary, sizeof *logits);
    cup_gpt_cache *cache = cup_gpt_cache_window_new(m, 1, 0);
    int32_t token = 1;
    uint32_t sum = 0;
    double start = now();
    for (int i = 0; i < CALLS && token >= 0; i++) {
        if (i == CALLS / 4)
            start = now();
        cup_scope_open(c);
        cup_tensor *one = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, 1}, &token);
        read_floats(c, cup_gpt_read(cache, one), logits);
        cup_scope_return(c, NULL);
        token = (int32_t)cup_sample(logits, m->config.vocabulary, (uint64_t)i,
                                    CUP_OPTIONS(cup_sampling, .temperature = -1));
        sum = sum * 31 + (uint32_t)token;
    }
    double each = (now() - start) / (CALLS - CALLS / 4);
    printf("  %-24s %7.2f us a token, %6.0f tokens/s (%08x)\n", "by calls of the host", each * 1e6,
           1 / each, sum);
    cup_gpt_cache_free(cache);
    free(logits);
}

/* Texts side by side, and a hash of their tokens, which is to be the same whatever ran beside. */
static void measure_texts(cup_gpt *m, int64_t texts)
{
    int32_t first = 1, tokens[TEXTS_MOST];
    uint32_t sum = 0;
    cup_generator *g = cup_generator_texts_new(m, texts, NULL);
    cup_generator_feed(g, &first, 1);
    for (int i = 0; i < 64; i++)
        cup_generator_next_texts(g, tokens);
    double start = now();
    for (int i = 0; i < TOKENS / 3; i++) {
        cup_generator_next_texts(g, tokens);
        for (int64_t text = 0; text < texts; text++)
            sum = sum * 31 + (uint32_t)tokens[text];
    }
    double each = (now() - start) / (TOKENS / 3);
    printf("  %3lld texts                %7.2f us for a token of each, %6.0f tokens/s (%08x)\n",
           (long long)texts, each * 1e6, (double)texts / each, sum);
    cup_generator_free(g);
}

static const char *only = "";
static int64_t texts_alone;

static void run_kept(cup_context *c, const char *name, const cup_gpt_config *config,
                     const char *cache_dtype)
{
    if (strncmp(name, only, strlen(only)) != 0)
        return;
    cup_gpt *m = cup_gpt_new(c, CUP_BF16, config);
    printf("%s\n", name);
    if (m)
        m->cache_dtype = cache_dtype;
    for (int i = 0; i < 3 && m && texts_alone > 0; i++)
        measure_texts(m, texts_alone);
    if (m && texts_alone == 0) {
        compare(m);
        measure_calls(m);
        measure(m, "likeliest", CUP_OPTIONS(cup_sampling, .temperature = -1));
        measure(m, "temperature 0.8", CUP_OPTIONS(cup_sampling, .temperature = 0.8));
        measure(m, "of 50, making up 0.9",
                CUP_OPTIONS(cup_sampling, .temperature = 0.8, .top_k = 50, .top_p = 0.9));
        measure_texts(m, 8);
        measure_texts(m, 64);
    }
    if (cup_error(c) != CUP_OK)
        printf("  %s\n", cup_error_text(c));
    cup_error_clear(c);
    cup_gpt_free(m);
    fflush(stdout);
}

static void run(cup_context *c, const char *name, const cup_gpt_config *config)
{
    run_kept(c, name, config, NULL);
}

/* What the other kernels of attention are for, one by one. */
static void run_others(cup_context *c)
{
    cup_gpt_config llama = {.size = sizeof llama, .layers = 22, .heads = 32, .kv_heads = 8,
                            .width = 2048, .hidden = 5632, .context = 2048, .vocabulary = 32768,
                            .positions = CUP_POSITIONS_ROTARY, .norm = CUP_NORM_KIND_RMSNORM,
                            .mlp = CUP_MLP_KIND_SWIGLU, .untied = true};
    cup_gpt_config other = llama;
    other.window = 512;
    run(c, "other: 1.1B in a window of 512", &other);
    other = llama;
    other.soft_cap = 30;
    run(c, "other: 1.1B with a soft cap", &other);
    other = llama;
    other.sinks = true;
    run(c, "other: 1.1B with sinks", &other);
    other = llama;
    other.positions = CUP_POSITIONS_ALIBI;
    run(c, "other: 1.1B with alibi", &other);
    other = llama;
    other.rope_scaling = (cup_rope_scaling){.factor = 4, .original = 512, .dynamic = true};
    run(c, "other: 1.1B with dynamic positions", &other);
    run_kept(c, "other: 1.1B, kept in i8", &llama, "i8");
    run_kept(c, "other: 1.1B, kept in f8e4m3", &llama, "f8e4m3");
}

int main(int argc, char **argv)
{
    cup_context *c =
        cup_context_new(CUP_OPTIONS(cup_options, .device = argc > 1 ? argv[1] : "cuda"));
    only = argc > 2 ? argv[2] : "";
    texts_alone = argc > 3 ? atoi(argv[3]) : 0;
    if (texts_alone < 0 || texts_alone > TEXTS_MOST) {
        fprintf(stderr, "texts side by side are at most %d\n", TEXTS_MOST);
        cup_context_free(c);
        return 1;
    }
    if (cup_error(c) != CUP_OK) {
        fprintf(stderr, "%s\n", cup_error_text(c));
        return 1;
    }
    run(c, "124M, GPT-2", &(cup_gpt_config){.size = sizeof(cup_gpt_config), .layers = 12,
                                            .heads = 12, .width = 768, .context = 1024,
                                            .vocabulary = 50257, .bias = true});
    run(c, "350M, GPT-2", &(cup_gpt_config){.size = sizeof(cup_gpt_config), .layers = 24,
                                            .heads = 16, .width = 1024, .context = 1024,
                                            .vocabulary = 50257, .bias = true});
    run(c, "1.1B, Llama", &(cup_gpt_config){.size = sizeof(cup_gpt_config), .layers = 22,
                                            .heads = 32, .kv_heads = 8, .width = 2048,
                                            .hidden = 5632, .context = 2048, .vocabulary = 32768,
                                            .positions = CUP_POSITIONS_ROTARY,
                                            .norm = CUP_NORM_KIND_RMSNORM,
                                            .mlp = CUP_MLP_KIND_SWIGLU, .untied = true});
    run_others(c);
    cup_context_free(c);
    return 0;
}
