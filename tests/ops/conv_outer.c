/* Which convolutions go by outer products, those with windows of one place or of few channels in
 * all, on a dry GPU. */
#include <string.h>

#include "cuda/dry.h"
#include "cupola/cupola.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"
#include "test.h"

/* [images, channels, high, wide], with the channels last in memory or not. */
static cup_tensor *image(cup_context *c, cup_dtype dtype, const int64_t size[4], bool last)
{
    int64_t lying[4] = {size[0], size[2], size[3], size[1]};
    cup_tensor *t = cup_zeros(c, dtype, 4, last ? lying : size);
    return last ? cup_permute(c, t, (int64_t[]){0, 3, 1, 2}, 4) : t;
}

static const char *taken(cup_context *c, const char *op, cup_tensor *const *in, int count,
                         const void *attributes)
{
    cup__call call;
    cup__call_begin(&call, c, cup__row_find(op), in, count, attributes);
    cup__call_allocate(&call);
    EXPECT_TEXT(cup_error_text(c), "");
    const cup__impl *impl = cup__call_choose(&call);
    EXPECT(impl);
    for (int i = 0; i < call.out_count; i++)
        cup_tensor_free(call.out[i]);
    return impl->name;
}

typedef struct example {
    int channels, results, taps, stride;
    cup_dtype dtype;
    bool last;
    const char *forward, *input, *weight; /* NULL: any but those of this file */
} example;

static void expect_name(const char *got, const char *want)
{
    if (want)
        EXPECT_TEXT(got, want);
    else
        EXPECT(strcmp(got, "outer") && strcmp(got, "dots"));
}

static void check(cup_context *c, const example *e)
{
    int64_t out = (8 - e->taps) / e->stride + 1;
    cup_scope_open(c);
    cup_tensor *x = image(c, e->dtype, (int64_t[]){2, e->channels, 8, 8}, e->last);
    cup_tensor *dy = image(c, e->dtype, (int64_t[]){2, e->results, out, out}, e->last);
    cup_tensor *w =
        cup_zeros(c, e->dtype, 4, (int64_t[]){e->results, e->channels, e->taps, e->taps});
    cup__conv2d_attributes forward = {{e->stride}, 1, {0}, 0, false, {0}, 0, 1};
    cup__conv2d_input_grad_attributes input = {{e->stride}, 1, {0}, 0, false, {0}, 0, 1, 8, 8};
    cup__conv2d_weight_grad_attributes weight = {{e->stride}, 1, {0}, 0, false, {0}, 0, 1,
                                                 {e->taps}, 1};
    expect_name(taken(c, "conv2d", (cup_tensor *[]){x, w, NULL}, 3, &forward), e->forward);
    expect_name(taken(c, "conv2d_input_grad", (cup_tensor *[]){dy, w}, 2, &input), e->input);
    expect_name(taken(c, "conv2d_weight_grad", (cup_tensor *[]){dy, x}, 2, &weight), e->weight);
    cup_scope_close(c);
}

TEST(conv_outer_takes_few_channels_on_one_side)
{
    static const example list[] = {
        {64, 2, 1, 1, CUP_BF16, true, "dots", "outer", "outer"},
        {3, 64, 1, 1, CUP_F16, true, "outer", "dots", "outer"},
        {8, 64, 1, 1, CUP_F32, true, "outer", "dots", "outer"},
        {5, 64, 1, 1, CUP_BF16, true, "outer", NULL, NULL},
        {6, 64, 1, 1, CUP_BF16, true, NULL, NULL, NULL},
        {6, 65, 1, 1, CUP_BF16, true, "outer", NULL, NULL},
        {64, 6, 1, 1, CUP_BF16, true, NULL, "outer", NULL},
        {2, 64, 1, 1, CUP_F64, true, "outer", "dots", NULL},
        {64, 9, 1, 1, CUP_F32, true, NULL, NULL, NULL},
        {64, 2, 1, 2, CUP_BF16, true, NULL, NULL, NULL},
        {64, 2, 1, 1, CUP_BF16, false, NULL, NULL, NULL},
        {1, 16, 3, 1, CUP_F32, true, "outer", NULL, "outer"},
        {1, 16, 4, 2, CUP_F32, true, "outer", NULL, "outer"},
        {16, 16, 1, 2, CUP_F32, true, "outer", NULL, "outer"},
        {2, 16, 3, 1, CUP_F32, true, NULL, NULL, NULL},
        {1, 16, 3, 1, CUP_F64, true, NULL, NULL, NULL},
    };
    cup_context *c = cup__context_dry("sm_90a");
    EXPECT_TEXT(cup_error_text(c), "");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check(c, &list[i]);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}
