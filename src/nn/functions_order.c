/* Functions that put elements in order or count them. */
#include "nn/functions.h"

#include <math.h>

#include "dispatch/attributes.h"

/* The elements in order along the axis, and the last of them, which is NaN where there is one. */
typedef struct ordered {
    int axis;
    int64_t size;
    cup_tensor *values, *last;
} ordered;

static bool order(ordered *o, cup_context *c, const char *name, cup_tensor *x, int axis)
{
    cup_tensor *places;
    if (!cup__function_begin(c, name, x) || !cup__function_axis(c, name, x->ndim, axis, &o->axis))
        return false;
    o->size = x->shape[o->axis];
    if (o->size == 0) {
        cup_fail(c, CUP_SHAPE, "%s: there are no elements along axis %d", name, o->axis);
        return false;
    }
    if (cup_sort(c, x, o->axis, false, &o->values, &places) != CUP_OK)
        return false;
    o->last = cup__part(c, o->values, o->axis, o->size - 1, 1);
    return o->last != NULL;
}

/* NaN in place of what was picked where there is one; without the axis unless it is kept. */
static cup_tensor *ended(cup_context *c, const ordered *o, cup_tensor *picked, bool keep)
{
    if (cup__dtype_is_float(o->last->dtype))
        picked = cup_where(c, cup_isnan(c, o->last), o->last, picked);
    int64_t shape[CUP_MAX_DIMS];
    int ndim = 0;
    for (int d = 0; d < o->last->ndim; d++)
        if (d != o->axis)
            shape[ndim++] = o->last->shape[d];
    return keep ? picked : cup_reshape(c, picked, ndim, shape);
}

cup_tensor *cup_median(cup_context *c, cup_tensor *x, int axis, bool keep)
{
    ordered o;
    if (!order(&o, c, "median", x, axis))
        return NULL;
    return ended(c, &o, cup__part(c, o.values, o.axis, (o.size - 1) / 2, 1), keep);
}

cup_tensor *cup_quantile(cup_context *c, cup_tensor *x, double q, int axis, bool keep)
{
    ordered o;
    if (!cup__function_begin(c, "quantile", x))
        return NULL;
    if (!(q >= 0 && q <= 1) || !cup__dtype_is_float(x->dtype)) {
        cup_fail(c, CUP_ARGUMENT,
                 "quantile: the part is %g of %s; it must be from 0 to 1 of floats", q,
                 cup_dtype_name(x->dtype));
        return NULL;
    }
    if (!order(&o, c, "quantile", x, axis))
        return NULL;
    double place = q * (double)(o.size - 1), low = floor(place);
    cup_tensor *y = cup__part(c, o.values, o.axis, (int64_t)low, 1);
    if (place > low)
        y = cup_lerp(c, y, cup__part(c, o.values, o.axis, (int64_t)low + 1, 1), place - low);
    return ended(c, &o, y, keep);
}

static cup_tensor *flat(cup_context *c, cup_tensor *x)
{
    return cup_reshape(c, x, 1, (int64_t[]){-1});
}

/* Whether an element of the sorted ones belongs before a value. */
static cup_tensor *stands_before(cup_context *c, cup_tensor *element, cup_tensor *value, bool right)
{
    cup_tensor *yes = right ? cup_less_equal(c, element, value) : cup_less(c, element, value);
    if (!yes || !cup__dtype_is_float(value->dtype))
        return yes;
    cup_tensor *high = cup_isnan(c, value);
    return cup_logical_or(
        c, yes, right ? high : cup_logical_and(c, high, cup_logical_not(c, cup_isnan(c, element))));
}

/* Each value halves the places that it may belong to, all of them at a time. */
cup_tensor *cup_searchsorted(cup_context *c, cup_tensor *sorted, cup_tensor *values, bool right)
{
    static const char name[] = "searchsorted";
    if (!cup__function_begin(c, name, sorted) || !cup__function_begin(c, name, values))
        return NULL;
    int last = sorted->ndim - 1;
    bool fits = last >= 0 && sorted->dtype == values->dtype;
    if (last > 0) {
        fits = fits && values->ndim == sorted->ndim;
        for (int d = 0; fits && d < last; d++)
            fits = values->shape[d] == sorted->shape[d];
    }
    if (!fits) {
        cup_fail(c, CUP_SHAPE,
                 "%s: sorted must be [n], or have the leading dimensions of the values, and their "
                 "dtype",
                 name);
        return NULL;
    }
    int64_t n = sorted->shape[last], shape[CUP_MAX_DIMS];
    int ndim = values->ndim;
    for (int d = 0; d < ndim; d++)
        shape[d] = values->shape[d];
    cup_tensor *wanted = last > 0 ? values : flat(c, values);
    cup_tensor *one = cup__single(c, CUP_I64, 1), *end = cup__single(c, CUP_I64, (double)n);
    cup_tensor *low = wanted ? cup_zeros(c, CUP_I64, wanted->ndim, wanted->shape) : NULL;
    cup_tensor *high = cup_add(c, low, end);
    for (int64_t reach = n; reach > 0 && high; reach /= 2) {
        cup_tensor *middle = cup_shift_right(c, cup_add(c, low, high), one);
        cup_tensor *place = cup_minimum(c, middle, cup_sub(c, end, one));
        cup_tensor *element = cup_gather(c, sorted, place, last);
        cup_tensor *up = cup_logical_and(c, stands_before(c, element, wanted, right),
                                         cup_less(c, low, high));
        low = cup_where(c, up, cup_add(c, middle, one), low);
        high = cup_where(c, up, high, middle);
    }
    return cup_reshape(c, low, ndim, shape);
}

