/* Embedding and its gradient on the GPU. */
#include "cuda/cuda.h"
#include "ops/attributes.h"
#include "ops/embedding.h"

#define SORTED 4096 /* as in embedding_grad.cu */
#define PIECE 64
#define THREADS 128

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
    if (call->in[1]->count > INT32_MAX || call->result[0].size[0] > INT32_MAX)
        return "it counts places and rows in 32 bits";
    return cup__embedding_cuda_refuses(call);
}

/* What the kernels of one call share. */
typedef struct backward {
    cup__call *call;
    cup__cuda *gpu;
    cup__knob knobs[3];
    cup_tensor *keys, *spare, *first, *last, *parts;
    int64_t count, total, pieces, rows;
    int32_t width;
    int vector;
} backward;

static cup__kernel *kernel_of(backward *b, const char *entry)
{
    return cup__kernel_get(b->gpu, "embedding_grad.cu", entry, b->knobs, 3);
}

static cup_tensor *scratch(backward *b, cup_dtype dtype, int64_t count)
{
    cup__shape shape = {dtype, 1, {count}};
    return cup__tensor_make(b->call->c, &shape, "embedding_grad");
}

static cup_status sort(backward *b)
{
    CUP_TRY(cup__launch(b->gpu, kernel_of(b, "embedding_sort"),
                        ((cup__grid){.x = b->total / SORTED, .threads = 1024}),
                        CUP__ARG(b->call->in[1]->data), CUP__ARG(b->keys->data),
                        CUP__ARG(b->count), CUP__ARG(b->rows)));
    for (int64_t run = SORTED; run < b->total; run *= 2) {
        CUP_TRY(cup__launch(b->gpu, kernel_of(b, "embedding_merge"),
                            ((cup__grid){.x = b->total / 256, .threads = 256}),
                            CUP__ARG(b->keys->data), CUP__ARG(b->spare->data), CUP__ARG(b->total),
                            CUP__ARG(run)));
        cup_tensor *merged = b->spare;
        b->spare = b->keys;
        b->keys = merged;
    }
    return CUP_OK;
}

static cup_status add_up(backward *b)
{
    const cup_tensor *dy = b->call->in[0];
    cup_tensor *out = b->call->out[0];
    int64_t slabs = (b->width + THREADS - 1) / THREADS;
    cup__device *device = b->call->c->device;
    CUP_TRY(device->calls->fill(device, b->first->data, 0xff, (size_t)b->rows * 4));
    CUP_TRY(cup__launch(b->gpu, kernel_of(b, "embedding_marks"),
                        ((cup__grid){.x = (b->count + 255) / 256, .threads = 256}),
                        CUP__ARG(b->keys->data), CUP__ARG(b->count), CUP__ARG(b->first->data),
                        CUP__ARG(b->last->data)));
    CUP_TRY(cup__launch(b->gpu, kernel_of(b, "embedding_pieces"),
                        ((cup__grid){.x = b->pieces, .y = slabs, .threads = THREADS}),
                        CUP__ARG(dy->data), CUP__ARG(b->keys->data), CUP__ARG(b->count),
                        CUP__ARG(out->data), CUP__ARG(b->parts->data), CUP__ARG(b->width)));
    return cup__launch(b->gpu, kernel_of(b, "embedding_finish"),
                       ((cup__grid){.x = b->rows, .y = slabs, .threads = THREADS}),
                       CUP__ARG(b->parts->data), CUP__ARG(b->first->data), CUP__ARG(b->last->data),
                       CUP__ARG(out->data), CUP__ARG(b->width));
}

cup_status cup__embedding_grad_cuda(cup__call *call)
{
    cup_tensor *out = call->out[0];
    const cup_tensor *dy = call->in[0], *ids = call->in[1];
    backward b = {.call = call, .gpu = cup__cuda_of(call->c->device), .count = ids->count};
    b.rows = out->shape[0];
    b.vector = vector_of(dy, out, out->shape[1]);
    b.width = (int32_t)(out->shape[1] / b.vector);
    b.total = (b.count + SORTED - 1) / SORTED * SORTED;
    b.pieces = (b.count + PIECE - 1) / PIECE;
    b.knobs[0] = (cup__knob){"CUP_T", dy->dtype};
    b.knobs[1] = (cup__knob){"CUP_ID", ids->dtype};
    b.knobs[2] = (cup__knob){"VEC", b.vector};
    b.keys = scratch(&b, CUP_I64, b.total);
    b.spare = scratch(&b, CUP_I64, b.total);
    b.first = scratch(&b, CUP_I32, b.rows);
    b.last = scratch(&b, CUP_I32, b.rows);
    b.parts = scratch(&b, dy->dtype == CUP_F64 ? CUP_F64 : CUP_F32,
                      2 * b.pieces * out->shape[1]);
    cup_status status = call->c->error.status;
    if (status == CUP_OK && b.count)
        status = sort(&b);
    if (status == CUP_OK && b.count)
        status = add_up(&b);
    else if (status == CUP_OK)
        status = call->c->device->calls->fill(
            call->c->device, out->data, 0, (size_t)(out->count * cup_dtype_size(out->dtype)));
    cup_tensor *used[] = {b.keys, b.spare, b.first, b.last, b.parts};
    for (int i = 0; i < 5; i++)
        cup_tensor_free(used[i]);
    return status;
}
