/* The specifications of convolutions: direct sums, written as they are defined. */
#include "ops/conv/conv.h"

#include <string.h>

#include "tensor/sums.h"

/* Depth, height and width; without a depth that is 1. */
typedef struct sums {
    cup__conv_numbers n;
    int flat; /* 1 without a depth */
} sums;

static sums sums_of(const cup__call *call)
{
    sums s = {.n = cup__conv_numbers_of(call)};
    s.flat = 3 - s.n.dims;
    if (!s.flat)
        return s;
    int64_t *const each[] = {s.n.stride, s.n.dilation, s.n.in, s.n.kernel, s.n.out};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        memmove(each[i] + 1, each[i], 2 * sizeof **each);
        each[i][0] = 1;
    }
    memmove(s.n.padding[1], s.n.padding[0], 2 * sizeof *s.n.padding);
    s.n.padding[0][0] = 0;
    return s;
}

/* Where the element of a place or tap lies, by its two first numbers. */
static int64_t offset(const sums *s, const cup_tensor *t, int64_t i, int64_t j,
                      const int64_t place[3])
{
    int64_t to = i * t->stride[0] + j * t->stride[1];
    for (int d = s->flat; d < 3; d++)
        to += place[d] * t->stride[2 + d - s->flat];
    return to;
}

/* Where in the image this tap of a place lies; false outside. */
static bool source(const sums *s, const int64_t place[3], const int64_t tap[3], int64_t to[3])
{
    bool inside = true;
    for (int d = 0; d < 3; d++) {
        to[d] = place[d] * s->n.stride[d] + tap[d] * s->n.dilation[d] - s->n.padding[d][0];
        inside = inside && to[d] >= 0 && to[d] < s->n.in[d];
    }
    return inside;
}

/* The place of the result with this tap at `from` of the image; false: there is none. */
static bool target(const sums *s, const int64_t from[3], const int64_t tap[3], int64_t to[3])
{
    bool reached = true;
    for (int d = 0; d < 3; d++) {
        int64_t far = from[d] + s->n.padding[d][0] - tap[d] * s->n.dilation[d];
        to[d] = far / s->n.stride[d];
        reached = reached && far >= 0 && far % s->n.stride[d] == 0 && to[d] < s->n.out[d];
    }
    return reached;
}

/* The next of the places below `size`, or taps; false behind the last. Begins with zeros. */
static bool next(int64_t p[3], const int64_t size[3])
{
    for (int d = 3; d-- > 0; p[d] = 0)
        if (++p[d] < size[d])
            return true;
    return false;
}

/* How many places of a row find an element of the image with this tap, from `first` on. */
static int64_t inside(const sums *s, int64_t tap, int64_t *first)
{
    int64_t stride = s->n.stride[2], shift = tap * s->n.dilation[2] - s->n.padding[2][0];
    int64_t end = s->n.in[2] > shift ? (s->n.in[2] - shift + stride - 1) / stride : 0;
    *first = shift < 0 ? (stride - 1 - shift) / stride : 0;
    end = end < s->n.out[2] ? end : s->n.out[2];
    return end > *first ? end - *first : 0;
}

/* The numbers of the next element of the result; those of the first one are zeros. */
static void advance(const sums *s, const cup__shape *shape, int64_t first[2], int64_t place[3])
{
    for (int d = shape->ndim; d-- > 0;) {
        int64_t *at = d < 2 ? first + d : place + d - 2 + s->flat;
        if (++*at < shape->size[d])
            return;
        *at = 0;
    }
}

/* What sums of codes are multiplied with. */
static double factor_of(const cup__call *call, int64_t result)
{
    if (!cup__conv_is_scaled(call))
        return 1;
    const cup_tensor *x = call->in[2], *weight = call->in[3];
    double factor = x ? cup__load(x, 0) : 1;
    if (weight)
        factor *= cup__load(weight, weight->count == 1 ? 0 : result * weight->stride[0]);
    return factor;
}

cup_status cup__conv_specification(cup__call *call)
{
    const cup_tensor *x = call->in[0], *weight = call->in[1];
    const cup_tensor *bias = cup__conv_bias(call);
    const sums s = sums_of(call);
    int64_t channels = weight->shape[1], results = weight->shape[0] / s.n.groups;
    int64_t p[2] = {0}, place[3] = {0};
    for (int64_t e = 0; e < call->out[0]->count; e++, advance(&s, &call->result[0], p, place)) {
        int64_t tap[3] = {0}, from[3];
        double sum = 0;
        do
            if (source(&s, place, tap, from))
                sum +=
                    cup__dot(x, offset(&s, x, p[0], p[1] / results * channels, from), x->stride[1],
                             weight, offset(&s, weight, p[1], 0, tap), weight->stride[1], channels);
        while (next(tap, s.n.kernel));
        sum *= factor_of(call, p[1]);
        sum += bias ? cup__load(bias, p[1] * bias->stride[0]) : 0;
        cup__store(call->out[0], cup__offset_of(call->out[0], e), sum);
    }
    return CUP_OK;
}

cup_status cup__conv_input_specification(cup__call *call)
{
    const cup_tensor *dy = call->in[0], *weight = call->in[1];
    const sums s = sums_of(call);
    int64_t each = weight->shape[1], results = weight->shape[0] / s.n.groups;
    int64_t p[2] = {0}, place[3] = {0};
    for (int64_t e = 0; e < call->out[0]->count; e++, advance(&s, &call->result[0], p, place)) {
        int64_t tap[3] = {0}, to[3];
        int64_t first = p[1] / each * results;
        double sum = 0;
        do
            if (target(&s, place, tap, to))
                sum += cup__dot(dy, offset(&s, dy, p[0], first, to), dy->stride[1], weight,
                                offset(&s, weight, first, p[1] % each, tap), weight->stride[0],
                                results);
        while (next(tap, s.n.kernel));
        cup__store(call->out[0], cup__offset_of(call->out[0], e), sum);
    }
    return CUP_OK;
}

cup_status cup__conv_weight_specification(cup__call *call)
{
    const cup_tensor *dy = call->in[0], *x = call->in[1], *base = cup__conv_sum(call);
    const sums s = sums_of(call);
    int64_t each = call->result[0].size[1], results = call->result[0].size[0] / s.n.groups;
    int last = x->ndim - 1;
    int64_t p[2] = {0}, tap[3] = {0};
    for (int64_t e = 0; e < call->out[0]->count; e++, advance(&s, &call->result[0], p, tap)) {
        int64_t place[3] = {0}, from[3];
        int64_t channel = p[0] / results * each + p[1];
        int64_t first, count = inside(&s, tap[2], &first);
        const int64_t rows[] = {s.n.out[0], s.n.out[1], 1};
        double sum = 0;
        place[2] = first;
        do
            for (int64_t n = 0; count && n < x->shape[0] && source(&s, place, tap, from); n++)
                sum += cup__dot(dy, offset(&s, dy, n, p[0], place), dy->stride[last], x,
                                offset(&s, x, n, channel, from), x->stride[last] * s.n.stride[2],
                                count);
        while (next(place, rows) && (place[2] = first, true));
        sum += base ? cup__load(base, cup__offset_of(base, e)) : 0;
        cup__store(call->out[0], cup__offset_of(call->out[0], e), sum);
    }
    return CUP_OK;
}
