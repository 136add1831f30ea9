/* x with what stands around it made of x itself. Written as copies of views: x into the middle,
 * then one dimension after the other, whose edges repeat what is there of y already. */
#include "dispatch/attributes.h"
#include "ops/index/gather.h"
#include "ops/shape/copy.h"

enum { REFLECT, REPLICATE, CIRCULAR };

typedef cup__pad_reflect_attributes edges;
_Static_assert(sizeof(edges) == sizeof(cup__pad_replicate_attributes) &&
                   sizeof(edges) == sizeof(cup__pad_circular_attributes),
               "one struct speaks for the three");

static cup_status check_edge(cup__call *call, int d, int64_t before, int64_t after, int64_t *size)
{
    int64_t n = *size, least = before > after ? before : after;
    if (before < 0 || after < 0)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "%lld before and %lld after dimension %d; they cannot be negative, "
                              "cup_slice takes elements away",
                              (long long)before, (long long)after, d);
    bool fits = call->op->kind == REPLICATE ? n > 0 || !least
                : call->op->kind == REFLECT ? least < n || !least
                                            : least <= n;
    if (!fits)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "%lld before and %lld after dimension %d are more than its %lld "
                              "elements give; pad by fewer, or twice",
                              (long long)before, (long long)after, d, (long long)n);
    if (__builtin_add_overflow(n, before, size) || __builtin_add_overflow(*size, after, size))
        return cup__call_fail(call, CUP_SHAPE, "dimension %d becomes too large", d);
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    const edges *a = call->attributes;
    const cup_tensor *x = call->in[0];
    if (a->before_count != x->ndim || a->after_count != x->ndim)
        return cup__call_fail(call, CUP_SHAPE,
                              "%d numbers before and %d after for %d dimensions; give one of each "
                              "for each dimension",
                              a->before_count, a->after_count, x->ndim);
    call->result[0] = cup__shape_of(x);
    for (int d = 0; d < x->ndim; d++)
        CUP_TRY(check_edge(call, d, a->before[d], a->after[d], &call->result[0].size[d]));
    return CUP_OK;
}

/* The element of x, of n in a line, that stands `place` behind its first one. */
static int64_t source_of(int kind, int64_t place, int64_t n)
{
    if (place >= 0 && place < n)
        return place;
    if (kind == REPLICATE)
        return place < 0 ? 0 : n - 1;
    if (kind == REFLECT)
        return place < 0 ? -place : 2 * (n - 1) - place;
    return place < 0 ? place + n : place - n;
}

static cup_status specification(cup__call *call)
{
    const edges *a = call->attributes;
    const cup_tensor *x = call->in[0], *y = call->out[0];
    for (int64_t i = 0; i < y->count; i++) {
        int64_t rest = i, offset = 0;
        for (int d = y->ndim; d-- > 0; rest /= y->shape[d])
            offset += source_of(call->op->kind, rest % y->shape[d] - a->before[d], x->shape[d]) *
                      x->stride[d];
        cup__move_element(call->out[0], i, x, offset);
    }
    return CUP_OK;
}

/* Copies one region of y to another, of the same shape. */
static cup_status copy_region(cup__call *call, const cup__shape *shape, int64_t to, int64_t from,
                              const int64_t *from_stride)
{
    cup_tensor *y = call->out[0];
    cup_tensor *target = cup__tensor_view(y, shape, y->stride, to);
    cup_tensor *source = target ? cup__tensor_view(y, shape, from_stride, from) : NULL;
    cup__copy_to(call->c, target, source);
    cup_tensor_free(source);
    cup_tensor_free(target);
    return call->c->error.status;
}

/* Fills `count` places from `begin` on along d out of what begins at `source` and goes on by `step`
 * places; `shape` and `offset` are of what is there already. */
static cup_status fill_edge(cup__call *call, int d, const cup__shape *shape, int64_t offset,
                            int64_t begin, int64_t count, int64_t source, int step)
{
    const cup_tensor *y = call->out[0];
    cup__shape edge = *shape;
    int64_t stride[CUP_MAX_DIMS];
    if (!count)
        return CUP_OK;
    for (int i = 0; i < y->ndim; i++)
        stride[i] = i == d ? step * y->stride[i] : y->stride[i];
    edge.size[d] = count;
    return copy_region(call, &edge, offset + begin * y->stride[d], offset + source * y->stride[d],
                       stride);
}

static cup_status run(cup__call *call)
{
    const edges *a = call->attributes;
    cup_tensor *x = call->in[0], *y = call->out[0];
    cup__shape shape = cup__shape_of(x);
    int64_t offset = 0;
    int kind = call->op->kind, step = kind == REFLECT ? -1 : kind == CIRCULAR;
    for (int d = 0; d < x->ndim; d++)
        offset += a->before[d] * y->stride[d];
    cup_tensor *middle = cup__tensor_view(y, &shape, y->stride, offset);
    cup__copy_to(call->c, middle, x);
    cup_tensor_free(middle);
    for (int d = 0; d < x->ndim && call->c->error.status == CUP_OK; d++) {
        int64_t before = a->before[d], n = x->shape[d];
        offset -= before * y->stride[d];
        CUP_TRY(fill_edge(call, d, &shape, offset, 0, before,
                          before + source_of(kind, -before, n), step));
        CUP_TRY(fill_edge(call, d, &shape, offset, before + n, a->after[d],
                          before + source_of(kind, n, n), step));
        shape.size[d] = y->shape[d];
    }
    return call->c->error.status;
}

