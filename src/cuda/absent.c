/* Answers for a build without the CUDA layer. */
#include <stdio.h>

#include "cuda/cuda.h"

int cup__cuda_count(char why[512])
{
    snprintf(why, 512, "this build has no CUDA layer");
    return 0;
}

cup_status cup__cuda_open(cup__error *error, int index, int64_t memory_limit, cup__device **out)
{
    (void)memory_limit;
    *out = NULL;
    return cup__fail(error, CUP_NO_DEVICE, "cuda:%d: this build has no CUDA layer; use cpu", index);
}

cup__cuda *cup__cuda_of(cup__device *device)
{
    (void)device;
    return NULL;
}

const cup__gpu_facts *cup__cuda_facts(const cup__cuda *gpu)
{
    static const cup__gpu_facts none;
    (void)gpu;
    return &none;
}

cup__kernel *cup__kernel_get(cup__cuda *gpu, const char *file, const char *entry,
                             const cup__knob *knobs, int knob_count)
{
    (void)gpu, (void)file, (void)entry, (void)knobs, (void)knob_count;
    return NULL;
}

cup_status cup__launch_arguments(cup__cuda *gpu, cup__kernel *kernel, cup__grid grid,
                                 const cup__argument *arguments, int count)
{
    (void)gpu, (void)kernel, (void)grid, (void)arguments, (void)count;
    return CUP_NO_DEVICE;
}

cup_status cup__timer_new(cup__cuda *gpu, cup__timer **out)
{
    (void)gpu, (void)out;
    return CUP_NO_DEVICE;
}

cup_status cup__timer_start(cup__timer *timer)
{
    (void)timer;
    return CUP_NO_DEVICE;
}

cup_status cup__timer_stop(cup__timer *timer, double *milliseconds)
{
    (void)timer, (void)milliseconds;
    return CUP_NO_DEVICE;
}

void cup__timer_free(cup__timer *timer)
{
    (void)timer;
}

cup_status cup__graph_begin(cup__cuda *gpu)
{
    (void)gpu;
    return CUP_NO_DEVICE;
}

cup_status cup__graph_end(cup__cuda *gpu, cup__graph **out)
{
    (void)gpu, (void)out;
    return CUP_NO_DEVICE;
}

cup_status cup__graph_launch(cup__graph *graph)
{
    (void)graph;
    return CUP_NO_DEVICE;
}

void cup__graph_free(cup__graph *graph)
{
    (void)graph;
}
