/* Elements by their places: along the first dimensions, one list of places for each of them. */
#include "cupola/expr.h"
#include "dispatch/attributes.h"
#include "nn/functions.h"

/* x as [places, rest], and the places that are named, [n], among the first of them. */
typedef struct picked {
    cup_context *c;
    const char *name;
    int64_t places, rest;
    cup_tensor *rows, *at;
    cup__shape shape; /* of what is named: that of the lists, then the rest of x */
} picked;

static bool take(picked *p, cup_tensor *x, cup_tensor *const *indices, int count)
{
    cup_context *c = p->c;
    if (!cup__function_begin(c, p->name, x))
        return false;
    if (count < 1 || count > x->ndim || !indices) {
        cup_fail(c, CUP_ARGUMENT, "%s: %d lists of places; there must be from 1 to the %d "
                 "dimensions of x", p->name, count, x->ndim);
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (!cup__function_begin(c, p->name, indices[i]))
            return false;
        if (indices[i]->dtype != CUP_I32 && indices[i]->dtype != CUP_I64) {
            cup_fail(c, CUP_DTYPE, "%s: places must be i32 or i64; those of a mask are found by "
                     "cup_nonzero", p->name);
            return false;
        }
    }
    return true;
}

/* Places of several dimensions as one number each, -1 where one of them is none: exact in f64 up to
 * 2^53, more than there is memory for. */
static cup_tensor *flat_places(cup_context *c, const cup_tensor *x, cup_tensor *const *indices,
                               int count)
{
    cup_expr *e = cup_expr_new(c, "before i", "n",
                               "f64(where(before < 0 || i < -n || i >= n, -1, "
                               "before * n + where(i < 0, i + n, i)))");
    cup_tensor *at = cup__single(c, CUP_F64, 0);
    for (int d = 0; d < count && at; d++)
        at = cup_expr_call(e, (cup_tensor *[]){at, indices[d]}, (double[]){(double)x->shape[d]},
                           NULL);
    cup_expr_free(e);
    return at ? cup_cast(c, at, CUP_I64) : NULL;
}

static bool find(picked *p, cup_tensor *x, cup_tensor *const *indices, int count)
{
    cup_context *c = p->c;
    if (!take(p, x, indices, count))
        return false;
    p->places = p->rest = 1;
    for (int d = 0; d < x->ndim; d++)
        *(d < count ? &p->places : &p->rest) *= x->shape[d];
    cup_tensor *at = flat_places(c, x, indices, count);
    if (!at)
        return false;
    if (at->ndim + x->ndim - count > CUP_MAX_DIMS) {
        cup_fail(c, CUP_SHAPE, "%s: the result would have more than %d dimensions", p->name,
                 CUP_MAX_DIMS);
        return false;
    }
    p->shape = cup__shape_of(at);
    p->shape.dtype = x->dtype;
    for (int d = count; d < x->ndim; d++)
        p->shape.size[p->shape.ndim++] = x->shape[d];
    p->at = cup_reshape(c, at, 1, &at->count);
    p->rows = cup_reshape(c, x, 2, (int64_t[]){p->places, p->rest});
    return p->at && p->rows;
}

cup_tensor *cup_index(cup_context *c, cup_tensor *x, cup_tensor *const *indices, int count)
{
    picked p = {.c = c, .name = "index"};
    if (!find(&p, x, indices, count))
        return NULL;
    return cup_reshape(c, cup_index_select(c, p.rows, p.at, 0), p.shape.ndim, p.shape.size);
}

/* What each place of x gets of rows [n, rest]: their sum where it is named, else 0. */
static cup_tensor *summed(const picked *p, cup_tensor *rows, cup_tensor *at)
{
    cup_context *c = p->c;
    if (cup__dtype_is_float(rows->dtype))
        return cup__embedding_grad(c, rows, at, p->places);
    const int64_t shape[] = {p->places, p->rest};
    cup_tensor *wide = cup_broadcast(c, cup_reshape(c, at, 2, (int64_t[]){at->count, 1}), 2,
                                     rows->shape);
    return cup_scatter_add(c, cup_zeros(c, rows->dtype, 2, shape), wide, rows, 0);
}

/* Of those that name one place the last one counts: in order equal places stand side by side, in
 * the order in which they were named. */
static cup_tensor *replaced(const picked *p, cup_tensor *rows)
{
    cup_context *c = p->c;
    int64_t n = p->at->count;
    cup_tensor *sorted, *order;
    if (n == 0)
        return cup_copy(c, p->rows);
    if (cup_sort(c, p->at, 0, false, &sorted, &order) != CUP_OK)
        return NULL;
    cup_tensor *parts[] = {cup_not_equal(c, cup__part(c, sorted, 0, 1, n - 1),
                                         cup__part(c, sorted, 0, 0, n - 1)),
                           cup_ones(c, CUP_BOOL, 1, (int64_t[]){1})};
    cup_tensor *last = cup_reshape(c, cup_concat(c, parts, 2, 0), 2, (int64_t[]){n, 1});
    cup_tensor *counted = cup_where(c, last, cup_index_select(c, rows, order, 0),
                                    cup__single(c, rows->dtype, 0));
    cup_tensor *named = cup_bincount(c, p->at, NULL, p->places);
    cup_tensor *hit = cup_cast(c, cup_reshape(c, named, 2, (int64_t[]){p->places, 1}), CUP_BOOL);
    return counted ? cup_where(c, hit, summed(p, counted, sorted), p->rows) : NULL;
}

cup_tensor *cup_index_put(cup_context *c, cup_tensor *x, cup_tensor *values,
                          cup_tensor *const *indices, int count, bool add)
{
    picked p = {.c = c, .name = "index_put"};
    if (!cup__function_begin(c, p.name, x) || !cup__function_begin(c, p.name, values))
        return NULL;
    if (values->dtype != x->dtype) {
        cup_fail(c, CUP_DTYPE, "index_put: the values must have the dtype of x; convert them with "
                 "cup_cast");
        return NULL;
    }
    bool small = x->dtype == CUP_BOOL || x->dtype == CUP_U8 || x->dtype == CUP_I8;
    cup_tensor *wide = small ? cup_cast(c, x, CUP_I32) : x;
    if (!wide || !find(&p, wide, indices, count))
        return NULL;
    cup_tensor *all = cup_broadcast(c, small ? cup_cast(c, values, CUP_I32) : values, p.shape.ndim,
                                    p.shape.size);
    cup_tensor *rows = cup_reshape(c, all, 2, (int64_t[]){p.at->count, p.rest});
    if (!rows)
        return NULL;
    cup_tensor *y = add ? cup_add(c, p.rows, summed(&p, rows, p.at)) : replaced(&p, rows);
    y = cup_reshape(c, y, x->ndim, x->shape);
    return small ? cup_cast(c, y, x->dtype) : y;
}
