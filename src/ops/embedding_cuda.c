/* Embedding and its gradient on the GPU. */
#include "cuda/cuda.h"
#include "ops/attributes.h"
#include "ops/embedding.h"

#define PIECE 32          /* places summed by one block */
#define PIECE_MOST 128
#define LONG_RUN 64       /* places a row, on average, from which pieces are longer */
#define SORT_THREADS 1024 /* as in embedding_grad.cu */
#define SORT_OWN 4096     /* bytes of shared memory that the sort has besides its counters */
#define SUM_THREADS 256
#define ROWS 4            /* rows of the table that a group sums */
#define UNROLL 2          /* rows of dy on their way to it */
#define BLOCKS 3          /* a multiprocessor */
#define CLEAR 0           /* rows without places while the sort goes on */
#define OVERLAP 1         /* launches begin while the one before ends */
#define MOST_HELD 3       /* vectors of a row that a thread sums at once */
#define MOST_SPANS 65535  /* parts of a row */

/* Elements that one access moves: up to 16 bytes that divide the width and the addresses. */
static int vector_of(const cup_tensor *a, const cup_tensor *b, int64_t width)
{
    int size = (int)cup_dtype_size(a->dtype), vector = 16 / size;
    uintptr_t address = (uintptr_t)a->data | (uintptr_t)b->data;
    while (vector > 1 && (width % vector || address % (uintptr_t)(vector * size)))
        vector /= 2;
    return vector;
}

cup_status cup__embedding_cuda(cup__call *call)
{
    const cup_tensor *table = call->in[0], *ids = call->in[1];
    cup_tensor *y = call->out[0];
    int vector = vector_of(table, y, table->shape[1]);
    int32_t width = (int32_t)(table->shape[1] / vector);
    int64_t count = ids->count * width, block = 256 * 4;
    cup__knob knobs[] = {{"CUP_T", table->dtype}, {"CUP_ID", ids->dtype}, {"VEC", vector}};
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "embedding.cu", "embedding_fwd", knobs, 3);
    cup__grid grid = {.x = (count + block - 1) / block, .threads = 256};
    return cup__launch(gpu, kernel, grid, CUP__ARG(table->data), CUP__ARG(ids->data),
                       CUP__ARG(y->data), CUP__ARG(table->shape[0]), CUP__ARG(count),
                       CUP__ARG(width));
}

const char *cup__embedding_cuda_refuses(const cup__call *call)
{
    return call->in[0]->shape[call->in[0]->ndim - 1] > INT32_MAX ? "its rows are too wide" : NULL;
}

const char *cup__embedding_grad_cuda_refuses(const cup__call *call)
{
    const int64_t *size = call->result[0].size;
    if (call->in[1]->count > INT32_MAX - 2 * PIECE_MOST || size[0] > INT32_MAX - SORT_THREADS)
        return "it counts places and rows in 32 bits";
    return size[1] > (int64_t)MOST_SPANS * 32 * MOST_HELD ? "its rows are too wide" : NULL;
}

/* What the kernels of one call share. */
typedef struct backward {
    cup__call *call;
    cup__cuda *gpu;
    cup_tensor *places, *start, *pieces, *parts, *arrived;
    int64_t count, rows;
    int32_t piece, width; /* places of a piece; vectors of a row */
    int vector, group, each, spans;
    int64_t row_bytes; /* of the table */
    bool clear;        /* the sort clears rows without places */
} backward;

static cup_tensor *scratch(backward *b, cup_dtype dtype, int64_t count)
{
    cup__shape shape = {dtype, 1, {count}};
    return cup__tensor_make(b->call->c, &shape, "embedding_grad");
}

/* Each multiprocessor one block, if its counters, one for each warp and row, have room. */
static cup_status sort(backward *b)
{
    const cup__gpu_facts *facts = cup__cuda_facts(b->gpu);
    const cup_tensor *ids = b->call->in[1];
    const int64_t each = (SORT_THREADS / 32 + 1) * 4;
    int64_t shared = facts->shared_per_block - SORT_OWN, share = shared / each;
    int64_t even = b->rows / facts->multiprocessors + 1;
    share = share < even ? share : even;
    share = share < SORT_THREADS ? share : SORT_THREADS;
    int64_t room = (shared - share * each) / 4;
    room = room < b->count ? room : b->count;
    int32_t rows32 = (int32_t)b->rows, share32 = (int32_t)share, room32 = (int32_t)room;
    int64_t row_bytes = b->row_bytes;
    void *table = b->call->out[0]->data;
    int64_t segment = (b->count + SORT_THREADS - 1) / SORT_THREADS * 32;
    cup__knob knobs[] = {{"CUP_ID", ids->dtype}, {"PIECE", b->piece}, {"CLEAR", b->clear}};
    cup__kernel *kernel = cup__kernel_get(b->gpu, "embedding_sort.cu", "embedding_sort", knobs, 3);
    cup__grid grid = {.x = (b->rows + share - 1) / share,
                      .threads = SORT_THREADS,
                      .shared = (int)(share * each + room * 4) + 4};
    return cup__launch(b->gpu, kernel, grid, CUP__ARG(ids->data), CUP__ARG(b->count),
                       CUP__ARG(segment), CUP__ARG(rows32), CUP__ARG(share32), CUP__ARG(room32),
                       CUP__ARG(b->places->data), CUP__ARG(b->start->data),
                       CUP__ARG(b->pieces->data), CUP__ARG(b->arrived->data),
                       CUP__ARG(b->arrived->count), CUP__ARG(table),
                       CUP__ARG(row_bytes));
}

