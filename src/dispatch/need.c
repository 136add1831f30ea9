/* Checks that inferences share, and small compositions that gradients share. */
#include <math.h>
#include <string.h>

#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"

const char *cup__refuses_f64(const cup__call *call)
{
    return call->in[0]->dtype == CUP_F64 ? "it computes in single precision" : NULL;
}

cup_status cup__need_float(cup__call *call, int i)
{
    cup_dtype dtype = call->in[i]->dtype;
    if (dtype == CUP_F32 || dtype == CUP_F64 || dtype == CUP_F16 || dtype == CUP_BF16)
        return CUP_OK;
    return cup__call_fail(
        call, CUP_DTYPE, "input %d must be f32, f64, f16 or bf16; convert it with cup_cast", i + 1);
}

cup_status cup__need_index(cup__call *call, int i)
{
    if (call->in[i]->dtype == CUP_I32 || call->in[i]->dtype == CUP_I64)
        return CUP_OK;
    return cup__call_fail(call, CUP_DTYPE, "input %d must be i32 or i64; convert it with cup_cast",
                          i + 1);
}

cup_status cup__need_same_dtype(cup__call *call, int i, int j)
{
    if (!call->in[i] || !call->in[j] || call->in[i]->dtype == call->in[j]->dtype)
        return CUP_OK;
    return cup__call_fail(call, CUP_DTYPE,
                          "inputs %d and %d have different dtypes; convert one with cup_cast",
                          i + 1, j + 1);
}

cup_status cup__need_ndim(cup__call *call, int i, int least, int most)
{
    int ndim = call->in[i]->ndim;
    if (ndim >= least && ndim <= most)
        return CUP_OK;
    if (least == most)
        return cup__call_fail(call, CUP_SHAPE, "input %d must have %d dimensions, not %d", i + 1,
                              least, ndim);
    return cup__call_fail(call, CUP_SHAPE, "input %d must have %d to %d dimensions, not %d", i + 1,
                          least, most, ndim);
}

cup_status cup__need_axis(cup__call *call, int i, int64_t axis, int *out)
{
    int ndim = call->in[i]->ndim;
    *out = -1;
    if (axis >= -ndim && axis < ndim)
        *out = (int)(axis < 0 ? axis + ndim : axis);
    if (*out >= 0)
        return CUP_OK;
    return cup__call_fail(call, CUP_SHAPE, "axis %lld does not exist; input %d has %d dimensions",
                          (long long)axis, i + 1, ndim);
}

cup_status cup__need_eps(cup__call *call, double eps)
{
    if (eps >= 0 && eps < INFINITY)
        return CUP_OK;
    return cup__call_fail(call, CUP_ARGUMENT, "eps is %g; it must be at least 0 and finite", eps);
}

cup_status cup__need_pairs(cup__call *call, const char *required)
{
    for (const cup__attribute *a = call->row->attributes; a->name; a++) {
        int count;
        if (a->kind != CUP__KIND_INTS)
            continue;
        memcpy(&count, (const char *)call->attributes + a->offset + 8 * sizeof(int64_t),
               sizeof count);
        if (count > 2 || (count == 0 && !strcmp(a->name, required)))
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "%s has %d numbers; give it one, or one each for height and "
                                  "width",
                                  a->name, count);
    }
    return CUP_OK;
}

cup_tensor *cup__contiguous(cup_context *c, cup_tensor *t)
{
    return !t || t->contiguous ? t : cup_copy(c, t);
}

cup_tensor *cup__sum_to(cup_context *c, cup_tensor *t, const cup__shape *shape)
{
    if (!t)
        return NULL;
    int64_t axes[CUP_MAX_DIMS];
    int count = 0, extra = t->ndim - shape->ndim;
    for (int i = 0; i < t->ndim; i++)
        if (i < extra || (shape->size[i - extra] == 1 && t->shape[i] != 1))
            axes[count++] = i;
    if (count == 0)
        return t;
    cup_tensor *summed = cup_sum(c, t, axes, count, true);
    return summed && extra ? cup_reshape(c, summed, shape->ndim, shape->size) : summed;
}

cup_tensor *cup__number(cup_context *c, const cup_tensor *like, double value)
{
    return like ? cup__full(c, &(cup__shape){.dtype = like->dtype}, value) : NULL;
}

cup_tensor *cup__widen(cup_context *c, cup_tensor *t)
{
    return t && cup_dtype_size(t->dtype) < 4 ? cup_cast(c, t, CUP_F32) : t;
}

cup_status cup__no_slopes(cup__grad *g)
{
    for (int i = 0; i < g->in_count; i++)
        if (g->wanted[i])
            g->d_in[i] = cup__full(g->c, &g->in_shape[i], 0);
    return g->c->error.status;
}

cup_tensor *cup__detached(cup_tensor *t)
{
    cup__shape shape = cup__shape_of(t);
    return cup__tensor_view(t, &shape, t->stride, 0);
}

cup_status cup__composed_of(cup_context *c, const cup__row *row, cup_tensor *const *in,
                            int in_count, cup_tensor *y, cup_tensor *dy, cup_tensor **d_in)
{
    static const bool wanted[4] = {true, true, true, true};
    cup__shape shapes[4], result;
    if (!dy)
        return c->error.status;
    result = cup__shape_of(dy);
    for (int i = 0; i < in_count; i++)
        shapes[i] = in[i] ? cup__shape_of(in[i]) : result;
    return row->op->composed(&(cup__grad){.c = c,
                                          .row = row,
                                          .in_count = in_count,
                                          .out_count = 1,
                                          .in = in,
                                          .out = &y,
                                          .in_shape = shapes,
                                          .out_shape = &result,
                                          .wanted = wanted,
                                          .d_out = &dy,
                                          .d_in = d_in});
}
