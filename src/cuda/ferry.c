#include "cuda/ferry.h"

#include "base/memory.h"
#include "cuda/gpu.h"

enum { IN, OUT, WAYS };

struct cup__ferry {
    CUstream way[WAYS];
    CUevent begun;
    CUevent came[CUP__FERRY_PLACES], changed[CUP__FERRY_PLACES], left[CUP__FERRY_PLACES];
    bool used[CUP__FERRY_PLACES]; /* something went back from there since it began */
    CUevent last;                 /* of `left`; NULL: nothing did */
};

static cup_status make_event(cup__cuda *gpu, CUevent *out)
{
    return cup__cuda_check(gpu, cup__driver.cuEventCreate(out, CU_EVENT_DISABLE_TIMING),
                           "making an event");
}

static cup_status open_parts(cup__cuda *gpu, struct cup__ferry *f)
{
    for (int i = 0; i < WAYS; i++)
        CUP_TRY(cup__cuda_check(gpu, cup__driver.cuStreamCreate(&f->way[i], CU_STREAM_NON_BLOCKING),
                                "making a stream"));
    CUP_TRY(make_event(gpu, &f->begun));
    for (int i = 0; i < CUP__FERRY_PLACES; i++) {
        CUP_TRY(make_event(gpu, &f->came[i]));
        CUP_TRY(make_event(gpu, &f->changed[i]));
        CUP_TRY(make_event(gpu, &f->left[i]));
    }
    return CUP_OK;
}

static cup_status open_once(cup__cuda *gpu)
{
    if (gpu->ferry)
        return CUP_OK;
    gpu->ferry = cup__calloc(1, sizeof *gpu->ferry);
    if (!gpu->ferry)
        return cup__fail(gpu->device.error, CUP_MEMORY, "out of host memory for streams");
    cup_status status = open_parts(gpu, gpu->ferry);
    if (status != CUP_OK)
        cup__ferry_close(gpu, true);
    return status;
}

static void free_event(CUevent event)
{
    if (event)
        cup__driver.cuEventDestroy(event);
}

void cup__ferry_close(cup__cuda *gpu, bool driver)
{
    struct cup__ferry *f = gpu->ferry;
    for (int i = 0; driver && f && i < CUP__FERRY_PLACES; i++) {
        free_event(f->came[i]);
        free_event(f->changed[i]);
        free_event(f->left[i]);
    }
    if (driver && f)
        free_event(f->begun);
    for (int i = 0; driver && f && i < WAYS; i++)
        if (f->way[i])
            cup__driver.cuStreamDestroy(f->way[i]);
    cup__free(f);
    gpu->ferry = NULL;
}

/* What `later` is given from now on waits for all that `earlier` has. */
static cup_status follow(cup__cuda *gpu, CUstream later, CUevent event, CUstream earlier)
{
    CUP_TRY(cup__cuda_check(gpu, cup__driver.cuEventRecord(event, earlier), "recording an event"));
    return cup__cuda_check(gpu, cup__driver.cuStreamWaitEvent(later, event, 0),
                           "waiting for an event");
}

static CUdeviceptr address_of(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

cup_status cup__ferry_begin(cup__cuda *gpu)
{
    if (gpu->dry)
        return CUP_OK;
    CUP_TRY(cup__cuda_enter(gpu));
    CUP_TRY(open_once(gpu));
    struct cup__ferry *f = gpu->ferry;
    for (int i = 0; i < CUP__FERRY_PLACES; i++)
        f->used[i] = false;
    f->last = NULL;
    return follow(gpu, f->way[IN], f->begun, gpu->stream);
}

cup_status cup__ferry_bring(cup__cuda *gpu, int place, const cup__ferry_copy *copies, int count)
{
    CUP_TRY(cup__launch_foreign(gpu, "copies of the host's memory"));
    if (gpu->dry)
        return CUP_OK;
    struct cup__ferry *f = gpu->ferry;
    if (f->used[place])
        CUP_TRY(cup__cuda_check(gpu, cup__driver.cuStreamWaitEvent(f->way[IN], f->left[place], 0),
                                "waiting for an event"));
    for (int i = 0; i < count; i++)
        CUP_TRY(cup__cuda_check(gpu,
                                cup__driver.cuMemcpyHtoDAsync(address_of(copies[i].here),
                                                              copies[i].host, copies[i].bytes,
                                                              f->way[IN]),
                                "copying to the GPU"));
    return follow(gpu, gpu->stream, f->came[place], f->way[IN]);
}

cup_status cup__ferry_return(cup__cuda *gpu, int place, const cup__ferry_copy *copies, int count)
{
    if (gpu->dry)
        return CUP_OK;
    struct cup__ferry *f = gpu->ferry;
    CUP_TRY(follow(gpu, f->way[OUT], f->changed[place], gpu->stream));
    for (int i = 0; i < count; i++)
        CUP_TRY(cup__cuda_check(gpu,
                                cup__driver.cuMemcpyDtoHAsync(copies[i].host,
                                                              address_of(copies[i].here),
                                                              copies[i].bytes, f->way[OUT]),
                                "copying from the GPU"));
    f->used[place] = true;
    f->last = f->left[place];
    return cup__cuda_check(gpu, cup__driver.cuEventRecord(f->left[place], f->way[OUT]),
                           "recording an event");
}

cup_status cup__ferry_end(cup__cuda *gpu)
{
    if (gpu->dry || !gpu->ferry->last)
        return CUP_OK;
    return cup__cuda_check(gpu, cup__driver.cuStreamWaitEvent(gpu->stream, gpu->ferry->last, 0),
                           "waiting for an event");
}