static cup__kernel *kernel_of(const backward *b, const char *entry)
{
    const cup__knob knobs[] = {{"CUP_T", b->call->in[0]->dtype}, {"VEC", b->vector},
                               {"GROUP", b->group},              {"PIECES", b->each},
                               {"PIECE", b->piece},              {"ROWS", ROWS},
                               {"UNROLL", UNROLL},               {"BLOCKS", BLOCKS},
                               {"DEPENDENT", OVERLAP},           {"CLEARED", b->clear}};
    return cup__kernel_get(b->gpu, "embedding_grad.cu", entry, knobs, 10);
}

static cup_status add_up(backward *b)
{
    const cup_tensor *dy = b->call->in[0];
    int32_t pieces = (int32_t)b->pieces->count, rows = (int32_t)b->rows;
    int64_t block = SUM_THREADS / b->group * ROWS;
    int64_t most = 4 * (int64_t)cup__cuda_facts(b->gpu)->multiprocessors;
    cup__grid by_row = {.x = (b->rows + block - 1) / block,
                        .y = b->spans,
                        .threads = SUM_THREADS,
                        .dependent = OVERLAP};
    cup__grid by_chunk = {.x = pieces < most ? pieces : most,
                          .y = b->spans,
                          .threads = SUM_THREADS,
                          .dependent = OVERLAP};
    CUP_TRY(cup__launch(b->gpu, kernel_of(b, "embedding_chunks"), by_chunk, CUP__ARG(dy->data),
                        CUP__ARG(b->places->data), CUP__ARG(b->start->data),
                        CUP__ARG(b->pieces->data), CUP__ARG(pieces), CUP__ARG(rows),
                        CUP__ARG(b->call->out[0]->data), CUP__ARG(b->parts->data),
                        CUP__ARG(b->arrived->data), CUP__ARG(b->width)));
    return cup__launch(b->gpu, kernel_of(b, "embedding_rows"), by_row, CUP__ARG(dy->data),
                       CUP__ARG(b->places->data), CUP__ARG(b->start->data), CUP__ARG(rows),
                       CUP__ARG(b->call->out[0]->data), CUP__ARG(b->width));
}

/* A group of lanes for a row; what it cannot hold at once is further spans. Pieces are long where
 * runs are, so that fewer parts are written. */
static void plan_sum(backward *b)
{
    const cup_tensor *dy = b->call->in[0], *out = b->call->out[0];
    b->vector = vector_of(dy, out, out->shape[1]);
    b->width = (int32_t)(out->shape[1] / b->vector);
    b->group = 4;
    while (b->group < 32 && b->group < b->width)
        b->group *= 2;
    int64_t held = (b->width + (int64_t)b->group - 1) / b->group;
    b->spans = (int)((held + MOST_HELD - 1) / MOST_HELD);
    b->each = (int)((held + b->spans - 1) / b->spans);
    b->row_bytes = out->shape[1] * cup_dtype_size(out->dtype);
    b->clear = CLEAR && cup__cuda_facts(b->gpu)->major >= 9 && b->row_bytes % 16 == 0 &&
               (uintptr_t)out->data % 16 == 0;
    b->piece = b->count / b->rows < LONG_RUN ? PIECE : PIECE_MOST;
}

cup_status cup__embedding_grad_cuda(cup__call *call)
{
    cup_tensor *out = call->out[0];
    const cup_tensor *dy = call->in[0];
    backward b = {.call = call,
                  .gpu = cup__cuda_of(call->c->device),
                  .count = call->in[1]->count,
                  .rows = out->shape[0]};
    if (b.count == 0)
        return call->c->device->calls->fill(call->c->device, out->data, 0,
                                            (size_t)(out->count * cup_dtype_size(out->dtype)));
    plan_sum(&b);
    int64_t pieces = (b.count + b.piece - 1) / b.piece;
    b.places = scratch(&b, CUP_I32, b.count);
    b.start = scratch(&b, CUP_I32, b.rows + 1);
    b.pieces = scratch(&b, CUP_I32, pieces);
    b.arrived = scratch(&b, CUP_I32, 2 * pieces * b.spans);
    b.parts = scratch(&b, dy->dtype == CUP_F64 ? CUP_F64 : CUP_F32, pieces * out->shape[1]);
    cup_status status = call->c->error.status;
    if (status == CUP_OK)
        status = sort(&b);
    if (status == CUP_OK)
        status = add_up(&b);
    cup_tensor *used[] = {b.places, b.start, b.pieces, b.arrived, b.parts};
    for (int i = 0; i < 5; i++)
        cup_tensor_free(used[i]);
    return status;
}
