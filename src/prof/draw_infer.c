/* Whether an op takes a drawn call, and what the call costs, without memory for its tensors. */
#include <math.h>

#include "prof/cost.h"
#include "prof/draw.h"

static int64_t count_of(const cup__shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->ndim; i++)
        count = count && shape->size[i] > ((int64_t)1 << 40) / count ? (int64_t)1 << 40
                                                                     : count * shape->size[i];
    return count;
}

/* Tensors without memory, for inference. */
typedef struct hollow {
    cup_tensor tensor[CUP__DRAWN_INPUTS];
    cup_tensor *in[CUP__DRAWN_INPUTS];
} hollow;

static cup_tensor hollow_tensor(cup_context *c, const cup__shape *shape, const int64_t *stride)
{
    cup_tensor t = {.context = c, .dtype = shape->dtype, .ndim = shape->ndim};
    t.count = count_of(shape);
    t.contiguous = true;
    int64_t step = 1;
    for (int i = shape->ndim; i-- > 0; step *= shape->size[i]) {
        t.shape[i] = shape->size[i];
        t.stride[i] = stride ? stride[i] : step;
        t.contiguous = t.contiguous && (shape->size[i] == 1 || t.stride[i] == step);
    }
    return t;
}

static bool infer_hollow(const cup__drawn *d, cup_context *scratch, cup__call *call, hollow *h)
{
    for (int i = 0; i < d->count; i++) {
        const cup__drawn_input *in = &d->in[i];
        h->in[i] = in->given ? &h->tensor[i] : NULL;
        if (!in->given)
            continue;
        if (cup__shape_check(&scratch->error, &in->shape, &h->tensor[i].count) != CUP_OK)
            return false;
        h->tensor[i] = hollow_tensor(scratch, &in->shape, in->stride);
        bool below = in->places == CUP__PLACES_ANY || in->places == CUP__PLACES_DIFFERENT;
        if (below && in->below < 1 && h->tensor[i].count)
            return false; /* there is no place */
    }
    return d->count >= d->row->in_least && d->count <= d->row->in_most &&
           cup__call_begin(call, scratch, d->row, h->in, d->count, d->attributes) == CUP_OK;
}

bool cup__drawn_infer(const cup__drawn *d, cup_context *scratch, cup__call *call)
{
    hollow h;
    return infer_hollow(d, scratch, call, &h);
}

bool cup__drawn_cost(const cup__drawn *d, cup_context *scratch, double *elements, double *work)
{
    hollow h;
    cup__call call;
    cup_tensor out[CUP__MAX_OUT];
    double bytes;
    *elements = *work = 0;
    if (!infer_hollow(d, scratch, &call, &h))
        return false;
    for (int i = 0; i < d->count; i++)
        *elements += h.in[i] ? (double)h.in[i]->count : 0;
    for (int i = 0; i < d->row->results_count; i++) {
        out[i] = hollow_tensor(scratch, &call.result[i], NULL);
        call.out[i] = &out[i];
        *elements += (double)out[i].count;
    }
    call.out_count = d->row->results_count;
    if (d->row->results_count)
        cup__call_cost(&call, &bytes, work);
    if (d->row->op->specified)
        *work = fmax(*work, d->row->op->specified(&call));
    return true;
}
