/* Networks from descriptions: what they compute, how large the known ones are, what is refused. */
#include <stdio.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

static cup_context *begin(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
}

#define SIZES(h, w, k, n)                                                                          \
    CUP_OPTIONS(cup_network_sizes, .height = (h), .width = (w), .channels = (k), .classes = (n))

static void expect_same(cup_tensor *got, cup_tensor *want)
{
    float a[4000], b[4000];
    EXPECT(got && want && cup_tensor_count(got) == cup_tensor_count(want));
    size_t bytes = (size_t)cup_tensor_count(want) * sizeof(float);
    EXPECT(bytes > 0 && bytes <= sizeof a);
    EXPECT_INT(cup_tensor_read(got, a, bytes), CUP_OK);
    EXPECT_INT(cup_tensor_read(want, b, bytes), CUP_OK);
    for (size_t i = 0; i < bytes / sizeof *a; i++)
        EXPECT_NEAR(a[i], b[i], 1e-5);
}

/* The layers by hand, of the same tensors. */
TEST(network_computes)
{
    static const char text[] = "# a small one\n"
                               "conv 6 stride=2 # from 9 x 8 to 5 x 4\n\n"
                               "residual\n  conv 4 kernel=1 nobias\nrelu\n"
                               "shortcut\n  conv 4 kernel=1\n end\n"
                               "maxpool 2 stride=1\nscale 0.5\nflatten\nlinear classes\n";
    cup_context *c = begin();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_network *n = cup_network_new(c, list, text, SIZES(9, 8, 3, 7));
    EXPECT_TEXT(cup_error_text(c), "");
    const int64_t first[] = {0, 3, 1, 2}, last[] = {0, 2, 3, 1};
    cup_tensor *x = cup_normal(c, CUP_F32, 4, (int64_t[]){2, 9, 8, 3}, 0, 1);
    cup_tensor *h = cup_conv2d(
        c, cup_permute(c, x, first, 4), cup_parameters_find(list, "conv1.weight"),
        cup_parameters_find(list, "conv1.bias"),
        CUP_OPTIONS(cup_conv2d_options, .stride = CUP_INTS(2), .padding = CUP_INTS(1)));
    cup_tensor *body =
        cup_relu(c, cup_conv2d(c, h, cup_parameters_find(list, "conv2.weight"), NULL, NULL));
    cup_tensor *shortcut = cup_conv2d(c, h, cup_parameters_find(list, "conv3.weight"),
                                      cup_parameters_find(list, "conv3.bias"), NULL);
    h = cup_max_pool2d(c, cup_add(c, body, shortcut), (int64_t[]){2}, 1,
                       CUP_OPTIONS(cup_max_pool2d_options, .stride = CUP_INTS(1)));
    h = cup_scale(c, cup_permute(c, h, last, 4), 0.5);
    h = cup_linear(c, cup_reshape(c, h, 2, (int64_t[]){2, 48}),
                   cup_parameters_find(list, "linear1.weight"),
                   cup_parameters_find(list, "linear1.bias"));
    expect_same(cup_network_call(n, x), h);
    EXPECT(cup_network_call(n, h) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "takes images [N,9,8,3], not [2,7] f32");
    cup_error_clear(c);
    cup_network_free(n);
    cup_parameters_free(list);
    cup_context_free(c);
}

/* The numbers of parameters are those of the papers' own programs. */
static void expect_size(const char *name, int64_t side, int64_t classes, int64_t parameters)
{
    char text[4096];
    cup_context *c = begin();
    cup_parameters *list = cup_parameters_new(c, CUP_BF16);
    EXPECT_INT(cup_network_text(c, name, side, side, text, sizeof text), CUP_OK);
    cup_network *n = cup_network_new(c, list, text, SIZES(side, side, 3, classes));
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_parameters_count(list, true), parameters);
    cup_network_free(n);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(network_resnet18)
{
    expect_size("resnet18", 32, 10, 11173962);
}

TEST(network_resnet50)
{
    expect_size("resnet50", 224, 1000, 25557032);
}

TEST(network_vit)
{
    expect_size("vit-s", 224, 1000, 22050664);
}

TEST(network_convnext)
{
    expect_size("convnext-t", 224, 1000, 28589128);
}

