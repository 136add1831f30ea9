/* Words of described networks, each against the calls it stands for. */
#include <stdio.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

enum { HIGH = 6, WIDE = 8, IN = 8 };

typedef struct words {
    cup_context *c;
    cup_parameters *list;
    char layer[20];
} words;

static const int64_t first[] = {0, 3, 1, 2}, last[] = {0, 2, 3, 1};

static cup_tensor *tensor(const words *w, const char *part)
{
    char name[40];
    snprintf(name, sizeof name, "%s.%s", w->layer, part);
    cup_tensor *t = cup_parameters_find(w->list, name);
    EXPECT(t != NULL);
    return t;
}

static cup_tensor *conv(const words *w, cup_tensor *x)
{
    return cup_conv2d(w->c, x, tensor(w, "weight"), tensor(w, "bias"),
                      CUP_OPTIONS(cup_conv2d_options, .dilation = CUP_INTS(2),
                                  .padding = CUP_INTS(4)));
}

static cup_tensor *conv_same(const words *w, cup_tensor *x)
{
    return cup_conv2d(w->c, x, tensor(w, "weight"), tensor(w, "bias"),
                      CUP_OPTIONS(cup_conv2d_options, .stride = CUP_INTS(3), .same = true,
                                  .padding_mode = CUP_PADDING_MODE_REFLECT));
}

static cup_tensor *transposed(const words *w, cup_tensor *x)
{
    return cup_conv_transpose2d(w->c, x, tensor(w, "weight"), tensor(w, "bias"),
                                CUP_OPTIONS(cup_conv_transpose_options, .stride = CUP_INTS(2)));
}

static cup_tensor *transposed_far(const words *w, cup_tensor *x)
{
    return cup_conv_transpose2d(w->c, x, tensor(w, "weight"), NULL,
                                CUP_OPTIONS(cup_conv_transpose_options, .stride = CUP_INTS(3),
                                            .padding = CUP_INTS(1, 1, 1, 1),
                                            .output_padding = CUP_INTS(2), .groups = 2));
}

/* Of a stride of 3 a reach of 2 leaves a place open. */
static cup_tensor *transposed_open(const words *w, cup_tensor *x)
{
    return cup_conv_transpose2d(w->c, x, tensor(w, "weight"), NULL,
                                CUP_OPTIONS(cup_conv_transpose_options, .stride = CUP_INTS(3),
                                            .output_padding = CUP_INTS(1)));
}

/* Of a reach of 5 and a stride of 2 the 3 that are over are cut off. */
static cup_tensor *transposed_cut(const words *w, cup_tensor *x)
{
    return cup_conv_transpose2d(w->c, x, tensor(w, "weight"), tensor(w, "bias"),
                                CUP_OPTIONS(cup_conv_transpose_options, .stride = CUP_INTS(2),
                                            .padding = CUP_INTS(1, 2, 1, 2),
                                            .dilation = CUP_INTS(2)));
}

static cup_tensor *upsampled(const words *w, cup_tensor *x)
{
    return cup_interpolate(w->c, x, (int64_t[]){3 * HIGH, 3 * WIDE}, 2,
                           CUP_INTERPOLATION_BICUBIC, false);
}

static cup_tensor *repeated(const words *w, cup_tensor *x)
{
    return cup_interpolate(w->c, x, (int64_t[]){2 * HIGH, 2 * WIDE}, 2,
                           CUP_INTERPOLATION_NEAREST, false);
}

static cup_tensor *shuffled(const words *w, cup_tensor *x)
{
    return cup_pixel_shuffle(w->c, x, 2);
}

static cup_tensor *adapted(const words *w, cup_tensor *x)
{
    return cup_adaptive_avg_pool2d(w->c, x, (int64_t[]){4}, 1, false);
}

static cup_tensor *adapted_most(const words *w, cup_tensor *x)
{
    return cup_adaptive_max_pool2d(w->c, x, (int64_t[]){4}, 1, false);
}

