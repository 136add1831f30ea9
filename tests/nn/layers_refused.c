/* What layers refuse, in words. */
#include "cupola/cupola.h"
#include "test.h"

static void expect_refused(cup_context *c, cup_status status, const char *words)
{
    EXPECT(status != CUP_OK);
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

TEST(layers_refuse_what_cannot_be)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *x = cup_full(c, CUP_F32, 2, (int64_t[]){2, 4}, 1);
    cup_linear_layer l, none;
    cup_attention_layer a;
    cup_groupnorm_layer g;
    cup_dropout_layer d;
    cup_sequence_layer s;
    cup_layernorm_layer n;
    cup_transformer_layer t;
    expect_refused(c, cup_linear_layer_new(NULL, list, "l", 4, 4, NULL), "is NULL");
    EXPECT_INT(cup_linear_layer_new(&none, NULL, "l", 4, 4, NULL), CUP_ARGUMENT);
    EXPECT(!cup_linear_layer_call(&none, x) && !cup_linear_layer_call(&none, NULL));
    expect_refused(c, cup_error(c), "was not made");
    EXPECT(!cup_layer_call(NULL, x));
    expect_refused(c, cup_error(c), "was not made");
    expect_refused(c, cup_linear_layer_new(&l, list, "l", 0, 4, NULL), "in must be at least 1");
    expect_refused(c, cup_linear_layer_new(&l, list, "l", 4, 4,
                                           CUP_OPTIONS(cup_linear_layer_options,
                                                       .activation = (cup_activation)9)),
                   "activation 9 is none");
    expect_refused(c, cup_attention_layer_new(&a, list, "a", 10, 4, NULL), "divide each other");
    expect_refused(c, cup_attention_layer_new(
                          &a, list, "a", 12, 4,
                          CUP_OPTIONS(cup_attention_layer_options, .rope = true)),
                   "an even size");
    expect_refused(c, cup_attention_layer_new(
                          &a, list, "a", 12, 4,
                          CUP_OPTIONS(cup_attention_layer_options, .head_size = INT64_MAX)),
                   "cannot be");
    expect_refused(c, cup_groupnorm_layer_new(&g, list, "g", 6, 4, NULL), "share 6 channels");
    expect_refused(c, cup_groupnorm_layer_new(&g, list, "g", 6, 0, NULL), "0 groups");
    expect_refused(c, cup_dropout_layer_new(&d, list, 1), "below 1");
    expect_refused(c, cup_sequence_layer_new(&s, list, NULL, 2), "no layers");
    expect_refused(c, cup_layernorm_layer_new(
                          &n, list, "n", 4, CUP_OPTIONS(cup_norm_layer_options, .epsilon = -1)),
                   "epsilon");
    expect_refused(c, cup_transformer_layer_new(
                          &t, list, "t", 8, 2,
                          CUP_OPTIONS(cup_transformer_layer_options, .dropout = 1.5)),
                   "dropout");
    EXPECT(!cup_linear_layer_call(&l, x));
    cup_error_clear(c);
    EXPECT_INT(cup_linear_layer_new(&l, list, "twice", 4, 4, NULL), CUP_OK);
    expect_refused(c, cup_linear_layer_new(&none, list, "twice", 4, 4, NULL), "already");
    EXPECT(!cup_linear_layer_call(&none, x));
    cup_error_clear(c);
    cup_parameters_free(list);
    cup_context_free(c);
}
