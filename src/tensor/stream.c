#include "cupola/stream.h"

#include <math.h>
#include <time.h>

#include "base/memory.h"
#include "cuda/cuda.h"
#include "cuda/stream.h"
#include "tensor/debug.h"

struct cup_event {
    cup_context *c;
    cup__helper helper;
    CUevent event; /* on a GPU; NULL once its context is freed */
    bool recorded;
    struct timespec at; /* on a CPU */
};

static cup__cuda *gpu_of(const cup_context *c)
{
    return c->device->is_cuda ? cup__cuda_of(c->device) : NULL;
}

/* Of a context that ends, or with the event. */
static void stop(void *user)
{
    cup_event *e = user;
    if (e->event)
        cup__event_close(gpu_of(e->c), e->event);
    e->event = NULL;
}

cup_event *cup_event_new(cup_context *c)
{
    CUP__DEBUG_CALL(c);
    if (!c || c->error.status != CUP_OK)
        return NULL;
    cup_event *e = cup__calloc(1, sizeof *e);
    if (!e) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for an event");
        return NULL;
    }
    if (c->device->is_cuda && cup__event_open(gpu_of(c), &e->event) != CUP_OK) {
        cup__free(e);
        return NULL;
    }
    e->c = c;
    e->helper = (cup__helper){.stop = stop, .user = e};
    cup__context_join(c);
    cup__helper_add(c, &e->helper);
    return e;
}

void cup_event_free(cup_event *e)
{
    if (!e)
        return;
    if (!e->c->closed) {
        cup__helper_remove(e->c, &e->helper);
        stop(e);
    }
    cup__context_leave(e->c);
    cup__free(e);
}

cup_status cup_event_record(cup_event *e)
{
    if (!e)
        return CUP_ARGUMENT;
    cup_context *c = e->c;
    CUP__DEBUG_CALL(c->closed ? NULL : c);
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (e->event)
        CUP_TRY(cup__event_record(gpu_of(c), e->event));
    else
        clock_gettime(CLOCK_MONOTONIC, &e->at);
    e->recorded = true;
    return CUP_OK;
}

/* Of a use that says what went wrong in `c`. */
static cup_status check_recorded(cup_context *c, const cup_event *e)
{
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!e)
        return cup__fail(&c->error, CUP_ARGUMENT, "the event is NULL");
    if (e->c->closed)
        return cup__fail(&c->error, CUP_STATE,
                         "the event's context was freed; free its events first");
    if (!e->recorded)
        return cup__fail(&c->error, CUP_STATE,
                         "the event was never recorded; call cup_event_record first");
    return CUP_OK;
}

cup_status cup_event_wait(cup_context *c, cup_event *e)
{
    if (!c)
        return CUP_MEMORY;
    CUP__DEBUG_CALL(c);
    CUP_TRY(check_recorded(c, e));
    if (!e->event)
        return CUP_OK;
    if (!c->device->is_cuda)
        return cup_event_synchronize(e);
    return cup__event_wait(gpu_of(c), e->event);
}

cup_status cup_event_synchronize(cup_event *e)
{
    if (!e)
        return CUP_ARGUMENT;
    CUP_TRY(check_recorded(e->c, e));
    return e->event ? cup__event_synchronize(gpu_of(e->c), e->event) : CUP_OK;
}

bool cup_event_is_done(cup_event *e)
{
    if (!e || !e->recorded || !e->event)
        return true;
    return cup__event_is_done(gpu_of(e->c), e->event);
}

double cup_event_elapsed(cup_event *from, cup_event *to)
{
    double milliseconds = 0;
    if (!from)
        return NAN;
    cup_context *c = from->c;
    if (check_recorded(c, from) != CUP_OK || check_recorded(c, to) != CUP_OK)
        return NAN;
    if (!from->event != !to->event) {
        cup__fail(&c->error, CUP_ARGUMENT,
                  "the time between two events: one is of a CPU, the other of a GPU");
        return NAN;
    }
    if (!from->event)
        return (double)(to->at.tv_sec - from->at.tv_sec) * 1e3 +
               (double)(to->at.tv_nsec - from->at.tv_nsec) * 1e-6;
    if (cup__event_elapsed(gpu_of(c), from->event, to->event, &milliseconds) != CUP_OK)
        return NAN;
    return milliseconds;
}

/* Of streams of CUDA; on a CPU there is nothing to do. */
static cup_status with_gpu(cup_context *c, void *stream,
                           cup_status (*call)(cup__cuda *gpu, CUstream stream))
{
    if (!c)
        return CUP_MEMORY;
    CUP__DEBUG_CALL(c);
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!c->device->is_cuda)
        return CUP_OK;
    if (!stream && call != cup__cuda_use)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "the stream is NULL; the legacy default stream is (void *)1");
    return call(gpu_of(c), stream);
}

cup_status cup_stream_use(cup_context *c, void *stream)
{
    return with_gpu(c, stream, cup__cuda_use);
}

cup_status cup_stream_wait(cup_context *c, void *stream)
{
    return with_gpu(c, stream, cup__cuda_follow);
}

cup_status cup_stream_lead(cup_context *c, void *stream)
{
    return with_gpu(c, stream, cup__cuda_lead);
}

void *cup_stream_handle(const cup_context *c)
{
    if (!c || c->closed || !c->device || !c->device->is_cuda)
        return NULL;
    return cup__cuda_stream_shown(gpu_of(c));
}
