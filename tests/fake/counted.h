/* How a stand-in for a library counts its calls and lets one fail. */
#ifndef FAKE_COUNTED_H
#define FAKE_COUNTED_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/api.h"

#define EXPORT __attribute__((visibility("default")))

static long fail_in;
static struct {
    const char *name;
    long count;
} calls[40];

static inline long counted(const char *name)
{
    long count = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls && calls[i].name; i++)
        if (!name || !strcmp(calls[i].name, name))
            count += calls[i].count;
    return count;
}

/* Whether this call is the one that fails. */
static inline bool count_call(const char *name)
{
    size_t i = 0;
    while (calls[i].name && strcmp(calls[i].name, name))
        i++;
    calls[i].name = name;
    calls[i].count++;
    return fail_in && --fail_in == 0;
}

/* Waits for the stream as the stand-in for the driver has it; false while it is captured. */
static inline bool wait_for(CUstream stream)
{
    const char *path = getenv("CUP_LIBCUDA");
    void *driver = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    CUresult (*wait)(CUstream) = NULL;
    if (driver)
        *(void **)&wait = dlsym(driver, "cuStreamSynchronize");
    bool done = wait && wait(stream) == CUDA_SUCCESS;
    if (driver)
        dlclose(driver);
    return done;
}

#endif
