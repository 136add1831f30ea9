/* The gradient of cross_entropy in public ops, for second derivatives. */
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/loss/cross_entropy.h"

/* The rows' targets as ones among `classes` zeros, and each row's share of the loss, or 0. */
typedef struct aims {
    cup_tensor *hot, *weight; /* [.., classes], [.., 1] */
} aims;

static aims aims_of(cup__grad *g, const cup__shape *classes, int64_t ignore_index)
{
    cup_context *c = g->c;
    cup__shape one = *classes;
    int last = one.ndim - 1;
    one.size[last] = 1;
    cup_tensor *share = cup__detached(g->out[2]);
    cup_tensor *targets = cup_reshape(c, g->in[1], one.ndim, one.size);
    cup_tensor *counts = cup_not_equal(c, targets, cup__number(c, targets, (double)ignore_index));
    cup_tensor *places = cup_where(c, counts, targets, cup__number(c, targets, 0));
    cup_tensor *zeros = cup__full(c, classes, 0), *ones = cup__full(c, &one, 1);
    return (aims){cup_scatter_add(c, zeros, places, ones, last),
                  cup_where(c, counts, share, cup__number(c, share, 0))};
}

cup_status cup__cross_entropy_composed(cup__grad *g)
{
    const cup__cross_entropy_attributes *a = g->attributes;
    cup_context *c = g->c;
    cup__shape classes = g->in_shape[0];
    const int64_t none[CUP_MAX_DIMS] = {0}, last = classes.ndim - 1, width = classes.size[last];
    int64_t behind[CUP_MAX_DIMS] = {0};
    if (a->in_place)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "the gradient of cross_entropy in place cannot be recorded; leave out "
                         "in_place where second derivatives are wanted");
    classes.size[last] = a->columns ? a->columns : width;
    classes.dtype = g->out_shape[0].dtype;
    if (!g->in[1]->count)
        return CUP_OK; /* the sum over no rows */
    cup_tensor *x = cup__widen(c, cup_slice(c, g->in[0], none, classes.ndim, classes.size,
                                            classes.ndim));
    cup_tensor *lse = cup_logsumexp(c, x, &last, 1, true);
    cup_tensor *p = cup_exp(c, cup_sub(c, x, lse));
    aims t = aims_of(g, &classes, a->ignore_index);
    if (a->z_loss > 0)
        p = cup_add(c, p, cup_scale(c, cup_mul(c, p, lse), 2 * a->z_loss));
    cup_tensor *d = cup_sub(c, p, cup_scale(c, t.hot, 1 - a->label_smoothing));
    if (a->label_smoothing > 0)
        d = cup_sub(c, d, cup__number(c, d, a->label_smoothing / (double)classes.size[last]));
    d = cup_cast(c, cup_mul(c, cup_mul(c, d, t.weight), g->d_out[0]), g->in_shape[0].dtype);
    behind[last] = width - classes.size[last];
    g->d_in[0] = behind[last] ? cup_pad(c, d, none, classes.ndim, behind, classes.ndim, NULL) : d;
    return c->error.status;
}
