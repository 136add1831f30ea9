/* Attention of texts written side by side behind a product: on a GPU its first keys are read while
 * that product runs, where nothing can change them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ahead.h"
#include "../test.h"
#include "cuda/cuda.h"
#include "cupola/cupola.h"
#include "tensor/tensor.h"

#define TEXTS 64
#define SHARED 3 /* heads of keys */
#define LENGTH 200
#define LAYERS 3
#define STEPS 4

typedef struct setting {
    cup_dtype dtype;
    int64_t group, size, window;
    double soft_cap, rope_base;
    bool slopes, sinks, one_position;
} setting;

typedef struct chain {
    cup_context *c;
    const setting *s;
    cup_tensor *x, *weight[LAYERS], *keys[LAYERS], *values[LAYERS], *position, *slopes, *sinks;
    cup_tensor *one;
} chain;

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = 5));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

static float drawn(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1 << 23) - 1;
}

static int64_t position_of(const setting *s, int text, int step)
{
    return (s->one_position ? 97 : text == 0 ? 0 : text * 37 % (LENGTH - STEPS)) + step;
}

/* Of numbers, but for what no step may read of keys or values, which are no numbers. */
static cup_tensor *kept(cup_context *c, const setting *s, uint32_t seed)
{
    const int64_t shape[] = {TEXTS, SHARED, LENGTH, s->size};
    int64_t count = TEXTS * SHARED * LENGTH * s->size;
    float *numbers = malloc((size_t)count * sizeof *numbers);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i / s->size % LENGTH, text = i / s->size / LENGTH / SHARED;
        numbers[i] = drawn(&seed);
        if (at >= position_of(s, (int)text, 0))
            numbers[i] = NAN;
    }
    cup_tensor *t = cup_keep(cup_cast(c, cup_tensor_from(c, CUP_F32, 4, shape, numbers), s->dtype));
    free(numbers);
    return t;
}

static cup_tensor *matrix(cup_context *c, const setting *s, int64_t rows, int64_t columns,
                          uint32_t seed)
{
    float *numbers = malloc((size_t)(rows * columns) * sizeof *numbers);
    for (int64_t i = 0; i < rows * columns; i++)
        numbers[i] = 0.3f * drawn(&seed);
    cup_tensor *t = cup_keep(
        cup_cast(c, cup_tensor_from(c, CUP_F32, 2, (int64_t[]){rows, columns}, numbers), s->dtype));
    free(numbers);
    return t;
}

static chain begin(const setting *s)
{
    chain k = {.c = test_noted ? test_noted : device("cuda"), .s = s};
    int64_t heads = SHARED * s->group, width = heads * s->size;
    float numbers[64];
    uint32_t seed = 7;
    for (int64_t i = 0; i < heads; i++)
        numbers[i] = 0.1f * fabsf(drawn(&seed));
    k.one = cup_keep(cup_ones(k.c, s->dtype, 1, (int64_t[]){1}));
    k.x = matrix(k.c, s, TEXTS, width, 1);
    k.slopes = cup_keep(cup_tensor_from(k.c, CUP_F32, 1, &heads, numbers));
    k.sinks = cup_keep(cup_tensor_from(k.c, CUP_F32, 1, &heads, numbers));
    k.position =
        cup_keep(cup_tensor_new(k.c, CUP_I64, 1, (int64_t[]){s->one_position ? 1 : TEXTS}));
    for (int i = 0; i < LAYERS; i++) {
        k.weight[i] = matrix(k.c, s, width + 2 * SHARED * s->size, width, 11 + (uint32_t)i);
        k.keys[i] = kept(k.c, s, 21 + (uint32_t)i);
        k.values[i] = kept(k.c, s, 31 + (uint32_t)i);
    }
    return k;
}

/* Whether the kernel in front is known to leave keys alone; products of other cards are not. */
static void expect_spared(const chain *k, const cup_tensor *keys, bool known)
{
    const cup__cuda *gpu = cup__cuda_of(k->c->device);
    size_t bytes = (size_t)keys->count * cup_dtype_size(keys->dtype);
    if (cup__cuda_facts(gpu)->major == 9)
        EXPECT_INT(cup__launched_spares(gpu, keys->data, (int64_t)bytes), known);
}

/* The layers behind each other. What stands between products and attention is not known not to
 * change keys, so that these are not read ahead. */
