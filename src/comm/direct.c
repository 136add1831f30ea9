/* Sums of two GPUs of one host, each of which writes what it has into memory of the other: by copy
 * engines, where NCCL would take multiprocessors from what is computed meanwhile. A process has
 * some slots of memory that the other one fills. Of each slot one flag says that it is full, and
 * another, with who fills it, that it may be filled. All is queued on the stream of NCCL, in one
 * order on both, and has no numbers in it that change from step to step, so that a graph may replay
 * it. */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/direct.h"
#include "cuda/cuda.h"
#include "cuda/kernel.h"
#include "cuda/loader.h"

#define SLOTS 2
#define SLOT_BYTES ((size_t)32 << 20)
#define FLAG_BYTES 128 /* from one to the next */
#define ROOM_BYTES (SLOTS * SLOT_BYTES + (size_t)2 * SLOTS * FLAG_BYTES)
#define ADD_THREADS 512
#define PATIENCE 5.0 /* seconds for the other one to take what it was sent */

struct cup__direct {
    cup_comm *m;
    cup__cuda *gpu;
    CUdeviceptr own, other; /* slots and flags, this process's and the other's */
    uint32_t *given_up;     /* in memory of the host, which the GPU reads */
    int next;               /* slot */
    cup__kernel *wait, *meet, *put;
    cup__rope rope;
};

/* What a process tells the other. */
typedef struct offer {
    CUipcMemHandle handle;
    char host[64];
    uint64_t good;
} offer;

static CUdeviceptr full(CUdeviceptr room, int slot)
{
    return room + SLOTS * SLOT_BYTES + (size_t)slot * FLAG_BYTES;
}

static CUdeviceptr vacant(CUdeviceptr room, int slot)
{
    return full(room, SLOTS + slot);
}

static cup_status check(const cup__direct *d, CUresult result, const char *doing)
{
    const char *text = NULL;
    if (result == CUDA_SUCCESS)
        return CUP_OK;
    cup__driver.cuGetErrorString(result, &text);
    return cup__fail(&d->m->c->error, CUP_DRIVER, "communicator: %s failed: %s", doing,
                     text ? text : "unknown");
}

/* From the watching thread. */
static void pull(void *user)
{
    cup__direct *d = user;
    __atomic_store_n(d->given_up, 1, __ATOMIC_RELEASE);
}

