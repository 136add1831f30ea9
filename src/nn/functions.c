#include "nn/functions.h"

#include <string.h>

#include "base/memory.h"
#include "cupola/grad.h"

bool cup__function_begin(cup_context *c, const char *name, const cup_tensor *x)
{
    if (!c || cup_error(c) != CUP_OK)
        return false;
    if (!x)
        cup_fail(c, CUP_ARGUMENT, "%s: a tensor is NULL", name);
    return x != NULL;
}

bool cup__function_axis(cup_context *c, const char *name, int ndim, int axis, int *out)
{
    *out = axis < 0 ? axis + ndim : axis;
    if (*out >= 0 && *out < ndim)
        return true;
    cup_fail(c, CUP_ARGUMENT, "%s: there is no axis %d of %d dimensions", name, axis, ndim);
    return false;
}

cup_tensor *cup__part(cup_context *c, cup_tensor *x, int axis, int64_t start, int64_t size)
{
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++)
        sizes[i] = x->shape[i];
    starts[axis] = start;
    sizes[axis] = size;
    return cup_slice(c, x, starts, x->ndim, sizes, x->ndim);
}

cup_tensor *cup__single(cup_context *c, cup_dtype dtype, double value)
{
    return cup_full(c, dtype, 0, NULL, value);
}

cup_tensor *cup_masked_fill(cup_context *c, cup_tensor *x, cup_tensor *mask, double value)
{
    if (!cup__function_begin(c, "masked_fill", x) || !cup__function_begin(c, "masked_fill", mask))
        return NULL;
    return cup_where(c, mask, cup__single(c, x->dtype, value), x);
}

cup_tensor *cup_stack(cup_context *c, cup_tensor *const *x, int count, int axis)
{
    if (!cup__function_begin(c, "stack", x && count > 0 ? x[0] : NULL))
        return NULL;
    int ndim = x[0]->ndim + 1, at;
    if (ndim > CUP_MAX_DIMS) {
        cup_fail(c, CUP_SHAPE, "stack: there is no room for another dimension");
        return NULL;
    }
    if (!cup__function_axis(c, "stack", ndim, axis, &at))
        return NULL;
    cup_tensor **all = cup__calloc((size_t)count, sizeof(cup_tensor *));
    if (!all) {
        cup_fail(c, CUP_MEMORY, "stack: out of host memory");
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        int64_t shape[CUP_MAX_DIMS];
        if (!cup__function_begin(c, "stack", x[i]))
            break;
        for (int d = 0; d < ndim; d++)
            shape[d] = d == at ? 1 : x[0]->shape[d - (d > at)];
        cup__shape first = cup__shape_of(x[0]), own = cup__shape_of(x[i]);
        if (!cup__shape_equal(&first, &own)) {
            cup_fail(c, CUP_SHAPE, "stack: tensor %d has another shape than the first", i);
            break;
        }
        all[i] = cup_reshape(c, x[i], ndim, shape);
    }
    cup_tensor *y = cup_error(c) == CUP_OK ? cup_concat(c, all, count, at) : NULL;
    cup__free(all);
    return y;
}

cup_status cup_split_along(cup_context *c, cup_tensor *x, const int64_t *sizes, int count, int axis,
                     cup_tensor **out)
{
    int at;
    int64_t sum = 0;
    if (out && count > 0)
        memset(out, 0, sizeof *out * (size_t)count);
    if (!cup__function_begin(c, "split_along", x))
        return c ? cup_error(c) : CUP_ARGUMENT;
    if (!cup__function_axis(c, "split_along", x->ndim, axis, &at))
        return cup_error(c);
    if (count < 1 || !sizes || !out)
        return cup_fail(c, CUP_ARGUMENT,
                        "split_along: there must be sizes, and room for the parts");
    for (int i = 0; i < count; i++) {
        if (sizes[i] < 0 || sizes[i] > x->shape[at] - sum)
            return cup_fail(c, CUP_ARGUMENT,
                            "split_along: part %d of size %lld is beyond the %lld along axis %d", i,
                            (long long)sizes[i], (long long)x->shape[at], at);
        sum += sizes[i];
    }
    if (sum != x->shape[at])
        return cup_fail(c, CUP_ARGUMENT,
                        "split_along: the parts have %lld of the %lld along axis %d",
                        (long long)sum, (long long)x->shape[at], at);
    sum = 0;
    for (int i = 0; i < count; sum += sizes[i++])
        out[i] = cup__part(c, x, at, sum, sizes[i]);
    return cup_error(c);
}

