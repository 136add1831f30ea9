/* Some elements of a convolution or of one of its gradients: those of a row of an image in a few
 * channels, or a few pairs of channels of a weight, as a call of their own. */
#include <string.h>

#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/conv/conv.h"
#include "prof/draw.h"
#include "prof/sampled.h"

#define ROWS 3
#define CHANNELS 6
#define PAIRS 2 /* of channels, to each side */
#define MOST_WORK 2e8
#define SEED 20261122u

/* What was drawn: of a group the results that are asked for, and a row of an image. */
typedef struct place {
    const cup__call *done;
    cup_context *cpu;
    conv_call v;
    int64_t group, image, row, picks[CHANNELS], count;
    int64_t padding[4]; /* top, bottom, left, right */
} place;

static int64_t reach(const conv_side *s)
{
    return ((int64_t)s->taps - 1) * s->dilation + 1;
}

/* What must be behind a side so that it has as many places as it has. */
static int64_t behind(const conv_side *s)
{
    int64_t more = ((int64_t)s->out - 1) * s->stride + reach(s) - s->in - s->before;
    return more > 0 ? more : 0;
}

/* The range of dimension `axis`. */
static cup_tensor *range(cup_tensor *t, int axis, int64_t first, int64_t count)
{
    int64_t starts[4] = {0}, sizes[4];
    if (!t)
        return NULL;
    memcpy(sizes, t->shape, sizeof sizes);
    starts[axis] = first;
    sizes[axis] = count;
    return cup_slice(t->context, t, starts, 4, sizes, 4);
}

/* Channels of a group whose `each` begin there, along an axis. */
static cup_tensor *picked(const place *p, cup_tensor *t, int axis, int64_t each,
                          const int64_t *picks, int64_t count)
{
    int64_t at[CHANNELS];
    for (int64_t i = 0; i < count; i++)
        at[i] = p->group * each + picks[i];
    return cup__sampled_select(t, at, count, axis);
}

static void pick(place *p, uint64_t *state, int64_t among, int64_t most)
{
    p->count = among < most ? among : most;
    for (int64_t i = 0; i < p->count; i++)
        p->picks[i] = among <= most ? i : i ? cup__draw_below(state, among) : among - 1;
}

#define PLAIN(p, ...)                                                                              \
    {.stride = {(p)->v.side[0].stride, (p)->v.side[1].stride}, .stride_count = 2,                  \
     .padding = {(p)->padding[0], (p)->padding[1], (p)->padding[2], (p)->padding[3]},              \
     .padding_count = 4, .dilation = {(p)->v.side[0].dilation, (p)->v.side[1].dilation},           \
     .dilation_count = 2, .groups = 1, __VA_ARGS__}

/* A row of y reads a band of x. */
static int64_t hold_row(place *p, char *note, size_t size)
{
    const conv_side *s = &p->v.side[0];
    int64_t from = p->row * s->stride - s->before, to = from + reach(s) - 1;
    int64_t first = from > 0 ? from : 0, last = to < s->in - 1 ? to : s->in - 1;
    cup_tensor *const *given = p->done->in, *in[4] = {NULL};
    if (first > last)
        return 0;
    p->padding[0] = first - from;
    p->padding[1] = to - last;
    in[0] = range(range(given[0], 0, p->image, 1), 2, first, last - first + 1);
    in[0] = range(in[0], 1, p->group * p->v.channels, p->v.channels);
    in[1] = picked(p, given[1], 0, p->v.results, p->picks, p->count);
    if (p->done->in_count > 2 && given[2])
        in[2] = picked(p, given[2], 0, p->v.results, p->picks, p->count);
    /* What conv2d_join has beside: other ops do not look at it. */
    cup__conv2d_join_attributes a = PLAIN(p, .same = false);
    if (cup__conv_residual(p->done))
        in[3] = picked(p, range(range(given[3], 0, p->image, 1), 2, p->row, 1), 1, p->v.results,
                       p->picks, p->count);
    if (p->done->in_count == 4)
        a.activation = ((const cup__conv2d_join_attributes *)p->done->attributes)->activation;
    cup_tensor *got = range(range(p->done->out[0], 0, p->image, 1), 2, p->row, 1);
    got = picked(p, got, 1, p->v.results, p->picks, p->count);
    return cup__sampled_compare(p->done->row, p->cpu, in, p->done->in_count, &a, got, note, size);
}

