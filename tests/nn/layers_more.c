/* Layers of one and three sides, transposed and recurrent ones and bags: against the calls they
 * are made of, and what they refuse. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

typedef struct session {
    cup_context *c;
    cup_parameters *list;
} session;

static session begin(void)
{
    session s = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5))};
    s.list = cup_parameters_new(s.c, CUP_F32);
    return s;
}

static void end(session *s)
{
    EXPECT_TEXT(cup_error_text(s->c), "");
    cup_parameters_free(s->list);
    cup_context_free(s->c);
}

static void expect_same(cup_tensor *got, cup_tensor *want)
{
    static float a[8000], b[8000];
    EXPECT(got && want && cup_tensor_ndim(got) == cup_tensor_ndim(want));
    for (int i = 0; i < cup_tensor_ndim(want); i++)
        EXPECT_INT(cup_tensor_size(got, i), cup_tensor_size(want, i));
    size_t bytes = (size_t)cup_tensor_count(want) * sizeof(float);
    EXPECT(bytes > 0 && bytes <= sizeof a);
    EXPECT_INT(cup_tensor_read(got, a, bytes), CUP_OK);
    EXPECT_INT(cup_tensor_read(want, b, bytes), CUP_OK);
    EXPECT(!memcmp(a, b, bytes));
}

static void expect_refused(session *s, cup_status status, const char *words)
{
    EXPECT(status != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(s->c), words);
    cup_error_clear(s->c);
}

static void expect_gradients(session *s, cup_tensor *y)
{
    int64_t count;
    cup_backward(s->c, cup_sum(s->c, cup_square(s->c, y), NULL, 0, false));
    const cup_named *all = cup_parameters_named(s->list, &count);
    for (int64_t i = 0; i < count; i++)
        EXPECT(cup_grad(all[i].tensor) != NULL);
}

TEST(layers_conv1d_and_conv3d)
{
    session s = begin();
    cup_tensor *line = cup_normal(s.c, CUP_F32, 3, (int64_t[]){2, 4, 9}, 0, 1);
    cup_tensor *solid = cup_normal(s.c, CUP_F32, 5, (int64_t[]){2, 4, 3, 5, 6}, 0, 1);
    cup_conv1d_layer one;
    cup_conv3d_layer three, same;
    EXPECT_INT(cup_conv1d_layer_new(
                   &one, s.list, "one", 4, 6, 3,
                   CUP_OPTIONS(cup_conv2d_layer_options, .activation = CUP_ACTIVATION_GELU,
                               .stride = CUP_INTS(2), .padding = CUP_INTS(2, 1), .groups = 2,
                               .padding_mode = CUP_PADDING_MODE_CIRCULAR)), CUP_OK);
    EXPECT(cup_parameters_find(s.list, "one.weight") == one.weight && one.bias);
    cup_tensor *y = cup_layer_call(&one.layer, line);
    cup_tensor *want = cup_conv1d(
        s.c, line, one.weight, one.bias,
        CUP_OPTIONS(cup_conv2d_options, .stride = CUP_INTS(2), .padding = CUP_INTS(2, 1),
                    .groups = 2, .padding_mode = CUP_PADDING_MODE_CIRCULAR,
                    .activation = CUP_ACTIVATION_GELU));
    expect_same(y, want);
    EXPECT_INT(cup_conv3d_layer_new(
                   &three, s.list, "three", 4, 6, (int64_t[]){1, 3, 2}, 3,
                   CUP_OPTIONS(cup_conv2d_layer_options, .activation = CUP_ACTIVATION_RELU,
                               .stride = CUP_INTS(1, 2, 1), .padding = CUP_INTS(0, 1, 1),
                               .no_bias = true)), CUP_OK);
    EXPECT(!three.bias);
    cup_tensor *z = cup_layer_call(&three.layer, solid);
    expect_same(z, cup_relu(s.c, cup_conv3d(s.c, solid, three.weight, NULL,
                                            CUP_OPTIONS(cup_conv3d_options,
                                                        .stride = CUP_INTS(1, 2, 1),
                                                        .padding = CUP_INTS(0, 0, 1, 1, 1, 1)))));
    EXPECT_INT(cup_conv3d_layer_new(&same, s.list, "same", 4, 2, (int64_t[]){3}, 1,
                                    CUP_OPTIONS(cup_conv2d_layer_options, .same = true)), CUP_OK);
    cup_tensor *u = cup_conv3d_layer_call(&same, solid);
    EXPECT(u && cup_tensor_size(u, 2) == 3 && cup_tensor_size(u, 4) == 6);
    expect_gradients(&s, cup_add(s.c, cup_sum(s.c, y, NULL, 0, false),
                                 cup_add(s.c, cup_sum(s.c, z, NULL, 0, false),
                                         cup_sum(s.c, u, NULL, 0, false))));
    end(&s);
}

TEST(layers_conv_transpose)
{
    session s = begin();
    cup_conv_transpose_layer l[3];
    cup_tensor *sum = NULL;
    for (int n = 1; n <= 3; n++) {
        static const char *const names[] = {"one", "two", "three"};
        const int64_t shape[] = {2, 4, 3, 5, 2}, kernel[] = {3, 2, 4};
        cup_tensor *x = cup_normal(s.c, CUP_F32, 2 + n, shape, 0, 1);
        EXPECT_INT(cup_conv_transpose_layer_new(
                       &l[n - 1], s.list, names[n - 1], 4, 6, kernel, n,
                       CUP_OPTIONS(cup_conv_transpose_layer_options, .stride = CUP_INTS(2),
                                   .padding = CUP_INTS(1), .output_padding = CUP_INTS(1),
                                   .groups = 2, .activation = CUP_ACTIVATION_SILU)), CUP_OK);
        const cup_conv_transpose_options *o = CUP_OPTIONS(
            cup_conv_transpose_options, .stride = CUP_INTS(2), .padding = CUP_INTS(1),
            .output_padding = CUP_INTS(1), .groups = 2);
        cup_tensor *w = l[n - 1].weight, *b = l[n - 1].bias;
        cup_tensor *y = cup_layer_call(&l[n - 1].layer, x);
        expect_same(y, cup_silu(s.c, n == 1   ? cup_conv_transpose1d(s.c, x, w, b, o)
                                     : n == 2 ? cup_conv_transpose2d(s.c, x, w, b, o)
                                              : cup_conv_transpose3d(s.c, x, w, b, o)));
        cup_conv_transpose_layer same;
        EXPECT_INT(cup_conv_transpose_layer_new(
                       &same, cup_parameters_under(s.list, "same"), names[n - 1], 4, 3, kernel, n,
                       CUP_OPTIONS(cup_conv_transpose_layer_options, .stride = CUP_INTS(2),
                                   .same = true)), CUP_OK);
        cup_tensor *z = cup_layer_call(&same.layer, x);
        EXPECT(z && cup_tensor_size(z, n + 1) == 2 * shape[n + 1]);
        y = cup_add(s.c, cup_sum(s.c, y, NULL, 0, false), cup_sum(s.c, z, NULL, 0, false));
        sum = sum ? cup_add(s.c, sum, y) : y;
    }
    expect_gradients(&s, sum);
    end(&s);
}

/* Two layers in both directions are the calls one behind the other. */
TEST(layers_lstm)
{
    session s = begin();
    cup_lstm_layer l;
    cup_tensor *x = cup_normal(s.c, CUP_F32, 3, (int64_t[]){5, 2, 3}, 0, 1);
    cup_tensor *h = cup_normal(s.c, CUP_F32, 3, (int64_t[]){4, 2, 4}, 0, 1);
    cup_tensor *cells = cup_normal(s.c, CUP_F32, 3, (int64_t[]){4, 2, 4}, 0, 1);
    EXPECT_INT(cup_lstm_layer_new(&l, s.list, "rnn", 3, 4,
                                  CUP_OPTIONS(cup_recurrent_layer_options, .layers = 2,
                                              .both = true)), CUP_OK);
    EXPECT(cup_parameters_find(s.list, "rnn.weight_ih_l1_reverse") == l.weights[1][1][0]);
    EXPECT_INT(cup_tensor_size(l.weights[1][0][0], 1), 8);
    cup_tensor *out[3], *last_h[4], *last_cells[4], *in = x;
    EXPECT_INT(cup_lstm_layer_pass(&l, x, h, cells, out), CUP_OK);
    for (int k = 0; k < 4; k++) {
        static cup_tensor *both[2];
        cup_tensor *made[3], *from = k % 2 ? cup_flip(s.c, in, (int64_t[]){0}, 1) : in;
        const int64_t at[] = {k, 0, 0}, size[] = {1, 2, 4};
        cup_lstm(s.c, from, cup_reshape(s.c, cup_slice(s.c, h, at, 3, size, 3), 2, size + 1),
                 cup_reshape(s.c, cup_slice(s.c, cells, at, 3, size, 3), 2, size + 1),
                 l.weights[k / 2][k % 2], 4, made);
        both[k % 2] = k % 2 ? cup_flip(s.c, made[0], (int64_t[]){0}, 1) : made[0];
        last_h[k] = made[1];
        last_cells[k] = made[2];
        in = k % 2 ? cup_concat(s.c, both, 2, 2) : in;
    }
    expect_same(out[0], in);
    expect_same(out[1], cup_stack(s.c, last_h, 4, 0));
    expect_same(out[2], cup_stack(s.c, last_cells, 4, 0));
    expect_gradients(&s, out[0]);
    /* From zeros on. */
    cup_tensor *none = cup_zeros(s.c, CUP_F32, 3, (int64_t[]){4, 2, 4});
    cup_lstm_layer_pass(&l, x, none, none, out);
    expect_same(cup_layer_call(&l.layer, x), out[0]);
    end(&s);
}