cup_tensor *cup_embedding_bag(cup_context *c, cup_tensor *table, cup_tensor *ids,
                              cup_tensor *offsets, bool mean)
{
    static const char name[] = "embedding_bag";
    if (!cup__function_begin(c, name, table) || !cup__function_begin(c, name, ids) ||
        !cup__function_begin(c, name, offsets))
        return NULL;
    if (ids->ndim != 1 || offsets->ndim != 1 || offsets->dtype != CUP_I64 ||
        offsets->shape[0] < 1) {
        cup_fail(c, CUP_SHAPE, "%s: ids must be [n] and offsets i64 [B], with a bag or more", name);
        return NULL;
    }
    int64_t bags = offsets->shape[0];
    cup_tensor *place = cup_arange(c, CUP_I64, 0, (double)ids->count, NULL);
    cup_tensor *bag = cup_searchsorted(c, offsets, place, true);
    cup_tensor *sums = cup__embedding_grad(c, cup_embedding(c, table, ids), bag, bags);
    if (!mean || !sums)
        return sums;
    cup_tensor *count = cup_maximum(c, cup_bincount(c, bag, NULL, bags),
                                    cup__single(c, CUP_I64, 1));
    return cup_div(c, sums,
                   cup_cast(c, cup_reshape(c, count, 2, (int64_t[]){bags, 1}), sums->dtype));
}

cup_tensor *cup_bincount(cup_context *c, cup_tensor *x, cup_tensor *weights, int64_t bins)
{
    if (!cup__function_begin(c, "bincount", x))
        return NULL;
    if (bins < 1) {
        cup_fail(c, CUP_ARGUMENT, "bincount: %lld bins; there must be some", (long long)bins);
        return NULL;
    }
    if (weights && weights->count != x->count) {
        cup_fail(c, CUP_SHAPE, "bincount: there must be a weight for each element of x");
        return NULL;
    }
    cup_dtype dtype = weights ? weights->dtype : CUP_I64;
    cup_tensor *each = weights ? flat(c, weights) : cup_ones(c, dtype, 1, &x->count);
    return cup_scatter_add(c, cup_zeros(c, dtype, 1, &bins), flat(c, x), each, 0);
}

/* Whoever comes first of those that each wait for an exponential time over their part is drawn as
 * is asked; the logarithm of -1 over that time is a part's logarithm and a number that does not
 * depend on it. */
cup_tensor *cup_multinomial(cup_context *c, cup_tensor *x, int64_t count, bool replacement)
{
    static const char name[] = "multinomial";
    if (!cup__function_begin(c, name, x))
        return NULL;
    int last = x->ndim - 1;
    if (last < 0 || count < 1 || !cup__dtype_is_float(x->dtype) || x->shape[last] < 1 ||
        (!replacement && count > x->shape[last]) || (replacement && x->ndim == CUP_MAX_DIMS)) {
        cup_fail(c, CUP_ARGUMENT,
                 "%s: %lld cannot be drawn of the floats along the last dimension of x", name,
                 (long long)count);
        return NULL;
    }
    int64_t shape[CUP_MAX_DIMS], axis = -1;
    int ndim = 0;
    for (int d = 0; d < last; d++)
        shape[ndim++] = x->shape[d];
    if (replacement)
        shape[ndim++] = 1;
    shape[ndim++] = x->shape[last];
    cup_tensor *wide = cup_cast(c, cup_reshape(c, x, ndim, shape), CUP_F32), *values, *places;
    if (replacement)
        shape[ndim - 2] = count;
    cup_tensor *time = cup_neg(c, cup_log(c, cup_uniform(c, CUP_F32, ndim, shape, 0, 1)));
    cup_tensor *score = cup_sub(c, cup_log(c, wide), cup_log(c, time));
    if (replacement)
        return cup_argmax(c, score, &axis, 1, false);
    cup_top_k(c, score, count, -1, NULL, &values, &places);
    return cup_error(c) == CUP_OK ? places : NULL;
}

