/* Convolutions along one dimension and transposed ones, against sums written out. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"
#include "tensor/tensor.h"

/* Sizes of up to three sides; those that are not there are 1. */
typedef struct example {
    int sides, groups;
    int64_t images, in, out; /* channels */
    int64_t size[3], kernel[3], stride[3], dilation[3], before[3], behind[3], more[3];
} example;

static const example examples[] = {
    {1, 1, 2, 3, 4, {7}, {3}, {2}, {1}, {1}, {0}, {1}},
    {1, 2, 1, 4, 6, {5}, {2}, {3}, {4}, {0}, {2}, {0}},
    {2, 1, 2, 5, 3, {4, 6}, {3, 2}, {2, 1}, {1, 3}, {1, 0}, {2, 1}, {1, 0}},
    {2, 3, 1, 6, 3, {3, 3}, {3, 3}, {1, 2}, {1, 1}, {1, 1}, {1, 1}, {0, 1}},
    {2, 1, 1, 8, 16, {9, 8}, {4, 4}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
    {3, 1, 2, 3, 2, {3, 4, 2}, {3, 2, 3}, {2, 1, 3}, {1, 2, 1}, {1, 0, 1}, {0, 1, 1}, {1, 0, 2}},
    {3, 2, 1, 4, 2, {2, 3, 3}, {2, 3, 2}, {1, 2, 1}, {2, 1, 1}, {0, 1, 0}, {0, 1, 0}, {0, 0, 0}},
};

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = 8));
    if (!strcmp(name, "cuda") && cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

static cup_tensor *transposed(cup_context *c, const example *e, cup_tensor *x, cup_tensor *w,
                              cup_tensor *bias)
{
    cup_tensor *(*const call[])(cup_context *, cup_tensor *, cup_tensor *, cup_tensor *,
                                const cup_conv_transpose_options *) = {
        cup_conv_transpose1d, cup_conv_transpose2d, cup_conv_transpose3d};
    int64_t padding[6];
    for (int d = 0; d < e->sides; d++) {
        padding[2 * d] = e->before[d];
        padding[2 * d + 1] = e->behind[d];
    }
    return call[e->sides - 1](
        c, x, w, bias,
        CUP_OPTIONS(cup_conv_transpose_options, .stride = {e->stride, e->sides},
                    .padding = {padding, 2 * e->sides}, .dilation = {e->dilation, e->sides},
                    .output_padding = {e->more, e->sides}, .groups = e->groups));
}

static cup_tensor *drawn(cup_context *c, int sides, int64_t a, int64_t b, const int64_t *size)
{
    int64_t shape[5] = {a, b};
    for (int d = 0; d < sides; d++)
        shape[2 + d] = size[d];
    return cup_uniform(c, CUP_F32, 2 + sides, shape, -1, 1);
}

static void read_all(cup_tensor *t, float *to)
{
    EXPECT(t != NULL);
    cup_context *c = cup_tensor_context(t);
    EXPECT_INT(cup_tensor_read(cup_copy(c, t), to, (size_t)cup_tensor_count(t) * sizeof *to),
               CUP_OK);
}

/* The place that tap number `tap` of place `from` goes to, in the result; -1 outside. */
static int64_t goes_to(const example *e, const int64_t *out, int64_t from, int64_t tap)
{
    int64_t to = 0;
    for (int d = 0; d < e->sides; d++) {
        int64_t place = from, t = tap;
        for (int i = e->sides; --i > d; place /= e->size[i], t /= e->kernel[i])
            ;
        int64_t at = place % e->size[d] * e->stride[d] + t % e->kernel[d] * e->dilation[d] -
                     e->before[d];
        if (at < 0 || at >= out[d])
            return -1;
        to = to * out[d] + at;
    }
    return to;
}

static void expect_scattered(const example *e, cup_tensor *x, cup_tensor *w, cup_tensor *bias,
                             cup_tensor *y)
{
    static float xs[4096], ws[4096], ys[8192], bs[64], want[8192];
    int64_t places = 1, taps = 1, results = 1, out[3] = {0};
    int64_t each = e->out / e->groups, in_each = e->in / e->groups;
    for (int d = 0; d < e->sides; d++) {
        out[d] = (e->size[d] - 1) * e->stride[d] - e->before[d] - e->behind[d] +
                 e->dilation[d] * (e->kernel[d] - 1) + 1 + e->more[d];
        EXPECT_INT(cup_tensor_size(y, 2 + d), out[d]);
        places *= e->size[d];
        taps *= e->kernel[d];
        results *= out[d];
    }
    EXPECT(cup_tensor_count(y) <= 8192 && cup_tensor_count(x) <= 4096);
    read_all(x, xs);
    read_all(w, ws);
    read_all(y, ys);
    read_all(bias, bs);
    for (int64_t i = 0; i < cup_tensor_count(y); i++)
        want[i] = bs[i / results % e->out];
    for (int64_t i = 0; i < cup_tensor_count(x); i++)
        for (int64_t o = 0; o < each; o++)
            for (int64_t t = 0; t < taps; t++) {
                int64_t channel = i / places % e->in, image = i / places / e->in;
                int64_t to = goes_to(e, out, i % places, t);
                int64_t result = image * e->out + channel / in_each * each + o;
                if (to >= 0)
                    want[result * results + to] += xs[i] * ws[(channel * each + o) * taps + t];
            }
    for (int64_t i = 0; i < cup_tensor_count(y); i++)
        EXPECT_NEAR(ys[i], want[i], 2e-5);
}

/* The gradient of a transposed convolution is the convolution of what came back. */
static void expect_gradients(cup_context *c, const example *e, cup_tensor *x, cup_tensor *w,
                             cup_tensor *bias)
{
    static float a[4096], b[4096];
    cup_tensor *grads[3], *leaves[] = {cup_require_grad(x), cup_require_grad(w),
                                       cup_require_grad(bias)};
    cup_tensor *y = transposed(c, e, x, w, bias);
    cup_tensor *dy = cup_uniform(c, CUP_F32, y->ndim, y->shape, -1, 1);
    cup_tensor *loss = cup_sum(c, cup_mul(c, y, dy), NULL, 0, false);
    EXPECT_INT(cup_gradients(c, loss, leaves, 3, grads), CUP_OK);
    if (e->sides == 2) {
        int64_t padding[] = {e->before[0], e->behind[0], e->before[1], e->behind[1]};
        cup_tensor *dx = cup_conv2d(
            c, dy, w, NULL,
            CUP_OPTIONS(cup_conv2d_options, .stride = {e->stride, 2}, .padding = {padding, 4},
                        .dilation = {e->dilation, 2}, .groups = e->groups));
        read_all(dx, a);
        read_all(grads[0], b);
        for (int64_t i = 0; i < x->count; i++)
            EXPECT_NEAR(b[i], a[i], 2e-5);
    }
    /* The loss is linear in each of these, so that it is their product with their gradient. */
    float sums[3];
    for (int i = 0; i < 3; i++)
        read_all(cup_sum(c, cup_mul(c, leaves[i], grads[i]), NULL, 0, false), &sums[i]);
    read_all(loss, a);
    EXPECT_NEAR(sums[0] + sums[2], a[0], 2e-4 * (1 + fabsf(a[0])));
    EXPECT_NEAR(sums[1] + sums[2], a[0], 2e-4 * (1 + fabsf(a[0])));
}

static void check_transposed(const char *name)
{
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const example *e = &examples[i];
        cup_context *c = device(name);
        cup_tensor *x = drawn(c, e->sides, e->images, e->in, e->size);
        cup_tensor *w = drawn(c, e->sides, e->in, e->out / e->groups, e->kernel);
        cup_tensor *bias = cup_uniform(c, CUP_F32, 1, &e->out, -1, 1);
        cup_tensor *y = transposed(c, e, x, w, bias);
        if (!y)
            test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
        expect_scattered(e, x, w, bias, y);
        expect_gradients(c, e, x, w, bias);
        cup_context_free(c);
    }
}

