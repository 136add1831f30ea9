/* Attention over a cache on a GPU, held to that of a CPU from the same numbers, which draws
 * them. */
#include <stdlib.h>

#include "../test.h"
#include "cupola/cupola.h"

#define SEQUENCES 3
#define STEPS 4
#define MOST 300000

static const int32_t counts[STEPS][SEQUENCES] = {{300, 1, 17}, {1, 1, 1}, {0, 33, 5}, {2, 2, 2}};
static const int64_t tokens[STEPS] = {300, 1, 33, 2};

typedef struct setting {
    cup_dtype dtype, kept;
    int64_t page, heads, group, size, window;
    double soft_cap, most;
} setting;

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = 5));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

/* Drawn on a CPU, so that all devices have the same. */
static cup_tensor *draw(cup_context *from, cup_context *to, cup_dtype dtype, const int64_t *shape)
{
    cup_tensor *t = cup_normal(from, CUP_F32, 4, shape, 0, 1);
    size_t bytes = (size_t)cup_tensor_count(t) * sizeof(float);
    float *values = malloc(bytes);
    EXPECT(values && cup_tensor_read(t, values, bytes) == CUP_OK);
    t = cup_cast(to, cup_tensor_from(to, CUP_F32, 4, shape, values), dtype);
    free(values);
    return t;
}

/* The results of all steps, one behind the other; returns how many numbers. */
static int64_t run(const char *name, const setting *s, float *out)
{
    cup_context *c = device(name), *host = device("cpu");
    cup_kv_cache *cache = cup_kv_cache_new(c, s->kept, SEQUENCES, 1000, s->heads, s->size,
                                           CUP_OPTIONS(cup_kv_cache_options, .page = s->page));
    int64_t length[SEQUENCES] = {0}, at = 0;
    for (int i = 0; i < STEPS; i++) {
        const int64_t of_q[] = {SEQUENCES, s->heads * s->group, tokens[i], s->size};
        const int64_t of_k[] = {SEQUENCES, s->heads, tokens[i], s->size};
        cup_tensor *q = draw(host, c, s->dtype, of_q), *k = draw(host, c, s->dtype, of_k);
        cup_tensor *v = draw(host, c, s->dtype, of_k);
        cup_tensor *count = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){SEQUENCES}, counts[i]);
        for (int b = 0; b < SEQUENCES; b++)
            cup_kv_cache_reserve(cache, b, length[b] += counts[i][b]);
        cup_kv_cache_append(cache, 0, k, v, count);
        cup_tensor *o = cup_kv_cache_attend(
            cache, 0, q, count,
            CUP_OPTIONS(cup_kv_cache_attend_options, .window_left = s->window,
                        .soft_cap = s->soft_cap));
        cup_kv_cache_advance(cache, tokens[i], count);
        o = cup_copy(c, cup_cast(c, o, CUP_F32));
        int64_t numbers = cup_tensor_count(o);
        EXPECT(at + numbers <= MOST);
        EXPECT(cup_tensor_read(o, out + at, (size_t)numbers * sizeof *out) == CUP_OK);
        at += numbers;
    }
    cup_kv_cache_free(cache);
    cup_context_free(host);
    cup_context_free(c);
    return at;
}

TEST(gpu_kv_cache_is_that_of_a_cpu)
{
    static const setting settings[] = {
        {CUP_BF16, CUP_BF16, 16, 1, 2, 128, 0, 0, 0.03},
        {CUP_F16, CUP_I8, 16, 1, 2, 128, 0, 0, 0.004},
        {CUP_BF16, CUP_F8E4M3, 0, 1, 3, 64, 0, 5, 0.03},
        {CUP_F16, CUP_F8E5M2, 7, 1, 1, 96, 100, 0, 0.004},
        {CUP_F32, CUP_I8, 16, 1, 2, 40, 33, 3, 2e-5},
        {CUP_F32, CUP_F32, 7, 1, 2, 64, 0, 0, 2e-5}};
    static float got[MOST], want[MOST];
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        int64_t count = run("cuda", &settings[i], got);
        EXPECT_INT(run("cpu", &settings[i], want), count);
        for (int64_t k = 0; k < count; k++)
            EXPECT_NEAR(got[k], want[k], settings[i].most);
    }
}

TEST(gpu_kv_cache_advances_within_its_room)
{
    static const int32_t more[][SEQUENCES] = {
        {5, 3, 10}, {-6, 1, 1}, {6, INT32_MAX, -10}, {INT32_MIN, 7, 10}};
    static const int32_t want[][SEQUENCES] = {{5, 3, 10}, {5, 4, 10}, {5, 4, 0}, {5, 4, 10}};
    cup_context *c = device("cuda");
    cup_kv_cache *cache = cup_kv_cache_new(c, CUP_F32, SEQUENCES, 10, 1, 4, NULL);
    for (int i = 0; i < 4; i++) {
        int32_t lengths[SEQUENCES];
        cup_tensor *count = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){SEQUENCES}, more[i]);
        EXPECT(cup_kv_cache_advance(cache, 0, count) == CUP_OK);
        EXPECT(cup_tensor_read(cup_kv_cache_lengths(cache), lengths, sizeof lengths) == CUP_OK);
        for (int k = 0; k < SEQUENCES; k++)
            EXPECT_INT(lengths[k], want[i][k]);
    }
    cup_kv_cache_free(cache);
    cup_context_free(c);
}
