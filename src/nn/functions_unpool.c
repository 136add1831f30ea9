/* Pooling that says where the largest elements stood, and the way back. */
#include "base/options.h"
#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "dispatch/call.h"
#include "nn/functions.h"
#include "ops/pool/pool.h"
#include "tensor/context.h"

static cup_status take(cup_context *c, cup__max_pool2d_attributes *a, const int64_t *window,
                       int window_count, const cup_max_pool2d_options *options)
{
    cup_max_pool2d_options o;
    CUP_TRY(cup__options_take(&c->error, "max_pool2d_indices", &o, sizeof o, options));
    *a = (cup__max_pool2d_attributes){.ceil_mode = o.ceil_mode, .channels_last = o.channels_last};
    a->window_count = cup__take_ints(a->window, window, window_count);
    a->stride_count = cup__take_ints(a->stride, o.stride.values, o.stride.count);
    a->padding_count = cup__take_ints(a->padding, o.padding.values, o.padding.count);
    a->dilation_count = cup__take_ints(a->dilation, o.dilation.values, o.dilation.count);
    return CUP_OK;
}

/* The indices that follow from what the op keeps for backward: it is called as if that came. */
static cup_tensor *indices_of(cup_context *c, cup_tensor *x, const cup__max_pool2d_attributes *a)
{
    cup__call call;
    cup_tensor *there;
    if (cup__call_begin(&call, c, &cup__rows[CUP__OP_max_pool2d], &x, 1, a) != CUP_OK)
        return NULL;
    call.saving = true;
    call.out_count = call.row->results_count;
    if (cup__call_allocate(&call) != CUP_OK ||
        cup__call_run(&call, cup__call_choose(&call)) != CUP_OK)
        return NULL;
    cup__pooling p = cup__pooling_of(&call);
    cup_tensor *indices = cup__pool_indices(c, &p, call.out[1], &there);
    return cup_where(c, there, indices, cup__single(c, CUP_I64, -1));
}

cup_status cup_max_pool2d_indices(cup_context *c, cup_tensor *x, const int64_t *window,
                                  int window_count, const cup_max_pool2d_options *options,
                                  cup_tensor **y, cup_tensor **indices)
{
    cup__max_pool2d_attributes a;
    cup_tensor *none;
    y = y ? y : &none;
    *y = NULL;
    if (indices)
        *indices = NULL;
    if (!cup__function_begin(c, "max_pool2d_indices", x))
        return c ? cup_error(c) : CUP_ARGUMENT;
    CUP_TRY(take(c, &a, window, window_count, options));
    *y = cup_max_pool2d(c, x, window, window_count, options);
    if (*y && indices) {
        cup_scope_open(c);
        bool was = cup_grad_recording(c, false);
        *indices = cup_scope_return(c, indices_of(c, x, &a));
        cup_grad_recording(c, was);
    }
    return cup_error(c);
}

/* Along one to three sides. */
static cup_tensor *unpool(cup_context *c, const char *name, cup_tensor *x, cup_tensor *indices,
                          int sides, const int64_t *size, bool last)
{
    const int64_t most = (int64_t)1 << 29;
    if (!cup__function_begin(c, name, x) || !cup__function_begin(c, name, indices))
        return NULL;
    cup__shape own = cup__shape_of(x), places = cup__shape_of(indices);
    bool fits = x->ndim == 2 + sides && cup__shape_equal(&own, &places);
    int64_t in = 1, out = 1, whole[5] = {0};
    for (int d = 0; d < sides && fits; d++) {
        fits = size[d] >= 1 && size[d] <= most && !__builtin_mul_overflow(out, size[d], &out);
        in *= x->shape[d + (last ? 1 : 2)];
        whole[d + (last ? 1 : 2)] = size[d];
    }
    if (!fits) {
        cup_fail(c, CUP_SHAPE,
                 "%s: x must have %d dimensions and an index for each element, and the sides of "
                 "the result must be from 1 to 2^29",
                 name, 2 + sides);
        return NULL;
    }
    const int64_t *s = x->shape;
    int64_t planes = last ? s[0] : s[0] * s[1], inner = last ? s[1 + sides] : 1;
    whole[0] = s[0];
    whole[last ? 1 + sides : 1] = s[last ? 1 + sides : 1];
    const int64_t shape[] = {planes, in, inner}, image[] = {planes, out, inner};
    cup_tensor *y = cup_scatter_add(c, cup_zeros(c, x->dtype, 3, image),
                                    cup_reshape(c, indices, 3, shape),
                                    cup_reshape(c, x, 3, shape), 1);
    return cup_reshape(c, y, 2 + sides, whole);
}

cup_tensor *cup_max_unpool1d(cup_context *c, cup_tensor *x, cup_tensor *indices, int64_t length,
                             bool channels_last)
{
    return unpool(c, "max_unpool1d", x, indices, 1, &length, channels_last);
}

cup_tensor *cup_max_unpool2d(cup_context *c, cup_tensor *x, cup_tensor *indices, int64_t height,
                             int64_t width, bool channels_last)
{
    const int64_t size[] = {height, width};
    return unpool(c, "max_unpool2d", x, indices, 2, size, channels_last);
}

cup_tensor *cup_max_unpool3d(cup_context *c, cup_tensor *x, cup_tensor *indices,
                             const int64_t *size, bool channels_last)
{
    static const char name[] = "max_unpool3d";
    if (size)
        return unpool(c, name, x, indices, 3, size, channels_last);
    if (cup__function_begin(c, name, x))
        cup_fail(c, CUP_ARGUMENT, "%s: the depth, height and width of the result are NULL", name);
    return NULL;
}