/* A row of dx reads those of dy that its own was read for. */
static int64_t hold_input_row(place *p, char *note, size_t size)
{
    const conv_side *s = &p->v.side[0];
    int64_t top = p->row + s->before, first = top - reach(s) + 1;
    first = first > 0 ? (first + s->stride - 1) / s->stride : 0;
    int64_t last = top / s->stride < s->out - 1 ? top / s->stride : s->out - 1;
    cup_tensor *in[2];
    p->padding[0] = top - first * s->stride;
    p->padding[1] = (last - first) * s->stride + reach(s) - 1 - p->padding[0];
    if (first > last || p->padding[1] < 0)
        return 0;
    in[0] = range(range(p->done->in[0], 0, p->image, 1), 2, first, last - first + 1);
    in[0] = range(in[0], 1, p->group * p->v.channels, p->v.channels);
    in[1] = range(p->done->in[1], 0, p->group * p->v.channels, p->v.channels);
    in[1] = cup__sampled_select(in[1], p->picks, p->count, 1);
    cup__conv2d_input_grad_attributes a = PLAIN(p, .height = 1, .width = p->v.side[1].in);
    cup_tensor *got = range(range(p->done->out[0], 0, p->image, 1), 2, p->row, 1);
    got = picked(p, got, 1, p->v.results, p->picks, p->count);
    return cup__sampled_compare(p->done->row, p->cpu, in, 2, &a, got, note, size);
}

/* What a tensor like the weight has of pairs of a result and a channel. */
static cup_tensor *pairs_of(const place *p, const place *channels, cup_tensor *t)
{
    t = picked(p, t, 0, p->v.results, p->picks, p->count);
    return cup__sampled_select(t, channels->picks, channels->count, 1);
}

/* The sums over all places of pairs of a result and a channel. */
static int64_t hold_weight(place *p, uint64_t *state, char *note, size_t size)
{
    const conv_side *high = &p->v.side[0], *wide = &p->v.side[1];
    place channels = *p;
    cup_tensor *in[3] = {NULL}, *sum = cup__conv_sum(p->done);
    pick(p, state, p->v.results, PAIRS);
    pick(&channels, state, p->v.channels, PAIRS);
    double places = (double)p->v.images * high->out * wide->out;
    if (places * high->taps * wide->taps * (double)(p->count * channels.count) > MOST_WORK)
        return 0;
    p->padding[0] = high->before;
    p->padding[1] = behind(high);
    in[0] = picked(p, p->done->in[0], 1, p->v.results, p->picks, p->count);
    in[1] = picked(p, p->done->in[1], 1, p->v.channels, channels.picks, channels.count);
    cup__conv2d_weight_grad_attributes a =
        PLAIN(p, .kernel = {high->taps, wide->taps}, .kernel_count = 2);
    if (sum)
        in[2] = pairs_of(p, &channels, sum);
    cup_tensor *got = pairs_of(p, &channels, p->done->out[0]);
    return cup__sampled_compare(p->done->row, p->cpu, in, 3, &a, got, note, size);
}

int64_t cup__sampled_conv(const cup__call *done, cup_context *cpu, char *note, size_t size)
{
    place p = {.done = done, .cpu = cpu, .v = cup__conv_of(done).call};
    uint64_t state = SEED;
    int64_t held = 0, rows = done->out[0]->shape[2];
    if (!p.v.images || !p.v.channels)
        return 0;
    p.group = cup__draw_below(&state, p.v.groups);
    p.padding[2] = p.v.side[1].before;
    p.padding[3] = behind(&p.v.side[1]);
    if (done->op->kind == CUP__CONV_WEIGHT)
        return hold_weight(&p, &state, note, size);
    for (int i = 0; i < ROWS; i++) {
        p.image = cup__draw_below(&state, p.v.images);
        p.row = i == 0 ? 0 : i == 1 ? rows - 1 : cup__draw_below(&state, rows);
        pick(&p, &state, p.v.results, CHANNELS);
        int64_t now = done->op->kind == CUP__CONV_FORWARD ? hold_row(&p, note, size)
                                                          : hold_input_row(&p, note, size);
        if (now < 0)
            return now;
        held += now;
    }
    return held;
}