/* The flat places of what is true, as i64: they come first when truth is put in order. */
static cup_tensor *places_of(cup_context *c, cup_tensor *is)
{
    cup_tensor *values, *places;
    cup_tensor *truth = cup_cast(c, flat(c, is), CUP_I32);
    int64_t count = (int64_t)cup_tensor_item(cup_sum(c, truth, NULL, 0, false));
    if (cup_error(c) != CUP_OK || cup_sort(c, truth, 0, true, &values, &places) != CUP_OK)
        return NULL;
    return cup__part(c, places, 0, 0, count);
}

cup_tensor *cup_nonzero(cup_context *c, cup_tensor *x)
{
    if (!cup__function_begin(c, "nonzero", x))
        return NULL;
    cup_tensor *is = cup_cast(c, x, CUP_BOOL);
    cup_tensor *places = is ? places_of(c, is) : NULL, *parts[CUP_MAX_DIMS];
    if (!places || x->ndim == 0)
        return places ? cup_zeros(c, CUP_I64, 2, (int64_t[]){places->count, 0}) : NULL;
    for (int d = x->ndim; d-- > 0;) {
        cup_tensor *size = cup__single(c, CUP_I64, (double)x->shape[d]);
        parts[d] = cup_remainder(c, places, size);
        places = cup_floor_div(c, places, size);
    }
    return cup_error(c) == CUP_OK ? cup_stack(c, parts, x->ndim, 1) : NULL;
}

cup_tensor *cup_masked_select(cup_context *c, cup_tensor *x, cup_tensor *mask)
{
    if (!cup__function_begin(c, "masked_select", x) ||
        !cup__function_begin(c, "masked_select", mask))
        return NULL;
    if (mask->dtype != CUP_BOOL) {
        cup_fail(c, CUP_DTYPE,
                 "masked_select: the mask must be bool; make one with cup_not_equal");
        return NULL;
    }
    cup_tensor *is = cup_broadcast(c, mask, x->ndim, x->shape);
    cup_tensor *places = is ? places_of(c, is) : NULL;
    return places ? cup_index_select(c, flat(c, x), places, 0) : NULL;
}

cup_status cup_unique(cup_context *c, cup_tensor *x, cup_tensor **values, cup_tensor **inverse,
                      cup_tensor **counts)
{
    cup_tensor *sorted, *places, *none[3] = {NULL};
    values = values ? values : &none[0];
    inverse = inverse ? inverse : &none[1];
    *values = *inverse = NULL;
    if (counts)
        *counts = NULL;
    if (!cup__function_begin(c, "unique", x))
        return c ? cup_error(c) : CUP_ARGUMENT;
    int64_t n = x->count;
    if (cup_sort(c, flat(c, x), 0, false, &sorted, &places) != CUP_OK)
        return cup_error(c);
    /* Where another value begins, and how many did before. */
    cup_tensor *other = cup_zeros(c, CUP_I64, 1, &n);
    if (n > 1) {
        cup_tensor *parts[] = {cup_zeros(c, CUP_I64, 1, (int64_t[]){1}),
                               cup_cast(c, cup_not_equal(c, cup__part(c, sorted, 0, 1, n - 1),
                                                         cup__part(c, sorted, 0, 0, n - 1)),
                                        CUP_I64)};
        other = cup_concat(c, parts, 2, 0);
    }
    cup_tensor *number = cup_cumsum(c, other, 0, false);
    if (!number)
        return cup_error(c);
    int64_t found = n ? (int64_t)cup_tensor_item(cup__part(c, number, 0, n - 1, 1)) + 1 : 0;
    cup_tensor *times = cup_bincount(c, number, NULL, found ? found : 1);
    cup_tensor *end = cup_sub(c, cup_cumsum(c, times, 0, false), cup__single(c, CUP_I64, 1));
    if (cup_error(c) != CUP_OK)
        return cup_error(c);
    *values = found ? cup_index_select(c, sorted, end, 0) : cup__part(c, sorted, 0, 0, 0);
    if (counts)
        *counts = cup__part(c, times, 0, 0, found);
    *inverse = cup_reshape(c, cup_scatter_add(c, cup_zeros(c, CUP_I64, 1, &n), places, number, 0),
                           x->ndim, x->shape);
    return cup_error(c);
}

/* The first element goes on, times each that follows. */
cup_tensor *cup_cumprod(cup_context *c, cup_tensor *x, int axis, bool reverse)
{
    int at;
    if (!cup__function_begin(c, "cumprod", x) ||
        !cup__function_axis(c, "cumprod", x->ndim, axis, &at))
        return NULL;
    int64_t rest = x->shape[at] - 1, before[CUP_MAX_DIMS] = {0}, after[CUP_MAX_DIMS] = {0};
    if (rest < 0)
        return cup_copy(c, x);
    (reverse ? before : after)[at] = rest;
    cup_tensor *first = cup_pad(c, cup__part(c, x, at, reverse ? rest : 0, 1), before, x->ndim,
                                after, x->ndim, NULL);
    return cup_recurrence(c, x, first, at, reverse);
}
