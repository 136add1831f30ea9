/* The layer of convolutions: against the op it is made of, and what it refuses. */
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

static void expect_same(cup_tensor *got, cup_tensor *want)
{
    static float a[4000], b[4000];
    EXPECT(got && want && cup_tensor_count(got) == cup_tensor_count(want));
    size_t bytes = (size_t)cup_tensor_count(want) * sizeof(float);
    EXPECT(bytes > 0 && bytes <= sizeof a);
    EXPECT_INT(cup_tensor_read(got, a, bytes), CUP_OK);
    EXPECT_INT(cup_tensor_read(want, b, bytes), CUP_OK);
    EXPECT(!memcmp(a, b, bytes));
}

static void expect_refused(cup_context *c, cup_status status, const char *words)
{
    EXPECT(status != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

TEST(layers_conv2d)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *x = cup_uniform(c, CUP_F32, 4, (int64_t[]){2, 4, 7, 8}, -1, 1);
    cup_conv2d_layer plain, all, same;
    EXPECT_INT(cup_conv2d_layer_new(&plain, list, "plain", 4, 6, (int64_t[]){3}, 1, NULL), CUP_OK);
    EXPECT(cup_parameters_find(list, "plain.weight") == plain.weight);
    EXPECT(cup_parameters_find(list, "plain.bias") == plain.bias);
    expect_same(cup_conv2d_layer_call(&plain, x),
                cup_conv2d(c, x, plain.weight, plain.bias, NULL));
    EXPECT_INT(cup_conv2d_layer_new(
                   &all, list, "all", 4, 6, (int64_t[]){3, 2}, 2,
                   CUP_OPTIONS(cup_conv2d_layer_options, .activation = CUP_ACTIVATION_RELU,
                               .stride = CUP_INTS(2, 1), .padding = CUP_INTS(2, 1),
                               .dilation = CUP_INTS(1, 2), .groups = 2, .no_bias = true)),
               CUP_OK);
    EXPECT(!all.bias && cup_tensor_size(all.weight, 1) == 2);
    expect_same(cup_layer_call(&all.layer, x),
                cup_relu(c, cup_conv2d(c, x, all.weight, NULL,
                                       CUP_OPTIONS(cup_conv2d_options, .stride = CUP_INTS(2, 1),
                                                   .padding = CUP_INTS(2, 2, 1, 1),
                                                   .dilation = CUP_INTS(1, 2), .groups = 2))));
    EXPECT_INT(cup_conv2d_layer_new(
                   &same, list, "same", 4, 3, (int64_t[]){3}, 1,
                   CUP_OPTIONS(cup_conv2d_layer_options, .activation = CUP_ACTIVATION_TANH,
                               .same = true)),
               CUP_OK);
    cup_tensor *y = cup_conv2d_layer_call(&same, x);
    EXPECT(y && cup_tensor_size(y, 2) == 7 && cup_tensor_size(y, 3) == 8);
    EXPECT_INT(cup_backward(c, cup_sum(c, y, NULL, 0, false)), CUP_OK);
    EXPECT(cup_grad(same.weight) && cup_grad(same.bias));
    cup_parameters_free(list);
    cup_context_free(c);
}

/* Of images whose channels lie last the values of others, by windows of one place and of nine. */
TEST(layers_conv2d_of_channels_last)
{
    const int64_t last[] = {0, 2, 3, 1};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 6));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *x = cup_uniform(c, CUP_F32, 4, (int64_t[]){2, 4, 5, 6}, -1, 1);
    cup_tensor *turned = cup_copy(c, cup_permute(c, x, last, 4));
    for (int64_t side = 1; side <= 3; side += 2) {
        cup_conv2d_layer l;
        cup_status made = cup_conv2d_layer_new(
            &l, list, side == 1 ? "one" : "nine", 4, 3, (int64_t[]){side}, 1,
            CUP_OPTIONS(cup_conv2d_layer_options, .padding = CUP_INTS(side / 2)));
        EXPECT_INT(made, CUP_OK);
        cup_tensor *y = cup_conv2d_layer_call(&l, x);
        for (int added = 0; added < 2; added++) {
            cup_tensor *rest = added ? cup_neg(c, cup_permute(c, y, last, 4)) : NULL;
            cup_tensor *got = cup_conv2d_layer_last(&l, turned, rest);
            cup_tensor *want = cup_permute(c, added ? cup_scale(c, y, 0) : y, last, 4);
            cup_tensor *apart = cup_sub(c, got, want);
            EXPECT(cup_tensor_item(cup_max(c, cup_abs(c, apart), NULL, 0, false)) < 1e-6);
        }
    }
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(layers_conv2d_of_padded_images)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *x = cup_normal(c, CUP_F32, 4, (int64_t[]){2, 3, 6, 5}, 0, 1);
    cup_conv2d_layer l;
    EXPECT_INT(cup_conv2d_layer_new(
                   &l, list, "conv", 3, 4, (int64_t[]){3}, 1,
                   CUP_OPTIONS(cup_conv2d_layer_options, .padding = CUP_INTS(2),
                               .padding_mode = CUP_PADDING_MODE_CIRCULAR,
                               .activation = CUP_ACTIVATION_SIGMOID)), CUP_OK);
    cup_tensor *residual = cup_normal(c, CUP_F32, 4, (int64_t[]){2, 4, 8, 7}, 0, 1);
    cup_tensor *round = cup_pad_circular(c, x, (int64_t[]){0, 0, 2, 2}, 4,
                                         (int64_t[]){0, 0, 2, 2}, 4);
    cup_tensor *want = cup_conv2d(c, round, l.weight, l.bias, NULL);
    expect_same(cup_conv2d_layer_call(&l, x), cup_sigmoid(c, want));
    expect_same(cup_conv2d_layer_join(&l, x, residual),
                cup_sigmoid(c, cup_add(c, want, residual)));
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(layers_conv2d_refuse_what_cannot_be)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_conv2d_layer l;
    const int64_t three = 3, none = 0;
    const cup_conv2d_layer_options groups = {.size = sizeof groups, .groups = 4};
    const cup_conv2d_layer_options split = {.size = sizeof split,
                                            .activation = CUP_ACTIVATION_SWIGLU};
    const cup_conv2d_layer_options odd = {.size = sizeof odd, .padding = CUP_INTS(1, 1, 1)};
    expect_refused(c, cup_conv2d_layer_new(NULL, list, "a", 4, 4, &three, 1, NULL), "is NULL");
    EXPECT_INT(cup_conv2d_layer_new(&l, NULL, "a", 4, 4, &three, 1, NULL), CUP_ARGUMENT);
    expect_refused(c, cup_conv2d_layer_new(&l, list, "a", 0, 4, &three, 1, NULL), "in must be");
    expect_refused(c, cup_conv2d_layer_new(&l, list, "a", 4, 4, NULL, 1, NULL), "a kernel has");
    expect_refused(c, cup_conv2d_layer_new(&l, list, "a", 4, 4, &three, 3, NULL), "a kernel has");
    expect_refused(c, cup_conv2d_layer_new(&l, list, "a", 4, 4, &none, 1, NULL), "kernel must be");
    expect_refused(c, cup_conv2d_layer_new(&l, list, "a", 4, 6, &three, 1, &groups), "divide");
    expect_refused(c, cup_conv2d_layer_new(&l, list, "a", 4, 4, &three, 1, &split), "activation");
    expect_refused(c, cup_conv2d_layer_new(&l, list, "a", 4, 4, &three, 1, &odd), "one, two or");
    cup_tensor *x = cup_zeros(c, CUP_F32, 4, (int64_t[]){1, 4, 5, 5});
    EXPECT(!cup_conv2d_layer_call(&l, x) && !cup_conv2d_layer_call(NULL, NULL));
    expect_refused(c, cup_error(c), "was not made");
    cup_parameters_free(list);
    cup_context_free(c);
}
