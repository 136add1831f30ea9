#include "ops/pool/pool.h"

#include <math.h>

#include "base/memory.h"
#include "dispatch/attributes.h"

#define SIDE_MOST (INT32_MAX / 4)

/* One number for both dimensions, one each, or none for what is usual. */
static void take(int64_t to[2], const int64_t *from, int count, int64_t usual)
{
    to[0] = count > 0 ? from[0] : usual;
    to[1] = count > 1 ? from[1] : to[0];
}

static void take_window(cup__pooling *p, const int64_t *window, int windows, const int64_t *stride,
                        int strides, const int64_t *padding, int paddings, bool channels_last)
{
    take(p->window, window, windows, 1);
    take(p->stride, stride, strides, p->window[0]);
    if (strides == 0)
        p->stride[1] = p->window[1];
    take(p->padding, padding, paddings, 0);
    p->channels_last = channels_last;
}

#define TAKE_WINDOW(p, a)                                                                          \
    take_window(p, (a)->window, (a)->window_count, (a)->stride, (a)->stride_count, (a)->padding,   \
                (a)->padding_count, (a)->channels_last)

/* What the attributes say; the sizes of a gradient's image are theirs, others those of x. */
static void read_attributes(cup__pooling *p, const cup__call *call, bool *ceil_mode)
{
    const cup__max_pool2d_attributes *max = call->attributes;
    const cup__max_pool2d_grad_attributes *max_grad = call->attributes;
    const cup__avg_pool2d_attributes *avg = call->attributes;
    const cup__avg_pool2d_grad_attributes *avg_grad = call->attributes;
    *p = (cup__pooling){.is_max = call->op->kind & CUP__POOL_MAX, .dilation = {1, 1}};
    *ceil_mode = false;
    switch (call->op->kind) {
    case CUP__POOL_MAX:
        TAKE_WINDOW(p, max);
        take(p->dilation, max->dilation, max->dilation_count, 1);
        *ceil_mode = max->ceil_mode;
        break;
    case CUP__POOL_MAX | CUP__POOL_GRAD:
        TAKE_WINDOW(p, max_grad);
        take(p->dilation, max_grad->dilation, max_grad->dilation_count, 1);
        p->in[0] = max_grad->height;
        p->in[1] = max_grad->width;
        break;
    case CUP__POOL_GRAD:
        TAKE_WINDOW(p, avg_grad);
        p->count_padding = avg_grad->count_include_pad;
        p->in[0] = avg_grad->height;
        p->in[1] = avg_grad->width;
        break;
    default:
        TAKE_WINDOW(p, avg);
        p->count_padding = avg->count_include_pad;
        *ceil_mode = avg->ceil_mode;
    }
}

/* Those of both kinds are alike. */
static void read_adaptive(cup__pooling *p, const cup__call *call)
{
    const cup__adaptive_avg_pool2d_attributes *a = call->attributes;
    const cup__adaptive_avg_pool2d_grad_attributes *grad = call->attributes;
    bool is_grad = call->op->kind & CUP__POOL_GRAD;
    *p = (cup__pooling){.is_max = call->op->kind & CUP__POOL_MAX,
                        .adaptive = true,
                        .channels_last = is_grad ? grad->channels_last : a->channels_last,
                        .dilation = {1, 1}};
    if (is_grad) {
        p->in[0] = grad->height;
        p->in[1] = grad->width;
    } else {
        take(p->out, a->size, a->size_count, 1);
    }
}

/* How many windows fit. In ceil_mode the last may reach over the edge, but must begin before it. */
static int64_t windows(const cup__pooling *p, int d, bool ceil_mode)
{
    int64_t reach = (p->window[d] - 1) * p->dilation[d] + 1;
    int64_t room = p->in[d] + 2 * p->padding[d] - reach, stride = p->stride[d];
    if (room < 0)
        return 0;
    int64_t count = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
    return ceil_mode && (count - 1) * stride >= p->in[d] + p->padding[d] ? count - 1 : count;
}

/* Sizes of the tensor that a call reads, or a gradient's dy. */
static void read_sizes(cup__pooling *p, const cup_tensor *t, int64_t size[2])
{
    int at = p->channels_last ? 1 : 2;
    p->inner = p->channels_last ? t->shape[3] : 1;
    p->planes = p->channels_last ? t->shape[0] : t->shape[0] * t->shape[1];
    size[0] = t->shape[at];
    size[1] = t->shape[at + 1];
}

cup__pooling cup__pooling_of(const cup__call *call)
{
    cup__pooling p;
    bool ceil_mode = false, is_grad = call->op->kind & CUP__POOL_GRAD;
    if (call->op->kind & CUP__POOL_ADAPTIVE)
        read_adaptive(&p, call);
    else
        read_attributes(&p, call, &ceil_mode);
    read_sizes(&p, call->in[0], is_grad ? p.out : p.in);
    for (int d = 0; d < 2; d++)
        if (p.adaptive && p.out[d] > 0)
            p.window[d] = p.in[d] / p.out[d] + (p.in[d] % p.out[d] ? 2 : 0);
        else if (!p.adaptive && !is_grad)
            p.out[d] = windows(&p, d, ceil_mode);
    return p;
}

