/* Convolutions with a depth, as those without one: the planes that lie under a kernel are put side
 * by side as channels of one image, so that each sum is made in one piece, by conv2d's kernels. */
#include <string.h>

#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/conv/conv.h"
#include "ops/shape/copy.h"

typedef struct planes {
    cup__call *call;
    cup_context *c;
    cup__conv_numbers n;
    int part;
    bool last; /* channels shall be neighbours in memory */
} planes;

/* Planes that tap `tap` along the depth joins: `count` of the result from `out` on with those of
 * the image from `in` on, of which every stride-th is taken. */
typedef struct joined {
    int64_t out, in, count;
} joined;

static joined joined_by(const planes *p, int64_t tap)
{
    int64_t stride = p->n.stride[0], shift = tap * p->n.dilation[0] - p->n.padding[0][0];
    joined j = {.out = shift < 0 ? (stride - 1 - shift) / stride : 0};
    j.in = j.out * stride + shift;
    if (j.in < p->n.in[0]) {
        j.count = (p->n.in[0] - j.in + stride - 1) / stride;
        j.count = j.count < p->n.out[0] - j.out ? j.count : p->n.out[0] - j.out;
    }
    j.count = j.count > 0 ? j.count : 0;
    return j;
}

/* [N,C,D,H,W] as the images [N D,C,H,W], or [N,C,H,W] of one plane each: a view where it lies so.
 * NULL without an error where it does not. */
static cup_tensor *as_images(cup_tensor *t)
{
    if (t->shape[0] > 1 && t->shape[2] > 1 && t->stride[0] != t->shape[2] * t->stride[2])
        return NULL;
    cup__shape shape = {t->dtype, 4,
                        {t->shape[0] * t->shape[2], t->shape[1], t->shape[3], t->shape[4]}};
    int64_t step = t->shape[2] > 1 ? t->stride[2] : t->stride[0];
    return cup__tensor_view(t, &shape, (int64_t[]){step, t->stride[1], t->stride[3], t->stride[4]},
                            0);
}

/* New memory for images [N D,C,H,W], in either order. */
static cup_tensor *new_images(const planes *p, int64_t images, int64_t channels, int64_t height,
                              int64_t width)
{
    cup__shape shape = {p->call->in[0]->dtype, 4, {images, channels, height, width}};
    cup_tensor *t = cup__tensor_make(p->c, &shape, "planes under a kernel");
    if (t && p->last)
        cup__tensor_order(t, "0231");
    return t;
}

/* A part of images [N D,taps C,H,W] that belongs to a tap: [N,groups,C/groups,D,H,W], `count`
 * planes from `first` on, every `step`-th. */
static cup_tensor *of_tap(const planes *p, cup_tensor *images, int64_t depth, int64_t channels,
                          int64_t tap, int64_t first, int64_t step, int64_t count)
{
    int64_t each = channels / p->n.groups, *stride = images->stride;
    cup__shape shape = {images->dtype, 6,
                        {depth ? images->shape[0] / depth : 0, p->n.groups, each, count,
                         images->shape[2], images->shape[3]}};
    return cup__tensor_view(images, &shape,
                            (int64_t[]){depth * stride[0], p->n.kernel[0] * each * stride[1],
                                        stride[1], step * stride[0], stride[2], stride[3]},
                            first * stride[0] + tap * each * stride[1]);
}

/* The same of [N,C,D,H,W] without taps. */
static cup_tensor *of_whole(const planes *p, cup_tensor *t, int64_t first, int64_t step,
                            int64_t count)
{
    int64_t each = t->shape[1] / p->n.groups, *stride = t->stride;
    cup__shape shape = {t->dtype, 6,
                        {t->shape[0], p->n.groups, each, count, t->shape[3], t->shape[4]}};
    return cup__tensor_view(t, &shape,
                            (int64_t[]){stride[0], each * stride[1], stride[1], step * stride[2],
                                        stride[3], stride[4]},
                            first * stride[2]);
}

