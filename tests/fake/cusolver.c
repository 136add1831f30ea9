/* See cusolver.h. */
#include "cusolver.h"

#include <math.h>

#include "counted.h"

#define ROOM 7 /* numbers that are asked for */
#define WRONG CUSOLVER_STATUS_INVALID_VALUE

/* Declares each call as the library does, and so holds the two against each other. */
#define NEED(result, name, exported, arguments) EXPORT result name arguments;
#include "cuda/cusolver.def"
#undef NEED

EXPORT fake_cusolver_fail_function fake_cusolver_fail;
EXPORT fake_cusolver_calls_function fake_cusolver_calls;
EXPORT fake_cusolver_live_function fake_cusolver_live;

static long live;

struct cusolverDnContext {
    CUstream stream;
};

void fake_cusolver_fail(long n)
{
    fail_in = n;
}

long fake_cusolver_calls(const char *name)
{
    return counted(name);
}

long fake_cusolver_live(void)
{
    return live;
}

#define ENTER                                                                                      \
    do {                                                                                           \
        if (count_call(__func__))                                                                  \
            return CUSOLVER_STATUS_INTERNAL_ERROR;                                                 \
    } while (0)

/* Without a stream what it is given is memory of the host. */
static void rest(cusolverDnHandle_t handle)
{
    if (handle->stream)
        wait_for(handle->stream);
}

cusolverStatus_t cusolverGetVersion(int *version)
{
    *version = 11705;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *handle)
{
    ENTER;
    *handle = calloc(1, sizeof **handle);
    live++;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle)
{
    free(handle);
    live--;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, CUstream stream)
{
    ENTER;
    handle->stream = stream;
    return CUSOLVER_STATUS_SUCCESS;
}

#define REAL float
#define CALL(name) cusolverDnS##name
#define OWN(name) s_##name
#include "cusolver_real.h"
#undef REAL
#undef CALL
#undef OWN

#define REAL double
#define CALL(name) cusolverDnD##name
#define OWN(name) d_##name
#include "cusolver_real.h"