static cup_status check_numbers(cup__call *call, const cup__pooling *p)
{
    for (int d = 0; d < 2; d++) {
        const int64_t most = SIDE_MOST;
        if (p->window[d] < 1 || p->stride[d] < 1 || p->dilation[d] < 1 || p->window[d] > most ||
            p->stride[d] > most || p->dilation[d] > most ||
            (p->window[d] - 1) * p->dilation[d] > most)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "window %lld, stride %lld and dilation %lld must be at least 1 "
                                  "and less than 2^29",
                                  (long long)p->window[d], (long long)p->stride[d],
                                  (long long)p->dilation[d]);
        if (p->padding[d] < 0 || p->padding[d] > p->window[d] / 2)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "a padding of %lld is not from 0 to half the window of %lld",
                                  (long long)p->padding[d], (long long)p->window[d]);
        if (p->in[d] < 0 || p->in[d] > most)
            return cup__call_fail(call, CUP_SHAPE, "a side of %lld is too long; at most 2^29",
                                  (long long)p->in[d]);
    }
    if (p->window[0] > INT32_MAX / p->window[1])
        return cup__call_fail(call, CUP_ARGUMENT, "a window of %lld x %lld is too large",
                              (long long)p->window[0], (long long)p->window[1]);
    return CUP_OK;
}

/* Whether an adaptive pooling has sides that it may have. */
static cup_status check_sides(cup__call *call, const cup__pooling *p)
{
    bool is_grad = call->op->kind & CUP__POOL_GRAD;
    for (int d = 0; d < 2; d++) {
        int64_t own = is_grad ? p->out[d] : p->in[d], side = is_grad ? p->in[d] : p->out[d];
        if (side < 1 || side > SIDE_MOST || own < 1 || own > SIDE_MOST)
            return cup__call_fail(call, CUP_SHAPE,
                                  "sides of %lld and %lld must be from 1 to 2^29",
                                  (long long)own, (long long)side);
    }
    if (p->is_max && !is_grad && p->window[0] > INT32_MAX / p->window[1])
        return cup__call_fail(call, CUP_SHAPE, "windows of %lld x %lld are too large",
                              (long long)p->window[0], (long long)p->window[1]);
    return CUP_OK;
}

/* The shapes of the results: sides of their own, and places where they are wanted. */
static void set_results(cup__call *call, const cup__pooling *p)
{
    bool is_grad = call->op->kind & CUP__POOL_GRAD;
    const int64_t *side = is_grad ? p->in : p->out;
    call->result[0] = cup__shape_of(call->in[0]);
    call->result[0].size[p->channels_last ? 1 : 2] = side[0];
    call->result[0].size[p->channels_last ? 2 : 3] = side[1];
    if (!p->is_max || is_grad)
        return;
    call->result[1] = call->result[0];
    call->result[1].dtype = p->window[0] * p->window[1] > 255 ? CUP_I32 : CUP_U8;
}

static cup_status check_windows(cup__call *call)
{
    bool ceil_mode;
    cup__pooling p;
    read_attributes(&p, call, &ceil_mode);
    if (!(call->op->kind & CUP__POOL_GRAD))
        read_sizes(&p, call->in[0], p.in);
    CUP_TRY(check_numbers(call, &p));
    p = cup__pooling_of(call);
    if (!(call->op->kind & CUP__POOL_GRAD) && (p.out[0] < 1 || p.out[1] < 1))
        return cup__call_fail(call, CUP_SHAPE,
                              "a window of %lld x %lld does not fit into %lld x %lld with this "
                              "padding",
                              (long long)p.window[0], (long long)p.window[1], (long long)p.in[0],
                              (long long)p.in[1]);
    return CUP_OK;
}

cup_status cup__pool_infer(cup__call *call)
{
    bool adaptive = call->op->kind & CUP__POOL_ADAPTIVE;
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 4, 4));
    CUP_TRY(cup__need_pairs(call, adaptive ? "size" : "window"));
    if (!adaptive)
        CUP_TRY(check_windows(call));
    cup__pooling p = cup__pooling_of(call);
    if (adaptive)
        CUP_TRY(check_sides(call, &p));
    if (p.is_max && call->op->kind & CUP__POOL_GRAD) {
        cup__shape dy = cup__shape_of(call->in[0]), places = cup__shape_of(call->in[1]);
        if (!cup__shape_equal(&dy, &places))
            return cup__call_fail(call, CUP_SHAPE, "dy and places must have one shape");
    }
    set_results(call, &p);
    return CUP_OK;
}

int64_t cup__pool_start(const cup__pooling *p, int d, int64_t at)
{
    return p->adaptive ? at * p->in[d] / p->out[d] : at * p->stride[d] - p->padding[d];
}