/* Images [N D,taps C,H,W] that hold for each plane of the result of this part what the taps along
 * the depth find of t [N,C,D,H,W]: channel c of tap k in group g is (g taps + k) C/groups + c. */
static cup_tensor *under_taps(const planes *p, cup_tensor *t)
{
    bool back = p->part == CUP__CONV_INPUT;
    int64_t depth = back ? p->n.in[0] : p->n.out[0], stride = p->n.stride[0];
    int64_t taps = p->n.kernel[0], channels = t->shape[1];
    cup_tensor *own = taps == 1 && stride == 1 && depth == t->shape[2] && !p->n.padding[0][0]
                          ? as_images(t)
                          : NULL;
    if (own || p->c->error.status != CUP_OK)
        return own;
    cup_tensor *images =
        new_images(p, t->shape[0] * depth, taps * channels, t->shape[3], t->shape[4]);
    bool all = true;
    for (int64_t k = 0; k < taps; k++)
        all = all && joined_by(p, k).count == depth;
    if (images && !all)
        p->c->device->calls->fill(p->c->device, images->data, 0,
                                  (size_t)(images->count * cup_dtype_size(images->dtype)));
    for (int64_t k = 0; k < taps && images && p->c->error.status == CUP_OK; k++) {
        joined j = joined_by(p, k);
        if (!j.count)
            continue;
        cup__copy_to(p->c,
                     of_tap(p, images, depth, channels, k, back ? j.in : j.out,
                            back ? stride : 1, j.count),
                     of_whole(p, t, back ? j.out : j.in, back ? 1 : stride, j.count));
    }
    return images;
}

/* The weight [O,C/groups,KD,KH,KW] with the taps along the depth among the channels that are summed
 * over: [O,KD C/groups,KH,KW], or for the gradient of x [KD O,C/groups,KH,KW]. */
static cup_tensor *flat_weight(const planes *p, cup_tensor *w)
{
    bool back = p->part == CUP__CONV_INPUT;
    int64_t taps = w->shape[2], groups = p->n.groups, each = w->shape[0] / groups, *s = w->stride;
    int64_t results = back ? taps * w->shape[0] : w->shape[0];
    int64_t channels = back ? w->shape[1] : taps * w->shape[1];
    cup__shape parts = {w->dtype, 6,
                        {groups, taps, each, w->shape[1], w->shape[3], w->shape[4]}};
    cup_tensor *from = cup__tensor_view(
        w, &parts, (int64_t[]){each * s[0], s[2], s[0], s[1], s[3], s[4]}, 0);
    cup_tensor *flat = new_images(p, results, channels, w->shape[3], w->shape[4]);
    if (!from || !flat)
        return NULL;
    s = flat->stride;
    int64_t steps[] = {taps * each * s[0], each * s[0], s[0], s[1], s[2], s[3]};
    if (!back) {
        steps[0] = each * s[0];
        steps[1] = w->shape[1] * s[1];
    }
    cup__copy_to(p->c, cup__tensor_view(flat, &parts, steps, 0), from);
    return flat;
}

/* The attributes of the convolution of planes, as those of all three begin. */
static void take_flat(const planes *p, cup__conv2d_attributes *a)
{
    const cup__conv_numbers *n = &p->n;
    a->stride_count = a->dilation_count = 2;
    a->padding_count = 4;
    for (int d = 0; d < 2; d++) {
        a->stride[d] = n->stride[1 + d];
        a->dilation[d] = n->dilation[1 + d];
        memcpy(&a->padding[2 * d], n->padding[1 + d], sizeof n->padding[1 + d]);
    }
    a->groups = (int)n->groups;
}

/* Runs one of conv2d's ops into the call's result. */
static void run_flat(const planes *p, const cup__row *row, cup_tensor **in, int count,
                     const void *attributes)
{
    cup_tensor *out = p->call->out[0], *flat = as_images(out);
    if (flat) {
        cup__op_call(p->c, row, in, count, attributes, &flat);
    } else if (p->c->error.status == CUP_OK) {
        flat = new_images(p, out->shape[0] * out->shape[2], out->shape[1], out->shape[3],
                          out->shape[4]);
        if (!flat || !cup__op_call(p->c, row, in, count, attributes, &flat))
            return;
        int64_t *s = flat->stride;
        cup__shape shape = cup__shape_of(out);
        cup__copy_to(p->c, out,
                     cup__tensor_view(flat, &shape,
                                      (int64_t[]){s[0] * out->shape[2], s[1], s[0], s[2], s[3]},
                                      0));
    }
}

