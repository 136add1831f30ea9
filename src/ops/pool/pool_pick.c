/* The gradient of the gradients of max_pool2d and adaptive_max_pool2d: each window takes the
 * element at its place. In public ops, which have gradients themselves. */
#include "cupola/ops.h"
#include "ops/pool/pool.h"

/* Whole numbers, [out,1..], of each window along dimension d. */
static cup_tensor *of_windows(cup_context *c, const cup__pooling *p, int d, double first,
                              double step)
{
    int64_t shape[3] = {p->out[d], 1, 1};
    int ndim = (d == 0 ? 2 : 1) + p->channels_last;
    cup_tensor *t = cup_arange(c, CUP_I64, first, first + step * (double)p->out[d],
                               CUP_OPTIONS(cup_arange_options, .step = step));
    return cup_reshape(c, t, ndim, shape);
}

static cup_tensor *whole(cup_context *c, int64_t value)
{
    return cup_full(c, CUP_I64, 0, NULL, (double)value);
}

static void find_windows(cup_context *c, const cup__pooling *p, int d, cup_tensor **start,
                         cup_tensor **end)
{
    if (p->adaptive) {
        double in = (double)p->in[d];
        cup_tensor *out = whole(c, p->out[d]);
        *start = cup_floor_div(c, of_windows(c, p, d, 0, in), out);
        *end = cup_floor_div(c, of_windows(c, p, d, in + (double)p->out[d] - 1, in), out);
        return;
    }
    int64_t reach = (p->window[d] - 1) * p->dilation[d] + 1;
    *start = of_windows(c, p, d, -(double)p->padding[d], (double)p->stride[d]);
    *end = cup_minimum(c, cup_add(c, *start, whole(c, reach)), whole(c, p->in[d]));
}

/* Where in the image what is `step` elements into each window lies; false in *inside where that is
 * nowhere. */
static cup_tensor *place_of(cup_context *c, const cup__pooling *p, int d, cup_tensor *step,
                            cup_tensor **inside)
{
    cup_tensor *start = NULL, *end = NULL, *zero = whole(c, 0);
    find_windows(c, p, d, &start, &end);
    cup_tensor *at = cup_add(c, start, cup_mul(c, step, whole(c, p->dilation[d])));
    cup_tensor *behind = cup_logical_and(c, cup_greater_equal(c, at, zero),
                                         cup_greater_equal(c, step, zero));
    *inside = cup_logical_and(c, behind, cup_less(c, at, end));
    return at;
}

cup_tensor *cup__pool_indices(cup_context *c, const cup__pooling *p, cup_tensor *places,
                              cup_tensor **there)
{
    cup_tensor *inside[2] = {NULL};
    cup_tensor *place = cup_cast(c, places, CUP_I64), *across = whole(c, p->window[1]);
    cup_tensor *down = cup_floor_div(c, place, across);
    cup_tensor *row = place_of(c, p, 0, down, &inside[0]);
    cup_tensor *column =
        place_of(c, p, 1, cup_sub(c, place, cup_mul(c, down, across)), &inside[1]);
    *there = cup_logical_and(c, inside[0], inside[1]);
    return cup_add(c, cup_mul(c, row, whole(c, p->in[1])), column);
}

cup_status cup__pool_pick(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *places[] = {g->in[1]}, *there;
    /* Places have the shape of dy, which alone is asked for. */
    const cup__call call = {.c = c, .op = g->row->op, .attributes = g->attributes, .in = places};
    cup__pooling p = cup__pooling_of(&call);
    if (!places[0]->count)
        return cup__no_slopes(g);
    cup_tensor *flat = cup__pool_indices(c, &p, places[0], &there);
    const int64_t image[] = {p.planes, p.in[0] * p.in[1], p.inner};
    const int64_t picked[] = {p.planes, p.out[0] * p.out[1], p.inner};
    flat = cup_reshape(c, cup_where(c, there, flat, whole(c, 0)), 3, picked);
    cup_tensor *d = cup_gather(c, cup_reshape(c, g->d_out[0], 3, image), flat, 1);
    d = cup_reshape(c, d, g->in_shape[0].ndim, g->in_shape[0].size);
    g->d_in[0] = cup_where(c, there, d, cup__number(c, d, 0));
    return c->error.status;
}
