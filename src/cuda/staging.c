#include "cuda/staging.h"

#include <string.h>

#include "base/parallel.h"
#include "cuda/gpu.h"

#define PIECE ((size_t)4 << 20)
#define PIECES CUP__STAGING_PIECES
#define ALIGN 256

static CUdeviceptr address_of(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

/* Gets the pinned memory at the first copy. A system that grants none is served without. */
static cup_status prepare(cup__cuda *gpu)
{
    cup__staging *s = &gpu->staging;
    if (s->tried)
        return CUP_OK;
    void *memory;
    for (int i = 0; i < PIECES; i++)
        if (!s->done[i])
            CUP_TRY(cup__cuda_check(
                gpu, cup__driver.cuEventCreate(&s->done[i], CU_EVENT_DISABLE_TIMING),
                "making an event"));
    s->tried = true;
    if (cup__driver.cuMemHostAlloc(&memory, PIECES * PIECE, 0) == CUDA_SUCCESS)
        s->memory = memory;
    return CUP_OK;
}

void cup__staging_close(cup__cuda *gpu, bool driver)
{
    cup__staging *s = &gpu->staging;
    for (int i = 0; driver && i < PIECES; i++)
        if (s->done[i])
            cup__driver.cuEventDestroy(s->done[i]);
    if (driver && s->memory)
        cup__driver.cuMemFreeHost(s->memory);
    *s = (cup__staging){0};
}

static cup_status wait_for(cup__cuda *gpu, int piece)
{
    cup__staging *s = &gpu->staging;
    if (!s->pending[piece])
        return CUP_OK;
    CUP_TRY(cup__cuda_check(gpu, cup__driver.cuEventSynchronize(s->done[piece]),
                            "waiting for a copy"));
    s->pending[piece] = false;
    return CUP_OK;
}

/* Closes the current piece: its event follows the copies out of it. The next one is then free
 * for use once its own event has come. */
static cup_status next_piece(cup__cuda *gpu)
{
    cup__staging *s = &gpu->staging;
    if (s->used) {
        CUP_TRY(cup__cuda_check(gpu, cup__driver.cuEventRecord(s->done[s->piece], gpu->stream),
                                "recording an event"));
        s->pending[s->piece] = true;
    }
    s->piece = (s->piece + 1) % PIECES;
    s->used = 0;
    return wait_for(gpu, s->piece);
}

typedef struct move {
    char *to;
    const char *from;
} move;

static void move_part(int64_t begin, int64_t end, void *user)
{
    const move *m = user;
    memcpy(m->to + begin, m->from + begin, (size_t)(end - begin));
}

/* One core copies slower than the bus takes it. */
static void move_bytes(void *to, const void *from, size_t bytes)
{
    move m = {to, from};
    cup__parallel_for((int64_t)bytes, 1 << 20, move_part, &m);
}

/* The part of a copy that fits the current piece; the place must be aligned for the engine. */
static cup_status write_part(cup__cuda *gpu, CUdeviceptr to, const char *host, size_t bytes,
                             size_t *taken)
{
    cup__staging *s = &gpu->staging;
    if (s->used == PIECE || (bytes <= PIECE && bytes > PIECE - s->used))
        CUP_TRY(next_piece(gpu));
    *taken = bytes < PIECE - s->used ? bytes : PIECE - s->used;
    char *place = s->memory + (size_t)s->piece * PIECE + s->used;
    move_bytes(place, host, *taken);
    s->used += (*taken + ALIGN - 1) / ALIGN * ALIGN;
    return cup__cuda_check(gpu,
                           cup__driver.cuMemcpyHtoDAsync(to, place, *taken, gpu->stream),
                           "copying to the GPU");
}

cup_status cup__staging_write(cup__device *device, void *to, const void *host, size_t bytes)
{
    cup__cuda *gpu = cup__cuda_of(device);
    if (!bytes)
        return CUP_OK;
    CUP_TRY(cup__cuda_enter(gpu));
    if (gpu->capturing)
        return cup__graph_write(gpu, to, host, bytes);
    CUP_TRY(prepare(gpu));
    if (!gpu->staging.memory) {
        CUP_TRY(cup__cuda_check(
            gpu, cup__driver.cuMemcpyHtoDAsync(address_of(to), host, bytes, gpu->stream),
            "copying to the GPU"));
        return cup__cuda_check(gpu, cup__driver.cuStreamSynchronize(gpu->stream),
                               "copying to the GPU");
    }
    const char *from = host;
    CUdeviceptr address = address_of(to);
    for (size_t taken; bytes; bytes -= taken, from += taken, address += taken)
        CUP_TRY(write_part(gpu, address, from, bytes, &taken));
    return CUP_OK;
}

/* Sends for the pieces [*sent, until) of a read; piece i lies in place i % PIECES. */
static cup_status send_for(cup__cuda *gpu, CUdeviceptr from, size_t bytes, size_t *sent,
                           size_t until)
{
    cup__staging *s = &gpu->staging;
    for (; *sent < until; ++*sent) {
        size_t begin = *sent * PIECE, count = bytes - begin < PIECE ? bytes - begin : PIECE;
        int place = (int)(*sent % PIECES);
        CUP_TRY(cup__cuda_check(gpu,
                                cup__driver.cuMemcpyDtoHAsync(s->memory + (size_t)place * PIECE,
                                                              from + begin, count, gpu->stream),
                                "copying from the GPU"));
        CUP_TRY(cup__cuda_check(gpu, cup__driver.cuEventRecord(s->done[place], gpu->stream),
                                "recording an event"));
        s->pending[place] = true;
    }
    return CUP_OK;
}

static cup_status read_pieces(cup__cuda *gpu, char *host, CUdeviceptr from, size_t bytes)
{
    cup__staging *s = &gpu->staging;
    size_t pieces = (bytes + PIECE - 1) / PIECE, sent = 0;
    for (size_t i = 0; i < pieces; i++) {
        CUP_TRY(send_for(gpu, from, bytes, &sent, i + PIECES < pieces ? i + PIECES : pieces));
        size_t begin = i * PIECE, count = bytes - begin < PIECE ? bytes - begin : PIECE;
        CUP_TRY(wait_for(gpu, (int)(i % PIECES)));
        move_bytes(host + begin, s->memory + i % PIECES * PIECE, count);
    }
    return CUP_OK;
}

cup_status cup__staging_read(cup__device *device, void *host, const void *from, size_t bytes)
{
    cup__cuda *gpu = cup__cuda_of(device);
    cup__staging *s = &gpu->staging;
    if (!bytes)
        return CUP_OK;
    CUP_TRY(cup__cuda_enter(gpu));
    if (gpu->capturing)
        return cup__fail(device->error, CUP_STATE,
                         "reading the GPU's memory cannot be captured in a graph; read outside "
                         "of it");
    CUP_TRY(prepare(gpu));
    if (!s->memory) {
        CUP_TRY(cup__cuda_check(
            gpu, cup__driver.cuMemcpyDtoHAsync(host, address_of(from), bytes, gpu->stream),
            "copying from the GPU"));
        return cup__cuda_check(gpu, cup__driver.cuStreamSynchronize(gpu->stream),
                               "copying from the GPU");
    }
    /* The copies are queued behind those out of the ring, which may thus be overwritten. */
    s->used = 0;
    s->piece = 0;
    CUP_TRY(read_pieces(gpu, host, address_of(from), bytes));
    return CUP_OK;
}
