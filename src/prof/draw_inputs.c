/* The inputs of a drawn call. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/dry.h"
#include "prof/attributes.h"
#include "prof/draw.h"

#define LINE 16 /* bytes that a kernel reads at once where a tensor begins anywhere in them */
#define WRITTEN_AT_ONCE 65536 /* elements */

void cup__drawn_lay_plain(cup__drawn_input *in)
{
    int64_t step = 1;
    in->offset = 0;
    for (int i = in->shape.ndim; i-- > 0; step *= in->shape.size[i])
        in->stride[i] = step;
}

bool cup__drawn_row_major(const cup__drawn *d)
{
    if (cup__overwrites(d->row->op, d->attributes))
        return true;
    for (int i = 0; i < d->count; i++)
        if (cup__input_changes(d->row->op, i))
            return true;
    return false;
}

/* The values of one input: a function of its seed and the place alone. */
typedef struct values {
    const cup__drawn *d;
    const cup__drawn_input *in;
    cup__domain domain;
    uint64_t seed;
    int axis;        /* along which different places are */
    int64_t *sorted; /* ascending places */
    cup_tensor round; /* one element of the input's dtype */
    uint64_t word;
} values;

static uint64_t word_at(uint64_t seed, int64_t i)
{
    uint64_t state = seed + (uint64_t)i * 0x9e3779b97f4a7c15u;
    return cup__draw_word(&state);
}

static double special(uint64_t word)
{
    static const double all[] = {INFINITY, -INFINITY, NAN, -0.0, 0.0, 1.0};
    return all[word % 6];
}

/* Numbers that differ along the axis: a walk through all of them by a step without a common
 * factor. */
static int64_t different(const values *v, const int64_t *at)
{
    int64_t n = v->in->below, slice = 0, step;
    for (int i = 0; i < v->in->shape.ndim; i++)
        slice = i == v->axis ? slice : slice * 31 + at[i];
    step = 1 + (int64_t)(word_at(v->seed, slice) % (uint64_t)n);
    for (;; step = step % n + 1) {
        int64_t a = step, b = n;
        while (b)
            a %= b, a ^= b, b ^= a, a ^= b;
        if (a == 1)
            break;
    }
    int64_t k = v->axis < v->in->shape.ndim ? at[v->axis] : 0;
    return (slice + k % n * step) % n;
}

static double value_at(values *v, int64_t index, const int64_t *at)
{
    uint64_t word = word_at(v->seed, index);
    double unit = (double)(word >> 11) * 0x1p-53;
    if (v->in->places == CUP__PLACES_ANY)
        return floor(unit * (double)v->in->below);
    if (v->in->places == CUP__PLACES_ASCENDING)
        return (double)v->sorted[index];
    if (v->in->places == CUP__PLACES_DIFFERENT)
        return (double)different(v, at);
    double x = v->domain.low + (v->domain.high - v->domain.low) * unit;
    if (!cup__dtype_is_float(v->in->shape.dtype))
        return floor(x);
    x = ldexp(x, v->d->scale) + v->d->shift;
    return v->d->special && word % 23 == 0 ? special(word / 23) : x;
}

