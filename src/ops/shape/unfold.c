/* Windows of images as columns, and columns added up to images: the elements of all windows are one
 * strided view of the padded image, which is read at once, and written at once as long as windows
 * do not overlap. */
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/shape/copy.h"

#define MOST_SIDE ((int64_t)1 << 29)

/* Along height and width. */
typedef struct windows {
    int64_t in[2], kernel[2], stride[2], padding[2], dilation[2], out[2];
    int64_t images, channels;
} windows;

static void take(int64_t to[2], const int64_t *from, int count, int64_t usual)
{
    to[0] = count > 0 ? from[0] : usual;
    to[1] = count > 1 ? from[1] : to[0];
}

#define TAKE(w, a)                                                                                 \
    take((w)->kernel, (a)->window, (a)->window_count, 1);                                          \
    take((w)->stride, (a)->stride, (a)->stride_count, 1);                                          \
    take((w)->padding, (a)->padding, (a)->padding_count, 0);                                       \
    take((w)->dilation, (a)->dilation, (a)->dilation_count, 1)

static bool folds(const cup__call *call)
{
    return call->row == &cup__rows[CUP__OP_fold];
}

static windows windows_of(const cup__call *call)
{
    const cup_tensor *x = call->in[0];
    windows w = {.images = x->shape[0]};
    if (folds(call)) {
        const cup__fold_attributes *a = call->attributes;
        TAKE(&w, a);
        take(w.in, a->size, a->size_count, 1);
        w.channels = x->shape[1] / (w.kernel[0] * w.kernel[1]);
    } else {
        const cup__unfold_attributes *a = call->attributes;
        TAKE(&w, a);
        w.in[0] = x->shape[2];
        w.in[1] = x->shape[3];
        w.channels = x->shape[1];
    }
    for (int d = 0; d < 2; d++) {
        int64_t reach = w.dilation[d] * (w.kernel[d] - 1) + 1;
        int64_t room = w.in[d] + 2 * w.padding[d] - reach;
        w.out[d] = room < 0 ? 0 : room / w.stride[d] + 1;
    }
    return w;
}

static cup_status check_numbers(cup__call *call)
{
    windows w = {.images = 0};
    if (folds(call)) {
        const cup__fold_attributes *a = call->attributes;
        TAKE(&w, a);
        take(w.in, a->size, a->size_count, 0);
    } else {
        const cup__unfold_attributes *a = call->attributes;
        TAKE(&w, a);
        w.in[0] = call->in[0]->shape[2];
        w.in[1] = call->in[0]->shape[3];
    }
    for (int d = 0; d < 2; d++) {
        const int64_t all[] = {w.kernel[d], w.stride[d], w.dilation[d], w.in[d], w.padding[d]};
        for (int i = 0; i < 5; i++)
            if (all[i] < (i < 4) || all[i] > MOST_SIDE)
                return cup__call_fail(call, CUP_ARGUMENT,
                                      "sides, window, stride and dilation must be from 1 to 2^29 "
                                      "and padding from 0");
    }
    if (w.kernel[0] > INT32_MAX / w.kernel[1])
        return cup__call_fail(call, CUP_ARGUMENT, "a window of %lld x %lld is too large",
                              (long long)w.kernel[0], (long long)w.kernel[1]);
    return CUP_OK;
}

static cup_status check(cup__call *call, windows *w)
{
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_pairs(call, "window"));
    CUP_TRY(check_numbers(call));
    *w = windows_of(call);
    if (w->out[0] > 0 && w->out[1] > 0)
        return CUP_OK;
    return cup__call_fail(call, CUP_SHAPE,
                          "a window of %lld x %lld does not fit into %lld x %lld with this padding",
                          (long long)w->kernel[0], (long long)w->kernel[1], (long long)w->in[0],
                          (long long)w->in[1]);
}