/* Every known network learns from images of any size, in both directions. */
TEST(network_backward)
{
    cup_context *c = begin();
    char text[4096];
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    static const char small[] =
        "conv 8 kernel=4 stride=4 padding=0\ntokens\nclasstoken\npositions\n"
        "repeat 2\ntransformer heads=2 hidden=16 dropout=0.1\nend\nlayernorm\nmeantokens\n"
        "batchnorm\ntanh\ndropout 0.1\nlinear classes\n";
    EXPECT_INT(cup_network_text(c, "cnn", 9, 9, text, sizeof text), CUP_OK);
    for (int k = 0; k < 2; k++) {
        cup_parameters *under = cup_parameters_under(list, k ? "vit" : "cnn");
        cup_network *n = cup_network_new(c, under, k ? small : text, SIZES(9, 9, 1, 3));
        EXPECT_TEXT(cup_error_text(c), "");
        cup_scope_open(c);
        cup_tensor *x = cup_normal(c, CUP_F32, 4, (int64_t[]){4, 9, 9, 1}, 0, 1);
        cup_tensor *labels = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){4},
                                             (int64_t[]){0, 1, 2, 0});
        cup_backward(c, cup_cross_entropy(c, cup_network_call(n, x), labels, -1, NULL));
        EXPECT_TEXT(cup_error_text(c), "");
        int64_t count;
        const cup_named *all = cup_parameters_named(under, &count);
        for (int64_t i = 0; i < count; i++)
            EXPECT(strstr(all[i].name, "running") || cup_grad(all[i].tensor) != NULL);
        cup_scope_close(c);
        cup_network_free(n);
    }
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(network_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "no layers"},
        {"# nothing\n\n", "no layers"},
        {"relu\nconvolve 3\n", "line 2 of the network: \"convolve\" is no layer"},
        {"conv\n", "behind conv a number is missing"},
        {"conv 8 kernel=0\n", "conv cannot take \"kernel=0\""},
        {"conv 8 9\n", "conv cannot take \"9\""},
        {"conv 8 heads=2\n", "conv cannot take \"heads=2\""},
        {"conv 99999999999999999999\n", "conv cannot take"},
        {"relu 3\n", "relu cannot take \"3\""},
        {"dropout 1e9\n", "cannot take"},
        {"dropout .\n", "cannot take"},
        {"dropout 1\n", "line 1 of the network: dropout cannot take \"1\""},
        {"tokens\ntransformer heads=1 dropout=1\n", "transformer cannot take \"dropout=1\""},
        {"conv 8 kernel=9 padding=0\n", "line 1 of the network: the window of 9"},
        {"conv 8 groups=2\n", "line 1 of the network: conv gets"},
        {"conv 8 groups=2\n", "whose channels its groups do not divide"},
        {"conv 8 kernel=3 kernel=5\n", "conv cannot take \"kernel=5\""},
        {"conv 8 mode=reflect mode=reflect\n", "conv cannot take \"mode=reflect\""},
        {"flatten\nconv 8\n", "line 2 of the network: conv gets 48 numbers, and takes images"},
        {"tokens\ntransformer heads=2\n", "which its heads do not divide"},
        {"transformer\n", "needs heads="},
        {"groupnorm 2\n", "whose channels its groups do not divide"},
        {"firsttoken\n", "and takes tokens"},
        {"classtoken\n", "and takes tokens"},
        {"maxpool 2 padding=2\n", "over half of its window"},
        {"end\n", "end closes no"},
        {"repeat 2\n", "line 1 of the network: repeat has no end"},
        {"residual\nconv 8\nend\n", "the residual of line 1 would add images of 4 x 4 x 8"},
        {"repeat 2\nshortcut\nend\n", "shortcut stands in no residual"},
        {"residual\nshortcut\nshortcut\nend\n", "or is its second"},
        {"conv 8\n", "ends with images of 4 x 4 x 8 for 5 classes"},
        {"flatten\nlinear 4\n", "ends with 4 numbers for 5 classes"},
        {"repeat 1000000\nrepeat 1000000\nrelu\nend\nend\n", "over 4096 layers"},
        {"repeat 1000000\nconv same\nend\n", "over 4096 layers; repeat them fewer times"},
        {"relu\nrepeat 1000000000\nrepeat 1000000000\nend\nend\n",
         "line 3 of the network: there is nothing to repeat"}};
    cup_context *c = begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cup_parameters *list = cup_parameters_new(c, CUP_F32);
        EXPECT(cup_network_new(c, list, cases[i].text, SIZES(4, 4, 3, 5)) == NULL);
        EXPECT_CONTAINS(cup_error_text(c), cases[i].words);
        cup_error_clear(c);
        cup_parameters_free(list);
    }
    char small[8];
    EXPECT(cup_network_text(c, "cnn", 28, 28, small, sizeof small) == CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT(cup_network_text(c, "cnm", 28, 28, small, sizeof small) == CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "is no network");
    cup_error_clear(c);
    EXPECT(cup_network_text(c, "cnn", 28, 28, NULL, sizeof small) == CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "is NULL");
    cup_context_free(c);
}

