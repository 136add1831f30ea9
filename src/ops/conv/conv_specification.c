/* The specifications of conv2d and its gradients: direct sums, written as they are defined. */
#include "ops/conv/conv.h"

static double at(const cup_tensor *t, int64_t i, int64_t j, int64_t k, int64_t l)
{
    return cup__load(t, i * t->stride[0] + j * t->stride[1] + k * t->stride[2] + l * t->stride[3]);
}

/* Where in the image tap `tap` of place `place` lies; -1 outside. */
static int64_t source(const conv_side *s, int64_t place, int64_t tap)
{
    int64_t from = place * s->stride + tap * s->dilation - s->before;
    return from >= 0 && from < s->in ? from : -1;
}

/* The place of the result whose tap `tap` lies at `from` of the image; -1: there is none. */
static int64_t target(const conv_side *s, int64_t from, int64_t tap)
{
    int64_t to = from + s->before - tap * s->dilation;
    return to >= 0 && to % s->stride == 0 && to / s->stride < s->out ? to / s->stride : -1;
}

/* The four numbers of element i of a row-major shape. */
static void split(int64_t to[4], int64_t i, const cup__shape *shape)
{
    for (int d = 4; d-- > 0; i /= shape->size[d])
        to[d] = i % shape->size[d];
}

cup_status cup__conv_specification(cup__call *call)
{
    const cup_tensor *x = call->in[0], *weight = call->in[1];
    const cup_tensor *bias = call->in_count > 2 ? call->in[2] : NULL;
    conv_call v = cup__conv_of(call).call;
    for (int64_t e = 0; e < call->out[0]->count; e++) {
        int64_t p[4];
        split(p, e, &call->result[0]);
        double sum = 0;
        for (int64_t c = 0; c < v.channels; c++)
            for (int64_t i = 0; i < v.side[0].taps; i++)
                for (int64_t j = 0; j < v.side[1].taps; j++) {
                    int64_t h = source(&v.side[0], p[2], i), w = source(&v.side[1], p[3], j);
                    if (h >= 0 && w >= 0)
                        sum += at(x, p[0], p[1] / v.results * v.channels + c, h, w) *
                               at(weight, p[1], c, i, j);
                }
        sum += bias ? cup__load(bias, p[1] * bias->stride[0]) : 0;
        cup__store(call->out[0], cup__offset_of(call->out[0], e), sum);
    }
    return CUP_OK;
}

cup_status cup__conv_input_specification(cup__call *call)
{
    const cup_tensor *dy = call->in[0], *weight = call->in[1];
    conv_call v = cup__conv_of(call).call;
    for (int64_t e = 0; e < call->out[0]->count; e++) {
        int64_t p[4];
        split(p, e, &call->result[0]);
        int64_t first = p[1] / v.results * v.channels;
        double sum = 0;
        for (int64_t o = first; o < first + v.channels; o++)
            for (int64_t i = 0; i < v.side[0].taps; i++)
                for (int64_t j = 0; j < v.side[1].taps; j++) {
                    int64_t h = target(&v.side[0], p[2], i), w = target(&v.side[1], p[3], j);
                    if (h >= 0 && w >= 0)
                        sum += at(dy, p[0], o, h, w) * at(weight, o, p[1] % v.results, i, j);
                }
        cup__store(call->out[0], cup__offset_of(call->out[0], e), sum);
    }
    return CUP_OK;
}

cup_status cup__conv_weight_specification(cup__call *call)
{
    const cup_tensor *dy = call->in[0], *x = call->in[1];
    conv_call v = cup__conv_of(call).call;
    for (int64_t e = 0; e < call->out[0]->count; e++) {
        int64_t p[4];
        split(p, e, &call->result[0]);
        int64_t channel = p[0] / v.results * v.channels + p[1];
        double sum = 0;
        for (int64_t n = 0; n < v.images; n++)
            for (int64_t i = 0; i < v.side[0].out; i++)
                for (int64_t j = 0; j < v.side[1].out; j++) {
                    int64_t h = source(&v.side[0], i, p[2]), w = source(&v.side[1], j, p[3]);
                    if (h >= 0 && w >= 0)
                        sum += at(dy, n, p[0], i, j) * at(x, n, channel, h, w);
                }
        cup__store(call->out[0], cup__offset_of(call->out[0], e), sum);
    }
    return CUP_OK;
}