static cup_status infer_unfold(cup__call *call)
{
    windows w;
    CUP_TRY(cup__need_ndim(call, 0, 4, 4));
    CUP_TRY(check(call, &w));
    call->result[0] = (cup__shape){call->in[0]->dtype, 3,
                                   {w.images, w.channels * w.kernel[0] * w.kernel[1],
                                    w.out[0] * w.out[1]}};
    return CUP_OK;
}

static cup_status infer_fold(cup__call *call)
{
    const cup_tensor *x = call->in[0];
    windows w;
    CUP_TRY(cup__need_ndim(call, 0, 3, 3));
    if (((const cup__fold_attributes *)call->attributes)->size_count == 0)
        return cup__call_fail(call, CUP_ARGUMENT, "size must have one number, or two");
    CUP_TRY(check(call, &w));
    if (x->shape[1] % (w.kernel[0] * w.kernel[1]) || x->shape[2] != w.out[0] * w.out[1])
        return cup__call_fail(call, CUP_SHAPE,
                              "columns of windows of %lld x %lld in such an image are "
                              "[N,%lld C,%lld]",
                              (long long)w.kernel[0], (long long)w.kernel[1],
                              (long long)(w.kernel[0] * w.kernel[1]),
                              (long long)(w.out[0] * w.out[1]));
    call->result[0] = (cup__shape){x->dtype, 4, {w.images, w.channels, w.in[0], w.in[1]}};
    return CUP_OK;
}

/* The element of the image that element `i` of the columns is; -1: it is padding. */
static int64_t source_of(const windows *w, int64_t i)
{
    int64_t at[2], size = w->out[0] * w->out[1], row = i / size;
    for (int d = 2; d-- > 0;) {
        int64_t place = d ? i % w->out[1] : i % size / w->out[1];
        int64_t step = d ? row % w->kernel[1] : row / w->kernel[1] % w->kernel[0];
        at[d] = place * w->stride[d] + step * w->dilation[d] - w->padding[d];
        if (at[d] < 0 || at[d] >= w->in[d])
            return -1;
    }
    return (row / (w->kernel[0] * w->kernel[1]) * w->in[0] + at[0]) * w->in[1] + at[1];
}

static cup_status specify_unfold(cup__call *call)
{
    const cup_tensor *x = call->in[0];
    windows w = windows_of(call);
    for (int64_t i = 0; i < call->out[0]->count; i++) {
        int64_t from = source_of(&w, i);
        cup__store(call->out[0], i, from < 0 ? 0 : cup__load(x, cup__offset_of(x, from)));
    }
    return CUP_OK;
}

static cup_status specify_fold(cup__call *call)
{
    const cup_tensor *x = call->in[0];
    cup_tensor *y = call->out[0], *sum = cup_tensor_new(call->c, CUP_F64, y->ndim, y->shape);
    windows w = windows_of(call);
    if (!sum)
        return call->c->error.status;
    double *sums = sum->data;
    for (int64_t i = 0; i < y->count; i++)
        sums[i] = 0;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t to = source_of(&w, i);
        if (to >= 0)
            sums[to] += cup__load(x, cup__offset_of(x, i));
    }
    for (int64_t i = 0; i < y->count; i++)
        cup__store(y, i, sums[i]);
    cup_tensor_free(sum);
    return CUP_OK;
}

/* A part of all windows: steps `from` to `from` + `count` along each side. */
typedef struct part {
    int64_t from[2], count[2];
} part;

/* It as [N,C,count,count,out,out] in an image that is padded already. */
static cup_tensor *in_image(const windows *w, cup_tensor *image, const part *p)
{
    const int64_t *s = image->stride;
    cup__shape shape = {image->dtype, 6, {w->images, w->channels, p->count[0], p->count[1],
                                          w->out[0], w->out[1]}};
    const int64_t stride[] = {s[0], s[1], s[2] * w->dilation[0], s[3] * w->dilation[1],
                              s[2] * w->stride[0], s[3] * w->stride[1]};
    return cup__tensor_view(image, &shape, stride, p->from[0] * stride[2] + p->from[1] * stride[3]);
}