TEST(layers_gru)
{
    session s = begin();
    cup_gru_layer l, drops;
    cup_tensor *x = cup_normal(s.c, CUP_F32, 3, (int64_t[]){5, 2, 3}, 0, 1), *out[2], *made[2];
    EXPECT_INT(cup_gru_layer_new(&l, s.list, "rnn", 3, 4,
                                 CUP_OPTIONS(cup_recurrent_layer_options, .no_bias = true)),
               CUP_OK);
    EXPECT(cup_parameters_find(s.list, "rnn.bias_ih_l0") == NULL);
    EXPECT_INT(cup_gru_layer_pass(&l, x, NULL, out), CUP_OK);
    cup_gru(s.c, x, cup_zeros(s.c, CUP_F32, 2, (int64_t[]){2, 4}), l.weights[0][0], 2, made);
    expect_same(out[0], made[0]);
    expect_same(out[1], cup_reshape(s.c, made[1], 3, (int64_t[]){1, 2, 4}));
    expect_same(cup_layer_call(&l.layer, x), made[0]);
    expect_gradients(&s, out[0]);
    float a[40], b[40];
    EXPECT_INT(cup_gru_layer_new(&drops, s.list, "drops", 3, 4,
                                 CUP_OPTIONS(cup_recurrent_layer_options, .layers = 2,
                                             .dropout = 0.5)), CUP_OK);
    cup_tensor_read(cup_gru_layer_call(&drops, x), a, sizeof a);
    cup_parameters_training(s.list, false);
    cup_tensor_read(cup_gru_layer_call(&drops, x), b, sizeof b);
    EXPECT(memcmp(a, b, sizeof a) != 0);
    cup_tensor_read(cup_gru_layer_call(&drops, x), a, sizeof a);
    EXPECT(!memcmp(a, b, sizeof a));
    end(&s);
}

