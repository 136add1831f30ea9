#include "ops/reduce/reduce.h"

#include "base/memory.h"
#include "dispatch/attributes.h"

/* The attributes of any reduction begin like this. */
typedef cup__sum_attributes axes_attributes;

static bool is_folded(const axes_attributes *a, int ndim, int dimension)
{
    for (int i = 0; i < a->axes_count; i++)
        if (a->axes[i] == dimension || a->axes[i] + ndim == dimension)
            return true;
    return a->axes_count == 0;
}

static void add_dimension(int *count, int64_t *size, int64_t *stride, int64_t n, int64_t step)
{
    if (n == 1)
        return;
    int last = *count - 1;
    if (last >= 0 && stride[last] == step * n) {
        size[last] *= n;
        stride[last] = step;
        return;
    }
    size[*count] = n;
    stride[(*count)++] = step;
}

void cup__reduction_make(cup__reduction *r, const cup__call *call)
{
    const cup_tensor *in = call->in[0];
    r->kept = r->folded = 0;
    r->outputs = r->length = 1;
    for (int i = 0; i < in->ndim; i++) {
        if (is_folded(call->attributes, in->ndim, i)) {
            r->length *= in->shape[i];
            add_dimension(&r->folded, r->folded_size, r->folded_stride, in->shape[i],
                          in->stride[i]);
        } else {
            r->outputs *= in->shape[i];
            add_dimension(&r->kept, r->kept_size, r->kept_stride, in->shape[i], in->stride[i]);
        }
    }
}

static int64_t offset_in(int ndim, const int64_t *size, const int64_t *stride, int64_t index)
{
    int64_t offset = 0;
    for (int i = ndim - 1; i > 0; i--) {
        offset += index % size[i] * stride[i];
        index /= size[i];
    }
    return ndim ? offset + index * stride[0] : 0;
}

int64_t cup__reduction_kept(const cup__reduction *r, int64_t output)
{
    return offset_in(r->kept, r->kept_size, r->kept_stride, output);
}

int64_t cup__reduction_folded(const cup__reduction *r, int64_t index)
{
    return offset_in(r->folded, r->folded_size, r->folded_stride, index);
}

static cup_status check_dtype(cup__call *call)
{
    cup_dtype dtype = call->in[0]->dtype;
    const cup__fold *fold = call->op->fold;
    bool whole = !cup__dtype_is_float(dtype);
    if (!whole || !(fold->i64 || fold->gives_place))
        CUP_TRY(cup__need_float(call, 0));
    call->result[0].dtype = fold->gives_place || (fold->widens && whole) ? CUP_I64 : dtype;
    return CUP_OK;
}

cup_status cup__reduce_infer(cup__call *call)
{
    const axes_attributes *a = call->attributes;
    const cup_tensor *in = call->in[0];
    CUP_TRY(check_dtype(call));
    for (int i = 0; i < a->axes_count; i++) {
        int axis, other;
        CUP_TRY(cup__need_axis(call, 0, a->axes[i], &axis));
        for (int j = 0; j < i; j++) {
            CUP_TRY(cup__need_axis(call, 0, a->axes[j], &other));
            if (axis == other)
                return cup__call_fail(call, CUP_ARGUMENT, "axis %d is named twice", axis);
        }
    }
    cup__shape *shape = &call->result[0];
    int64_t length = 1;
    shape->ndim = 0;
    for (int i = 0; i < in->ndim; i++) {
        bool gone = is_folded(a, in->ndim, i);
        length *= gone ? in->shape[i] : 1;
        if (!gone || a->keep)
            shape->size[shape->ndim++] = gone ? 1 : in->shape[i];
    }
    if (length == 0 && call->op->fold->needs_elements)
        return cup__call_fail(call, CUP_SHAPE, "no elements along the axes have a %s",
                              call->row->name);
    return CUP_OK;
}

