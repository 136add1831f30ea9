/* Batchnorm over a batch of which each process has a part, in public calls: the sums go over all
 * processes, and so do their gradients. */
#include "cupola/comm.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "nn/layers.h"
#include "ops/shape/copy.h"
#include "tensor/tensor.h"

typedef struct sums {
    cup_context *c;
    cup_comm *m;
    int ndim, axis;
    int64_t over[CUP_MAX_DIMS];   /* all dimensions but the axis */
    int64_t vector[CUP_MAX_DIMS]; /* the shape of one number a channel */
} sums;

static cup_tensor *sum_of(const sums *s, cup_tensor *x)
{
    return cup_sum(s->c, x, s->over, s->ndim - 1, true);
}

static cup_tensor *number(const sums *s, cup_tensor *like, double value)
{
    return cup_full(s->c, like->dtype, 0, NULL, value);
}

/* The mean of all parts, and how many elements a channel has in them. */
static cup_tensor *mean_of(const sums *s, cup_tensor *x, cup_tensor **count)
{
    int64_t one[CUP_MAX_DIMS], starts[CUP_MAX_DIMS] = {0}, own = 1;
    for (int d = 0; d < s->ndim; d++) {
        one[d] = 1;
        own *= d == s->axis ? 1 : x->shape[d];
    }
    cup_tensor *pair[] = {sum_of(s, x), cup_full(s->c, x->dtype, s->ndim, one, (double)own)};
    cup_tensor *all = cup_comm_sum(s->m, cup_concat(s->c, pair, 2, s->axis));
    cup_tensor *sum = cup_slice(s->c, all, starts, s->ndim, s->vector, s->ndim);
    starts[s->axis] = s->vector[s->axis];
    *count = cup_reshape(s->c, cup_slice(s->c, all, starts, s->ndim, one, s->ndim), 0, NULL);
    return cup_div(s->c, sum, *count);
}

/* Moves a running statistic by momentum towards that of the batch. */
static void move(const sums *s, cup_tensor *running, cup_tensor *batch, double momentum)
{
    cup_tensor *now = cup_reshape(s->c, batch, 1, running->shape);
    cup_tensor *moved = cup_lerp(s->c, running, now, momentum);
    if (moved)
        cup__copy_to(s->c, running, moved);
}

static void move_both(const sums *s, const cup_batchnorm_layer *layer, cup_tensor *mean,
                      cup_tensor *variance, cup_tensor *count)
{
    bool recording = cup_grad_recording(s->c, false);
    cup_tensor *rest = cup_sub(s->c, count, number(s, count, 1));
    move(s, layer->running_mean, mean, layer->momentum);
    move(s, layer->running_var, cup_mul(s->c, variance, cup_div(s->c, count, rest)),
         layer->momentum);
    cup_grad_recording(s->c, recording);
}

static cup_tensor *along_axis(const sums *s, cup_tensor *t, cup_dtype dtype)
{
    return cup_reshape(s->c, cup_cast(s->c, t, dtype), s->ndim, s->vector);
}

cup_tensor *cup__batchnorm_together(const cup_batchnorm_layer *layer, cup_context *c,
                                    cup_tensor *x, int axis)
{
    sums s = {c, cup__parameters_sharing(layer->layer.parameters), x->ndim, axis, {0}, {0}};
    cup_dtype dtype = layer->running_mean->dtype, given = x->dtype;
    for (int d = 0, at = 0; d < x->ndim; d++) {
        s.vector[d] = d == axis ? x->shape[d] : 1;
        if (d != axis)
            s.over[at++] = d;
    }
    cup_scope_open(c);
    cup_tensor *count, *wide = cup_cast(c, x, dtype), *mean = mean_of(&s, wide, &count);
    cup_tensor *centred = cup_sub(c, wide, mean);
    cup_tensor *squares = cup_comm_sum(s.m, sum_of(&s, cup_mul(c, centred, centred)));
    cup_tensor *variance = cup_div(c, squares, count);
    cup_tensor *factor = cup_rsqrt(c, cup_add(c, variance, number(&s, wide, layer->epsilon)));
    cup_tensor *y = cup_mul(c, centred,
                            cup_mul(c, factor, along_axis(&s, layer->weight, dtype)));
    if (layer->bias)
        y = cup_add(c, y, along_axis(&s, layer->bias, dtype));
    if (c->error.status == CUP_OK)
        move_both(&s, layer, mean, variance, count);
    return cup_scope_return(c, cup_cast(c, y, given));
}
