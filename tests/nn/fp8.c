/* Linear layers in 8 bits: against products of what quantize and dequantize make, what is not
 * finite, which layers of a list take them, and that a GPT learns with them what it learns in
 * bf16. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

#define MOST 100000

static float got[MOST], want[MOST];

static cup_context *on(const char *device)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

static cup_context *cpu(void)
{
    return on("cpu");
}

/* Numbers whose size changes from row to row and column to column. */
static cup_tensor *drawn(cup_context *c, int64_t rows, int64_t columns, double size)
{
    float *values = malloc(sizeof(float) * (size_t)(rows * columns + 1));
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = (float)(size * test_uniform(-1, 1) *
                            exp2((double)(i / (columns + 1) % 7 - i % 5)));
    cup_tensor *t = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){rows, columns}, values);
    free(values);
    return t;
}

static void read_all(cup_tensor *t, float *to)
{
    cup_tensor *wide = cup_cast(cup_tensor_context(t), t, CUP_F32);
    EXPECT_INT(cup_tensor_read(wide, to, sizeof(float) * (size_t)cup_tensor_count(t)), CUP_OK);
}

static void expect_close(cup_tensor *a, cup_tensor *b, double tolerance)
{
    int64_t count = cup_tensor_count(a);
    double most = 0;
    EXPECT(a && b && count == cup_tensor_count(b) && count <= MOST);
    read_all(a, got);
    read_all(b, want);
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)want[i]));
    for (int64_t i = 0; i < count; i++)
        EXPECT_NEAR((double)got[i], (double)want[i], tolerance * most);
}

/* What its codes stand for. */
static cup_tensor *rounded(cup_context *c, cup_tensor *t)
{
    cup_tensor *codes = NULL, *scale = NULL;
    cup_quantize(c, t, CUP_F8E4M3,
                 CUP_OPTIONS(cup_quantize_options, .block_rows = 128, .block_columns = 128), &codes,
                 &scale);
    return cup_dequantize(c, codes, scale, CUP_F32);
}

static void check_product(const char *device, int64_t m, int64_t n, int64_t k, cup_dtype dtype)
{
    cup_context *c = on(device);
    cup_precision(c, "highest");
    cup_tensor *x = cup_require_grad(cup_cast(c, drawn(c, m, k, 3), dtype));
    cup_tensor *w = cup_require_grad(cup_cast(c, drawn(c, n, k, 0.02), dtype));
    cup_tensor *b = cup_require_grad(cup_reshape(c, cup_cast(c, drawn(c, 1, n, 1), dtype), 1, &n));
    cup_tensor *dy = cup_cast(c, drawn(c, m, n, 1e-6), dtype);
    cup_tensor *y = cup_linear_fp8(c, x, w, b);
    EXPECT_INT(cup_backward_from(c, &y, &dy, 1), CUP_OK);
    EXPECT(cup_tensor_dtype(y) == dtype && cup_tensor_dtype(cup_grad(w)) == dtype);
    cup_grad_recording(c, false);
    cup_tensor *rx = rounded(c, x), *rw = rounded(c, w), *rd = rounded(c, dy);
    double tolerance = dtype == CUP_F32 ? 1e-6 : 0x1p-8;
    expect_close(y, cup_linear(c, rx, rw, cup_cast(c, b, CUP_F32)), tolerance);
    expect_close(cup_grad(x), cup_matmul(c, rd, rw, false, false), tolerance);
    expect_close(cup_grad(w), cup_matmul(c, rd, rx, true, false), tolerance);
    expect_close(cup_grad(b), cup_sum(c, cup_cast(c, dy, CUP_F32), (int64_t[]){0}, 1, false),
                 tolerance);
    cup_context_free(c);
}

TEST(fp8_linear_multiplies_what_quantize_makes)
{
    check_product("cpu", 260, 150, 200, CUP_F32);
    check_product("cpu", 128, 128, 256, CUP_BF16);
    check_product("cpu", 3, 5, 7, CUP_F32);
    check_product("cpu", 130, 24, 129, CUP_F16);
}

TEST(gpu_fp8_linear_multiplies_what_quantize_makes)
{
    check_product("cuda", 260, 150, 200, CUP_F32);
    check_product("cuda", 256, 128, 384, CUP_BF16);
    check_product("cuda", 3, 5, 7, CUP_F32);
    check_product("cuda", 640, 144, 136, CUP_F16);
}

