/* Rotary positions of texts that are longer than models first learned, held to the logits of
 * transformers. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

#define VOCABULARY 13
#define LONG 30
#define ORIGINAL 12

static cup_gpt_config config_of(cup_rope_scaling scaling)
{
    return (cup_gpt_config){.size = sizeof(cup_gpt_config),
                            .layers = 2,
                            .heads = 2,
                            .kv_heads = 1,
                            .width = 32,
                            .hidden = 24,
                            .context = 3 * ORIGINAL,
                            .vocabulary = VOCABULARY,
                            .positions = CUP_POSITIONS_ROTARY,
                            .norm = CUP_NORM_KIND_RMSNORM,
                            .mlp = CUP_MLP_KIND_SWIGLU,
                            .epsilon = 1e-6,
                            .untied = true,
                            .rope_scaling = scaling};
}

static const cup_rope_scaling yarn = {.factor = 3, .original = ORIGINAL, .yarn = true};
static const cup_rope_scaling all_said = {.factor = 3,
                                          .original = ORIGINAL,
                                          .low = 0.25,
                                          .high = 1.5,
                                          .yarn = true,
                                          .untruncated = true,
                                          .amplitude = 1.25};
static const cup_rope_scaling dynamic = {.factor = 3, .original = ORIGINAL, .dynamic = true};

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

/* Weights that need no random numbers. */
static cup_gpt *model(cup_context *c, const cup_gpt_config *config)
{
    int64_t count;
    cup_gpt *m = cup_gpt_new(c, CUP_F32, config);
    EXPECT_TEXT(cup_error_text(c), "");
    const cup_named *all = cup_parameters_named(m->parameters, &count);
    bool was = cup_grad_recording(c, false);
    for (int64_t i = 0; i < count; i++) {
        static float at[64 * 32];
        cup_tensor *t = all[i].tensor;
        int64_t shape[2] = {cup_tensor_size(t, 0), cup_tensor_size(t, -1)};
        int ndim = cup_tensor_ndim(t);
        EXPECT(cup_tensor_count(t) <= 64 * 32);
        for (int64_t k = 0; k < cup_tensor_count(t); k++)
            at[k] = (float)((ndim == 2 ? 0 : 0.75) + 0.5 * sin((double)(k * k + i)));
        cup_copy_into(c, t, cup_tensor_from(c, CUP_F32, ndim, shape, at));
    }
    cup_grad_recording(c, was);
    return m;
}

static cup_tensor *tokens(cup_context *c, int64_t from, int64_t to)
{
    int32_t ids[LONG];
    for (int64_t i = from; i < to; i++)
        ids[i - from] = (int32_t)((5 * i + i * i) % VOCABULARY);
    return cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, to - from}, ids);
}

/* Those behind the last of the first tokens. */
static void last_logits(cup_gpt *m, int64_t length, float *to)
{
    float all[LONG * VOCABULARY];
    cup_tensor *y = cup_gpt_logits(m, tokens(m->context, 0, length));
    EXPECT_INT(cup_tensor_read(y, all, (size_t)(length * VOCABULARY) * sizeof *all), CUP_OK);
    memcpy(to, all + (length - 1) * VOCABULARY, VOCABULARY * sizeof *to);
}

static void expect_near(const float *got, const float *wanted, double within)
{
    for (int i = 0; i < VOCABULARY; i++)
        EXPECT_NEAR(got[i], wanted[i], within);
}

/* Of the folder that each exports, by transformers 5.24 in f32: behind 8 tokens, behind all 30, and
 * behind those read in the pieces below with a cache. */