/* The gradient of an edge of `count` places from `begin` on is that of `to` and what follows. */
static cup_tensor *add_edge(cup__grad *g, cup_tensor *sum, cup_tensor *whole, int d, int64_t begin,
                            int64_t count, int64_t to)
{
    cup_context *c = g->c;
    int kind = g->row->op->kind;
    if (!count || !sum || !whole)
        return sum;
    int64_t first[CUP_MAX_DIMS] = {0}, axis = d;
    cup__shape edge = cup__shape_of(whole);
    first[d] = begin;
    edge.size[d] = count;
    cup_tensor *part = cup_slice(c, whole, first, whole->ndim, edge.size, whole->ndim);
    if (kind == REFLECT)
        part = cup_flip(c, part, &axis, 1);
    else if (kind == REPLICATE)
        part = cup_sum(c, part, &axis, 1, true);
    if (!part)
        return NULL;
    cup__pad_attributes around = {.before_count = whole->ndim, .after_count = whole->ndim};
    around.before[d] = to;
    around.after[d] = sum->shape[d] - to - part->shape[d];
    part = cup__op_call(c, &cup__rows[CUP__OP_pad], &part, 1, &around, NULL);
    return cup_add(c, sum, part);
}

static cup_status gradient(cup__grad *g)
{
    const edges *a = g->attributes;
    cup_tensor *d_x = g->d_out[0];
    int kind = g->row->op->kind;
    for (int d = 0; d < g->in_shape[0].ndim && d_x; d++) {
        int64_t before = a->before[d], after = a->after[d], n = g->in_shape[0].size[d];
        int64_t first[CUP_MAX_DIMS] = {0};
        cup_tensor *whole = d_x;
        cup__shape shape = cup__shape_of(whole);
        if (!before && !after)
            continue;
        first[d] = before;
        shape.size[d] = n;
        d_x = cup_slice(g->c, whole, first, whole->ndim, shape.size, whole->ndim);
        d_x = add_edge(g, d_x, whole, d, 0, before,
                       kind == REFLECT    ? 1
                       : kind == CIRCULAR ? n - before
                                          : 0);
        d_x = add_edge(g, d_x, whole, d, before + n, after,
                       kind == REFLECT    ? n - 1 - after
                       : kind == CIRCULAR ? 0
                                          : n - 1);
    }
    g->d_in[0] = d_x;
    return g->c->error.status;
}

static const cup__impl impls[] = {
    {.name = "copies", .place = CUP__CUDA, CUP__THRESHOLDS(8, 16, 64), .strided = true,
     .run = run},
    {.name = "copies", .place = CUP__CPU, CUP__THRESHOLDS(16, 64), .strided = true, .run = run},
    {0}};
#define LIST(...) __VA_ARGS__
#define COUNT(...) sizeof((int[]){__VA_ARGS__}) / 4
#define PAD(before, after) &(const edges){{LIST before}, COUNT before, {LIST after}, COUNT after}
static const cup__sample samples[] = {
    {"7", PAD((2), (3))},
    {"3x5", PAD((1, 0), (0, 0))},
    {"3x5", PAD((0, 4), (2, 1))},
    {"2x3x4", PAD((0, 1, 0), (0, 2, 3))},
    {"2x3x17x9", PAD((0, 0, 1, 2), (0, 0, 1, 3))},
    {"2x14x14x64", PAD((0, 1, 1, 0), (0, 1, 1, 0))},
    {"4x5x6", PAD((3, 4, 5), (2, 3, 4))},
    {"0x3", PAD((0, 2), (0, 1))},
    {"3x0", PAD((1, 0), (1, 0))},
    {"65x32", PAD((0, 16), (0, 16))},
    {"33x130", PAD((1, 3), (0, 1))},
    {NULL, NULL}};
static const edges none = {{0}, 0, {0}, 0};
static const cup__sample bench[] = {
    {"64x64x112x112", PAD((0, 0, 1, 1), (0, 0, 1, 1))},
    {"64x112x112x64", PAD((0, 1, 1, 0), (0, 1, 1, 0))},
    {"()", &none},
    {NULL, NULL}};

const cup__op cup__op_pad_reflect = {.kind = REFLECT, CUP__MOVER};
const cup__op cup__op_pad_replicate = {.kind = REPLICATE, CUP__MOVER};
const cup__op cup__op_pad_circular = {.kind = CIRCULAR, CUP__MOVER};