/* The same in the columns. */
static cup_tensor *in_columns(const windows *w, cup_tensor *columns, const part *p)
{
    const int64_t *s = columns->stride, kernel = w->kernel[0] * w->kernel[1];
    cup__shape shape = {columns->dtype, 6, {w->images, w->channels, p->count[0], p->count[1],
                                            w->out[0], w->out[1]}};
    const int64_t stride[] = {s[0], s[1] * kernel, s[1] * w->kernel[1], s[1], s[2] * w->out[1],
                              s[2]};
    return cup__tensor_view(columns, &shape, stride,
                            p->from[0] * stride[2] + p->from[1] * stride[3]);
}

static void unfold(cup__call *call)
{
    windows w = windows_of(call);
    const int64_t around[] = {0, 0, w.padding[0], w.padding[1]};
    bool padded = w.padding[0] || w.padding[1];
    const part all = {{0, 0}, {w.kernel[0], w.kernel[1]}};
    cup_tensor *x = call->in[0];
    x = padded ? cup_pad(call->c, x, around, 4, around, 4, NULL) : x;
    cup_tensor *from = x ? in_image(&w, x, &all) : NULL;
    cup_tensor *to = in_columns(&w, call->out[0], &all);
    if (from && to)
        cup__copy_to(call->c, to, from);
}

/* Adds a part of the columns to the image; the first one finds zeros. */
static void add_part(cup_context *c, const windows *w, cup_tensor *image, cup_tensor *columns,
                     const part *p, bool first)
{
    cup_scope_open(c);
    cup_tensor *to = in_image(w, image, p), *from = in_columns(w, columns, p);
    if (to && from) {
        from = from->dtype == to->dtype ? from : cup_cast(c, from, to->dtype);
        from = first ? from : cup_add(c, to, from);
        if (from)
            cup__copy_to(c, to, from);
    }
    cup_scope_return(c, NULL);
}

static void fold(cup__call *call)
{
    cup_context *c = call->c;
    cup_tensor *y = call->out[0];
    windows w = windows_of(call);
    const int64_t side[] = {w.in[0] + 2 * w.padding[0], w.in[1] + 2 * w.padding[1]};
    bool own = cup_dtype_size(y->dtype) == 2 || w.padding[0] || w.padding[1] || !y->contiguous;
    cup_dtype dtype = cup_dtype_size(y->dtype) == 2 ? CUP_F32 : y->dtype;
    cup_tensor *image = y;
    if (own)
        image = cup_zeros(c, dtype, 4, (int64_t[]){w.images, w.channels, side[0], side[1]});
    else
        cup_copy_into(c, y, cup__number(c, y, 0));
    /* So many steps of a window lie before the next window begins: they meet none of its own. */
    int64_t step[2];
    for (int d = 0; d < 2; d++)
        step[d] = (w.stride[d] - 1) / w.dilation[d] + 1;
    part p;
    for (p.from[0] = 0; image && p.from[0] < w.kernel[0]; p.from[0] += step[0])
        for (p.from[1] = 0; p.from[1] < w.kernel[1]; p.from[1] += step[1]) {
            for (int d = 0; d < 2; d++) {
                int64_t rest = w.kernel[d] - p.from[d];
                p.count[d] = rest < step[d] ? rest : step[d];
            }
            add_part(c, &w, image, call->in[0], &p, !p.from[0] && !p.from[1]);
        }
    if (!own || !image)
        return;
    const int64_t start[] = {0, 0, w.padding[0], w.padding[1]};
    cup_tensor *inner = cup_slice(c, image, start, 4, y->shape, 4);
    inner = dtype == y->dtype ? inner : cup_cast(c, inner, y->dtype);
    if (inner)
        cup__copy_to(c, y, inner);
}

