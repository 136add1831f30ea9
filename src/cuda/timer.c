/* Time on the GPU, by events. */
#include "base/memory.h"
#include "cuda/gpu.h"

struct cup__timer {
    cup__cuda *gpu;
    CUevent start, stop;
};

cup_status cup__timer_new(cup__cuda *gpu, cup__timer **out)
{
    *out = NULL;
    CUP_TRY(cup__cuda_enter(gpu));
    cup__timer *timer = cup__calloc(1, sizeof *timer);
    if (!timer)
        return cup__fail(gpu->device.error, CUP_MEMORY, "out of host memory for a timer");
    timer->gpu = gpu;
    cup_status status = cup__cuda_check(
        gpu, cup__driver.cuEventCreate(&timer->start, CU_EVENT_DEFAULT), "making an event");
    if (status == CUP_OK)
        status = cup__cuda_check(gpu, cup__driver.cuEventCreate(&timer->stop, CU_EVENT_DEFAULT),
                                 "making an event");
    if (status != CUP_OK) {
        cup__timer_free(timer);
        return status;
    }
    *out = timer;
    return CUP_OK;
}

cup_status cup__timer_start(cup__timer *timer)
{
    CUP_TRY(cup__cuda_enter(timer->gpu));
    return cup__cuda_check(timer->gpu,
                           cup__driver.cuEventRecord(timer->start, timer->gpu->stream),
                           "recording an event");
}

cup_status cup__timer_stop(cup__timer *timer, double *milliseconds)
{
    cup__cuda *gpu = timer->gpu;
    float elapsed = 0;
    *milliseconds = 0;
    CUP_TRY(cup__cuda_enter(gpu));
    CUP_TRY(cup__cuda_check(gpu, cup__driver.cuEventRecord(timer->stop, gpu->stream),
                            "recording an event"));
    CUP_TRY(cup__cuda_check(gpu, cup__driver.cuEventSynchronize(timer->stop),
                            "waiting for an event"));
    CUP_TRY(cup__cuda_check(gpu,
                            cup__driver.cuEventElapsedTime(&elapsed, timer->start, timer->stop),
                            "reading a timer"));
    *milliseconds = elapsed;
    return CUP_OK;
}

void cup__timer_free(cup__timer *timer)
{
    if (!timer)
        return;
    if (cup__cuda_enter_to_free(timer->gpu)) {
        if (timer->start)
            cup__driver.cuEventDestroy(timer->start);
        if (timer->stop)
            cup__driver.cuEventDestroy(timer->stop);
    }
    cup__free(timer);
}
