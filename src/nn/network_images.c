/* The steps of a network that take images and give others: what they make of sizes, their tensors,
 * and what those of them compute that have no layer of their own. */
#include "cupola/functions.h"
#include "cupola/ops.h"
#include "nn/network.h"

typedef cup__network_making making;

/* One side of what a window gives, which reaches over so many places. */
static int64_t places(int64_t size, int64_t reach, int64_t stride, int64_t padding)
{
    int64_t room = size + 2 * padding - reach;
    return room < 0 ? 0 : room / stride + 1;
}

static cup_status slide(making *m, const cup__network_line *l, cup__network_step *s)
{
    int64_t reach = s->dilation * (s->window - 1) + 1;
    m->now.height = places(m->now.height, reach, s->stride, s->padding);
    m->now.width = places(m->now.width, reach, s->stride, s->padding);
    if (m->now.height < 1 || m->now.width < 1)
        return cup_fail(m->n->c, CUP_FORMAT,
                        "line %d of the network: the window of %lld is larger than what it gets; "
                        "take larger images, a smaller one, or padding=",
                        l->number, (long long)reach);
    return CUP_OK;
}

/* A place for each stride; returns how much of the padding is behind, on the longer side. */
static int64_t slide_same(int64_t *side, const cup__network_step *s)
{
    int64_t out = (*side - 1) / s->stride + 1;
    int64_t all = (out - 1) * s->stride + s->dilation * (s->window - 1) + 1 - *side;
    *side = out;
    return all > 0 ? all - all / 2 : 0;
}

/* Whether an image has as much as padding takes of it. */
static bool has_padding(const cup__network_shape *x, int mode, int64_t padding)
{
    int64_t less = x->height < x->width ? x->height : x->width;
    return mode == CUP_PADDING_MODE_REFLECT    ? padding < less
           : mode == CUP_PADDING_MODE_CIRCULAR ? padding <= less
                                               : true;
}

static cup_status make_conv(making *m, const cup__network_line *l, cup__network_step *s,
                            const char *name)
{
    int64_t in = m->now.channels, out = l->count == -2 ? in : l->count;
    cup__network_shape before = m->now;
    bool same = l->padding == -2;
    s->window = l->kernel ? l->kernel : 3;
    s->padding = same ? 0 : l->padding >= 0 ? l->padding : s->dilation * (s->window - 1) / 2;
    int64_t most = s->padding;
    if (in % s->groups || out % s->groups)
        return cup__network_refuse(m, l, "whose channels its groups do not divide");
    if (same) {
        int64_t high = slide_same(&m->now.height, s), wide = slide_same(&m->now.width, s);
        most = high > wide ? high : wide;
    } else if (slide(m, l, s) != CUP_OK) {
        return cup_error(m->n->c);
    }
    m->now.channels = out;
    if (!has_padding(&before, l->mode, most)) {
        m->now = before;
        return cup__network_refuse(m, l, "of which its padding would take more than there is");
    }
    return cup_conv2d_layer_new(
        &s->as.conv, m->list, name, in, out, &s->window, 1,
        CUP_OPTIONS(cup_conv2d_layer_options, .stride = CUP_INTS(s->stride),
                    .padding = CUP_INTS(s->padding), .same = same,
                    .dilation = CUP_INTS(s->dilation), .groups = s->groups,
                    .no_bias = l->no_bias, .initializer = CUP_INITIALIZER_KAIMING_NORMAL,
                    .padding_mode = (cup_padding_mode)l->mode));
}

/* Without padding=, or with padding=same, a side is as many times longer as the stride says. */
static cup_status make_transposed(making *m, const cup__network_line *l, cup__network_step *s,
                                  const char *name)
{
    int64_t in = m->now.channels, out = l->count == -2 ? in : l->count;
    int64_t *sides[] = {&m->now.height, &m->now.width};
    bool same = l->padding < 0;
    s->window = l->kernel ? l->kernel : 2;
    s->stride = l->stride ? l->stride : 2;
    if (in % s->groups || out % s->groups)
        return cup__network_refuse(m, l, "whose channels its groups do not divide");
    if (l->more && (same || l->more >= s->stride))
        return cup__network_refuse(m, l, "and outpadding= must be less than the stride, and goes "
                                         "with a number of padding=");
    int64_t beyond = s->dilation * (s->window - 1) + 1 + l->more - 2 * l->padding;
    for (int i = 0; i < 2; i++) {
        *sides[i] = same ? *sides[i] * s->stride : (*sides[i] - 1) * s->stride + beyond;
        if (*sides[i] < 1 || *sides[i] > CUP__NETWORK_SIZE / 2)
            return cup_fail(m->n->c, CUP_FORMAT,
                            "line %d of the network: convtranspose makes a side of %lld; change "
                            "kernel=, stride= or padding=",
                            l->number, (long long)*sides[i]);
    }
    m->now.channels = out;
    const int64_t padding = l->padding;
    return cup_conv_transpose_layer_new(
        &s->as.transposed, m->list, name, in, out, (int64_t[]){s->window, s->window}, 2,
        CUP_OPTIONS(cup_conv_transpose_layer_options, .stride = CUP_INTS(s->stride),
                    .padding = {&padding, !same}, .output_padding = {&l->more, !same},
                    .dilation = CUP_INTS(s->dilation), .groups = s->groups,
                    .no_bias = l->no_bias, .same = same));
}

