#include <string.h>

#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/shape/copy.h"
#include "dispatch/loop.h"

static cup_status infer(cup__call *call)
{
    call->result[0] = cup__shape_of(call->in[0]);
    return CUP_OK;
}

typedef struct job {
    cup__loop loop;
    const char *from;
    char *to;
    int64_t size;
} job;

/* Moves `count` elements of 1, 2, 4 or 8 bytes between strided places. */
static void move(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t count,
                 int64_t size)
{
#define MOVE(type)                                                                                 \
    for (int64_t i = 0; i < count; i++)                                                            \
        *(type *)(void *)(to + i * to_step) = *(const type *)(const void *)(from + i * from_step)
    if (to_step == size && from_step == size)
        memcpy(to, from, (size_t)(count * size));
    else if (size == 4)
        MOVE(uint32_t);
    else if (size == 2)
        MOVE(uint16_t);
    else if (size == 8)
        MOVE(uint64_t);
    else
        MOVE(uint8_t);
#undef MOVE
}

static void copy_rows(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    int last = j->loop.ndim - 1;
    for (int64_t row = begin; row < end; row++)
        move(j->to + cup__loop_offset(&j->loop, 0, row) * j->size,
             j->loop.stride[0][last] * j->size,
             j->from + cup__loop_offset(&j->loop, 1, row) * j->size,
             j->loop.stride[1][last] * j->size, j->loop.size[last], j->size);
}

static cup_status run(cup__call *call)
{
    job j = {.from = call->in[0]->data,
             .to = call->out[0]->data,
             .size = cup_dtype_size(call->in[0]->dtype)};
    cup__loop_make(&j.loop, call->out[0], call->in, 1);
    int64_t inner = j.loop.size[j.loop.ndim - 1];
    cup__parallel_for(call->out[0]->count / inner, 65536 / (inner + 1) + 1, copy_rows, &j);
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    int64_t size = cup_dtype_size(call->in[0]->dtype);
    for (int64_t i = 0; i < call->in[0]->count; i++)
        memcpy((char *)call->out[0]->data + cup__offset_of(call->out[0], i) * size,
               (const char *)call->in[0]->data + cup__offset_of(call->in[0], i) * size,
               (size_t)size);
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = g->d_out[0];
    return CUP_OK;
}

cup_status cup__copy_to(cup_context *c, cup_tensor *to, cup_tensor *from)
{
    if (to && from)
        cup__op_call(c, &cup__rows[CUP__OP_copy], &from, 1, NULL, &to);
    return c->error.status;
}

static const cup__impl impls[] = {
    {.name = "words", .place = CUP__CUDA, CUP__THRESHOLDS(3, 8, 16, 64),
     .strided = true, .run = cup__copy_cuda},
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(16, 64), .strided = true, .run = run},
    {0},
};
static const cup__sample samples[] = {
    {"0x5", NULL}, {"()", NULL}, {"7", NULL}, {"3x5x2", NULL}, {"65x33", NULL},
    {"3x70x130", NULL}, {"200x300", NULL}, {"33x2x17x8", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {{"67108864", NULL}, {"8192x8192", NULL}, {NULL, NULL}};

const cup__op cup__op_copy = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .impls = impls,
    .strided_out = true,
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX | CUP__DTYPE(U8) | CUP__DTYPE(BOOL)},
    .samples = samples,
    .bench = bench,
};