static cup_tensor *pass(const chain *k, bool between)
{
    const setting *s = k->s;
    int64_t heads = SHARED * s->group, width = heads * s->size;
    cup_tensor *x = k->x;
    for (int i = 0; i < LAYERS; i++) {
        const int64_t wide[] = {TEXTS, 1, width + 2 * SHARED * s->size};
        cup_tensor *qkv = cup_reshape(k->c, cup_linear(k->c, x, k->weight[i], NULL), 3, wide);
        qkv = between ? cup_mul(k->c, qkv, k->one) : qkv;
        expect_spared(k, k->keys[i], !between);
        x = cup_qkv_attention_read(k->c, qkv, k->keys[i], k->values[i], k->position, (int)heads,
                                   CUP_OPTIONS(cup_qkv_attention_read_options,
                                               .rope_base = s->rope_base, .window_left = s->window,
                                               .soft_cap = s->soft_cap,
                                               .slopes = s->slopes ? k->slopes : NULL,
                                               .sinks = s->sinks ? k->sinks : NULL));
        x = cup_reshape(k->c, x, 2, (int64_t[]){TEXTS, width});
    }
    return x;
}

static void move(const chain *k, int step)
{
    int64_t at[TEXTS];
    int64_t count = k->s->one_position ? 1 : TEXTS;
    for (int i = 0; i < TEXTS; i++)
        at[i] = position_of(k->s, i, step);
    EXPECT_INT(cup_tensor_write(k->position, at, (size_t)count * sizeof *at), CUP_OK);
}

static size_t bytes_of(const setting *s)
{
    return (size_t)(TEXTS * SHARED * s->group * s->size) * cup_dtype_size(s->dtype);
}

typedef enum way { BETWEEN, BEHIND, CAPTURED } way;

/* What each step gives, and then the last layer's keys. */
static char *run(const setting *s, way how)
{
    chain k = begin(s);
    size_t step_bytes = bytes_of(s);
    size_t kept_bytes = (size_t)(TEXTS * SHARED * LENGTH * s->size) * cup_dtype_size(s->dtype);
    char *out = malloc(STEPS * step_bytes + kept_bytes);
    cup_tensor *y = NULL;
    cup_graph *graph = NULL;
    for (int i = 0; i < STEPS; i++) {
        move(&k, i);
        if (graph) {
            EXPECT_INT(cup_graph_launch(graph), CUP_OK);
        } else if (how == CAPTURED && i > 0) {
            cup_capture_begin(k.c);
            y = pass(&k, false);
            graph = cup_capture_end(k.c);
            EXPECT_INT(cup_graph_launch(graph), CUP_OK);
        } else {
            y = pass(&k, how == BETWEEN);
        }
        EXPECT_INT(cup_tensor_read(y, out + (size_t)i * step_bytes, step_bytes), CUP_OK);
    }
    EXPECT_INT(cup_tensor_read(k.keys[LAYERS - 1], out + STEPS * step_bytes, kept_bytes), CUP_OK);
    EXPECT_INT(cup_error(k.c), CUP_OK);
    cup_graph_free(graph);
    if (!test_noted)
        cup_context_free(k.c);
    return out;
}

/* No number of the steps' results may be none: who reads ahead reads what was there. */
static void expect_numbers(const setting *s, const char *out)
{
    for (size_t i = 0; i < STEPS * bytes_of(s); i += 2) {
        uint16_t bits, exponent = s->dtype == CUP_BF16 ? 0x7f80 : 0x7c00;
        memcpy(&bits, out + i, sizeof bits);
        EXPECT((bits & exponent) != exponent);
    }
}

static void expect_equal(const setting *s)
{
    size_t bytes = STEPS * bytes_of(s) +
                   (size_t)(TEXTS * SHARED * LENGTH * s->size) * cup_dtype_size(s->dtype);
    char *between = run(s, BETWEEN), *behind = run(s, BEHIND);
    char *captured = test_noted ? NULL : run(s, CAPTURED);
    if (captured) {
        expect_numbers(s, between);
        EXPECT(memcmp(between, behind, bytes) == 0);
        EXPECT(memcmp(between, captured, bytes) == 0);
    }
    free(between);
    free(behind);
    free(captured);
}

TEST(gpu_texts_read_keys_ahead_of_products)
{
    static const setting settings[] = {
        {.dtype = CUP_BF16, .group = 1, .size = 64},
        {.dtype = CUP_F16, .group = 1, .size = 64, .one_position = true},
        {.dtype = CUP_BF16, .group = 4, .size = 64, .rope_base = 1e4},
        {.dtype = CUP_F16, .group = 2, .size = 80, .rope_base = 1e4, .window = 33, .sinks = true},
        {.dtype = CUP_BF16, .group = 2, .size = 128, .soft_cap = 5, .slopes = true}};
    for (int ahead = 0; test_ahead(&ahead); ahead++)
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
            expect_equal(&settings[i]);
}