static void run_images(const planes *p)
{
    cup__call *call = p->call;
    cup__conv2d_attributes forward = {0};
    cup__conv2d_input_grad_attributes back = {.height = p->n.in[1], .width = p->n.in[2]};
    cup_tensor *in[] = {under_taps(p, call->in[0]), NULL,
                        call->in_count > 2 ? call->in[2] : NULL};
    in[1] = in[0] ? flat_weight(p, call->in[1]) : NULL;
    if (!in[1])
        return;
    take_flat(p, &forward);
    memcpy(&back, &forward, offsetof(cup__conv2d_attributes, groups) + sizeof forward.groups);
    if (p->part == CUP__CONV_INPUT)
        run_flat(p, &cup__rows[CUP__OP_conv2d_input_grad], in, 2, &back);
    else
        run_flat(p, &cup__rows[CUP__OP_conv2d], in, call->in_count, &forward);
}

static void run_weight(const planes *p)
{
    cup__call *call = p->call;
    cup_tensor *out = call->out[0], *dy = as_images(call->in[0]);
    cup__conv2d_attributes forward = {0};
    cup__conv2d_weight_grad_attributes a = {.kernel = {p->n.kernel[1], p->n.kernel[2]},
                                            .kernel_count = 2};
    if (!dy && p->c->error.status == CUP_OK) {
        const int64_t *s = call->in[0]->shape;
        dy = new_images(p, s[0] * s[2], s[1], s[3], s[4]);
        if (dy) {
            const int64_t *step = dy->stride;
            cup__shape shape = cup__shape_of(call->in[0]);
            cup__copy_to(p->c,
                         cup__tensor_view(dy, &shape,
                                          (int64_t[]){step[0] * s[2], step[1], step[0], step[2],
                                                      step[3]},
                                          0),
                         call->in[0]);
        }
    }
    cup_tensor *x = dy ? under_taps(p, call->in[1]) : NULL;
    take_flat(p, &forward);
    memcpy(&a, &forward, offsetof(cup__conv2d_attributes, groups) + sizeof forward.groups);
    cup_tensor *in[] = {dy, x}, *flat = NULL;
    if (!x || !cup__op_call(p->c, &cup__rows[CUP__OP_conv2d_weight_grad], in, 2, &a, &flat))
        return;
    int64_t *s = flat->stride;
    cup__shape shape = cup__shape_of(out);
    cup_tensor *made = cup__tensor_view(
        flat, &shape, (int64_t[]){s[0], s[1], out->shape[1] * s[1], s[2], s[3]}, 0);
    if (made)
        cup__conv_hand_over(call, made);
}

static cup_status run(cup__call *call)
{
    planes p = {.call = call,
                .c = call->c,
                .n = cup__conv_numbers_of(call),
                .part = cup__conv_part(call->op)};
    const cup_tensor *x = call->in[p.part == CUP__CONV_WEIGHT];
    p.last = (x->shape[1] > 1 && x->stride[1] == 1) ||
             (call->c->device->is_cuda && cup_dtype_size(x->dtype) == 2);
    if (!call->out[0]->count)
        return CUP_OK;
    bool was = cup_grad_recording(call->c, false);
    cup_scope_open(call->c);
    if (p.part == CUP__CONV_WEIGHT)
        run_weight(&p);
    else
        run_images(&p);
    cup_scope_return(call->c, NULL);
    cup_grad_recording(call->c, was);
    return call->c->error.status;
}

const cup__impl cup__conv3d_impls[] = {
    {.name = "planes", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(8, 16, 64, 128),
     .run = run},
    {.name = "planes", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(4, 64),
     .refuses = cup__refuses_f64, .run = run},
    {0},
};