TEST(function_conv_transpose_scatters)
{
    check_transposed("cpu");
}

TEST(gpu_function_conv_transpose_scatters)
{
    check_transposed("cuda");
}

static void check_conv1d(const char *name)
{
    cup_context *c = device(name);
    float got[10];
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){1, 1, 5}, (float[]){1, 2, 3, 4, 5});
    cup_tensor *w = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){2, 1, 2},
                                    (float[]){1, -1, 0.5f, 2});
    cup_tensor *bias = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){2}, (float[]){0, 1});
    cup_tensor *y = cup_conv1d(c, x, w, bias,
                               CUP_OPTIONS(cup_conv2d_options, .stride = CUP_INTS(2),
                                           .dilation = CUP_INTS(2), .padding = CUP_INTS(1, 2)));
    EXPECT(y && y->ndim == 3 && y->shape[1] == 2 && y->shape[2] == 3);
    read_all(y, got);
    const float want[] = {-2, -2, 4, 5, 10, 3};
    for (int i = 0; i < 6; i++)
        EXPECT_NEAR(got[i], want[i], 1e-6);
    cup_tensor *turned = cup_permute(c, cup_uniform(c, CUP_F32, 3, (int64_t[]){2, 9, 4}, -1, 1),
                                     (int64_t[]){0, 2, 1}, 3);
    w = cup_uniform(c, CUP_F32, 3, (int64_t[]){6, 4, 3}, -1, 1);
    y = cup_conv1d(c, turned, w, NULL, CUP_OPTIONS(cup_conv2d_options, .same = true));
    EXPECT(y && y->shape[2] == 9 && y->stride[1] == 1); /* it lies as x does */
    cup_context_free(c);
}

TEST(function_conv1d)
{
    check_conv1d("cpu");
}

TEST(gpu_function_conv1d)
{
    check_conv1d("cuda");
}