TEST(fp8_linear_takes_any_shape)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(cup_reshape(c, drawn(c, 6, 9, 1), 3, (int64_t[]){2, 3, 9}));
    cup_tensor *w = cup_require_grad(drawn(c, 4, 9, 1));
    cup_tensor *y = cup_linear_fp8(c, x, w, NULL);
    EXPECT(cup_tensor_ndim(y) == 3 && cup_tensor_size(y, 1) == 3 && cup_tensor_size(y, 2) == 4);
    EXPECT_INT(cup_backward(c, cup_sum(c, y, NULL, 0, false)), CUP_OK);
    EXPECT(cup_tensor_ndim(cup_grad(x)) == 3 && cup_tensor_size(cup_grad(x), 0) == 2);
    cup_tensor *one = cup_require_grad(cup_reshape(c, drawn(c, 1, 9, 1), 1, (int64_t[]){9}));
    y = cup_linear_fp8(c, one, w, NULL);
    EXPECT(cup_tensor_ndim(y) == 1 && cup_tensor_size(y, 0) == 4);
    EXPECT_INT(cup_backward(c, cup_sum(c, y, NULL, 0, false)), CUP_OK);
    EXPECT_INT(cup_tensor_ndim(cup_grad(one)), 1);
    cup_tensor *none = cup_require_grad(cup_full(c, CUP_F32, 2, (int64_t[]){0, 9}, 0));
    cup_grad_clear(w);
    y = cup_linear_fp8(c, none, w, NULL);
    EXPECT_INT(cup_backward(c, cup_sum(c, y, NULL, 0, false)), CUP_OK);
    expect_close(cup_grad(w), cup_full(c, CUP_F32, 2, (int64_t[]){4, 9}, 0), 0);
    cup_context_free(c);
}

/* The sum of y and those of all gradients for an x and a weight of 1, and this number in x. */
static void with_number(float odd, double *y_sum, double *dw_sum)
{
    cup_context *c = cpu();
    float values[256], sum;
    for (int i = 0; i < 256; i++)
        values[i] = i == 77 ? odd : 1;
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){8, 32}, values);
    cup_tensor *w = cup_require_grad(cup_full(c, CUP_F32, 2, (int64_t[]){4, 32}, 1));
    cup_tensor *y = cup_sum(c, cup_linear_fp8(c, x, w, NULL), NULL, 0, false);
    EXPECT_INT(cup_backward(c, y), CUP_OK);
    read_all(y, &sum);
    *y_sum = (double)sum;
    read_all(cup_sum(c, cup_grad(w), NULL, 0, false), &sum);
    *dw_sum = (double)sum;
    cup_context_free(c);
}

TEST(fp8_linear_shows_what_is_not_finite)
{
    double y, dw;
    with_number(1, &y, &dw);
    EXPECT(fabs(y - 1024) < 1e-3 && fabs(dw - 1024) < 1e-3);
    with_number(INFINITY, &y, &dw);
    EXPECT(isnan(y) && isnan(dw));
    with_number(-INFINITY, &y, &dw);
    EXPECT(isnan(y) && isnan(dw));
    with_number(NAN, &y, &dw);
    EXPECT(isnan(y) && isnan(dw));
    with_number(3e37f, &y, &dw); /* the others of its block are nothing beside it */
    EXPECT(fabs(y / 1.2e38 - 1) < 1e-3 && fabs(dw / 1.2e38 - 1) < 1e-3);
    cup_context *c = cpu();
    cup_tensor *zeros = cup_full(c, CUP_F32, 2, (int64_t[]){8, 32}, 0);
    expect_close(cup_linear_fp8(c, zeros, drawn(c, 4, 32, 1), NULL),
                 cup_full(c, CUP_F32, 2, (int64_t[]){8, 4}, 0), 0);
    cup_context_free(c);
}