int64_t cup__pool_span(const cup__pooling *p, int d, int64_t at, int64_t *first)
{
    int64_t begin = cup__pool_start(p, d, at), step = p->dilation[d];
    if (p->adaptive) {
        *first = 0;
        return ((at + 1) * p->in[d] + p->out[d] - 1) / p->out[d] - begin;
    }
    int64_t before = begin < 0 ? (-begin + step - 1) / step : 0;
    int64_t end = begin < p->in[d] ? (p->in[d] - begin + step - 1) / step : 0;
    if (end > p->window[d])
        end = p->window[d];
    *first = before;
    return end > before ? end - before : 0;
}

double cup__pool_divisor(const cup__pooling *p, int64_t row, int64_t column)
{
    const int64_t at[2] = {row, column};
    int64_t count = 1, ignored;
    for (int d = 0; d < 2; d++) {
        int64_t room = p->in[d] + 2 * p->padding[d] - at[d] * p->stride[d];
        count *= !p->count_padding       ? cup__pool_span(p, d, at[d], &ignored)
                 : room < p->window[d] ? room
                                         : p->window[d];
    }
    return (double)count;
}

int64_t cup__pool_place(const cup_tensor *places, int64_t index)
{
    if (places->dtype == CUP_I32)
        return ((const int32_t *)places->data)[index];
    int place = ((const uint8_t *)places->data)[index];
    return place == 255 ? -1 : place;
}

void cup__pool_place_set(cup_tensor *places, int64_t index, int64_t place)
{
    if (places->dtype == CUP_I32)
        ((int32_t *)places->data)[index] = (int32_t)place;
    else
        ((uint8_t *)places->data)[index] = (uint8_t)place;
}

/* The offset, in row-major order, of a value of the image. */
static int64_t pixel(const cup__pooling *p, int64_t plane, int64_t row, int64_t column, int64_t k)
{
    return ((plane * p->in[0] + row) * p->in[1] + column) * p->inner + k;
}

/* One result: the value, and for a maximum where in the window it stands. */
static double look_at_window(const cup__pooling *p, const cup_tensor *x, int64_t index,
                             int64_t *place)
{
    int64_t k = index % p->inner, pixels = index / p->inner, column = pixels % p->out[1];
    int64_t row = pixels / p->out[1] % p->out[0], plane = pixels / p->out[1] / p->out[0];
    int64_t top, left, high = cup__pool_span(p, 0, row, &top);
    int64_t wide = cup__pool_span(p, 1, column, &left);
    double sum = 0, most = -INFINITY;
    *place = -1;
    for (int64_t i = top; i < top + high; i++)
        for (int64_t j = left; j < left + wide; j++) {
            int64_t h = cup__pool_start(p, 0, row) + i * p->dilation[0];
            int64_t w = cup__pool_start(p, 1, column) + j * p->dilation[1];
            double v = cup__load(x, cup__offset_of(x, pixel(p, plane, h, w, k)));
            sum += v;
            if (*place < 0 || v > most || (isnan(v) && !isnan(most))) {
                most = v;
                *place = i * p->window[1] + j;
            }
        }
    return p->is_max ? most : sum / cup__pool_divisor(p, row, column);
}

cup_status cup__pool_specification(cup__call *call)
{
    cup__pooling p = cup__pooling_of(call);
    for (int64_t i = 0; i < call->out[0]->count; i++) {
        int64_t place;
        cup__store(call->out[0], i, look_at_window(&p, call->in[0], i, &place));
        if (call->out_count > 1)
            cup__pool_place_set(call->out[1], i, place);
    }
    return CUP_OK;
}

/* What one value of dy adds to the image's gradient. */
static void spread(const cup__pooling *p, const cup__call *call, int64_t index, double *sums)
{
    const cup_tensor *dy = call->in[0], *places = call->in_count > 1 ? call->in[1] : NULL;
    double v = cup__load(dy, cup__offset_of(dy, index));
    int64_t k = index % p->inner, pixels = index / p->inner, column = pixels % p->out[1];
    int64_t row = pixels / p->out[1] % p->out[0], plane = pixels / p->out[1] / p->out[0];
    int64_t top, left, high = cup__pool_span(p, 0, row, &top);
    int64_t wide = cup__pool_span(p, 1, column, &left);
    int64_t place = p->is_max ? cup__pool_place(places, cup__offset_of(places, index)) : 0;
    for (int64_t i = top; i < top + high; i++)
        for (int64_t j = left; j < left + wide; j++) {
            int64_t h = cup__pool_start(p, 0, row) + i * p->dilation[0];
            int64_t w = cup__pool_start(p, 1, column) + j * p->dilation[1];
            int64_t at = pixel(p, plane, h, w, k);
            if (!p->is_max)
                sums[at] += v / cup__pool_divisor(p, row, column);
            else if (place == i * p->window[1] + j)
                sums[at] += v;
        }
}

cup_status cup__pool_grad_specification(cup__call *call)
{
    cup__pooling p = cup__pooling_of(call);
    cup_tensor *dx = call->out[0];
    double *sums = cup__calloc((size_t)dx->count + 1, sizeof *sums);
    if (!sums)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory for its sums");
    for (int64_t i = 0; i < call->in[0]->count; i++)
        spread(&p, call, i, sums);
    for (int64_t i = 0; i < dx->count; i++)
        cup__store(dx, i, sums[i]);
    cup__free(sums);
    return CUP_OK;
}