TEST(layers_embedding_bag)
{
    session s = begin();
    cup_embedding_bag_layer sum, mean;
    cup_tensor *ids = cup_tensor_from(s.c, CUP_I64, 2, (int64_t[]){2, 3},
                                      (int64_t[]){4, 0, 4, 1, 2, 0});
    EXPECT_INT(cup_embedding_bag_layer_new(&sum, s.list, "sum", 5, 3, NULL), CUP_OK);
    EXPECT_INT(cup_embedding_bag_layer_new(
                   &mean, s.list, "mean", 5, 3,
                   CUP_OPTIONS(cup_embedding_bag_layer_options, .mean = true,
                               .initializer = CUP_INITIALIZER_ONES)), CUP_OK);
    float w[15], y[6];
    cup_tensor_read(sum.weight, w, sizeof w);
    EXPECT_INT(cup_tensor_read(cup_layer_call(&sum.layer, ids), y, sizeof y), CUP_OK);
    for (int k = 0; k < 3; k++) {
        EXPECT_NEAR(y[k], 2 * w[12 + k] + w[k], 1e-6);
        EXPECT_NEAR(y[3 + k], w[3 + k] + w[6 + k] + w[k], 1e-6);
    }
    cup_tensor *ends = cup_tensor_from(s.c, CUP_I64, 1, (int64_t[]){2}, (int64_t[]){1, 6});
    cup_tensor *flat = cup_reshape(s.c, ids, 1, (int64_t[]){6});
    cup_tensor *z = cup_embedding_bag_layer_pass(&mean, flat, ends);
    EXPECT_INT(cup_tensor_read(z, y, sizeof y), CUP_OK);
    for (int k = 0; k < 6; k++)
        EXPECT_NEAR(y[k], 1, 1e-6);
    expect_gradients(&s, cup_add(s.c, z, cup_layer_call(&sum.layer, ids)));
    EXPECT(cup_layer_call(&sum.layer, flat) == NULL);
    expect_refused(&s, cup_error(s.c), "ids must be [B,K]");
    end(&s);
}