/* A result of `same` is what a convolution with `same` has the gradient of. */
TEST(function_conv_transpose_same)
{
    static const int64_t kernels[][3] = {{1, 2, 3}, {4, 5, 3}, {2, 2, 2}, {6, 3, 1}};
    static const int64_t strides[][3] = {{1, 2, 3}, {2, 3, 1}, {4, 2, 3}, {2, 2, 2}};
    cup_tensor *(*const call[])(cup_context *, cup_tensor *, cup_tensor *, cup_tensor *,
                                const cup_conv_transpose_options *) = {
        cup_conv_transpose1d, cup_conv_transpose2d, cup_conv_transpose3d};
    const int64_t size[] = {3, 5, 2};
    for (int i = 0; i < 12; i++) {
        static float a[8192], b[8192];
        cup_context *c = device("cpu");
        int sides = 1 + i % 3;
        int64_t large[] = {3, 5, 2};
        for (int d = 0; d < sides; d++)
            large[d] *= strides[i / 3][d];
        cup_tensor *y = drawn(c, sides, 2, 3, size), *w = drawn(c, sides, 3, 4, kernels[i / 3]);
        cup_tensor *x = cup_require_grad(drawn(c, sides, 2, 4, large)), *grad, *z;
        const cup_ints stride = {strides[i / 3], sides};
        const cup_ints dilation = {(const int64_t[]){2}, i % 2};
        if (sides < 3)
            z = (sides == 1 ? cup_conv1d : cup_conv2d)(
                c, x, w, NULL, CUP_OPTIONS(cup_conv2d_options, .stride = stride, .same = true,
                                           .dilation = dilation));
        else
            z = cup_conv3d(c, x, w, NULL, CUP_OPTIONS(cup_conv3d_options, .stride = stride,
                                                      .same = true, .dilation = dilation));
        cup_tensor *loss = cup_sum(c, cup_mul(c, z, y), NULL, 0, false);
        EXPECT_INT(cup_gradients(c, loss, &x, 1, &grad), CUP_OK);
        cup_tensor *t = call[sides - 1](
            c, y, w, NULL, CUP_OPTIONS(cup_conv_transpose_options, .stride = stride, .same = true,
                                       .dilation = dilation));
        EXPECT_TEXT(cup_error_text(c), "");
        for (int d = 0; d < sides; d++)
            EXPECT_INT(cup_tensor_size(t, 2 + d), large[d]);
        read_all(grad, a);
        read_all(t, b);
        for (int64_t k = 0; k < cup_tensor_count(t); k++)
            EXPECT_NEAR(b[k], a[k], 2e-5);
        cup_context_free(c);
    }
}

static void expect_refused(cup_context *c, cup_tensor *y, const char *words)
{
    EXPECT(!y);
    if (!strstr(cup_error_text(c), words))
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    cup_error_clear(c);
}

TEST(function_conv_refusals)
{
    cup_context *c = device("cpu");
    cup_tensor *x = cup_zeros(c, CUP_F32, 3, (int64_t[]){1, 2, 4});
    cup_tensor *w = cup_zeros(c, CUP_F32, 3, (int64_t[]){2, 3, 3});
    expect_refused(c, cup_conv1d(c, x, cup_zeros(c, CUP_F32, 2, (int64_t[]){2, 3}), NULL, NULL),
                   "both must have 3");
    expect_refused(c, cup_conv1d(c, x, w, NULL, CUP_OPTIONS(cup_conv2d_options,
                                                            .stride = CUP_INTS(1, 2))),
                   "stride has 2 numbers");
    expect_refused(c, cup_conv_transpose1d(c, x, w, NULL,
                                           CUP_OPTIONS(cup_conv_transpose_options,
                                                       .output_padding = CUP_INTS(1))),
                   "less than the stride");
    expect_refused(c, cup_conv_transpose1d(c, x, w, NULL,
                                           CUP_OPTIONS(cup_conv_transpose_options,
                                                       .padding = CUP_INTS(3))),
                   "a side of 0");
    expect_refused(c, cup_conv_transpose1d(c, x, w, NULL,
                                           CUP_OPTIONS(cup_conv_transpose_options, .same = true,
                                                       .padding = CUP_INTS(0))),
                   "same says what padding and output_padding are");
    expect_refused(c, cup_conv_transpose1d(c, x, w, NULL,
                                           CUP_OPTIONS(cup_conv_transpose_options, .same = true,
                                                       .dilation = CUP_INTS((int64_t)1 << 60))),
                   "to 2^29");
    expect_refused(c, cup_conv_transpose1d(c, x, w, NULL,
                                           CUP_OPTIONS(cup_conv_transpose_options,
                                                       .stride = CUP_INTS(-1))),
                   "from 1");
    expect_refused(c, cup_conv_transpose1d(c, x, w, cup_zeros(c, CUP_F32, 1, (int64_t[]){2}),
                                           NULL),
                   "bias must have the shape [3]");
    expect_refused(c, cup_conv_transpose1d(c, x, w, NULL,
                                           CUP_OPTIONS(cup_conv_transpose_options, .groups = -2)),
                   "groups must be at least 1");
    expect_refused(c, cup_conv_transpose2d(c, x, w, NULL, NULL), "both must have 4");
    cup_context_free(c);
}