static const float theirs[3][3][VOCABULARY] = {
    {{-1.96909f, -2.23544f, -1.14118f, -1.44891f, -2.44471f, -0.54421f, 0.73607f, -1.61774f,
      -1.19478f, 1.58834f, 4.55486f, 2.33016f, 1.60626f},
     {0.51592f, 2.74103f, 2.24419f, 3.65653f, 0.32158f, 4.44386f, 1.01396f, 0.80529f, 1.58243f,
      1.34711f, 0.23149f, -0.12421f, 4.13495f},
     {0.51592f, 2.74103f, 2.24419f, 3.65653f, 0.32158f, 4.44386f, 1.01396f, 0.80529f, 1.58243f,
      1.34711f, 0.23149f, -0.12421f, 4.13495f}},
    {{-0.85370f, 1.64537f, -0.04036f, 0.29554f, -0.26507f, 1.07174f, 1.62064f, 0.43566f,
      0.12571f, 1.27723f, -0.48624f, 1.18520f, -0.79737f},
     {1.13256f, -1.42290f, 0.94238f, 2.17213f, 0.25248f, -0.55498f, -0.62306f, 0.53282f,
      0.45810f, 3.12420f, 0.07322f, 2.42817f, 0.99126f},
     {1.13256f, -1.42290f, 0.94238f, 2.17213f, 0.25248f, -0.55497f, -0.62306f, 0.53283f,
      0.45810f, 3.12420f, 0.07322f, 2.42817f, 0.99126f}},
    {{0.48839f, 0.23517f, 2.39114f, 0.28601f, 1.27456f, -0.82964f, 1.01385f, -1.75123f,
      0.62648f, 0.42101f, -0.13805f, 0.44761f, 0.10161f},
     {-1.36805f, -1.18436f, -1.46551f, 0.68568f, 0.21962f, -2.13975f, 0.06741f, -0.03950f,
      1.38305f, 0.35696f, 4.17003f, -1.02085f, 2.30135f},
     {-1.21808f, -1.52046f, -1.36052f, 0.40688f, 0.31011f, -1.94688f, 0.16674f, -0.04028f,
      1.31126f, 0.30008f, 4.31705f, -0.96216f, 2.04335f}}};
static const int64_t ends[] = {8, 18, 19, LONG};

static cup_gpt *model_of(cup_context *c, int which)
{
    cup_gpt_config config =
        config_of(which == 0 ? yarn : which == 1 ? all_said : dynamic);
    config.qkv_bias = which == 0;
    config.qk_norm = which == 1;
    return model(c, &config);
}

static void compare(cup_context *c, double within)
{
    for (int which = 0; which < 3; which++) {
        float got[VOCABULARY];
        cup_gpt *m = model_of(c, which);
        last_logits(m, 8, got);
        expect_near(got, theirs[which][0], within);
        last_logits(m, LONG, got);
        expect_near(got, theirs[which][1], within);
        cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
        for (int i = 0; i < 4; i++) {
            cup_tensor *y = cup_gpt_read(cache, tokens(c, i ? ends[i - 1] : 0, ends[i]));
            EXPECT_INT(cup_tensor_read(y, got, sizeof got), CUP_OK);
        }
        expect_near(got, theirs[which][2], within);
        cup_gpt_cache_free(cache);
        cup_gpt_free(m);
    }
    cup_context_free(c);
}

TEST(stretched_positions_are_those_of_transformers)
{
    compare(cpu(), 2e-5);
}

TEST(gpu_stretched_positions_are_those_of_transformers)
{
    compare(device("cuda"), 1e-4);
}

/* A generator reads what it was fed at once, and then token by token. */
static void write_some(cup_context *c)
{
    cup_gpt *m = model_of(c, 2);
    cup_generator *g = cup_generator_new(m, CUP_OPTIONS(cup_sampling, .temperature = -1));
    int32_t ids[LONG];
    EXPECT_INT(cup_tensor_read(tokens(c, 0, 8), ids, 8 * sizeof *ids), CUP_OK);
    EXPECT_INT(cup_generator_feed(g, ids, 8), CUP_OK);
    cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
    cup_tensor *y = cup_gpt_read(cache, tokens(c, 0, 8));
    for (int i = 0; i < LONG - 8; i++) {
        float logits[VOCABULARY];
        EXPECT_INT(cup_tensor_read(y, logits, sizeof logits), CUP_OK);
        int32_t best = (int32_t)cup_sample(logits, VOCABULARY, 0,
                                           CUP_OPTIONS(cup_sampling, .temperature = -1));
        EXPECT_INT(cup_generator_next(g), best);
        y = cup_gpt_read(cache, cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, 1}, &best));
    }
    cup_gpt_cache_free(cache);
    cup_generator_free(g);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(generators_stretch_dynamic_positions_as_they_write)
{
    write_some(cpu());
}

