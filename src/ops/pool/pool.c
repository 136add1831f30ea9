#include "ops/pool/pool.h"

#include <math.h>

#include "dispatch/attributes.h"

/* One number for both dimensions, one each, or none for what is usual. */
static void take(int64_t to[2], const int64_t *from, int count, int64_t usual)
{
    to[0] = count > 0 ? from[0] : usual;
    to[1] = count > 1 ? from[1] : to[0];
}

static void take_window(cup__pooling *p, const int64_t *window, int windows, const int64_t *stride,
                        int strides, const int64_t *padding, int paddings)
{
    take(p->window, window, windows, 1);
    take(p->stride, stride, strides, p->window[0]);
    if (strides == 0)
        p->stride[1] = p->window[1];
    take(p->padding, padding, paddings, 0);
    p->dilation[0] = p->dilation[1] = 1;
}

#define TAKE_WINDOW(p, a)                                                                          \
    take_window(p, (a)->window, (a)->window_count, (a)->stride, (a)->stride_count, (a)->padding,   \
                (a)->padding_count)

/* What the attributes say; the sizes of a gradient's image are theirs, others those of x. */
static bool read_attributes(cup__pooling *p, const cup__call *call, bool *ceil_mode)
{
    const cup__max_pool2d_attributes *max = call->attributes;
    const cup__max_pool2d_grad_attributes *max_grad = call->attributes;
    const cup__avg_pool2d_attributes *avg = call->attributes;
    const cup__avg_pool2d_grad_attributes *avg_grad = call->attributes;
    *p = (cup__pooling){.is_max = call->op->kind & CUP__POOL_MAX};
    *ceil_mode = false;
    switch (call->op->kind) {
    case CUP__POOL_MAX:
        TAKE_WINDOW(p, max);
        take(p->dilation, max->dilation, max->dilation_count, 1);
        *ceil_mode = max->ceil_mode;
        return max->channels_last;
    case CUP__POOL_MAX | CUP__POOL_GRAD:
        TAKE_WINDOW(p, max_grad);
        take(p->dilation, max_grad->dilation, max_grad->dilation_count, 1);
        p->in[0] = max_grad->height;
        p->in[1] = max_grad->width;
        return max_grad->channels_last;
    case CUP__POOL_GRAD:
        TAKE_WINDOW(p, avg_grad);
        p->count_padding = avg_grad->count_include_pad;
        p->in[0] = avg_grad->height;
        p->in[1] = avg_grad->width;
        return avg_grad->channels_last;
    default:
        TAKE_WINDOW(p, avg);
        p->count_padding = avg->count_include_pad;
        *ceil_mode = avg->ceil_mode;
        return avg->channels_last;
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
static void read_sizes(cup__pooling *p, const cup_tensor *t, bool channels_last, int64_t size[2])
{
    int at = channels_last ? 1 : 2;
    p->inner = channels_last ? t->shape[3] : 1;
    p->planes = channels_last ? t->shape[0] : t->shape[0] * t->shape[1];
    size[0] = t->shape[at];
    size[1] = t->shape[at + 1];
}

cup__pooling cup__pooling_of(const cup__call *call)
{
    cup__pooling p;
    bool ceil_mode, channels_last = read_attributes(&p, call, &ceil_mode);
    read_sizes(&p, call->in[0], channels_last,
               call->op->kind & CUP__POOL_GRAD ? p.out : p.in);
    for (int d = 0; d < 2 && !(call->op->kind & CUP__POOL_GRAD); d++)
        p.out[d] = windows(&p, d, ceil_mode);
    return p;
}

static cup_status check_numbers(cup__call *call, const cup__pooling *p)
{
    for (int d = 0; d < 2; d++) {
        const int64_t most = INT32_MAX / 4;
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

static void set_sides(cup__shape *shape, bool channels_last, const int64_t side[2])
{
    shape->size[channels_last ? 1 : 2] = side[0];
    shape->size[channels_last ? 2 : 3] = side[1];
}

cup_status cup__pool_infer(cup__call *call)
{
    bool ceil_mode;
    cup__pooling p;
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 4, 4));
    CUP_TRY(cup__need_pairs(call, "window"));
    bool channels_last = read_attributes(&p, call, &ceil_mode);
    read_sizes(&p, call->in[0], channels_last, p.in);
    CUP_TRY(check_numbers(call, &p));
    p = cup__pooling_of(call);
    if (p.out[0] < 1 || p.out[1] < 1)
        return cup__call_fail(call, CUP_SHAPE,
                              "a window of %lld x %lld does not fit into %lld x %lld with this "
                              "padding",
                              (long long)p.window[0], (long long)p.window[1], (long long)p.in[0],
                              (long long)p.in[1]);
    call->result[0] = cup__shape_of(call->in[0]);
    set_sides(&call->result[0], channels_last, p.out);
    if (p.is_max) {
        call->result[1] = call->result[0];
        call->result[1].dtype = p.window[0] * p.window[1] > 255 ? CUP_I32 : CUP_U8;
    }
    return CUP_OK;
}

cup_status cup__pool_grad_infer(cup__call *call)
{
    bool ceil_mode;
    cup__pooling p;
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 4, 4));
    CUP_TRY(cup__need_pairs(call, "window"));
    bool channels_last = read_attributes(&p, call, &ceil_mode);
    CUP_TRY(check_numbers(call, &p));
    if (p.is_max) {
        cup__shape dy = cup__shape_of(call->in[0]), places = cup__shape_of(call->in[1]);
        if (!cup__shape_equal(&dy, &places))
            return cup__call_fail(call, CUP_SHAPE, "dy and places must have one shape");
    }
    call->result[0] = cup__shape_of(call->in[0]);
    set_sides(&call->result[0], channels_last, p.in);
    return CUP_OK;
}