static double fold_all(const cup__call *call, const cup__reduction *r, int64_t output,
                       const cup__fold *fold, double shift)
{
    int64_t base = cup__reduction_kept(r, output);
    long double acc = fold->start;
    for (int64_t i = 0; i < r->length; i++)
        acc = fold->next(acc, cup__load(call->in[0], base + cup__reduction_folded(r, i)), shift);
    return fold->finish(call, (double)r->length, (double)acc, shift);
}

int64_t cup__reduction_integer(const cup__call *call, int64_t offset)
{
    const cup_tensor *t = call->in[0];
    return t->dtype == CUP_I64 ? ((const int64_t *)t->data)[offset] : (int64_t)cup__load(t, offset);
}

static void fold_integers(const cup__call *call, const cup__reduction *r, int64_t output)
{
    int64_t base = cup__reduction_kept(r, output), acc = 0;
    for (int64_t i = 0; i < r->length; i++) {
        int64_t x = cup__reduction_integer(call, base + cup__reduction_folded(r, i));
        acc = i ? call->op->fold->i64(acc, x) : x;
    }
    if (call->out[0]->dtype == CUP_I64)
        ((int64_t *)call->out[0]->data)[output] = acc;
    else
        cup__store(call->out[0], output, (double)acc);
}

cup_status cup__reduce_specification(cup__call *call)
{
    cup__reduction r;
    cup__reduction_make(&r, call);
    const cup__fold *fold = call->op->fold;
    for (int64_t i = 0; i < r.outputs; i++) {
        if (!cup__dtype_is_float(call->in[0]->dtype)) {
            fold_integers(call, &r, i);
            continue;
        }
        double shift = fold->first ? fold_all(call, &r, i, fold->first, 0) : 0;
        cup__store(call->out[0], i, fold_all(call, &r, i, fold, shift));
    }
    return CUP_OK;
}

int64_t cup__reduce_length(const cup__grad *g)
{
    const cup__shape *shape = &g->in_shape[0];
    int64_t length = 1;
    for (int i = 0; i < shape->ndim; i++)
        length *= is_folded(g->attributes, shape->ndim, i) ? shape->size[i] : 1;
    return length;
}

cup_tensor *cup__reduce_kept(const cup__grad *g, cup_tensor *t)
{
    cup__shape kept = g->in_shape[0];
    for (int i = 0; i < kept.ndim; i++)
        if (is_folded(g->attributes, kept.ndim, i))
            kept.size[i] = 1;
    return cup_reshape(g->c, t, kept.ndim, kept.size);
}

cup_tensor *cup__reduce_spread(const cup__grad *g, cup_tensor *t)
{
    return cup_broadcast(g->c, cup__reduce_kept(g, t), g->in_shape[0].ndim, g->in_shape[0].size);
}

#define AXES(keep, ...)                                                                            \
    &(const axes_attributes){{__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4, keep}
static const axes_attributes all = {{0}, 0, false};
const cup__sample cup__reduce_samples[] = {
    {"7", &all},
    {"3x5", AXES(false, 1)},
    {"3x5", AXES(true, 0)},
    {"2x3x4", AXES(false, 0, 2)},
    {"0x5", AXES(false, 1)},
    {"()", &all},
    {"65x1025", AXES(false, -1)},
    {"1025x65", AXES(false, 0)},
    {"4x33x17", AXES(true, 1)},
    {"3x4x5x6", AXES(false, 1, 3)},
    {"200003", &all},
    {"2x150001", AXES(false, 1)},
    {NULL, NULL}};
const cup__sample cup__reduce_bench[] = {
    {"1048576", &all},
    {"268435456", &all},
    {"16384x16384", AXES(false, 0)},
    {"16384x16384", AXES(false, 1)},
    {"32768x768", AXES(false, 0)},
    {NULL, NULL}};
const cup__sample cup__reduce_grad_samples[] = {
    {"7 7 7", NULL}, {"3x5 3x1 3x1", NULL}, {"2x1025 2x1 2x1", NULL}, {NULL, NULL}};