TEST(gpu_generators_stretch_dynamic_positions_as_they_write)
{
    write_some(device("cuda"));
}

/* The base of a longer text, said outright, gives the same, and so do gradients. */
TEST(dynamic_positions_change_the_base_alone)
{
    cup_context *c = cpu();
    cup_gpt *m = model_of(c, 2);
    cup_gpt_config plain = config_of((cup_rope_scaling){0});
    plain.rope_base = 10000 * pow(3.0 * LONG / ORIGINAL - 2, 16.0 / 14);
    cup_gpt *other = model(c, &plain);
    float a[VOCABULARY], b[VOCABULARY];
    last_logits(m, LONG, a);
    last_logits(other, LONG, b);
    expect_near(a, b, 0);
    cup_tensor *x = tokens(c, 0, LONG);
    cup_backward(c, cup_add(c, cup_gpt_loss(m, x, x, true), cup_gpt_loss(other, x, x, true)));
    cup_tensor *da = cup_grad(m->blocks[0].attention.qkv.weight);
    cup_tensor *db = cup_grad(other->blocks[0].attention.qkv.weight);
    EXPECT_INT(cup_error(c), CUP_OK);
    EXPECT(!memcmp(cup_tensor_data(da), cup_tensor_data(db),
                   (size_t)cup_tensor_count(da) * sizeof(float)));
    cup_gpt_free(other);
    cup_gpt_free(m);
    cup_context_free(c);
}

/* Whole numbers of codes, which know of no length, have a base that the host would have to tell. */
TEST(dynamic_positions_on_the_device_do_not_go_with_codes)
{
    cup_context *c = cpu();
    cup_gpt *m = model_of(c, 2);
    m->cache_dtype = "i8";
    cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
    cup_tensor *position = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){1}, &(int32_t){0});
    EXPECT(!cup_gpt_read_at(cache, tokens(c, 0, 1), position));
    EXPECT_INT(cup_error(c), CUP_UNSUPPORTED);
    EXPECT_CONTAINS(cup_error_text(c), "need to be told how many");
    cup_gpt_cache_free(cache);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(stretched_positions_refuse_what_cannot_be)
{
    static const cup_rope_scaling bad[] = {
        {.yarn = true, .factor = 2},
        {.yarn = true, .factor = 2, .original = 8, .low = 40},
        {.yarn = true, .factor = 2, .original = 8, .amplitude = -1},
        {.factor = 2, .amplitude = NAN},
        {.dynamic = true, .factor = 2},
        {.dynamic = true, .original = 8},
        {.dynamic = true, .factor = 2, .original = 8, .yarn = true},
        {.dynamic = true, .factor = 2, .original = 8, .amplitude = 1.5},
        {.dynamic = true, .factor = 2, .original = 8, .high = 8},
    };
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cup_gpt_config config = config_of(bad[i]);
        cup_attention_layer layer;
        EXPECT(!cup_gpt_new(c, CUP_F32, &config));
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), "rope_scaling");
        cup_error_clear(c);
        EXPECT_INT(cup_attention_layer_new(&layer, list, "a", 32, 2,
                                           CUP_OPTIONS(cup_attention_layer_options, .rope = true,
                                                       .rope_scaling = bad[i])),
                   CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), "rope_scaling");
        cup_error_clear(c);
    }
    cup_tensor *x = cup_zeros(c, CUP_F32, 4, (int64_t[]){1, 1, 2, 8});
    for (int base = 0; base < 2; base++) {
        EXPECT(!cup_rope(c, x,
                         CUP_OPTIONS(cup_rope_options, .yarn = true, .factor = 2,
                                     .base = base ? 0.5 : 0, .original = base ? 8 : 0)));
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), "yarn needs an original, and a base above 1");
        cup_error_clear(c);
    }
    cup_gpt_config pairs = config_of(dynamic);
    pairs.head_size = 2;
    EXPECT(!cup_gpt_new(c, CUP_F32, &pairs));
    EXPECT_CONTAINS(cup_error_text(c), "heads of over 2 features");
    cup_error_clear(c);
    cup_parameters_free(list);
    cup_context_free(c);
}
