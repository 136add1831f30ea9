/* The inputs of a sample call. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "prof/check.h"

#define MANY (1 << 20)

/* A small generator of its own, so that a sample depends on its seed only: number i. */
static uint64_t random_number(uint64_t seed, int64_t i)
{
    uint64_t z = seed + (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Reads one shape, "2x3" or "()" or "-" (ndim -1); moves on to the next. */
static bool parse_shape(const char **text, cup__shape *shape)
{
    const char *at = *text + strspn(*text, " ");
    if (!*at)
        return false;
    shape->ndim = 0;
    if (*at == '-') {
        shape->ndim = -1;
        at++;
    } else if (at[0] == '(' && at[1] == ')') {
        at += 2;
    } else {
        while (*at >= '0' && *at <= '9' && shape->ndim < CUP_MAX_DIMS) {
            char *end;
            shape->size[shape->ndim++] = strtoll(at, &end, 10);
            at = *end == 'x' && end[1] >= '0' && end[1] <= '9' ? end + 1 : end;
        }
    }
    if (*at && *at != ' ' && *at != ')')
        return false;
    *text = at;
    return true;
}

#define MOST_GROUPS 4
#define MOST_REPEATS 1024

/* Where in a text of shapes it is: "3*2x5" is a shape three times, "2*(3 -)" a group twice. */
typedef struct reader {
    const char *at;
    cup__shape shape;
    int64_t again; /* so often the shape comes once more */
    int depth, count;
    struct {
        const char *begin;
        int64_t again;
        int count; /* of shapes before */
    } group[MOST_GROUPS];
} reader;

/* Goes back to the begin of the group that ends here, or on; false when there was nothing in it. */
static bool end_group(reader *r)
{
    if (!r->depth || r->count == r->group[r->depth - 1].count)
        return false;
    r->group[r->depth - 1].count = r->count;
    if (r->group[r->depth - 1].again-- > 0)
        r->at = r->group[r->depth - 1].begin;
    else
        r->at++, r->depth--;
    return true;
}

/* Takes "N*", and where a group begins, its bracket. */
static bool begin_repeat(reader *r, bool *is_group)
{
    char *end;
    int64_t times = strtoll(r->at, &end, 10);
    *is_group = false;
    if (end == r->at || *end != '*')
        return true;
    r->at = end + 1;
    *is_group = r->at[0] == '(' && r->at[1] != ')';
    if (times < 1 || times > MOST_REPEATS || (*is_group && r->depth == MOST_GROUPS))
        return false;
    if (!*is_group) {
        r->again = times - 1;
        return true;
    }
    r->at++;
    r->group[r->depth].begin = r->at;
    r->group[r->depth].again = times - 1;
    r->group[r->depth++].count = r->count;
    return true;
}

static bool next_shape(reader *r)
{
    bool is_group = true;
    if (r->again > 0) {
        r->again--;
        r->count++;
        return true;
    }
    while (is_group) {
        r->at += strspn(r->at, " ");
        if (*r->at == ')') {
            if (!end_group(r))
                return false;
        } else if (!begin_repeat(r, &is_group)) {
            return false;
        }
    }
    r->count++;
    return parse_shape(&r->at, &r->shape);
}

/* The dtype of input i when the op is tested with `dtype`. */
static cup_dtype dtype_of_input(const cup__op *op, int i, cup_dtype dtype)
{
    uint32_t allowed = op->in_dtypes[cup__input_slot(op, i)];
    if (!allowed || allowed & (1u << dtype))
        return dtype;
    return (cup_dtype)__builtin_ctz(allowed);
}

/* Dimension number i from the innermost on of images whose channels come last in memory. */
static int channels_innermost(int i, int ndim)
{
    return i == 0 ? 1 : i < ndim - 1 ? ndim - i : 0;
}

/* A tensor of the shape whose elements lie as the layout says: padded rows that start one
 * element in, the dimensions stored in reverse order with gaps, or the channels last. */
static cup_tensor *lay_out(cup_context *c, const cup__shape *shape, cup__layout layout)
{
    bool last = layout == CUP__CHANNELS_LAST && (shape->ndim == 4 || shape->ndim == 5);
    if (layout == CUP__ROW_MAJOR || shape->ndim < 1 || (layout == CUP__CHANNELS_LAST && !last))
        return cup__tensor_make(c, shape, "sample");
    cup__shape flat = {.dtype = shape->dtype, .ndim = 1, .size = {1}};
    int64_t stride[CUP_MAX_DIMS], total = 1;
    for (int i = 0; i < shape->ndim; i++) {
        int d = last                        ? channels_innermost(i, shape->ndim)
                : layout == CUP__TRANSPOSED ? i
                                            : shape->ndim - 1 - i;
        stride[d] = total;
        total *= shape->size[d] + (i == 0 && !last ? 3 : 0);
    }
    flat.size[0] = total + !last;
    cup_tensor *base = cup__tensor_make(c, &flat, "sample");
    cup_tensor *view = base ? cup__tensor_view(base, shape, stride, !last) : NULL;
    cup_tensor_free(base);
    return view;
}

/* Gigabytes of random numbers, as benchmarks ask for, are made where they are needed. Without a
 * domain they are normal: how much power a product draws, and so its clock, depends on its data,
 * and normal data is what others measure with. */
static cup_status fill_in_place(cup_tensor *t, cup__domain domain)
{
    cup_tensor *out[CUP__MAX_OUT] = {t};
    if (cup_dtype_size(t->dtype) == 1) {
        cup__shape wide = cup__shape_of(t);
        wide.dtype = CUP_F32;
        cup_tensor *numbers = cup__tensor_make(t->context, &wide, "sample");
        if (numbers && fill_in_place(numbers, domain) == CUP_OK)
            cup__op_call(t->context, &cup__rows[CUP__OP_cast], &numbers, 1,
                         &(cup__cast_attributes){.dtype = t->dtype}, out);
        cup_tensor_free(numbers);
        return t->context->error.status;
    }
    if (domain.low == 0 && domain.high == 0) {
        cup__normal_attributes a = {.dtype = t->dtype, .deviation = 1, .shape_count = t->ndim};
        memcpy(a.shape, t->shape, sizeof a.shape);
        cup__op_call(t->context, &cup__rows[CUP__OP_normal], NULL, 0, &a, out);
    } else {
        cup__uniform_attributes a = {
            .dtype = t->dtype, .low = domain.low, .high = domain.high, .shape_count = t->ndim};
        memcpy(a.shape, t->shape, sizeof a.shape);
        cup__op_call(t->context, &cup__rows[CUP__OP_uniform], NULL, 0, &a, out);
    }
    return t->context->error.status;
}

typedef struct filler {
    cup_tensor to; /* on the host */
    cup_dtype rounded;
    cup__domain domain;
    int64_t indices; /* whole numbers are from all below this; 0: from the domain */
    uint64_t seed;
} filler;

/* One of [0, indices): one in four from the domain, so that some come often, and now and then the
 * last. */
static double draw_index(const filler *f, int64_t i)
{
    uint64_t way = random_number(f->seed ^ 0x5bd1e995u, i) % 16;
    double unit = (double)(random_number(f->seed, i) >> 11) * 0x1p-53;
    double high = (double)f->indices, low = f->domain.low;
    if (way == 0)
        return high - 1;
    if (way < 4)
        return floor(low + (fmin(f->domain.high, high) - low) * unit);
    return floor(high * unit);
}

static void fill_part(int64_t begin, int64_t end, void *user)
{
    const filler *f = user;
    uint64_t word;
    cup_tensor one = {.data = &word, .dtype = f->rounded}, to = f->to;
    bool real = cup__dtype_is_float(f->rounded), rounds = f->rounded != to.dtype;
    for (int64_t i = begin; i < end; i++) {
        double unit = (double)(random_number(f->seed, i) >> 11) * 0x1p-53;
        double value = f->domain.low + (f->domain.high - f->domain.low) * unit;
        if (f->indices > 0)
            value = draw_index(f, i);
        if (!real)
            value = floor(value);
        if (rounds) {
            cup__store(&one, 0, value);
            value = cup__load(&one, 0);
        }
        cup__store(&to, i, value);
    }
}

static cup_status fill(cup_tensor *t, cup_dtype rounded, cup__domain domain, int64_t indices,
                       bool alike, uint64_t seed)
{
    if (!alike && t->count >= MANY && t->contiguous && cup__dtype_is_float(t->dtype))
        return fill_in_place(t, domain);
    if (domain.low == 0 && domain.high == 0)
        domain = (cup__domain){-2, 2};
    size_t size = (size_t)cup_dtype_size(t->dtype);
    char *values = cup__malloc((size_t)t->count * size);
    if (!values)
        return cup__fail(&t->context->error, CUP_MEMORY, "out of host memory for a sample");
    filler f = {{.data = values, .dtype = t->dtype}, rounded, domain, indices, seed};
    cup__parallel_for(t->count, 1 << 14, fill_part, &f);
    cup_status status = cup_tensor_write(t, values, (size_t)t->count * size);
    cup__free(values);
    return status;
}

/* A tensor of this one's shape whose dimensions are stored in another order, with the channels last
 * or all reversed, filled when asked; NULL on failure. */
static cup_tensor *fill_ordered(const cup_tensor *like, bool channels_last, bool filled,
                                uint64_t seed, cup__domain domain)
{
    if (!like)
        return NULL;
    cup__shape shape = cup__shape_of(like), stored = shape;
    int64_t stride[CUP_MAX_DIMS], step = 1;
    for (int i = 0; i < shape.ndim; i++) {
        int d = channels_last ? channels_innermost(i, shape.ndim) : i;
        stored.size[shape.ndim - 1 - i] = shape.size[d];
        stride[d] = step;
        step *= shape.size[d];
    }
    cup_tensor *base = cup__tensor_make(like->context, &stored, "sample");
    if (!base || (filled && fill(base, base->dtype, domain, 0, false, seed) != CUP_OK))
        return NULL;
    return cup__tensor_view(base, &shape, stride, 0);
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Numbers that go up from 0 to `most`, in order. */
static cup_status fill_ascending(cup_tensor *t, int64_t most, uint64_t seed)
{
    int64_t *values = cup__malloc((size_t)t->count * sizeof *values);
    cup_context *c = t->context;
    if (!values)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a sample");
    for (int64_t i = 0; i < t->count; i++)
        values[i] = (int64_t)(random_number(seed, i) % (uint64_t)(most + 1));
    qsort(values, (size_t)t->count, sizeof *values, by_size);
    cup_tensor host = {.data = values, .dtype = CUP_I64};
    char *packed = cup__malloc((size_t)(t->count * cup_dtype_size(t->dtype)));
    cup_tensor to = {.data = packed, .dtype = t->dtype};
    for (int64_t i = 0; packed && i < t->count; i++)
        cup__store(&to, i, cup__load(&host, i));
    cup_status status =
        packed ? cup_tensor_write(t, packed, (size_t)(t->count * cup_dtype_size(t->dtype)))
               : cup__fail(&c->error, CUP_MEMORY, "out of host memory for a sample");
    cup__free(packed);
    cup__free(values);
    return status;
}

int cup__sample_inputs(cup_context *c, const cup__row *row, const cup__sample *sample,
                       cup_dtype dtype, cup_dtype hold, cup__layout layout, uint64_t seed,
                       cup_tensor **in, int most)
{
    return cup__sample_inputs_filled(c, row, sample, dtype, hold, layout, seed, (cup__filling){0},
                                     in, most);
}

int cup__sample_inputs_filled(cup_context *c, const cup__row *row, const cup__sample *sample,
                              cup_dtype dtype, cup_dtype hold, cup__layout layout, uint64_t seed,
                              cup__filling filling, cup_tensor **in, int most)
{
    int count = 0;
    reader text = {.at = sample->shapes};
    while (next_shape(&text)) {
        cup__shape shape = text.shape;
        if (count == most) {
            cup__fail(&c->error, CUP_INTERNAL, "%s: a sample has over %d inputs", row->name, most);
            return -1;
        }
        int i = count++, slot = cup__input_slot(row->op, i);
        in[i] = NULL;
        if (shape.ndim < 0)
            continue;
        cup_dtype own = dtype_of_input(row->op, i, dtype);
        bool widened = cup__dtype_is_float(own) && hold == CUP_F64 && !row->op->rounds;
        shape.dtype = widened ? CUP_F64 : own;
        in[i] = lay_out(c, &shape, layout);
        uint64_t own_seed = seed + (uint64_t)i * 7919;
        cup__domain domain = row->op->domain[slot];
        int64_t indices = 0;
        if (filling.indices > 0 && !cup__dtype_is_float(own))
            domain = (cup__domain){0, (double)filling.indices};
        else if (row->op->indices)
            indices = row->op->indices(in, i, sample->attributes);
        bool last = filling.channels_last && (shape.ndim == 4 || shape.ndim == 5);
        if ((last || (filling.reversed && shape.ndim > 1)) && in[i]) {
            in[i] = fill_ordered(in[i], last, seed != 0, own_seed, domain);
            if (in[i])
                continue;
        }
        if (!in[i])
            return -1;
        if (seed && row->op->ascending >> slot & 1) {
            int64_t below = row->op->indices ? row->op->indices(in, i, sample->attributes)
                                            : in[0]->shape[0];
            if (fill_ascending(in[i], below, own_seed) != CUP_OK)
                return -1;
            continue;
        }
        if (seed && fill(in[i], own, domain, indices, filling.alike, own_seed) != CUP_OK)
            return -1;
    }
    if (text.depth || text.at[strspn(text.at, " ")] || count < row->in_least ||
        count > row->in_most) {
        cup__fail(
            &c->error, CUP_ARGUMENT,
            "%s: shapes \"%.100s\" do not name its inputs (%s); write them as 2x3 3, a scalar "
            "as (), - for an input left out, and 4*3 or 4*(2x3 3) for what comes four times",
            row->name, sample->shapes, row->inputs);
        return -1;
    }
    for (; row->in_most != INT_MAX && count < row->in_most && count < most; count++)
        in[count] = NULL;
    return count;
}