static cup_status run(cup__call *call)
{
    cup_scope_open(call->c);
    bool was = cup_grad_recording(call->c, false);
    (folds(call) ? fold : unfold)(call);
    cup_grad_recording(call->c, was);
    cup_scope_return(call->c, NULL);
    return call->c->error.status;
}

static cup_status gradient_unfold(cup__grad *g)
{
    const cup__unfold_attributes *a = g->attributes;
    const cup_fold_options o = {sizeof o, {a->stride, a->stride_count},
                                {a->padding, a->padding_count}, {a->dilation, a->dilation_count}};
    g->d_in[0] = cup_fold(g->c, g->d_out[0], &g->in_shape[0].size[2], 2, a->window,
                          a->window_count, &o);
    return CUP_OK;
}

static cup_status gradient_fold(cup__grad *g)
{
    const cup__fold_attributes *a = g->attributes;
    const cup_unfold_options o = {sizeof o, {a->stride, a->stride_count},
                                  {a->padding, a->padding_count}, {a->dilation, a->dilation_count}};
    g->d_in[0] = cup_unfold(g->c, g->d_out[0], a->window, a->window_count, &o);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "copies", .place = CUP__CUDA, CUP__THRESHOLDS(8, 16, 64), .strided = true, .run = run},
    {.name = "copies", .place = CUP__CPU, CUP__THRESHOLDS(16, 64), .strided = true, .run = run},
    {0}};

#define TWO(a, b) {a, b}, 2
#define ONE(a) {a}, 1
#define NONE {0}, 0
static const cup__unfold_attributes three = {ONE(3), NONE, ONE(1), NONE},
                                    patch = {TWO(4, 2), TWO(4, 2), NONE, NONE},
                                    apart = {TWO(3, 2), TWO(2, 3), TWO(2, 1), TWO(2, 3)},
                                    point = {ONE(1), NONE, NONE, NONE};
static const cup__sample unfold_samples[] = {
    {"1x1x3x3", &point}, {"2x3x8x9", &three},   {"2x3x8x10", &patch}, {"3x2x7x11", &apart},
    {"0x2x5x5", &three}, {"1x5x33x40", &three}, {"1x2x64x64", &patch}, {NULL, NULL}};
static const cup__sample unfold_bench[] = {
    {"16x64x56x56", &three}, {"64x3x224x224", &patch}, {NULL, NULL}};

static const cup__fold_attributes to_three = {TWO(8, 9), ONE(3), NONE, ONE(1), NONE},
                                  to_patch = {TWO(8, 10), TWO(4, 2), TWO(4, 2), NONE, NONE},
                                  to_apart = {TWO(7, 11), TWO(3, 2), TWO(2, 3), TWO(2, 1),
                                              TWO(2, 3)},
                                  to_point = {ONE(3), ONE(1), NONE, NONE, NONE},
                                  to_wide = {ONE(56), ONE(3), NONE, ONE(1), NONE};
static const cup__sample fold_samples[] = {
    {"1x1x9", &to_point},    {"2x27x72", &to_three}, {"2x24x10", &to_patch},
    {"3x12x16", &to_apart},  {"0x9x72", &to_three},  {"1x9x3136", &to_wide}, {NULL, NULL}};
static const cup__sample fold_bench[] = {{"16x576x3136", &to_wide}, {NULL, NULL}};

const cup__op cup__op_unfold = {
    .infer = infer_unfold,
    .specification = specify_unfold,
    .gradient = gradient_unfold,
    .composed = gradient_unfold,
    .impls = impls,
    .samples = unfold_samples,
    .bench = unfold_bench,
};

const cup__op cup__op_fold = {
    .infer = infer_fold,
    .specification = specify_fold,
    .gradient = gradient_fold,
    .composed = gradient_fold,
    .impls = impls,
    .samples = fold_samples,
    .bench = fold_bench,
};
