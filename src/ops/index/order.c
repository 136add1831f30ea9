#include "ops/index/order.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "dispatch/attributes.h"
#include "ops/shape/copy.h"

cup_status cup__need_ordered(cup__call *call, int i)
{
    if (CUP__DTYPES_ORDERED >> call->in[i]->dtype & 1)
        return CUP_OK;
    return cup__call_fail(call, CUP_DTYPE,
                          "input %d must be a float, or an integer of 8, 32 or 64 bits; convert "
                          "it with cup_cast",
                          i + 1);
}

/* A line of a tensor, and its places as they are being put in order. */
typedef struct line {
    const cup_tensor *t;
    int64_t base, step, length;
    bool descending;
    int64_t *place, *spare;
} line;

/* Below, at or above 0, as element i comes before j. NaN is the largest, and -0 less than 0. */
static int compare(const line *l, int64_t i, int64_t j)
{
    if (l->t->dtype == CUP_I64) {
        const int64_t *x = l->t->data;
        int64_t a = x[l->base + i * l->step], b = x[l->base + j * l->step];
        return (a > b) - (a < b);
    }
    double a = cup__load(l->t, l->base + i * l->step), b = cup__load(l->t, l->base + j * l->step);
    if (isnan(a) || isnan(b))
        return (isnan(a) != 0) - (isnan(b) != 0);
    return a == b ? (signbit(b) != 0) - (signbit(a) != 0) : (a > b) - (a < b);
}

static bool comes_first(const line *l, int64_t i, int64_t j)
{
    int order = compare(l, i, j);
    return l->descending ? order >= 0 : order <= 0;
}

/* Merges runs that double, which keeps equal ones in order. */
static void sort_line(line *l)
{
    for (int64_t i = 0; i < l->length; i++)
        l->place[i] = i;
    for (int64_t run = 1; run < l->length; run *= 2) {
        for (int64_t begin = 0; begin < l->length; begin += 2 * run) {
            int64_t middle = begin + run < l->length ? begin + run : l->length;
            int64_t end = middle + run < l->length ? middle + run : l->length;
            int64_t i = begin, j = middle;
            for (int64_t k = begin; k < end; k++) {
                bool left = j == end || (i < middle && comes_first(l, l->place[i], l->place[j]));
                l->spare[k] = left ? l->place[i++] : l->place[j++];
            }
        }
        int64_t *sorted = l->spare;
        l->spare = l->place;
        l->place = sorted;
    }
}

cup_status cup__order_specification(cup__call *call, int axis, int64_t count, bool descending)
{
    const cup_tensor *x = call->in[0];
    cup_tensor *values = call->out[0], *indices = call->out[1];
    int64_t inner = 1, length = x->shape[axis];
    for (int i = axis + 1; i < x->ndim; i++)
        inner *= x->shape[i];
    int64_t *memory = cup__calloc((size_t)length + 1, 2 * sizeof *memory);
    if (!memory)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    int64_t lines = length ? x->count / length : 0;
    for (int64_t n = 0; n < lines; n++) {
        int64_t outer = n / inner, k = n % inner;
        line l = {x, cup__offset_of(x, outer * length * inner + k), x->stride[axis], length,
                  descending, memory, memory + length};
        sort_line(&l);
        for (int64_t i = 0; i < count; i++) {
            int64_t to = (outer * count + i) * inner + k, from = l.base + l.place[i] * l.step;
            if (x->dtype == CUP_I64)
                ((int64_t *)values->data)[to] = ((const int64_t *)x->data)[from];
            else
                cup__store(values, to, cup__load(x, from));
            ((int64_t *)indices->data)[to] = l.place[i];
        }
    }
    cup__free(memory);
    return CUP_OK;
}

/* The tensor with its axis last, as a view. */
static cup_tensor *turned(cup_tensor *t, int axis)
{
    cup__shape shape = cup__shape_of(t);
    int64_t stride[CUP_MAX_DIMS];
    int to = 0;
    for (int i = 0; i < t->ndim; i++)
        if (i != axis) {
            shape.size[to] = t->shape[i];
            stride[to++] = t->stride[i];
        }
    shape.size[to] = t->shape[axis];
    stride[to] = t->stride[axis];
    return cup__tensor_view(t, &shape, stride, 0);
}

static cup_tensor *made(cup__call *call, const cup_tensor *like)
{
    cup__shape shape = like ? cup__shape_of(like) : (cup__shape){0};
    return like ? cup__tensor_make(call->c, &shape, call->row->name) : NULL;
}

cup_status cup__order_rows(cup__call *call, int axis, bool descending,
                           cup_status (*rows)(cup__call *call, cup_tensor *x, cup_tensor *values,
                                              cup_tensor *indices, bool descending))
{
    cup_tensor *x = call->in[0], *values = call->out[0], *indices = call->out[1];
    if (axis == x->ndim - 1)
        return rows(call, x, values, indices, descending);
    cup_tensor *view[] = {turned(x, axis), turned(values, axis), turned(indices, axis)};
    cup_tensor *packed[] = {made(call, view[0]), made(call, view[1]), made(call, view[2])};
    cup_status status = cup__copy_to(call->c, packed[0], view[0]);
    if (status == CUP_OK)
        status = rows(call, packed[0], packed[1], packed[2], descending);
    for (int i = 1; i < 3 && status == CUP_OK; i++)
        status = cup__copy_to(call->c, view[i], packed[i]);
    for (int i = 0; i < 3; i++) {
        cup_tensor_free(view[i]);
        cup_tensor_free(packed[i]);
    }
    return status;
}

cup_tensor *cup__order_gradient(cup__grad *g, int axis)
{
    int64_t size = g->in_shape[0].size[axis < 0 ? axis + g->in_shape[0].ndim : axis];
    return g->d_out[0] ? cup__unsort(g->c, g->d_out[0], g->out[1], axis, size) : NULL;
}