cup_tensor *cup_roll(cup_context *c, cup_tensor *x, int64_t places, int axis)
{
    int at;
    if (!cup__function_begin(c, "roll", x) || !cup__function_axis(c, "roll", x->ndim, axis, &at))
        return NULL;
    int64_t size = x->shape[at], cut = size ? places % size : 0;
    cut = cut < 0 ? cut + size : cut;
    if (cut == 0)
        return cup_copy(c, x);
    cup_tensor *parts[] = {cup__part(c, x, at, size - cut, cut),
                           cup__part(c, x, at, 0, size - cut)};
    return cup_concat(c, parts, 2, at);
}

cup_tensor *cup_one_hot(cup_context *c, cup_tensor *indices, cup_dtype dtype, int64_t classes)
{
    if (!cup__function_begin(c, "one_hot", indices))
        return NULL;
    int ndim = indices->ndim;
    if (indices->dtype != CUP_I32 && indices->dtype != CUP_I64) {
        cup_fail(c, CUP_DTYPE, "one_hot: the indices must be i32 or i64");
        return NULL;
    }
    if (classes < 0 || classes > INT32_MAX || ndim == CUP_MAX_DIMS) {
        cup_fail(c, CUP_ARGUMENT, "one_hot: %lld classes of %d dimensions cannot be",
                 (long long)classes, ndim);
        return NULL;
    }
    int64_t shape[CUP_MAX_DIMS];
    for (int d = 0; d < ndim; d++)
        shape[d] = indices->shape[d];
    shape[ndim] = 1;
    cup_tensor *is = cup_equal(c, cup_reshape(c, indices, ndim + 1, shape),
                               cup_arange(c, indices->dtype, 0, (double)classes, NULL));
    return dtype == CUP_BOOL ? is : cup_cast(c, is, dtype);
}

/* The largest or the smallest of what is 0 or 1, and what it is of none. */
static cup_tensor *fold_truth(cup_context *c, const char *name, cup_tensor *x, const int64_t *axes,
                              int axes_count, bool keep, bool all)
{
    if (!cup__function_begin(c, name, x))
        return NULL;
    bool is_truth = x->dtype == CUP_BOOL;
    cup_tensor *is = is_truth ? x : cup_not_equal(c, x, cup__single(c, x->dtype, 0));
    if (is && x->count == 0) { /* sums give the shape, and are 0 */
        is = cup_sum(c, is, axes, axes_count, keep);
        return is ? (all ? cup_equal : cup_not_equal)(c, is, cup__single(c, CUP_I64, 0)) : NULL;
    }
    return (all ? cup_min : cup_max)(c, is, axes, axes_count, keep);
}

cup_tensor *cup_any(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count, bool keep)
{
    return fold_truth(c, "any", x, axes, axes_count, keep, false);
}

cup_tensor *cup_all(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count, bool keep)
{
    return fold_truth(c, "all", x, axes, axes_count, keep, true);
}

cup_tensor *cup_embedding_padded(cup_context *c, cup_tensor *table, cup_tensor *ids,
                                 int64_t padding)
{
    static const char name[] = "embedding_padded";
    if (!cup__function_begin(c, name, table) || !cup__function_begin(c, name, ids))
        return NULL;
    if (padding < 0 || table->ndim == 0 || padding >= table->shape[0]) {
        cup_fail(c, CUP_ARGUMENT, "%s: row %lld is none of the table's", name, (long long)padding);
        return NULL;
    }
    cup_tensor *rows = cup_embedding(c, table, ids);
    if (!rows)
        return NULL;
    int64_t shape[CUP_MAX_DIMS];
    for (int d = 0; d < ids->ndim; d++)
        shape[d] = ids->shape[d];
    shape[ids->ndim] = 1;
    cup_tensor *is = cup_equal(c, ids, cup__single(c, ids->dtype, (double)padding));
    return cup_where(c, cup_reshape(c, is, ids->ndim + 1, shape), cup_detach(rows), rows);
}
