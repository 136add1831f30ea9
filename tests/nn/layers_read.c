/* A row through a block as one op against the block's own calls. */
#include <math.h>

#include "cupola/cupola.h"
#include "ops/transformer/transformer_read.h"
#include "test.h"

#define WIDTH 24
#define LENGTH 9
#define POSITION 5

static cup_tensor *filled(cup_context *c, int ndim, const int64_t *shape)
{
    return cup_normal(c, CUP_F64, ndim, shape, 0, 1);
}

static void expect_near(cup_tensor *a, cup_tensor *b)
{
    double x[LENGTH * WIDTH * 2], y[LENGTH * WIDTH * 2];
    int64_t count = cup_tensor_count(a);
    EXPECT_INT(cup_tensor_count(b), count);
    EXPECT_INT(cup_tensor_read(a, x, (size_t)count * sizeof *x), CUP_OK);
    EXPECT_INT(cup_tensor_read(b, y, (size_t)count * sizeof *y), CUP_OK);
    for (int64_t i = 0; i < count; i++)
        EXPECT(fabs(x[i] - y[i]) < 1e-11);
}

static void compare(bool llama)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    cup_parameters *list = cup_parameters_new(c, CUP_F64);
    cup_transformer_layer layer;
    int64_t groups = llama ? 1 : 3;
    EXPECT_INT(cup_transformer_layer_new(
                   &layer, list, "block", WIDTH, 3,
                   CUP_OPTIONS(cup_transformer_layer_options, .kv_heads = groups, .causal = true,
                               .rope = llama, .rmsnorm = llama, .deviation = 0.3,
                               .activation = llama ? CUP_ACTIVATION_SWIGLU : CUP_ACTIVATION_GELU)),
               CUP_OK);
    const int64_t row[] = {1, 1, WIDTH}, kept[] = {1, groups, LENGTH, WIDTH / 3};
    cup_tensor *x = filled(c, 3, row), *delta = filled(c, 3, row), *change = delta;
    cup_tensor *keys = filled(c, 4, kept), *values = filled(c, 4, kept);
    cup_tensor *own_keys = cup_copy(c, keys), *own_values = cup_copy(c, values);
    cup_tensor *position = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){1}, &(int32_t){POSITION});
    bool rms = llama;
    cup_tensor *in[CUP__READ_INPUTS] = {
        x, own_keys, own_values, position, rms ? layer.rmsnorm1.weight : layer.norm1.weight,
        layer.attention.qkv.weight, layer.attention.out.weight,
        rms ? layer.rmsnorm2.weight : layer.norm2.weight, layer.mlp.up.weight,
        layer.mlp.down.weight, delta, rms ? NULL : layer.norm1.bias, layer.attention.qkv.bias,
        layer.attention.out.bias, rms ? NULL : layer.norm2.bias, layer.mlp.up.bias,
        layer.mlp.down.bias};
    const cup__transformer_read_attributes attributes = {
        .heads = 3, .eps = 1e-5, .rms = rms, .gated = llama, .rope_base = llama ? 10000 : 0};
    cup_tensor *out[2] = {NULL, NULL};
    EXPECT(!cup__transformer_read_takes(c, in, &attributes));
    cup_tensor *sum = cup_transformer_layer_read_at(&layer, x, &change, keys, values, position);
    EXPECT(cup__op_call(c, &cup__rows[CUP__OP_transformer_read], in, CUP__READ_INPUTS, &attributes,
                        out));
    EXPECT_INT(cup_error(c), CUP_OK);
    expect_near(sum, out[0]);
    expect_near(change, out[1]);
    expect_near(keys, own_keys);
    expect_near(values, own_values);
    in[CUP__READ_UP] = layer.mlp.down.weight;
    out[0] = out[1] = NULL;
    EXPECT(!cup__op_call(c, &cup__rows[CUP__OP_transformer_read], in, CUP__READ_INPUTS, &attributes,
                         out));
    EXPECT_INT(cup_error(c), CUP_SHAPE);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(row_through_a_layer_at_once_is_its_calls)
{
    compare(false);
    compare(true);
}

/* Without its place a key would be put where its position says, which is another one's by then. */
TEST(row_in_a_window_needs_its_place)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    cup_parameters *list = cup_parameters_new(c, CUP_F64);
    cup_transformer_layer layer;
    EXPECT_INT(cup_transformer_layer_new(
                   &layer, list, "block", WIDTH, 3,
                   CUP_OPTIONS(cup_transformer_layer_options, .causal = true, .window = 4)),
               CUP_OK);
    const int64_t row[] = {1, 1, WIDTH}, kept[] = {1, 3, LENGTH, WIDTH / 3};
    cup_tensor *keys = filled(c, 4, kept), *values = filled(c, 4, kept);
    cup_tensor *at = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){1}, &(int32_t){POSITION});
    EXPECT(!cup_transformer_layer_read_window_at(&layer, filled(c, 3, row), NULL, keys, values, at,
                                                 NULL));
    EXPECT_INT(cup_error(c), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "the place of the new key is NULL");
    cup_error_clear(c);
    EXPECT(!cup_transformer_layer_read_window_at(&layer, filled(c, 3, row), NULL, keys, values,
                                                 NULL, at));
    EXPECT_CONTAINS(cup_error_text(c), "the position to read at is NULL");
    cup_parameters_free(list);
    cup_context_free(c);
}