TEST(layers_more_refused)
{
    session s = begin();
    cup_conv1d_layer one;
    cup_conv3d_layer three;
    cup_conv_transpose_layer t;
    cup_lstm_layer lstm;
    cup_gru_layer gru;
    cup_embedding_bag_layer bag;
    const int64_t k[] = {3, 3};
    cup_conv2d_layer_options odd = {.size = sizeof odd, .stride = CUP_INTS(1, 2)};
    cup_conv2d_layer_options two = {.size = sizeof two, .groups = 3};
    expect_refused(&s, cup_conv1d_layer_new(&one, s.list, "a", 4, 4, 3, &odd), "one for each side");
    expect_refused(&s, cup_conv1d_layer_new(&one, s.list, "a", 4, 4, 0, NULL), "kernel must be");
    expect_refused(&s, cup_conv1d_layer_new(&one, s.list, "a", 4, 4, 3, &two), "do not divide");
    expect_refused(&s, cup_conv3d_layer_new(&three, s.list, "a", 4, 4, k, 2, NULL), "a kernel has");
    expect_refused(&s, cup_conv3d_layer_new(&three, s.list, "a", 0, 4, k, 1, NULL), "in must be");
    expect_refused(&s, cup_conv_transpose_layer_new(&t, s.list, "a", 4, 4, k, 4, NULL),
                   "one to three");
    expect_refused(&s, cup_conv_transpose_layer_new(
                           &t, s.list, "a", 4, 4, k, 2,
                           CUP_OPTIONS(cup_conv_transpose_layer_options, .same = true,
                                       .output_padding = CUP_INTS(1))), "leave them out, or same");
    expect_refused(&s, cup_conv_transpose_layer_new(
                           &t, s.list, "a", 4, 4, k, 2,
                           CUP_OPTIONS(cup_conv_transpose_layer_options,
                                       .activation = CUP_ACTIVATION_SWIGLU)), "its activation");
    expect_refused(&s, cup_lstm_layer_new(&lstm, s.list, "a", 3, 4,
                                          CUP_OPTIONS(cup_recurrent_layer_options, .layers = 9)),
                   "1 to 8 layers");
    expect_refused(&s, cup_gru_layer_new(&gru, s.list, "a", 3, 0, NULL), "width must be");
    expect_refused(&s, cup_gru_layer_new(&gru, s.list, "a", 3, 4,
                                         CUP_OPTIONS(cup_recurrent_layer_options, .dropout = 1)),
                   "layer under \"a.\"");
    expect_refused(&s, cup_embedding_bag_layer_new(&bag, s.list, "a", 0, 4, NULL), "count must be");
    EXPECT_INT(cup_gru_layer_new(&gru, s.list, "a", 3, 4, NULL), CUP_OK);
    cup_tensor *x = cup_zeros(s.c, CUP_F32, 3, (int64_t[]){5, 2, 3}), *out[2];
    expect_refused(&s, cup_gru_layer_pass(&gru, x, x, out), "h and cells [1,N,4]");
    EXPECT(!out[0] && !out[1]);
    end(&s);
}