int64_t cup__pool_span(const cup__pooling *p, int d, int64_t at, int64_t *first)
{
    int64_t begin = at * p->stride[d] - p->padding[d], step = p->dilation[d];
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
            int64_t h = row * p->stride[0] - p->padding[0] + i * p->dilation[0];
            int64_t w = column * p->stride[1] - p->padding[1] + j * p->dilation[1];
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
static void spread(const cup__pooling *p, const cup__call *call, int64_t index)
{
    const cup_tensor *dy = call->in[0], *places = call->in_count > 1 ? call->in[1] : NULL;
    cup_tensor *dx = call->out[0];
    double v = cup__load(dy, cup__offset_of(dy, index));
    int64_t k = index % p->inner, pixels = index / p->inner, column = pixels % p->out[1];
    int64_t row = pixels / p->out[1] % p->out[0], plane = pixels / p->out[1] / p->out[0];
    int64_t top, left, high = cup__pool_span(p, 0, row, &top);
    int64_t wide = cup__pool_span(p, 1, column, &left);
    int64_t place = p->is_max ? cup__pool_place(places, cup__offset_of(places, index)) : 0;
    for (int64_t i = top; i < top + high; i++)
        for (int64_t j = left; j < left + wide; j++) {
            int64_t h = row * p->stride[0] - p->padding[0] + i * p->dilation[0];
            int64_t w = column * p->stride[1] - p->padding[1] + j * p->dilation[1];
            int64_t at = pixel(p, plane, h, w, k);
            if (!p->is_max)
                cup__store(dx, at, cup__load(dx, at) + v / cup__pool_divisor(p, row, column));
            else if (place == i * p->window[1] + j)
                cup__store(dx, at, cup__load(dx, at) + v);
        }
}

cup_status cup__pool_grad_specification(cup__call *call)
{
    cup__pooling p = cup__pooling_of(call);
    for (int64_t i = 0; i < call->out[0]->count; i++)
        cup__store(call->out[0], i, 0);
    for (int64_t i = 0; i < call->in[0]->count; i++)
        spread(&p, call, i);
    return CUP_OK;
}