static cup_tensor *normed(const words *w, cup_tensor *x)
{
    return cup_local_response_norm(w->c, x, 5, 0.5, 0.75, 2);
}

static cup_tensor *leaky(const words *w, cup_tensor *x)
{
    return cup_leaky_relu(w->c, x, 0.2);
}

static cup_tensor *leaky_usual(const words *w, cup_tensor *x)
{
    return cup_leaky_relu(w->c, x, 0.01);
}

static cup_tensor *elu(const words *w, cup_tensor *x)
{
    return cup_elu(w->c, x, 1);
}

static cup_tensor *hardswish(const words *w, cup_tensor *x)
{
    return cup_hardswish(w->c, x);
}

static cup_tensor *mish(const words *w, cup_tensor *x)
{
    return cup_mish(w->c, x);
}

static cup_tensor *softplus(const words *w, cup_tensor *x)
{
    return cup_softplus(w->c, x);
}

static cup_tensor *kept(const words *w, cup_tensor *x)
{
    return cup_concat(w->c, (cup_tensor *[]){x, cup_relu(w->c, x)}, 2, 1);
}

static const struct {
    const char *line, *layer;
    int64_t side[2], channels; /* of what it gives */
    cup_tensor *(*want)(const words *w, cup_tensor *x);
} cases[] = {
    {"conv 4 kernel=5 dilation=2\n", "conv1", {HIGH, WIDE}, 4, conv},
    {"conv 4 stride=3 padding=same mode=reflect\n", "conv1", {2, 3}, 4, conv_same},
    {"convtranspose 4\n", "convtranspose1", {2 * HIGH, 2 * WIDE}, 4, transposed},
    {"convtranspose same kernel=4 stride=3 padding=1 outpadding=2 groups=2 nobias\n",
     "convtranspose1", {3 * HIGH + 1, 3 * WIDE + 1}, IN, transposed_far},
    {"convtranspose 3 kernel=3 dilation=2\n", "convtranspose1", {2 * HIGH, 2 * WIDE}, 3,
     transposed_cut},
    {"convtranspose 3 kernel=3 dilation=2 padding=same\n", "convtranspose1",
     {2 * HIGH, 2 * WIDE}, 3, transposed_cut},
    {"convtranspose same kernel=2 stride=3 padding=same nobias\n", "convtranspose1",
     {3 * HIGH, 3 * WIDE}, IN, transposed_open},
    {"upsample 3 mode=bicubic\n", "", {3 * HIGH, 3 * WIDE}, IN, upsampled},
    {"upsample 2\n", "", {2 * HIGH, 2 * WIDE}, IN, repeated},
    {"pixelshuffle 2\n", "", {2 * HIGH, 2 * WIDE}, IN / 4, shuffled},
    {"adaptivepool 4\n", "", {4, 4}, IN, adapted},
    {"adaptivepool 4 mode=max\n", "", {4, 4}, IN, adapted_most},
    {"localresponsenorm 5 alpha=0.5 k=2\n", "", {HIGH, WIDE}, IN, normed},
    {"leakyrelu 0.2\n", "", {HIGH, WIDE}, IN, leaky},
    {"leakyrelu\n", "", {HIGH, WIDE}, IN, leaky_usual},
    {"elu\n", "", {HIGH, WIDE}, IN, elu},
    {"hardswish\n", "", {HIGH, WIDE}, IN, hardswish},
    {"mish\n", "", {HIGH, WIDE}, IN, mish},
    {"softplus\n", "", {HIGH, WIDE}, IN, softplus},
    {"keep in\nrelu\nconcat in\n", "", {HIGH, WIDE}, 2 * IN, kept}};

