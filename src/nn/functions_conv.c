/* Convolutions along one dimension and transposed ones: what conv2d and conv3d, or their gradients
 * with respect to the image, do to the same tensors seen otherwise. */
#include "nn/functions.h"

#include "base/options.h"
#include "dispatch/attributes.h"
#include "tensor/context.h"

#define MOST_SIDE ((int64_t)1 << 29) /* as convolutions take them */

/* [N,C,L] as [N,C,1,L]: a view. */
static cup_tensor *with_height(cup_context *c, cup_tensor *t)
{
    return cup_reshape(c, t, 4, (int64_t[]){t->shape[0], t->shape[1], 1, t->shape[2]});
}

static cup_tensor *without_height(cup_context *c, cup_tensor *t)
{
    return t ? cup_reshape(c, t, 3, (int64_t[]){t->shape[0], t->shape[1], t->shape[3]}) : NULL;
}

static bool have_dims(cup_context *c, const char *name, const cup_tensor *x,
                      const cup_tensor *weight, int ndim)
{
    if (!cup__function_begin(c, name, x) || !cup__function_begin(c, name, weight))
        return false;
    if (x->ndim == ndim && weight->ndim == ndim)
        return true;
    cup_fail(c, CUP_SHAPE, "%s: x has %d dimensions and the weight %d; both must have %d", name,
             x->ndim, weight->ndim, ndim);
    return false;
}

/* The number of side `d`, or of an end of it: one for all, or one each. */
static int64_t number_of(const cup_ints *from, int d, int64_t usual)
{
    return from->count == 0 ? usual : from->values[from->count == 1 ? 0 : d];
}

/* Whether a list has no numbers, one, `sides` or, where that is allowed, two for each. */
static bool have_count(cup_context *c, const char *name, const char *what, const cup_ints *list,
                       int sides, bool ends)
{
    int n = list->count;
    if ((n == 0 || n == 1 || n == sides || (ends && n == 2 * sides)) && (n == 0 || list->values))
        return true;
    cup_fail(c, CUP_ARGUMENT, "%s: %s has %d numbers; give it one, one for each of %d sides%s",
             name, what, n, sides, ends ? ", or two for each: before and behind" : "");
    return false;
}

cup_tensor *cup_conv1d(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias,
                       const cup_conv2d_options *options)
{
    static const char name[] = "conv1d";
    cup_conv2d_options o;
    if (!have_dims(c, name, x, weight, 3) ||
        cup__options_take(&c->error, name, &o, sizeof o, options) != CUP_OK ||
        !have_count(c, name, "stride", &o.stride, 1, false) ||
        !have_count(c, name, "dilation", &o.dilation, 1, false) ||
        !have_count(c, name, "padding", &o.padding, 1, true))
        return NULL;
    const int64_t stride[] = {1, number_of(&o.stride, 0, 1)};
    const int64_t dilation[] = {1, number_of(&o.dilation, 0, 1)};
    const int64_t padding[] = {0, 0, number_of(&o.padding, 0, 0), number_of(&o.padding, 1, 0)};
    if (o.residual && o.residual->ndim != 3) {
        cup_fail(c, CUP_SHAPE, "%s: residual must have the shape of the result", name);
        return NULL;
    }
    o.residual = o.residual ? with_height(c, o.residual) : NULL;
    o.stride = (cup_ints){stride, 2};
    o.dilation = (cup_ints){dilation, 2};
    o.padding = (cup_ints){padding, o.padding.count ? 4 : 0};
    return without_height(
        c, cup_conv2d(c, with_height(c, x), with_height(c, weight), bias, &o));
}

/* A transposed convolution along up to 3 sides. */
typedef struct transposed {
    const char *name;
    int sides, groups;
    int64_t stride[3], dilation[3], padding[6], out[3];
} transposed;

static bool have_side(cup_context *c, transposed *t, int d, int64_t in, int64_t kernel,
                      int64_t more)
{
    int64_t *pad = &t->padding[2 * d], stride = t->stride[d], dilation = t->dilation[d];
    const int64_t all[] = {in, kernel, stride, dilation, pad[0], pad[1]};
    for (int i = 0; i < 6; i++)
        if (all[i] < (i && i < 4) || all[i] > MOST_SIDE) {
            cup_fail(c, CUP_ARGUMENT,
                     "%s: sizes and padding must be from 0, and kernel, stride and dilation from "
                     "1, to 2^29",
                     t->name);
            return false;
        }
    if (more < 0 || more >= stride) {
        cup_fail(c, CUP_ARGUMENT,
                 "%s: output_padding is %lld; it must be from 0 and less than the stride, %lld",
                 t->name, (long long)more, (long long)stride);
        return false;
    }
    t->out[d] = (in - 1) * stride - pad[0] - pad[1] + dilation * (kernel - 1) + 1 + more;
    if (t->out[d] >= 1 && in >= 1)
        return true;
    cup_fail(c, CUP_SHAPE,
             "%s: the result would have a side of %lld; pad less, or take a larger image", t->name,
             (long long)(in < 1 ? 0 : t->out[d]));
    return false;
}

