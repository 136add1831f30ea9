#include <string.h>

#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/index/gather.h"
#include "ops/shape/diagonal.h"

enum { LOWER, UPPER };

_Static_assert(sizeof(cup__tril_attributes) == sizeof(cup__triu_attributes) &&
                   sizeof(cup__tril_attributes) == sizeof(int64_t),
               "one struct speaks for both");

/* A diagonal beyond the matrix, which is where the nearest one outside of it is. */
static int64_t diagonal_of(const cup__call *call)
{
    const cup__tril_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0];
    int64_t least = -x->shape[x->ndim - 2] - 1, most = x->shape[x->ndim - 1] + 1;
    return a->diagonal < least ? least : a->diagonal > most ? most : a->diagonal;
}

static cup_status infer(cup__call *call)
{
    CUP_TRY(cup__need_ndim(call, 0, 2, CUP_MAX_DIMS));
    call->result[0] = cup__shape_of(call->in[0]);
    return CUP_OK;
}

static bool keeps(const cup__call *call, int64_t row, int64_t column)
{
    int64_t diagonal = diagonal_of(call);
    return call->op->kind == UPPER ? column >= row + diagonal : column <= row + diagonal;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *in = call->in[0];
    int64_t rows = in->shape[in->ndim - 2], columns = in->shape[in->ndim - 1];
    for (int64_t i = 0; i < in->count; i++) {
        if (keeps(call, i / columns % rows, i % columns))
            cup__move_element(call->out[0], i, in, cup__offset_of(in, i));
        else
            cup__store(call->out[0], i, 0);
    }
    return CUP_OK;
}

static void run_rows(int64_t begin, int64_t end, void *user)
{
    const cup__call *call = user;
    const cup_tensor *in = call->in[0];
    int64_t rows = in->shape[in->ndim - 2], columns = in->shape[in->ndim - 1];
    int64_t size = cup_dtype_size(in->dtype), diagonal = diagonal_of(call);
    for (int64_t line = begin; line < end; line++) {
        const char *x = (const char *)in->data + line * columns * size;
        char *y = (char *)call->out[0]->data + line * columns * size;
        int64_t cut = line % rows + diagonal + (call->op->kind == LOWER);
        cut = cut < 0 ? 0 : cut > columns ? columns : cut;
        size_t left = (size_t)(cut * size), right = (size_t)((columns - cut) * size);
        if (call->op->kind == LOWER) {
            memcpy(y, x, left);
            memset(y + left, 0, right);
        } else {
            memset(y, 0, left);
            memcpy(y + left, x + left, right);
        }
    }
}

static cup_status run(cup__call *call)
{
    const cup_tensor *in = call->in[0];
    int64_t columns = in->shape[in->ndim - 1];
    cup__parallel_for(in->count / columns, 65536 / columns + 1, run_rows, call);
    return CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    diagonal_call argument = cup__diagonal_call(call->out[0], call->in[0], diagonal_of(call));
    return cup__diagonal_launch(call, "tril.cu", "triangle_fwd", &argument,
                                call->op->kind == UPPER);
}

static cup_status gradient(cup__grad *g)
{
    const cup__tril_attributes *a = g->attributes;
    g->d_in[0] = g->row->op->kind == UPPER ? cup_triu(g->c, g->d_out[0], a->diagonal)
                                           : cup_tril(g->c, g->d_out[0], a->diagonal);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "words", .place = CUP__CUDA, CUP__THRESHOLDS(4, 8, 16), .run = run_cuda},
    {.name = "rows", .place = CUP__CPU, .run = run},
    {0}};
static const cup__tril_attributes main_one = {0}, above = {2}, below = {-3}, far_above = {1000};
static const cup__sample samples[] = {
    {"3x5", &main_one},     {"5x3", &above},       {"2x3x4", &below},  {"1x1", &main_one},
    {"0x4", &main_one},     {"4x0", &main_one},    {"65x33", &below},  {"2x2x17x24", &above},
    {"130x257", &main_one}, {"3x7x7", &far_above}, {NULL, NULL}};
static const cup__sample bench[] = {{"8192x8192", &main_one}, {NULL, NULL}};

const cup__op cup__op_tril = {.kind = LOWER, CUP__MOVER};
const cup__op cup__op_triu = {.kind = UPPER, CUP__MOVER};