/* The network adds up what the line gives of each channel, by a linear layer behind a mean. */
TEST(network_words)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        float got[10], want[10];
        words w = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = i + 1))};
        w.list = cup_parameters_new(w.c, CUP_F32);
        snprintf(w.layer, sizeof w.layer, "%s", cases[i].layer);
        snprintf(text, sizeof text, "%sflatten\nlinear classes\n", cases[i].line);
        cup_network *n = cup_network_new(w.c, w.list, text,
                                         CUP_OPTIONS(cup_network_sizes, .height = HIGH,
                                                     .width = WIDE, .channels = IN, .classes = 5));
        EXPECT_TEXT(cup_error_text(w.c), "");
        cup_tensor *x = cup_normal(w.c, CUP_F32, 4, (int64_t[]){2, HIGH, WIDE, IN}, 0, 1);
        cup_tensor *y = cases[i].want(&w, cup_permute(w.c, x, first, 4));
        EXPECT_INT(cup_tensor_size(y, 2), cases[i].side[0]);
        EXPECT_INT(cup_tensor_size(y, 3), cases[i].side[1]);
        EXPECT_INT(cup_tensor_size(y, 1), cases[i].channels);
        const int64_t flat[] = {2, cup_tensor_count(y) / 2};
        y = cup_linear(w.c, cup_reshape(w.c, cup_permute(w.c, y, last, 4), 2, flat),
                       cup_parameters_find(w.list, "linear1.weight"),
                       cup_parameters_find(w.list, "linear1.bias"));
        EXPECT_INT(cup_tensor_read(y, want, sizeof want), CUP_OK);
        EXPECT_INT(cup_tensor_read(cup_network_call(n, x), got, sizeof got), CUP_OK);
        for (int k = 0; k < 10; k++)
            EXPECT_NEAR(got[k], want[k], 1e-4);
        cup_network_free(n);
        cup_parameters_free(w.list);
        cup_context_free(w.c);
    }
}

/* Ronneberger, Fischer and Brox 2015, "U-Net", small; and three layers of a DenseNet, Huang and
 * others 2017, "Densely connected convolutional networks". */
static const char unet[] = "repeat 2\nconv 8\nrelu\nend\nkeep large\nmaxpool 2\n"
                           "repeat 2\nconv 16 nobias\nbatchnorm\nrelu\nend\nkeep small\n"
                           "maxpool 2\nconv 32\nrelu\n"
                           "convtranspose 16\nconcat small\nconv 16\nrelu\n"
                           "upsample 2 mode=bilinear\nconcat large\nconv 8\nrelu\n"
                           "globalpool\nlinear classes\n";
static const char densenet[] = "conv 8\nrepeat 3\nkeep all\nbatchnorm\nrelu\nconv 4\n"
                               "concat all\nend\nglobalpool\nlinear classes\n";

TEST(network_unet_and_densenet)
{
    for (int i = 0; i < 2; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
        cup_parameters *list = cup_parameters_new(c, CUP_F32);
        cup_network *n = cup_network_new(c, list, i ? densenet : unet,
                                         CUP_OPTIONS(cup_network_sizes, .height = 8, .width = 12,
                                                     .channels = 1, .classes = 3));
        EXPECT_TEXT(cup_error_text(c), "");
        cup_tensor *wide = cup_parameters_find(list, i ? "conv4.weight" : "conv6.weight");
        EXPECT_INT(cup_tensor_size(wide, 1), i ? 8 + 4 + 4 : 16 + 16);
        if (!i)
            EXPECT_INT(cup_tensor_size(cup_parameters_find(list, "conv7.weight"), 1), 8 + 16);
        cup_tensor *x = cup_normal(c, CUP_F32, 4, (int64_t[]){4, 8, 12, 1}, 0, 1);
        cup_tensor *labels =
            cup_tensor_from(c, CUP_I64, 1, (int64_t[]){4}, (int64_t[]){0, 1, 2, 0});
        cup_backward(c, cup_cross_entropy(c, cup_network_call(n, x), labels, -1, NULL));
        EXPECT_TEXT(cup_error_text(c), "");
        int64_t count;
        const cup_named *all = cup_parameters_named(list, &count);
        for (int64_t k = 0; k < count; k++)
            EXPECT(strstr(all[k].name, "running") || cup_grad(all[k].tensor) != NULL);
        float plain[12], folded[12];
        cup_parameters_training(list, false);
        cup_grad_recording(c, false);
        EXPECT_INT(cup_tensor_read(cup_network_call(n, x), plain, sizeof plain), CUP_OK);
        EXPECT_INT(cup_network_fold(n), CUP_OK);
        EXPECT_INT(cup_tensor_read(cup_network_call(n, x), folded, sizeof folded), CUP_OK);
        for (int k = 0; k < 12; k++)
            EXPECT_NEAR(plain[k], folded[k], 1e-4);
        cup_network_free(n);
        cup_parameters_free(list);
        cup_context_free(c);
    }
}