/* What is cut off a side for `stride` places each, and what is left open; a convolution with `same`
 * pads a side of that length by as much. */
static int64_t pad_same(transposed *t, int d, int64_t kernel)
{
    bool counted = kernel >= 1 && kernel <= MOST_SIDE && t->dilation[d] <= MOST_SIDE;
    int64_t over = counted ? t->dilation[d] * (kernel - 1) + 1 - t->stride[d] : 0;
    int64_t cut = over > 0 ? over : 0;
    t->padding[2 * d] = cut / 2;
    t->padding[2 * d + 1] = cut - cut / 2;
    return cut - over;
}

static bool is_padded_once(cup_context *c, const char *name, const cup_conv_transpose_options *o)
{
    if (!o->same || (!o->padding.count && !o->output_padding.count))
        return true;
    cup_fail(c, CUP_ARGUMENT,
             "%s: same says what padding and output_padding are; leave them out, or same", name);
    return false;
}

static bool take(cup_context *c, transposed *t, const cup_tensor *x, const cup_tensor *weight,
                 const cup_tensor *bias, const cup_conv_transpose_options *options)
{
    cup_conv_transpose_options o;
    int sides = t->sides;
    if (!have_dims(c, t->name, x, weight, 2 + sides) ||
        cup__options_take(&c->error, t->name, &o, sizeof o, options) != CUP_OK ||
        !have_count(c, t->name, "stride", &o.stride, sides, false) ||
        !have_count(c, t->name, "dilation", &o.dilation, sides, false) ||
        !have_count(c, t->name, "output_padding", &o.output_padding, sides, false) ||
        !have_count(c, t->name, "padding", &o.padding, sides, true) ||
        !is_padded_once(c, t->name, &o))
        return false;
    t->groups = o.groups ? o.groups : 1;
    for (int d = 0; d < sides; d++) {
        bool ends = sides > 0 && o.padding.count == 2 * sides;
        t->stride[d] = number_of(&o.stride, d, 1);
        t->dilation[d] = number_of(&o.dilation, d, 1);
        for (int end = 0; end < 2; end++)
            t->padding[2 * d + end] = number_of(&o.padding, ends ? 2 * d + end : d, 0);
        int64_t more = o.same ? pad_same(t, d, weight->shape[2 + d])
                              : number_of(&o.output_padding, d, 0);
        if (!have_side(c, t, d, x->shape[2 + d], weight->shape[2 + d], more))
            return false;
    }
    if (bias && t->groups > 0 &&
        (bias->ndim != 1 || bias->shape[0] != weight->shape[1] * t->groups)) {
        cup_fail(c, CUP_SHAPE, "%s: bias must have the shape [%lld]", t->name,
                 (long long)(weight->shape[1] * t->groups));
        return false;
    }
    return true;
}

static cup_tensor *with_bias(cup_context *c, cup_tensor *y, cup_tensor *bias)
{
    const int64_t shape[] = {bias ? bias->shape[0] : 0, 1, 1, 1};
    return y && bias ? cup_add(c, y, cup_reshape(c, bias, y->ndim - 1, shape)) : y;
}

cup_tensor *cup_conv_transpose1d(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                 cup_tensor *bias, const cup_conv_transpose_options *options)
{
    transposed t = {.name = "conv_transpose1d", .sides = 1};
    if (!take(c, &t, x, weight, bias, options))
        return NULL;
    const int64_t stride[] = {1, t.stride[0]}, dilation[] = {1, t.dilation[0]};
    const int64_t padding[] = {0, 0, t.padding[0], t.padding[1]};
    cup_tensor *y =
        cup__conv2d_input_grad(c, with_height(c, x), with_height(c, weight), stride, 2, padding, 4,
                               false, dilation, 2, t.groups, 1, t.out[0]);
    return with_bias(c, without_height(c, y), bias);
}

cup_tensor *cup_conv_transpose2d(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                 cup_tensor *bias, const cup_conv_transpose_options *options)
{
    transposed t = {.name = "conv_transpose2d", .sides = 2};
    if (!take(c, &t, x, weight, bias, options))
        return NULL;
    cup_tensor *y = cup__conv2d_input_grad(c, x, weight, t.stride, 2, t.padding, 4, false,
                                           t.dilation, 2, t.groups, t.out[0], t.out[1]);
    return with_bias(c, y, bias);
}

cup_tensor *cup_conv_transpose3d(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                 cup_tensor *bias, const cup_conv_transpose_options *options)
{
    transposed t = {.name = "conv_transpose3d", .sides = 3};
    if (!take(c, &t, x, weight, bias, options))
        return NULL;
    cup_tensor *y = cup__conv3d_input_grad(c, x, weight, t.stride, 3, t.padding, 6, false,
                                           t.dilation, 3, t.groups, t.out[0], t.out[1], t.out[2]);
    return with_bias(c, y, bias);
}
