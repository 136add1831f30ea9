/* Embedding and its gradient on the GPU. */
#include "cuda/cuda.h"
#include "ops/index/embedding_call.cuh"
#include "dispatch/attributes.h"
#include "ops/index/embedding.h"

#define PIECE 32          /* places summed by one block */
#define PIECE_MOST 128
#define LONG_RUN 64       /* places a row, on average, from which pieces are longer */
#define SORT_THREADS 1024 /* as in embedding_sort.cu */
#define SORT_OWN 4096     /* bytes of shared memory that the sort has besides its counters */
#define SORT_HELD 1       /* vectors of a row that a thread of the sort sums at once */
#define SORT_UNROLL 4     /* rows of dy on their way to it */
#define AHEAD 0           /* bytes of dy that come into the L2 cache during the sort */
#define CLEAR 1           /* rows without places during the sort */
#define CHUNK_THREADS 256
#define CHUNK_HELD 3      /* the same for the sums of chunks */
#define CHUNK_UNROLL 2
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
    int64_t blocks = (count + block - 1) / block;
    cup__grid grid = {.x = blocks,
                      .threads = 256,
                      .dependent = blocks <= cup__cuda_facts(gpu)->multiprocessors};
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
    return size[1] > (int64_t)MOST_SPANS * 32 * CHUNK_HELD ? "its rows are too wide" : NULL;
}

/* What the kernels of one call share. */
typedef struct backward {
    cup__call *call;
    cup__cuda *gpu;
    int piece; /* places of a piece */
    int vector, group;
    embedding_call argument;
} backward;

static cup_tensor *scratch(backward *b, cup_dtype dtype, int64_t count)
{
    cup__shape shape = {dtype, 1, {count}};
    return cup__tensor_make(b->call->c, &shape, "embedding_grad");
}

/* A group of lanes for a row; what it cannot hold at once is further spans. */
static int spans_of(const backward *b, int most, int *held)
{
    int64_t all = (b->argument.width + (int64_t)b->group - 1) / b->group;
    int spans = (int)((all + most - 1) / most);
    *held = (int)((all + spans - 1) / spans);
    return spans;
}

/* Each multiprocessor one block, if its counters, one for each warp and row, have room. */
static cup_status sort(backward *b)
{
    const cup__gpu_facts *facts = cup__cuda_facts(b->gpu);
    const cup_tensor *dy = b->call->in[0];
    embedding_call *a = &b->argument;
    const int64_t each = (SORT_THREADS / 32 + 1) * 4;
    int64_t shared = facts->shared_per_block - SORT_OWN, share = shared / each;
    int64_t even = a->rows / facts->multiprocessors + 1;
    share = share < even ? share : even;
    share = share < SORT_THREADS ? share : SORT_THREADS;
    int64_t room = (shared - share * each) / 4, blocks = (a->rows + share - 1) / share;
    int held;
    bool clear = CLEAR && facts->major >= 9 && a->row_bytes % 16 == 0 &&
                 (uintptr_t)a->table % 16 == 0;
    bool ahead = AHEAD && facts->major >= 9 && (uintptr_t)dy->data % 16 == 0;
    int64_t bytes = dy->count * cup_dtype_size(dy->dtype);
    a->room = (int)(room < a->count ? room : a->count);
    a->segment = (a->count + SORT_THREADS - 1) / SORT_THREADS * 32;
    a->blocks = divisor_of(blocks);
    a->ahead = (bytes < AHEAD ? bytes : AHEAD) / EMBEDDING_AHEAD;
    a->spans = spans_of(b, SORT_HELD, &held);
    cup__knob knobs[] = {{"CUP_T", dy->dtype},    {"CUP_ID", b->call->in[1]->dtype},
                         {"VEC", b->vector},      {"GROUP", b->group},
                         {"PIECES", held},        {"PIECE", b->piece},
                         {"UNROLL", SORT_UNROLL}, {"CLEAR", clear},
                         {"AHEAD", ahead}};
    cup__kernel *kernel = cup__kernel_get(b->gpu, "embedding_sort.cu", "embedding_sort", knobs, 9);
    cup__grid grid = {.x = blocks,
                      .threads = SORT_THREADS,
                      .shared = (int)(share * each + a->room * 4) + 4};
    return cup__launch(b->gpu, kernel, grid, CUP__ARG(*a));
}

static cup_status add_chunks(backward *b)
{
    int held, most = 4 * cup__cuda_facts(b->gpu)->multiprocessors;
    embedding_call *a = &b->argument;
    a->spans = spans_of(b, CHUNK_HELD, &held);
    cup__knob knobs[] = {{"CUP_T", b->call->in[0]->dtype}, {"VEC", b->vector},
                         {"GROUP", b->group},              {"PIECES", held},
                         {"PIECE", b->piece},              {"UNROLL", CHUNK_UNROLL}};
    cup__kernel *kernel =
        cup__kernel_get(b->gpu, "embedding_grad.cu", "embedding_chunks", knobs, 6);
    cup__grid grid = {.x = a->piece_count < most ? a->piece_count : most,
                      .y = a->spans,
                      .threads = CHUNK_THREADS,
                      .dependent = true};
    return cup__launch(b->gpu, kernel, grid, CUP__ARG(*a));
}

/* Pieces are long where runs are, so that fewer parts are written. */
static void plan(backward *b)
{
    const cup_tensor *dy = b->call->in[0], *ids = b->call->in[1], *out = b->call->out[0];
    int ignored;
    b->vector = vector_of(dy, out, out->shape[1]);
    b->argument = (embedding_call){.dy = dy->data,
                                   .ids = ids->data,
                                   .table = out->data,
                                   .count = ids->count,
                                   .row_bytes = out->shape[1] * cup_dtype_size(out->dtype),
                                   .rows = (int)out->shape[0],
                                   .width = (int)(out->shape[1] / b->vector)};
    b->group = 4;
    while (b->group < 32 && b->group < b->argument.width)
        b->group *= 2;
    b->piece = ids->count / out->shape[0] < LONG_RUN ? PIECE : PIECE_MOST;
    b->argument.piece_count = (int)((ids->count + b->piece - 1) / b->piece);
    b->argument.arrivals =
        2 * (int64_t)b->argument.piece_count * spans_of(b, CHUNK_HELD, &ignored);
}

cup_status cup__embedding_grad_cuda(cup__call *call)
{
    cup_tensor *out = call->out[0];
    const cup_tensor *dy = call->in[0];
    backward b = {.call = call, .gpu = cup__cuda_of(call->c->device)};
    embedding_call *a = &b.argument;
    if (call->in[1]->count == 0)
        return call->c->device->calls->fill(call->c->device, out->data, 0,
                                            (size_t)(out->count * cup_dtype_size(out->dtype)));
    plan(&b);
    cup_tensor *used[] = {
        scratch(&b, CUP_I32, a->count), scratch(&b, CUP_I32, a->rows + (int64_t)1),
        scratch(&b, CUP_I32, a->piece_count), scratch(&b, CUP_I32, a->arrivals),
        scratch(&b, dy->dtype == CUP_F64 ? CUP_F64 : CUP_F32, a->piece_count * out->shape[1])};
    cup_status status = call->c->error.status;
    if (status == CUP_OK) {
        a->places = used[0]->data;
        a->start = used[1]->data;
        a->pieces = used[2]->data;
        a->arrived = used[3]->data;
        a->parts = used[4]->data;
        status = sort(&b);
    }
    if (status == CUP_OK)
        status = add_chunks(&b);
    for (int i = 0; i < 5; i++)
        cup_tensor_free(used[i]);
    return status;
}