TEST(fp8_linear_refuses_what_does_not_fit)
{
    cup_context *c = cpu();
    cup_tensor *x = drawn(c, 4, 8, 1), *w = drawn(c, 3, 8, 1), *b = drawn(c, 1, 3, 1);
    EXPECT(!cup_linear_fp8(c, x, drawn(c, 3, 7, 1), NULL));
    EXPECT_CONTAINS(cup_error_text(c), "x must be [..,K] and weight [N,K]");
    cup_error_clear(c);
    EXPECT(!cup_linear_fp8(c, x, w, b));
    EXPECT_CONTAINS(cup_error_text(c), "bias must have the shape [3]");
    cup_error_clear(c);
    EXPECT(!cup_linear_fp8(c, x, cup_cast(c, w, CUP_BF16), NULL));
    EXPECT_CONTAINS(cup_error_text(c), "must be f32, as x is");
    cup_error_clear(c);
    EXPECT(!cup_linear_fp8(c, cup_cast(c, x, CUP_F64), w, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "x is f64; it must be f32, bf16 or f16");
    cup_context_free(c);
}

static void expect_bits(cup_tensor *a, cup_tensor *b, bool same)
{
    int64_t count = cup_tensor_count(a);
    EXPECT(count == cup_tensor_count(b) && count <= MOST);
    read_all(a, got);
    read_all(b, want);
    EXPECT_INT(memcmp(got, want, sizeof(float) * (size_t)count) == 0, same);
}

TEST(fp8_is_for_hidden_layers_in_training)
{
    static const cup_activation activations[] = {
        CUP_ACTIVATION_NONE, CUP_ACTIVATION_RELU, CUP_ACTIVATION_GELU,   CUP_ACTIVATION_SILU,
        CUP_ACTIVATION_TANH, CUP_ACTIVATION_SIGMOID, CUP_ACTIVATION_SWIGLU};
    for (int i = 0; i < 7; i++) {
        cup_context *c = cpu();
        cup_grad_recording(c, false);
        cup_parameters *list = cup_parameters_new(c, CUP_F32);
        cup_linear_layer inner, outer;
        cup_linear_layer_options o = {.size = sizeof o, .activation = activations[i]};
        cup_linear_layer_new(&inner, list, "inner", 32, 48, &o);
        o.outer = true;
        cup_linear_layer_new(&outer, list, "outer", 32, 48, &o);
        cup_tensor *x = drawn(c, 40, 32, 0.2);
        cup_tensor *a = cup_linear_layer_call(&inner, x), *b = cup_linear_layer_call(&outer, x);
        EXPECT(!cup_parameters_fp8(list, true));
        expect_bits(cup_linear_layer_call(&outer, x), b, true);
        cup_tensor *coarse = cup_linear_layer_call(&inner, x);
        cup_linear_layer same;
        cup_linear_layer_of(&same, list, rounded(c, inner.weight), inner.bias, activations[i]);
        expect_bits(coarse, a, false);
        expect_close(coarse, cup_linear_layer_call(&same, rounded(c, x)), 1e-5);
        cup_parameters_training(list, false);
        expect_bits(cup_linear_layer_call(&inner, x), a, true);
        cup_parameters_training(list, true);
        EXPECT(cup_parameters_fp8(cup_parameters_under(list, "inner"), false));
        expect_bits(cup_linear_layer_call(&inner, x), a, true);
        cup_parameters_free(list);
        cup_context_free(c);
    }
}

TEST(fp8_mlp_is_its_layers)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_mlp_layer m;
    cup_mlp_layer_new(&m, list, "m", 40, 200, NULL);
    cup_parameters_fp8(list, true);
    cup_tensor *x = cup_require_grad(drawn(c, 150, 40, 0.1)), *dy = drawn(c, 150, 40, 0.01);
    cup_tensor *of[] = {x, m.up.weight, m.down.weight, m.up.bias, m.down.bias}, *kept[5];
    cup_tensor *whole = cup_mlp_layer_call(&m, x);
    EXPECT_INT(cup_backward_from(c, &whole, &dy, 1), CUP_OK);
    for (int i = 0; i < 5; i++) {
        kept[i] = cup_copy(c, cup_detach(cup_grad(of[i])));
        cup_grad_clear(of[i]);
    }
    cup_tensor *parts = cup_linear_layer_call(&m.down, cup_linear_layer_call(&m.up, x));
    expect_bits(parts, whole, true);
    EXPECT_INT(cup_backward_from(c, &parts, &dy, 1), CUP_OK);
    for (int i = 0; i < 3; i++)
        expect_bits(cup_grad(of[i]), kept[i], true);
    for (int i = 3; i < 5; i++)
        expect_close(cup_grad(of[i]), kept[i], 1e-5);
    cup_lora_layer beside;
    cup_lora_layer_new(&beside, list, "beside", 200, 40, 4, NULL);
    m.down.lora = &beside;
    whole = cup_mlp_layer_call(&m, x);
    EXPECT_INT(cup_backward_from(c, &whole, &dy, 1), CUP_OK);
    EXPECT(cup_grad(beside.b[0]) != NULL);
    cup_parameters_free(list);
    cup_context_free(c);
}

