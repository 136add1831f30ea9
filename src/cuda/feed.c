#include "cuda/feed.h"

#include "base/memory.h"
#include "cuda/gpu.h"

typedef struct slot {
    void *memory;
    CUevent done;
    bool pending;
} slot;

struct cup__feed {
    cup__cuda *gpu;
    CUstream stream;
    CUevent before; /* what the context had queued when the last copies began */
    int count;
    slot slots[];
};

static cup_status check(cup__feed *feed, CUresult result, const char *doing)
{
    return cup__cuda_check(feed->gpu, result, doing);
}

static cup_status open_parts(cup__feed *feed, size_t bytes)
{
    CUP_TRY(check(feed, cup__driver.cuStreamCreate(&feed->stream, CU_STREAM_NON_BLOCKING),
                  "making a stream"));
    CUP_TRY(check(feed, cup__driver.cuEventCreate(&feed->before, CU_EVENT_DISABLE_TIMING),
                  "making an event"));
    for (int i = 0; i < feed->count; i++) {
        slot *s = &feed->slots[i];
        CUP_TRY(check(feed, cup__driver.cuEventCreate(&s->done, CU_EVENT_DISABLE_TIMING),
                      "making an event"));
        CUP_TRY(check(feed, cup__driver.cuMemHostAlloc(&s->memory, bytes ? bytes : 1, 0),
                      "getting pinned memory for batches; use a smaller batch or prefetch"));
    }
    return CUP_OK;
}

cup_status cup__feed_open(cup__cuda *gpu, int slots, size_t bytes, cup__feed **out)
{
    *out = NULL;
    CUP_TRY(cup__cuda_enter(gpu));
    cup__feed *feed = cup__calloc(1, sizeof *feed + (size_t)slots * sizeof *feed->slots);
    if (!feed)
        return cup__fail(gpu->device.error, CUP_MEMORY, "out of host memory for a loader");
    feed->gpu = gpu;
    feed->count = slots;
    cup_status status = open_parts(feed, bytes);
    if (status == CUP_OK)
        *out = feed;
    else
        cup__feed_close(feed, true);
    return status;
}

void cup__feed_close(cup__feed *feed, bool driver)
{
    if (!feed)
        return;
    driver = driver && cup__cuda_enter_to_free(feed->gpu);
    if (driver && feed->stream)
        cup__driver.cuStreamSynchronize(feed->stream);
    for (int i = 0; driver && i < feed->count; i++) {
        if (feed->slots[i].done)
            cup__driver.cuEventDestroy(feed->slots[i].done);
        if (feed->slots[i].memory)
            cup__driver.cuMemFreeHost(feed->slots[i].memory);
    }
    if (driver && feed->before)
        cup__driver.cuEventDestroy(feed->before);
    if (driver && feed->stream)
        cup__driver.cuStreamDestroy(feed->stream);
    cup__free(feed);
}

char *cup__feed_memory(cup__feed *feed, int i)
{
    return feed->slots[i].memory;
}

cup_status cup__feed_begin(cup__feed *feed)
{
    CUP_TRY(cup__cuda_enter(feed->gpu));
    CUP_TRY(check(feed, cup__driver.cuEventRecord(feed->before, feed->gpu->stream),
                  "recording an event"));
    return check(feed, cup__driver.cuStreamWaitEvent(feed->stream, feed->before, 0),
                 "letting copies wait");
}

cup_status cup__feed_copy(cup__feed *feed, void *to, const void *from, size_t bytes)
{
    if (!bytes)
        return CUP_OK;
    return check(feed,
                 cup__driver.cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)to, from, bytes,
                                               feed->stream),
                 "copying a batch to the GPU");
}

cup_status cup__feed_end(cup__feed *feed, int i)
{
    CUP_TRY(check(feed, cup__driver.cuEventRecord(feed->slots[i].done, feed->stream),
                  "recording an event"));
    feed->slots[i].pending = true;
    return CUP_OK;
}

cup_status cup__feed_join(cup__feed *feed, int i)
{
    CUP_TRY(cup__cuda_enter(feed->gpu));
    return check(feed, cup__driver.cuStreamWaitEvent(feed->gpu->stream, feed->slots[i].done, 0),
                 "waiting for a batch");
}

cup_status cup__feed_wait(cup__feed *feed, int i)
{
    if (!feed->slots[i].pending)
        return CUP_OK;
    CUP_TRY(cup__cuda_enter(feed->gpu));
    CUP_TRY(check(feed, cup__driver.cuEventSynchronize(feed->slots[i].done),
                  "waiting for a copy"));
    feed->slots[i].pending = false;
    return CUP_OK;
}
