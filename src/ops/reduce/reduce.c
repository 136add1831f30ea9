#include "ops/reduce/reduce.h"

#include <math.h>

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

/* Folds that have no result without an element, and take any dtype. */
static bool is_extreme(int kind)
{
    return kind == CUP__FOLD_MAX || kind == CUP__FOLD_MIN || kind == CUP__FOLD_ARGMAX ||
           kind == CUP__FOLD_ARGMIN;
}

static cup_status check_dtype(cup__call *call)
{
    cup_dtype dtype = call->in[0]->dtype;
    int kind = call->op->kind;
    bool is_place = kind == CUP__FOLD_ARGMAX || kind == CUP__FOLD_ARGMIN;
    bool takes_any = kind == CUP__FOLD_SUM || is_extreme(kind);
    if (!takes_any || cup__dtype_is_float(dtype))
        CUP_TRY(cup__need_float(call, 0));
    bool widens = kind == CUP__FOLD_SUM && !cup__dtype_is_float(dtype);
    call->result[0].dtype = widens || is_place ? CUP_I64 : dtype;
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
    if (length == 0 && is_extreme(call->op->kind))
        return cup__call_fail(call, CUP_SHAPE, "no elements along the axes have a %s",
                              call->row->name);
    return CUP_OK;
}

/* In long double, so that a plain sum of many doubles is as good as one by lanes. */
static long double fold(int kind, long double sum, double x, double shift)
{
    switch ((cup__fold)kind) {
    case CUP__FOLD_SUM:
    case CUP__FOLD_MEAN:
        return sum + x;
    case CUP__FOLD_MAX:
        return x > sum || isnan(x) ? x : sum;
    case CUP__FOLD_MIN:
        return x < sum || isnan(x) ? x : sum;
    case CUP__FOLD_NORM:
    case CUP__FOLD_VAR:
        return sum + (x - shift) * (x - shift);
    case CUP__FOLD_LOGSUMEXP:
        return sum + exp(x - shift);
    default:
        return NAN;
    }
}

static double start_of(int kind)
{
    return kind == CUP__FOLD_MAX ? -INFINITY : kind == CUP__FOLD_MIN ? INFINITY : 0;
}

double cup__fold_finish(const cup__call *call, int64_t length, double value, double shift)
{
    switch ((cup__fold)call->op->kind) {
    case CUP__FOLD_MEAN:
        return value / (double)length;
    case CUP__FOLD_NORM:
        return sqrt(value);
    case CUP__FOLD_VAR: {
        int64_t degrees = length - ((const cup__var_attributes *)call->attributes)->correction;
        return degrees > 0 ? value / (double)degrees : NAN;
    }
    case CUP__FOLD_LOGSUMEXP:
        return shift + log(value);
    default:
        return value;
    }
}

static double fold_all(const cup__call *call, const cup__reduction *r, int64_t output, int kind,
                       double shift)
{
    int64_t base = cup__reduction_kept(r, output);
    long double sum = start_of(kind);
    for (int64_t i = 0; i < r->length; i++)
        sum = fold(kind, sum, cup__load(call->in[0], base + cup__reduction_folded(r, i)), shift);
    return (double)sum;
}

static int64_t integer_at(const cup_tensor *t, int64_t offset)
{
    return t->dtype == CUP_I64 ? ((const int64_t *)t->data)[offset] : (int64_t)cup__load(t, offset);
}

/* Of i64, not all of which are doubles. */
static int64_t place_of_integer(const cup__call *call, const cup__reduction *r, int64_t output)
{
    int64_t base = cup__reduction_kept(r, output), place = 0, best = 0;
    for (int64_t i = 0; i < r->length; i++) {
        int64_t x = integer_at(call->in[0], base + cup__reduction_folded(r, i));
        if (i == 0 || (call->op->kind == CUP__FOLD_ARGMAX ? x > best : x < best)) {
            best = x;
            place = i;
        }
    }
    return place;
}

static int64_t place_of(const cup__call *call, const cup__reduction *r, int64_t output)
{
    int64_t base = cup__reduction_kept(r, output), place = 0;
    double best = 0;
    for (int64_t i = 0; i < r->length; i++) {
        double x = cup__load(call->in[0], base + cup__reduction_folded(r, i));
        bool beats = call->op->kind == CUP__FOLD_ARGMAX ? x > best : x < best;
        if (i == 0 || beats || (isnan(x) && !isnan(best))) {
            best = x;
            place = i;
        }
    }
    return place;
}

static int64_t fold_integers(const cup__call *call, const cup__reduction *r, int64_t output)
{
    int64_t base = cup__reduction_kept(r, output), folded = 0;
    for (int64_t i = 0; i < r->length; i++) {
        int64_t x = integer_at(call->in[0], base + cup__reduction_folded(r, i));
        if (call->op->kind == CUP__FOLD_SUM)
            folded = (int64_t)((uint64_t)folded + (uint64_t)x);
        else if (i == 0 || (call->op->kind == CUP__FOLD_MAX ? x > folded : x < folded))
            folded = x;
    }
    return folded;
}

cup_status cup__reduce_specification(cup__call *call)
{
    cup_tensor *out = call->out[0];
    cup__reduction r;
    cup__reduction_make(&r, call);
    int kind = call->op->kind;
    for (int64_t i = 0; i < r.outputs; i++) {
        if (kind == CUP__FOLD_ARGMAX || kind == CUP__FOLD_ARGMIN) {
            bool whole = !cup__dtype_is_float(call->in[0]->dtype);
            ((int64_t *)out->data)[i] =
                whole ? place_of_integer(call, &r, i) : place_of(call, &r, i);
            continue;
        }
        if (!cup__dtype_is_float(call->in[0]->dtype)) {
            int64_t folded = fold_integers(call, &r, i);
            if (out->dtype == CUP_I64)
                ((int64_t *)out->data)[i] = folded;
            else
                cup__store(out, i, (double)folded);
            continue;
        }
        double shift = 0;
        if (kind == CUP__FOLD_VAR)
            shift = fold_all(call, &r, i, CUP__FOLD_SUM, 0) / (double)r.length;
        if (kind == CUP__FOLD_LOGSUMEXP)
            shift = fold_all(call, &r, i, CUP__FOLD_MAX, 0);
        if (kind == CUP__FOLD_LOGSUMEXP && isinf(shift))
            shift = 0;
        double value = fold_all(call, &r, i, kind, shift);
        cup__store(out, i, cup__fold_finish(call, r.length, value, shift));
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
    return cup_reshape(g->c, t, kept.size, kept.ndim);
}

cup_tensor *cup__reduce_spread(const cup__grad *g, cup_tensor *t)
{
    return cup_broadcast(g->c, cup__reduce_kept(g, t), g->in_shape[0].size, g->in_shape[0].ndim);
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
