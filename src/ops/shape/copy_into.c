#include "dispatch/attributes.h"
#include "dispatch/loop.h"
#include "ops/index/gather.h"
#include "ops/shape/copy.h"

static cup_status infer(cup__call *call)
{
    cup_tensor *y = call->in[0], *x = call->in[1];
    cup__shape both;
    char text[CUP__SHAPE_TEXT];
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    CUP_TRY(cup__broadcast_shape(call, 0, 2, &both));
    cup__shape shape = cup__shape_of(y);
    both.dtype = y->dtype;
    if (!cup__shape_equal(&both, &shape))
        return cup__call_fail(call, CUP_SHAPE, "y would have to be %s, as x is not repeated less",
                              cup__shape_text(&both, text));
    for (int d = 0; d < y->ndim; d++)
        if (y->stride[d] == 0 && y->shape[d] > 1)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "dimension %d of y repeats one element, which cannot hold "
                                  "several; copy y first",
                                  d);
    if (cup__tensor_overlap(y, x))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "y shares memory with x; give it memory of its own, or copy x");
    return CUP_OK;
}

/* Where the element of x that belongs at index i of y lies. */
static int64_t source_of(const cup_tensor *y, const cup_tensor *x, int64_t i)
{
    int64_t offset = 0;
    for (int d = y->ndim; d-- > 0; i /= y->shape[d]) {
        int at = d - (y->ndim - x->ndim);
        if (at >= 0 && x->shape[at] != 1)
            offset += i % y->shape[d] * x->stride[at];
    }
    return offset;
}

static cup_status specification(cup__call *call)
{
    cup_tensor *y = call->in[0];
    for (int64_t i = 0; i < y->count; i++)
        cup__move_element(y, cup__offset_of(y, i), call->in[1], source_of(y, call->in[1], i));
    return CUP_OK;
}

static cup_status run(cup__call *call)
{
    cup_tensor *y = call->in[0], *x = call->in[1];
    int64_t stride[CUP_MAX_DIMS] = {0};
    cup__shape shape = cup__shape_of(y);
    for (int i = 0; i < x->ndim; i++)
        stride[i + y->ndim - x->ndim] = x->shape[i] == 1 ? 0 : x->stride[i];
    cup_tensor *view = cup__tensor_view(x, &shape, stride, 0);
    if (view)
        cup__copy_to(call->c, y, view);
    cup_tensor_free(view);
    return call->c->error.status;
}

static const cup__impl impls[] = {
    {.name = "copy", .place = CUP__CUDA, CUP__THRESHOLDS(8, 16, 64), .strided = true, .run = run},
    {.name = "copy", .place = CUP__CPU, CUP__THRESHOLDS(16, 64), .strided = true, .run = run},
    {0}};
static const cup__sample samples[] = {
    {"7 7", NULL},         {"3x5 5", NULL},       {"2x3x4 3x1", NULL}, {"3x5 ()", NULL},
    {"() ()", NULL},       {"0x5 5", NULL},       {"65x33 1x33", NULL}, {"3x70x130 70x130", NULL},
    {"200x300 200x1", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {
    {"67108864 67108864", NULL}, {"8192x8192 8192", NULL}, {NULL, NULL}};

const cup__op cup__op_copy_into = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .in_place = 1,
    .samples = samples,
    .bench = bench,
};