static double rounded(values *v, double x)
{
    v->round.data = &v->word;
    cup__store(&v->round, 0, x);
    return cup__load(&v->round, 0);
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Ends of groups: some are empty, and the last one may leave rows over. */
static bool sort_places(values *v, int64_t count)
{
    uint64_t state = v->seed;
    v->sorted = cup__malloc((size_t)(count ? count : 1) * sizeof *v->sorted);
    if (!v->sorted)
        return false;
    for (int64_t i = 0; i < count; i++)
        v->sorted[i] = cup__draw_below(&state, v->in->below + 1);
    if (count && cup__draw_chance(&state, 60))
        v->sorted[0] = v->in->below;
    qsort(v->sorted, (size_t)count, sizeof *v->sorted, by_size);
    return true;
}

static int axis_of(const cup__drawn *d)
{
    for (const cup__attribute *a = d->row->attributes; a && a->name; a++)
        if (!strcmp(a->name, "axis") && a->kind == CUP__KIND_INT) {
            int axis = *(const int *)(const void *)(d->attributes + a->offset);
            return axis < 0 ? axis + d->in[0].shape.ndim : axis;
        }
    return 0;
}

/* Where all elements go in memory of a dtype of its own. */
typedef struct writing {
    const values *values;
    cup_tensor to;
    const int64_t *stride;
    int64_t offset;
} writing;

static void write_some(int64_t begin, int64_t end, void *user)
{
    const writing *w = user;
    values v = *w->values;
    const cup__shape *shape = &v.in->shape;
    cup_tensor to = w->to;
    int64_t at[CUP_MAX_DIMS] = {0}, step[CUP_MAX_DIMS], place = w->offset, index = 0, rest = begin;
    bool exact = to.dtype != shape->dtype;
    for (int64_t i = shape->ndim, all = 1; i-- > 0; all *= shape->size[i]) {
        step[i] = v.in->stride[i] ? all : 0;
        at[i] = rest % shape->size[i];
        rest /= shape->size[i];
        place += at[i] * w->stride[i];
        index += at[i] * step[i];
    }
    for (int64_t done = begin; done < end; done++) {
        double x = value_at(&v, index, at);
        cup__store(&to, place, exact ? rounded(&v, x) : x);
        for (int i = shape->ndim; i-- > 0;) {
            place += w->stride[i];
            index += step[i];
            if (++at[i] < shape->size[i])
                break;
            place -= w->stride[i] * shape->size[i];
            index -= step[i] * shape->size[i];
            at[i] = 0;
        }
    }
}

/* Writes all elements, on all cores where no two of them are the same one. */
static void write_all(const writing *w, int64_t count)
{
    bool apart = true;
    for (int i = 0; i < w->values->in->shape.ndim; i++)
        apart = apart && (w->stride[i] || w->values->in->shape.size[i] == 1);
    if (apart)
        cup__parallel_for(count, WRITTEN_AT_ONCE, write_some, (void *)(uintptr_t)w);
    else if (count)
        write_some(0, count, (void *)(uintptr_t)w);
}

/* On a GPU the memory goes on up to a whole line, which holds what no result may have in it: a unit
 * that begins anywhere is cut out of all lines that it touches. */
static int64_t whole_lines(const cup_context *c, int64_t span, int64_t size)
{
    return c->device->is_cuda ? (span * size + LINE - 1) / LINE * LINE / size : span;
}

static cup_tensor *make(const cup__drawn *d, int i, cup_context *c, cup_dtype hold)
{
    const cup__drawn_input *in = &d->in[i];
    cup__drawn_input lie = *in;
    cup__domain domain = d->row->op->domain[cup__input_slot(d->row->op, i)];
    if (domain.low == 0 && domain.high == 0)
        domain = (cup__domain){-2, 2};
    bool wide = hold == CUP_F64 && in->shape.dtype != CUP_F64 && !d->row->op->rounds &&
                cup__dtype_is_float(in->shape.dtype);
    if (wide) {
        lie.shape.dtype = CUP_F64;
        cup__drawn_lay_plain(&lie);
    }
    int64_t span = lie.offset + 1, count;
    if (cup__shape_check(&c->error, &lie.shape, &count) != CUP_OK)
        return NULL;
    for (int k = 0; count && k < lie.shape.ndim; k++)
        span += (lie.shape.size[k] - 1) * lie.stride[k];
    span = whole_lines(c, span, cup_dtype_size(lie.shape.dtype));
    cup__shape flat = {.dtype = lie.shape.dtype, .ndim = 1, .size = {span}};
    size_t bytes = (size_t)(span * cup_dtype_size(flat.dtype));
    cup_tensor *base = cup__tensor_make(c, &flat, "drawn"), *view = NULL;
    if (base && cup__device_is_dry(c->device)) {
        view = cup__tensor_view(base, &lie.shape, lie.stride, lie.offset);
        cup_tensor_free(base);
        return view;
    }
    values v = {d, in, domain, (d->seed + (uint64_t)i * 7919) << 8, axis_of(d), NULL, {0}, 0};
    v.round.dtype = in->shape.dtype;
    void *memory = cup__malloc(bytes);
    if (!memory || (in->places == CUP__PLACES_ASCENDING && !sort_places(&v, count))) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a drawn call");
    } else if (base) {
        memset(memory, 0xff, bytes);
        const writing all = {.values = &v, .to = {.data = memory, .dtype = flat.dtype},
                             .stride = lie.stride, .offset = lie.offset};
        write_all(&all, count);
        if (cup_tensor_write(base, memory, bytes) == CUP_OK)
            view = cup__tensor_view(base, &lie.shape, lie.stride, lie.offset);
    }
    cup_tensor_free(base);
    cup__free(v.sorted);
    cup__free(memory);
    return view;
}

int cup__drawn_inputs(const cup__drawn *d, cup_context *c, cup_dtype hold, cup_tensor **in,
                      int most)
{
    if (d->count > most) {
        cup__fail(&c->error, CUP_INTERNAL, "%s: a drawn call has over %d inputs", d->row->name,
                  most);
        return -1;
    }
    for (int i = 0; i < d->count; i++) {
        in[i] = d->in[i].given ? make(d, i, c, hold) : NULL;
        if (d->in[i].given && !in[i])
            return -1;
    }
    return d->count;
}