static cup_status make_pool(making *m, const cup__network_line *l, cup__network_step *s)
{
    s->window = l->count;
    s->stride = l->stride ? l->stride : l->count;
    s->padding = l->padding > 0 ? l->padding : 0;
    if (s->padding > s->window / 2)
        return cup__network_refuse(m, l, "and its padding is over half of its window");
    return slide(m, l, s);
}

/* Of another size: of so many places each way, or so many times as many. */
static cup_status make_sized(making *m, const cup__network_line *l, cup__network_step *s)
{
    cup__network_shape *x = &m->now;
    int64_t f = l->count, most = CUP__NETWORK_SIZE / 2;
    bool times = l->kind != CUP__STEP_ADAPTIVEPOOL;
    if (f > most || (times && (f > most / x->height || f > most / x->width)))
        return cup__network_refuse(m, l, "of which it would make too much");
    if (l->kind == CUP__STEP_PIXELSHUFFLE && x->channels % (f * f))
        return cup__network_refuse(m, l, "whose channels are no multiple of its square");
    x->channels /= l->kind == CUP__STEP_PIXELSHUFFLE ? f * f : 1;
    x->height = s->size[0] = times ? f * x->height : f;
    x->width = s->size[1] = times ? f * x->width : f;
    s->window = f;
    return CUP_OK;
}

/* As it is usual where nothing is given. */
static cup_status make_response(const cup__network_line *l, cup__network_step *s)
{
    s->window = l->count;
    s->numbers[0] = l->alpha < 0 ? 1e-4 : l->alpha;
    s->numbers[1] = l->beta < 0 ? 0.75 : l->beta;
    s->numbers[2] = l->bias < 0 ? 1 : l->bias;
    return CUP_OK;
}

cup_status cup__network_image_step(making *m, const cup__network_line *l, cup__network_step *s,
                                   const char *name)
{
    s->stride = l->stride ? l->stride : 1;
    s->dilation = l->dilation ? l->dilation : 1;
    s->groups = l->groups ? (int)l->groups : 1;
    s->mode = l->mode;
    if (!m->now.height)
        return cup__network_refuse(m, l, "and takes images");
    switch (l->kind) {
    case CUP__STEP_CONV:
        return make_conv(m, l, s, name);
    case CUP__STEP_CONVTRANSPOSE:
        return make_transposed(m, l, s, name);
    case CUP__STEP_MAXPOOL:
    case CUP__STEP_AVGPOOL:
        return make_pool(m, l, s);
    case CUP__STEP_LOCALRESPONSENORM:
        return make_response(l, s);
    default:
        return make_sized(m, l, s);
    }
}

cup_tensor *cup__network_image_call(cup_context *c, const cup__network_step *s, cup_tensor *x)
{
    const int64_t first[] = {0, 3, 1, 2}, last[] = {0, 2, 3, 1};
    if (s->kind == CUP__STEP_ADAPTIVEPOOL)
        return s->mode ? cup_adaptive_max_pool2d(c, x, s->size, 2, true)
                       : cup_adaptive_avg_pool2d(c, x, s->size, 2, true);
    x = cup_permute(c, x, first, 4);
    if (s->kind == CUP__STEP_CONVTRANSPOSE)
        x = cup_conv_transpose_layer_call(&s->as.transposed, x);
    else if (s->kind == CUP__STEP_UPSAMPLE)
        x = cup_interpolate(c, x, s->size, 2, (cup_interpolation)s->mode, false);
    else if (s->kind == CUP__STEP_PIXELSHUFFLE)
        x = cup_pixel_shuffle(c, x, s->window);
    else
        x = cup_local_response_norm(c, x, s->window, s->numbers[0], s->numbers[1], s->numbers[2]);
    return x ? cup_permute(c, x, last, 4) : NULL;
}
