#include "dispatch/attributes.h"
#include "ops/index/gather.h"
#include "ops/shape/copy.h"

static cup_status infer(cup__call *call)
{
    const cup__slice_attributes *a = call->attributes;
    const cup_tensor *in = call->in[0];
    if (a->starts_count != in->ndim || a->sizes_count != in->ndim)
        return cup__call_fail(call, CUP_SHAPE,
                              "%d starts and %d sizes for %d dimensions; give one of each for "
                              "each dimension",
                              a->starts_count, a->sizes_count, in->ndim);
    call->result[0] = cup__shape_of(in);
    for (int i = 0; i < in->ndim; i++) {
        int64_t start = a->starts[i], size = a->sizes[i];
        if (start < 0 || start > in->shape[i] || size < -1 || size > in->shape[i] - start)
            return cup__call_fail(call, CUP_SHAPE,
                                  "%lld elements from %lld on are not in dimension %d, which has "
                                  "%lld; a size of -1 means all that follow",
                                  (long long)size, (long long)start, i, (long long)in->shape[i]);
        call->result[0].size[i] = size < 0 ? in->shape[i] - start : size;
    }
    return CUP_OK;
}

static int64_t offset_of(const cup__slice_attributes *a, const int64_t *stride, int ndim)
{
    int64_t offset = 0;
    for (int i = 0; i < ndim; i++)
        offset += a->starts[i] * stride[i];
    return offset;
}

static cup_status view(cup__call *call)
{
    cup_tensor *in = call->in[0];
    int64_t offset = in->count ? offset_of(call->attributes, in->stride, in->ndim) : 0;
    call->out[0] = cup__tensor_view(in, &call->result[0], in->stride, offset);
    return call->c->error.status;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *in = call->in[0], *out = call->out[0];
    int64_t start = offset_of(call->attributes, in->stride, in->ndim);
    for (int64_t i = 0; i < out->count; i++) {
        int64_t rest = i, offset = start;
        for (int d = out->ndim; d-- > 0; rest /= out->shape[d])
            offset += rest % out->shape[d] * in->stride[d];
        cup__move_element(call->out[0], i, in, offset);
    }
    return CUP_OK;
}

/* Zeros, with the slice's gradient written into its place; or only its place in what is there
 * already, as slices of one tensor often come together. */
static cup_status gradient(cup__grad *g)
{
    const cup__slice_attributes *a = g->attributes;
    cup_tensor *sum = g->sum ? g->sum[0] : NULL, *d = g->d_out[0];
    cup_tensor *dx = sum ? sum : cup__full(g->c, &g->in_shape[0], 0);
    cup_tensor *part = cup_slice(g->c, dx, a->starts, a->starts_count, a->sizes, a->sizes_count);
    if (sum)
        d = cup_add(g->c, part, d);
    else
        g->d_in[0] = dx;
    return cup__copy_to(g->c, part, d);
}

#define PART(starts, sizes)                                                                        \
    &(const cup__slice_attributes){{LIST starts}, COUNT starts, {LIST sizes}, COUNT sizes}
#define LIST(...) __VA_ARGS__
#define COUNT(...) sizeof((int[]){__VA_ARGS__}) / 4
static const cup__sample samples[] = {{"7", PART((2), (3))},
                                      {"3x5", PART((1, 0), (2, -1))},
                                      {"4x3x9", PART((0, 1, 4), (4, 2, 5))},
                                      {"5x2", PART((5, 0), (0, 2))},
                                      {"0x3", PART((0, 1), (-1, 1))},
                                      {NULL, NULL}};

/* Without the view that is written to. */
static cup_status composed(cup__grad *g)
{
    const cup__slice_attributes *a = g->attributes;
    int ndim = g->in_shape[0].ndim;
    int64_t after[CUP_MAX_DIMS];
    for (int d = 0; d < ndim; d++)
        after[d] = g->in_shape[0].size[d] - a->starts[d] - g->out_shape[0].size[d];
    g->d_in[0] = cup_pad(g->c, g->d_out[0], a->starts, ndim, after, ndim, NULL);
    return CUP_OK;
}

const cup__op cup__op_slice = {
    .infer = infer,
    .view = view,
    .specification = specification,
    .gradient = gradient,
    .composed = composed,
    .samples = samples,
};