static double step(cup_context *c, cup_network *n, cup_optimizer *o, cup_tensor *x,
                   cup_tensor *want, bool classes)
{
    cup_scope_open(c);
    cup_tensor *y = cup_network_call(n, x);
    EXPECT(y && cup_tensor_is_contiguous(y));
    for (int i = 0; i < 3; i++)
        EXPECT_INT(cup_tensor_size(y, i), cup_tensor_size(x, i));
    const int64_t places[] = {cup_tensor_count(y) / 3, 3};
    cup_tensor *off = classes ? NULL : cup_sub(c, y, x);
    cup_tensor *loss = classes
                           ? cup_cross_entropy(c, cup_reshape(c, y, 2, places), want, -1, NULL)
                           : cup_mean(c, cup_mul(c, off, off), NULL, 0, false);
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    double value = cup_tensor_item(loss);
    EXPECT_INT(cup_optimizer_set(o, 0.01, 1), CUP_OK);
    EXPECT_INT(cup_optimizer_step(o), CUP_OK);
    cup_optimizer_clear(o);
    cup_scope_close(c);
    return value;
}

/* A U-Net learns which channel is the largest at each place, and an autoencoder to make an image
 * again. */
TEST(network_ends_with_images)
{
    static const char *const texts[] = {
        "conv 8\nrelu\nkeep large\nmaxpool 2\nconv 12\nrelu\nconvtranspose 8\nconcat large\n"
        "conv 8\nrelu\nconv 3 kernel=1\n",
        "conv 8 stride=2\nrelu\nconv 12\nrelu\nconvtranspose 3 kernel=4\n"};
    for (int i = 0; i < 2; i++) {
        cup_context *c = begin();
        cup_parameters *list = cup_parameters_new(c, CUP_F32);
        cup_network *n = cup_network_new(c, list, texts[i], SIZES(6, 8, 3, 0));
        EXPECT_TEXT(cup_error_text(c), "");
        cup_optimizer *o = cup_optimizer_of(list, NULL);
        cup_tensor *x = cup_normal(c, CUP_F32, 4, (int64_t[]){4, 6, 8, 3}, 0, 1);
        cup_tensor *largest = cup_argmax(c, x, (int64_t[]){3}, 1, false);
        cup_tensor *want = cup_reshape(c, largest, 1, (int64_t[]){4 * 6 * 8});
        double first = step(c, n, o, x, want, !i), last = first;
        for (int k = 0; k < 60; k++)
            last = step(c, n, o, x, want, !i);
        EXPECT_TEXT(cup_error_text(c), "");
        if (last > first / 2)
            test_fail(__FILE__, __LINE__, "from %g to %g", first, last);
        cup_optimizer_free(o);
        cup_network_free(n);
        cup_parameters_free(list);
        cup_context_free(c);
    }
}

TEST(network_without_classes_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"flatten\n", "ends with 48 numbers, and without classes it must end with images"},
        {"tokens\n", "ends with 16 tokens of 3, and without classes"},
        {"linear classes\n", "linear gets images of 4 x 4 x 3, and there are no classes; give it"}};
    cup_context *c = begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cup_parameters *list = cup_parameters_new(c, CUP_F32);
        EXPECT(cup_network_new(c, list, cases[i].text, SIZES(4, 4, 3, 0)) == NULL);
        EXPECT_CONTAINS(cup_error_text(c), cases[i].words);
        cup_error_clear(c);
        EXPECT(cup_network_new(c, list, "relu\n", SIZES(4, 4, 3, -1)) == NULL);
        EXPECT_CONTAINS(cup_error_text(c), "or the classes 0");
        cup_error_clear(c);
        cup_parameters_free(list);
    }
    cup_context_free(c);
}
