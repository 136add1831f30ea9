#include "cuda/stream.h"

#include "cuda/gpu.h"

static cup_status begin(cup__cuda *gpu)
{
    CUP_TRY(cup__cuda_enter(gpu));
    if (gpu->capturing)
        return cup__fail(gpu->device.error, CUP_STATE,
                         "streams and events have no place in a graph that is captured; end the "
                         "capture first");
    return CUP_OK;
}

/* `later` waits for all that `earlier` has now. */
static cup_status join(cup__cuda *gpu, CUstream earlier, CUstream later)
{
    CUevent event;
    CUP_TRY(begin(gpu));
    CUP_TRY(cup__cuda_check(gpu, cup__driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING),
                            "making an event"));
    CUresult result = cup__driver.cuEventRecord(event, earlier);
    if (result == CUDA_SUCCESS)
        result = cup__driver.cuStreamWaitEvent(later, event, 0);
    cup__driver.cuEventDestroy(event);
    return cup__cuda_check(gpu, result, "letting one stream wait for another");
}

cup_status cup__cuda_lead(cup__cuda *gpu, CUstream other)
{
    return join(gpu, gpu->stream, other);
}

cup_status cup__cuda_follow(cup__cuda *gpu, CUstream other)
{
    return join(gpu, other, gpu->stream);
}

cup_status cup__cuda_use(cup__cuda *gpu, CUstream stream)
{
    CUstream next = stream ? stream : gpu->own_stream;
    CUP_TRY(begin(gpu));
    if (next == gpu->stream)
        return CUP_OK;
    CUP_TRY(join(gpu, gpu->stream, next));
    gpu->shown = true; /* to its owner */
    gpu->stream = next;
    return CUP_OK;
}

cup_status cup__event_open(cup__cuda *gpu, CUevent *out)
{
    CUP_TRY(cup__cuda_enter(gpu));
    return cup__cuda_check(gpu, cup__driver.cuEventCreate(out, CU_EVENT_DEFAULT),
                           "making an event");
}

void cup__event_close(cup__cuda *gpu, CUevent event)
{
    if (cup__cuda_enter_to_free(gpu))
        cup__driver.cuEventDestroy(event);
}

cup_status cup__event_record(cup__cuda *gpu, CUevent event)
{
    CUP_TRY(begin(gpu));
    return cup__cuda_check(gpu, cup__driver.cuEventRecord(event, gpu->stream),
                           "recording an event");
}

cup_status cup__event_wait(cup__cuda *gpu, CUevent event)
{
    CUP_TRY(begin(gpu));
    return cup__cuda_check(gpu, cup__driver.cuStreamWaitEvent(gpu->stream, event, 0),
                           "waiting for an event");
}

cup_status cup__event_synchronize(cup__cuda *gpu, CUevent event)
{
    CUP_TRY(cup__cuda_enter(gpu));
    return cup__cuda_check(gpu, cup__driver.cuEventSynchronize(event), "waiting for an event");
}

bool cup__event_is_done(cup__cuda *gpu, CUevent event)
{
    return cup__cuda_enter(gpu) != CUP_OK ||
           cup__driver.cuEventQuery(event) != CUDA_ERROR_NOT_READY;
}

cup_status cup__event_elapsed(cup__cuda *gpu, CUevent from, CUevent to, double *milliseconds)
{
    float found = 0;
    CUP_TRY(cup__cuda_enter(gpu));
    CUresult result = cup__driver.cuEventElapsedTime(&found, from, to);
    *milliseconds = (double)found;
    if (result == CUDA_ERROR_NOT_READY)
        return cup__fail(gpu->device.error, CUP_STATE,
                         "the time between two events: the GPU has not passed them yet; call "
                         "cup_event_synchronize first");
    return cup__cuda_check(gpu, result, "asking for the time between two events");
}