TEST(network_words_refused)
{
    static const struct {
        const char *text, *words;
    } refused[] = {
        {"relu\nconcat a\n", "line 2 of the network: nothing was kept as \"a\""},
        {"keep\n", "behind keep a name is missing"},
        {"keep 0123456789012345678901234567890123\n", "keep cannot take"},
        {"keep a b\n", "keep cannot take \"b\""},
        {"keep a\nmaxpool 2\nconcat a\n",
         "line 3 of the network: concat would put images of 2 x 2 x 3 behind images of 4 x 4 x 3"},
        {"conv 8 mode=mirror\n", "conv cannot take \"mode=mirror\""},
        {"conv 8 padding=4 mode=reflect\n", "its padding would take more than there is"},
        {"conv 8 padding=5 mode=circular\n", "its padding would take more than there is"},
        {"conv 8 kernel=9 padding=same mode=reflect\n", "would take more than there is"},
        {"conv 8 kernel=3 dilation=9 padding=0\n", "the window of 19 is larger"},
        {"maxpool 2 padding=same\n", "maxpool cannot take \"padding=same\""},
        {"upsample 2 mode=max\n", "upsample cannot take \"mode=max\""},
        {"upsample 1000000000\n", "would make too much"},
        {"flatten\nupsample 2\n", "line 2 of the network: upsample gets 48 numbers, and takes"},
        {"pixelshuffle 2\n", "channels are no multiple of its square"},
        {"convtranspose 4 outpadding=1\n", "goes with a number of padding="},
        {"convtranspose 4 padding=0 outpadding=2\n", "less than the stride"},
        {"convtranspose 4 padding=same outpadding=1\n", "goes with a number of padding="},
        {"convtranspose 4 groups=2\n", "whose channels its groups do not divide"},
        {"convtranspose 4 padding=9\n", "makes a side of -10"},
        {"convtranspose 4 stride=1000000000 padding=0\n", "makes a side of"},
        {"convtranspose 4 mode=reflect\n",
         "convtranspose cannot take \"mode=reflect\": its padding cuts places off and adds none"},
        {"convtranspose 4 mode=zeros\n", "take upsample and a conv with mode="},
        {"convtranspose 4 kernal=2\n", "convtranspose cannot take \"kernal=2\""},
        {"leakyrelu -1\n", "leakyrelu cannot take"},
        {"localresponsenorm\n", "behind localresponsenorm a number is missing"},
        {"localresponsenorm 3 gamma=1\n", "cannot take \"gamma=1\""},
        {"relu mode=zeros\n", "relu cannot take \"mode=zeros\""}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cup_parameters *list = cup_parameters_new(c, CUP_F32);
        EXPECT(cup_network_new(c, list, refused[i].text,
                               CUP_OPTIONS(cup_network_sizes, .height = 4, .width = 4,
                                           .channels = 3, .classes = 5)) == NULL);
        EXPECT_CONTAINS(cup_error_text(c), refused[i].words);
        cup_error_clear(c);
        cup_parameters_free(list);
    }
    char many[3000] = "";
    for (int i = 0; i < 65; i++)
        sprintf(many + strlen(many), "keep name%d\n", i);
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    EXPECT(cup_network_new(c, list, many,
                           CUP_OPTIONS(cup_network_sizes, .height = 4, .width = 4, .channels = 3,
                                       .classes = 5)) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "line 65 of the network: results are kept under over 64");
    cup_parameters_free(list);
    cup_context_free(c);
}