static bool have_memory(cup__direct *d, CUstream stream)
{
    void *flag = NULL;
    if (cup__driver.cuMemAlloc(&d->own, ROOM_BYTES) != CUDA_SUCCESS ||
        cup__driver.cuMemHostAlloc(&flag, sizeof *d->given_up, CU_MEMHOSTALLOC_DEVICEMAP) !=
            CUDA_SUCCESS)
        return false;
    d->given_up = flag;
    *d->given_up = 0;
    return cup__driver.cuMemsetD8Async(full(d->own, 0), 0, SLOTS * FLAG_BYTES, stream) ==
               CUDA_SUCCESS &&
           cup__driver.cuMemsetD8Async(vacant(d->own, 0), 1, SLOTS * FLAG_BYTES, stream) ==
               CUDA_SUCCESS &&
           cup__driver.cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

/* Without a compiler there may be none. */
static bool have_kernels(cup__direct *d)
{
    cup__error *error = &d->m->c->error;
    d->wait = cup__kernel_get(d->gpu, "direct.cu", "direct_wait", NULL, 0);
    d->meet = cup__kernel_get(d->gpu, "direct.cu", "direct_meet", NULL, 0);
    d->put = cup__kernel_get(d->gpu, "direct.cu", "direct_put", NULL, 0);
    if (d->wait && d->meet && d->put)
        return true;
    cup__log(CUP__INFO, "sums of two: %s", error->text);
    cup__error_clear(error);
    return false;
}

static void make_offer(cup__direct *d, CUstream stream, offer *o)
{
    memset(o, 0, sizeof *o);
    gethostname(o->host, sizeof o->host - 1);
    bool known = cup__driver.cuLaunchKernelEx && cup__driver.cuIpcGetMemHandle &&
                 cup__driver.cuIpcOpenMemHandle && cup__driver.cuIpcCloseMemHandle;
    o->good = known && have_kernels(d) && have_memory(d, stream) &&
              cup__driver.cuIpcGetMemHandle(&o->handle, d->own) == CUDA_SUCCESS;
}

static bool accept(cup__direct *d, const offer *own, const offer *other)
{
    return own->good && other->good && !strcmp(own->host, other->host) &&
           cup__driver.cuIpcOpenMemHandle(&d->other, other->handle,
                                          CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS;
}

static cup_status tell(cup_comm *m, offer *own, offer all[2])
{
    CUP_TRY(cup__operation_begin(m, CUP__ALL_GATHER));
    cup_status status =
        cup__host_all_gather(m, (cup__block){own, sizeof *own, CUP_U8}, all);
    cup__operation_end(m);
    return status;
}

/* Both can, or neither does. */
static cup_status join(cup__direct *d, CUstream stream, bool *can)
{
    offer own, all[2];
    CUP_TRY(cup__launch_foreign(d->gpu, "memory of another GPU"));
    make_offer(d, stream, &own);
    CUP_TRY(tell(d->m, &own, all));
    int64_t cannot = !accept(d, &all[d->m->rank], &all[1 - d->m->rank]);
    CUP_TRY(cup_comm_agree(d->m, &cannot, 1));
    *can = !cannot;
    return CUP_OK;
}

static void drop(cup__direct *d)
{
    if (d->other)
        cup__driver.cuIpcCloseMemHandle(d->other);
    if (d->own)
        cup__driver.cuMemFree(d->own);
    if (d->given_up)
        cup__driver.cuMemFreeHost(d->given_up);
    cup__free(d);
}

cup_status cup__direct_open(cup_comm *m, cup__cuda *gpu, CUstream stream, cup__direct **out)
{
    bool can = false;
    *out = NULL;
    if (m->count != 2)
        return CUP_OK;
    cup__direct *d = cup__calloc(1, sizeof *d);
    if (!d)
        return cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for a communicator");
    *d = (cup__direct){.m = m, .gpu = gpu};
    cup_status status = join(d, stream, &can);
    cup__log(CUP__INFO, "sums of two: %s", can ? "by copies to each other" : "by NCCL");
    if (status != CUP_OK || !can) {
        drop(d);
        return status;
    }
    d->rope = (cup__rope){.pull = pull, .user = d};
    cup__rope_add(m->mesh, &d->rope);
    *out = d;
    return CUP_OK;
}

/* The other one may still write that it has taken what it was sent. */
static void let_finish(const cup__direct *d, CUstream stream)
{
    double end = cup__clock() + PATIENCE;
    for (int slot = 0; slot < SLOTS; slot++) {
        uint32_t there = 0;
        while (!there && cup__clock() < end)
            if (cup__driver.cuMemcpyDtoHAsync(&there, vacant(d->own, slot), sizeof there, stream) !=
                    CUDA_SUCCESS ||
                cup__driver.cuStreamSynchronize(stream) != CUDA_SUCCESS)
                return;
    }
}

void cup__direct_give_up(cup__direct *d)
{
    if (d)
        pull(d);
}

void cup__direct_close(cup__direct *d, CUstream stream, bool driver, bool failed)
{
    if (!d)
        return;
    cup__rope_remove(d->m->mesh, &d->rope);
    if (driver && !failed)
        let_finish(d, stream);
    if (driver)
        drop(d);
    else
        cup__free(d);
}

/* Before blocks of what the context computes that have no place yet. */
static cup_status start(const cup__direct *d, const cup__kernel *kernel, unsigned blocks,
                        unsigned threads, CUstream stream, void **arguments)
{
    CUlaunchAttribute first = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = -1};
    const CUlaunchConfig config = {.gridDimX = blocks,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = stream,
                                   .attrs = &first,
                                   .numAttrs = 1};
    return check(d,
                 cup__driver.cuLaunchKernelEx(&config, kernel->function, arguments, NULL),
                 "launching a sum");
}

static cup_status add(const cup__direct *d, CUdeviceptr a, CUdeviceptr b, CUdeviceptr y,
                      int64_t count, cup_dtype dtype, CUstream stream)
{
    const cup__knob knobs[] = {{"CUP_T", dtype}};
    cup__kernel *kernel = cup__kernel_get(d->gpu, "direct.cu", "direct_add", knobs, 1);
    if (!kernel)
        return d->m->c->error.status;
    void *arguments[] = {&a, &b, &y, &count};
    return start(d, kernel, (unsigned)cup__cuda_facts(d->gpu)->multiprocessors, ADD_THREADS,
                 stream, arguments);
}

/* A piece, by one slot. */
static cup_status sum_piece(cup__direct *d, CUdeviceptr from, CUdeviceptr to, int64_t count,
                            cup_dtype dtype, CUstream stream)
{
    int slot = d->next;
    size_t bytes = (size_t)count * (size_t)cup_dtype_size(dtype), at = (size_t)slot * SLOT_BYTES;
    CUdeviceptr given_up = (CUdeviceptr)(uintptr_t)d->given_up, own = d->own + at;
    CUdeviceptr may = vacant(d->own, slot), here = full(d->own, slot);
    CUdeviceptr there = full(d->other, slot), taken = vacant(d->other, slot);
    d->next = (slot + 1) % SLOTS;
    CUP_TRY(start(d, d->wait, 1, 1, stream, (void *[]){&may, &given_up}));
    CUP_TRY(check(d, cup__driver.cuMemcpyDtoDAsync(d->other + at, from, bytes, stream),
                  "copying to another GPU"));
    CUP_TRY(start(d, d->meet, 1, 1, stream, (void *[]){&there, &here, &given_up}));
    bool first = d->m->rank == 0;
    CUP_TRY(add(d, first ? from : own, first ? own : from, to, count, dtype, stream));
    return start(d, d->put, 1, 1, stream, (void *[]){&taken});
}

cup_status cup__direct_sum(cup__direct *d, const cup_tensor *from, const cup_tensor *to,
                           CUstream stream)
{
    int64_t size = cup_dtype_size(from->dtype), most = (int64_t)SLOT_BYTES / size;
    for (int64_t at = 0; at < from->count; at += most) {
        int64_t rest = from->count - at, count = rest < most ? rest : most;
        CUdeviceptr skip = (CUdeviceptr)(at * size);
        CUP_TRY(sum_piece(d, (CUdeviceptr)(uintptr_t)from->data + skip,
                          (CUdeviceptr)(uintptr_t)to->data + skip, count, from->dtype, stream));
    }
    return CUP_OK;
}
