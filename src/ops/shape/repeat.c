#include "base/memory.h"
#include "dispatch/attributes.h"
#include "ops/index/gather.h"
#include "ops/shape/pad.h"

static cup_status infer(cup__call *call)
{
    const cup__repeat_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0];
    cup__shape *shape = &call->result[0];
    if (a->times_count < x->ndim)
        return cup__call_fail(call, CUP_SHAPE,
                              "%d numbers for %d dimensions; give one for each, and more in front "
                              "for new dimensions",
                              a->times_count, x->ndim);
    shape->dtype = x->dtype;
    shape->ndim = a->times_count;
    for (int d = 0; d < shape->ndim; d++) {
        int at = d - (shape->ndim - x->ndim);
        if (a->times[d] < 0)
            return cup__call_fail(call, CUP_ARGUMENT, "dimension %d cannot be there %lld times", d,
                                  (long long)a->times[d]);
        if (!cup__multiply_i64(at < 0 ? 1 : x->shape[at], a->times[d], &shape->size[d]))
            return cup__call_fail(call, CUP_SHAPE, "dimension %d becomes too large", d);
    }
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *x = call->in[0], *y = call->out[0];
    for (int64_t i = 0; i < y->count; i++) {
        int64_t rest = i, offset = 0;
        for (int d = y->ndim; d-- > 0; rest /= y->shape[d]) {
            int at = d - (y->ndim - x->ndim);
            if (at >= 0)
                offset += rest % y->shape[d] % x->shape[at] * x->stride[at];
        }
        cup__move_element(call->out[0], i, x, offset);
    }
    return CUP_OK;
}

static cup_status run(cup__call *call)
{
    cup__placing p = cup__placing_of(call->out[0], call->in[0], NULL, true);
    return cup__place_cpu(call, &p);
}

static cup_status run_cuda(cup__call *call)
{
    cup__placing p = cup__placing_of(call->out[0], call->in[0], NULL, true);
    return cup__place_cuda(call, &p);
}

/* Sums over the repetitions of one dimension after another. */
static cup_status gradient(cup__grad *g)
{
    const cup__repeat_attributes *a = g->attributes;
    const cup__shape *x = &g->in_shape[0];
    cup_tensor *d = g->d_out[0];
    int64_t outer = 1;
    for (int i = 0; i < a->times_count; i++) {
        int at = i - (a->times_count - x->ndim);
        int64_t inner = 1, size = at < 0 ? 1 : x->size[at];
        for (int k = i; k < a->times_count; k++)
            inner *= k == i ? size : g->out_shape[0].size[k];
        if (a->times[i] != 1) {
            const int64_t split[] = {outer, a->times[i], inner}, axis = 1;
            d = cup_sum(g->c, cup_reshape(g->c, d, 3, split), &axis, 1, false);
        }
        outer *= size;
    }
    g->d_in[0] = cup_reshape(g->c, d, x->ndim, x->size);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "words", .place = CUP__CUDA, CUP__THRESHOLDS(2, 4, 8, 16), .run = run_cuda},
    {.name = "rows", .place = CUP__CPU, .run = run},
    {0}};
#define TIMES(...)                                                                                 \
    &(const cup__repeat_attributes){{__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4}
static const cup__repeat_attributes none = {{0}, 0};
static const cup__sample samples[] = {
    {"7", TIMES(3)},          {"3x5", TIMES(2, 1)},      {"3x5", TIMES(1, 4)},
    {"3x5", TIMES(2, 3)},     {"2x3x4", TIMES(1, 5, 1)}, {"5", TIMES(2, 3, 1)},
    {"()", TIMES(9)},         {"()", &none},             {"3x2", TIMES(0, 2)},
    {"0x3", TIMES(2, 2)},     {"65x32", TIMES(1, 3)},    {"2x1x3x1", TIMES(3, 2, 1, 17)},
    {"16x64", TIMES(3, 2, 2)}, {NULL, NULL}};
static const cup__sample bench[] = {
    {"8192x1024", TIMES(1, 8)}, {"1024x8192", TIMES(8, 1)}, {NULL, NULL}};

const cup__op cup__op_repeat = {CUP__MOVER};