#define TEXTS 4
#define LENGTH 16

/* A small GPT's loss over the last of its steps. */
static double learned(cup_dtype dtype, bool fp8, bool recompute, uint64_t seed, int steps)
{
    cup_context *c = cpu();
    cup_gpt_config config = {.size = sizeof config, .layers = 2, .heads = 2, .width = 16,
                             .context = LENGTH, .vocabulary = 16, .bias = true};
    cup_seed(c, seed);
    cup_gpt *m = cup_gpt_new(c, dtype, &config);
    m->recompute = recompute;
    cup_parameters_fp8(m->parameters, fp8);
    cup_optimizer *optimizer =
        cup_optimizer_of(m->parameters, CUP_OPTIONS(cup_optimizer_options, .weight_decay = 0.1));
    cup_optimizer_set(optimizer, 1e-2, 1);
    uint32_t state = 1;
    double mean = 0;
    for (int step = 1; step <= steps; step++) {
        int32_t text[TEXTS * (LENGTH + 1)], tokens[TEXTS * LENGTH], targets[TEXTS * LENGTH];
        for (int i = 0; i < TEXTS * (LENGTH + 1); i++) {
            state = state * 1664525 + 1013904223;
            bool any = i % (LENGTH + 1) == 0 || state >> 28 == 0;
            text[i] = any ? (int32_t)(state >> 20 & 15) : (3 * text[i - 1] + 1) % 16;
        }
        for (int i = 0; i < TEXTS * LENGTH; i++) {
            tokens[i] = text[i / LENGTH * (LENGTH + 1) + i % LENGTH];
            targets[i] = text[i / LENGTH * (LENGTH + 1) + i % LENGTH + 1];
        }
        const int64_t shape[] = {TEXTS, LENGTH};
        float loss;
        cup_scope_open(c);
        cup_tensor *l = cup_gpt_loss(m, cup_tensor_from(c, CUP_I32, 2, shape, tokens),
                                     cup_tensor_from(c, CUP_I32, 2, shape, targets), true);
        read_all(l, &loss);
        EXPECT_INT(cup_backward(c, l), CUP_OK);
        EXPECT_INT(cup_optimizer_step(optimizer), CUP_OK);
        cup_optimizer_clear(optimizer);
        cup_scope_return(c, NULL);
        mean += step > steps - 40 ? (double)loss / 40 : 0;
    }
    cup_optimizer_free(optimizer);
    cup_gpt_free(m);
    cup_context_free(c);
    return mean;
}

TEST_LIMITED(fp8_learns_within_what_seeds_differ_by, 300)
{
    double fp8 = learned(CUP_BF16, true, false, 1, 200);
    double bf16 = learned(CUP_BF16, false, false, 1, 200);
    double least = learned(CUP_BF16, false, false, 3, 200);
    double most = learned(CUP_BF16, false, false, 4, 200);
    EXPECT(fp8 != bf16 && bf16 < 0.5 && most - least > 0.01);
    EXPECT_NEAR(fp8, bf16, most - least);
}

TEST(fp8_learns_the_same_bits_again_and_with_blocks_computed_again)
{
    double once = learned(CUP_F32, true, false, 3, 50);
    EXPECT(once == learned(CUP_F32, true, false, 3, 50));
    EXPECT(once == learned(CUP_F32, true, true, 3, 50));
}

/* No GPT is in 8 bits, which its products are by other means. */
TEST(fp8_is_no_dtype_of_a_model)
{
    static const cup_dtype none[] = {CUP_F8E4M3, CUP_F8E5M2, CUP_I32};
    const cup_gpt_config config = {.size = sizeof config, .vocabulary = 11, .context = 8,
                                   .layers = 1, .heads = 2, .width = 16};
    cup_context *c = cpu();
    for (int i = 0; i < 3; i++) {
        EXPECT(!cup_gpt_new(c, none[i], &config));
        EXPECT_INT(cup_error(c), CUP_DTYPE);
        EXPECT_CONTAINS(cup_error_text(c), cup_dtype_name(none[i]));
        EXPECT_CONTAINS(cup_error_text(c),
                        i < 2 ? "the precision \"fp8\"" : "f32, bf16, f16 or f64");
        cup_error_clear(c);
    }
    cup_context_free(c);
}
