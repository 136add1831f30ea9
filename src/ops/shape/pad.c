#include "ops/shape/pad.h"

#include "dispatch/attributes.h"
#include "ops/index/gather.h"

static cup_status infer(cup__call *call)
{
    const cup__pad_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0];
    cup__shape *shape = &call->result[0];
    if (a->before_count != x->ndim || a->after_count != x->ndim)
        return cup__call_fail(call, CUP_SHAPE,
                              "%d numbers before and %d after for %d dimensions; give one of each "
                              "for each dimension",
                              a->before_count, a->after_count, x->ndim);
    *shape = cup__shape_of(x);
    for (int d = 0; d < x->ndim; d++) {
        if (a->before[d] < 0 || a->after[d] < 0)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "%lld before and %lld after dimension %d; they cannot be "
                                  "negative, cup_slice takes elements away",
                                  (long long)a->before[d], (long long)a->after[d], d);
        if (__builtin_add_overflow(shape->size[d], a->before[d], &shape->size[d]) ||
            __builtin_add_overflow(shape->size[d], a->after[d], &shape->size[d]))
            return cup__call_fail(call, CUP_SHAPE, "dimension %d becomes too large", d);
    }
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup__pad_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0], *y = call->out[0];
    for (int64_t i = 0; i < y->count; i++) {
        int64_t rest = i, offset = 0;
        bool inside = true;
        for (int d = y->ndim; d-- > 0; rest /= y->shape[d]) {
            int64_t place = rest % y->shape[d] - a->before[d];
            inside = inside && place >= 0 && place < x->shape[d];
            offset += place * x->stride[d];
        }
        if (inside)
            cup__move_element(call->out[0], i, x, offset);
        else
            cup__store(call->out[0], i, a->value);
    }
    return CUP_OK;
}

static cup__placing placing_of(const cup__call *call)
{
    const cup__pad_attributes *a = call->attributes;
    cup__placing p = cup__placing_of(call->out[0], call->in[0], a->before, false);
    cup_tensor one = {.data = &p.value, .dtype = call->in[0]->dtype};
    cup__store(&one, 0, a->value);
    return p;
}

static cup_status run(cup__call *call)
{
    cup__placing p = placing_of(call);
    return cup__place_cpu(call, &p);
}

static cup_status run_cuda(cup__call *call)
{
    cup__placing p = placing_of(call);
    return cup__place_cuda(call, &p);
}

static cup_status gradient(cup__grad *g)
{
    const cup__pad_attributes *a = g->attributes;
    g->d_in[0] = cup_slice(g->c, g->d_out[0], a->before, a->before_count, g->in_shape[0].size,
                           g->in_shape[0].ndim);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "words", .place = CUP__CUDA, CUP__THRESHOLDS(2, 4, 8, 16), .run = run_cuda},
    {.name = "rows", .place = CUP__CPU, .run = run},
    {0}};
#define LIST(...) __VA_ARGS__
#define COUNT(...) sizeof((int[]){__VA_ARGS__}) / 4
#define PAD(before, after, value)                                                                  \
    &(const cup__pad_attributes){{LIST before}, COUNT before, {LIST after}, COUNT after, value}
static const cup__sample samples[] = {
    {"7", PAD((2), (3), 0.5)},
    {"3x5", PAD((1, 0), (0, 0), -1)},
    {"3x5", PAD((0, 2), (1, 1), 2)},
    {"2x3x4", PAD((0, 1, 0), (0, 1, 0), 1)},
    {"2x3x17x9", PAD((0, 0, 1, 2), (0, 0, 1, 3), 0)},
    {"2x14x14x64", PAD((0, 1, 1, 0), (0, 1, 1, 0), 0)},
    {"0x3", PAD((2, 0), (1, 0), 3)},
    {"3x0x2", PAD((0, 1, 1), (0, 2, 0), 3)},
    {"5x0", PAD((1, 0), (1, 0), 3)},
    {"65x32", PAD((0, 16), (0, 16), 1)},
    {"33x130", PAD((1, 3), (0, 1), 1)},
    {NULL, NULL}};
static const cup__pad_attributes none = {{0}, 0, {0}, 0, 1};
static const cup__sample bench[] = {
    {"64x64x112x112", PAD((0, 0, 1, 1), (0, 0, 1, 1), 0)},
    {"64x112x112x64", PAD((0, 1, 1, 0), (0, 1, 1, 0), 0)},
    {"()", &none},
    {NULL, NULL}};

const cup__op cup__op_pad = {CUP__MOVER};
