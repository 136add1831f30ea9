/* Gradients of the weights of convolutions that are added to those that are there. */
#include <string.h>

#include "../test.h"
#include "cuda/dry.h"
#include "cupola/cupola.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"
#include "tensor/context.h"

static void expect_near(const cup_tensor *got, const cup_tensor *a, const cup_tensor *b,
                        double tolerance)
{
    EXPECT(got && a && b && got->count == a->count && a->count == b->count && a->count > 0);
    for (int64_t i = 0; i < got->count; i++)
        EXPECT_NEAR(cup__load(got, cup__offset_of(got, i)),
                    cup__load(a, cup__offset_of(a, i)) + cup__load(b, cup__offset_of(b, i)),
                    tolerance);
}

typedef struct example {
    const char *name;
    int sides, groups;
    bool transposed, last;
} example;

static const example examples[] = {{"conv2d", 2, 1, false, false},
                                   {"conv2d, channels last", 2, 1, false, true},
                                   {"conv2d, groups", 2, 2, false, false},
                                   {"conv2d, by channel", 2, 4, false, true},
                                   {"conv3d", 3, 1, false, false},
                                   {"conv_transpose2d", 2, 1, true, false}};

static cup_tensor *image(cup_context *c, cup_dtype dtype, const example *e)
{
    const int64_t plain[] = {2, 4, 6, 5, 3}, last[] = {2, 6, 5, 4};
    if (!e->last)
        return cup_uniform(c, dtype, 2 + e->sides, plain, -1, 1);
    return cup_permute(c, cup_uniform(c, dtype, 4, last, -1, 1), (int64_t[]){0, 3, 1, 2}, 4);
}

/* Adds the gradient of the sum of squares of a convolution of x. */
static void go_back(cup_context *c, const example *e, cup_tensor *x, cup_tensor *w)
{
    cup_tensor *y =
        e->transposed   ? cup_conv_transpose2d(c, x, w, NULL, NULL)
        : e->sides == 3 ? cup_conv3d(c, x, w, NULL, NULL)
                        : cup_conv2d(c, x, w, NULL,
                                     CUP_OPTIONS(cup_conv2d_options, .groups = e->groups));
    cup_backward(c, cup_sum(c, cup_mul(c, y, y), NULL, 0, false));
    EXPECT_TEXT(cup_error_text(c), "");
}

static void check(cup_context *c, const example *e, cup_dtype dtype)
{
    const int64_t shape[] = {4, 4 / e->groups, 3, 2, 2};
    cup_tensor *w = cup_require_grad(cup_uniform(c, dtype, 2 + e->sides, shape, -1, 1));
    cup_tensor *x[2], *d[2];
    for (int i = 0; i < 2; i++) {
        x[i] = image(c, dtype, e);
        go_back(c, e, x[i], w);
        d[i] = cup_copy(c, cup_grad(w));
        cup_grad_clear(w);
    }
    go_back(c, e, x[0], w);
    const void *place = cup_tensor_data(cup_grad(w));
    go_back(c, e, x[1], w);
    EXPECT(cup_tensor_data(cup_grad(w)) == place);
    expect_near(cup_grad(w), d[0], d[1], dtype == CUP_F64 ? 1e-11 : 1e-3);
}

TEST(conv_weight_grad_is_added_to_the_one_that_is_there)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        check(c, &examples[i], CUP_F64);
        check(c, &examples[i], CUP_F32);
    }
    cup_context_free(c);
}

TEST(conv_weight_grad_refuses_another_shape_to_add_to)
{
    const cup__conv2d_weight_grad_attributes a = {.groups = 1, .kernel = {1}, .kernel_count = 1};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_zeros(c, CUP_F32, 4, (int64_t[]){1, 2, 3, 3});
    cup_tensor *in[] = {x, x, cup_zeros(c, CUP_F32, 4, (int64_t[]){2, 2, 1, 2})};
    EXPECT(!cup__op_call(c, cup__row_find("conv2d_weight_grad"), in, 3, &a, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "sum must have the shape of the weight");
    cup_context_free(c);
}

static bool adds(const cup__kernel_request *r)
{
    for (int k = 0; k < r->knob_count; k++)
        if (!strcmp(r->knobs[k].name, "BASE"))
            return true;
    return false;
}

/* No kernel of the second backward goes over the gradient once more: the last one of each adds. */
static void check_kernels(cup_context *c, const example *e, cup_dtype dtype)
{
    int before, count, adding = 0;
    const int64_t shape[] = {4, 4 / e->groups, 3, 2};
    cup_tensor *w = cup_require_grad(cup_uniform(c, dtype, 4, shape, -1, 1));
    cup_tensor *x = image(c, dtype, e);
    go_back(c, e, x, w);
    cup__dry_requests(cup__cuda_of(c->device), &before);
    go_back(c, e, x, w);
    const cup__kernel_request *r = cup__dry_requests(cup__cuda_of(c->device), &count);
    for (int i = before; i < count; i++)
        adding += adds(&r[i]);
    if (count != before + 1 || adding != 1)
        test_fail(__FILE__, __LINE__, "%s: %d more kernels, of which %d add", e->name,
                  count - before, adding);
}

TEST(conv_weight_grad_is_added_by_its_last_kernel)
{
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        for (int f32 = 0; f32 < 2 && examples[i].sides == 2; f32++) {
            cup_context *c = cup__context_dry("sm_90a");
            check_kernels(c, &examples[i], f32 ? CUP_F32 : CUP_BF16);
            EXPECT_TEXT(cup_error_text(c), "");
            cup_context_free(c);
        }
}
