/* Streams, events, copies, kernels and graphs of the fake driver. */
#define FAKE_INSIDE
#include "fake.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define NEED(result, name, exported, arguments) EXPORT result name arguments __asm__(exported);
#define MAY NEED
#include "cuda/driver.def"
#undef NEED
#undef MAY

struct CUstream_st {
    CUstream next; /* of all */
    fake_work *queue, **end;
    bool capturing;
    CUgraph captured;
    bool joined;   /* the capture of another, by a wait for it */
    bool unwaited; /* so it has work that nobody waits for */
};
struct CUevent_st {
    long recorded, reached; /* recordings that were queued, and those that were done */
    CUstream stream;        /* of the last recording */
    CUgraph captured;       /* that the last one is of, in which this stream made it */
    CUstream capturer;
};
struct CUgraph_st {
    fake_work *first, **end;
};
struct CUgraphExec_st {
    fake_work *first;
};

#define CUDA_ERROR_STREAM_CAPTURE_UNJOINED ((CUresult)904)
#define CUDA_ERROR_STREAM_CAPTURE_ISOLATION ((CUresult)905)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUstream streams;
static long queued;

EXPORT fake_queued_function fake_cuda_queued;

long fake_cuda_queued(void)
{
    return queued;
}

static void do_next(CUstream stream);

/* Streams run as far apart as their waits for each other allow. */
static void do_until(CUevent event, long recording)
{
    while (event->reached < recording && event->stream && event->stream->queue)
        do_next(event->stream);
}

static void do_work(const fake_work *work)
{
    if (work->what == FAKE_COPY)
        memcpy(work->to, work->from, work->bytes);
    else if (work->what == FAKE_FILL)
        memset(work->to, work->byte, work->bytes);
    else if (work->what == FAKE_LAUNCH)
        fake_launch(work);
    else if (work->what == FAKE_WAIT)
        do_until(work->event, work->recording);
    else
        work->event->reached++;
}

static void do_next(CUstream stream)
{
    fake_work *work = stream->queue;
    stream->queue = work->next;
    if (!stream->queue)
        stream->end = &stream->queue;
    do_work(work);
    free(work);
    queued--;
}

static void finish(CUstream stream)
{
    pthread_mutex_lock(&lock);
    while (stream->queue)
        do_next(stream);
    pthread_mutex_unlock(&lock);
}

void fake_finish(void)
{
    pthread_mutex_lock(&lock);
    for (CUstream stream = streams; stream; stream = stream->next)
        while (stream->queue)
            do_next(stream);
    pthread_mutex_unlock(&lock);
}

static fake_work *copy_of(const fake_work *work)
{
    fake_work *copy = malloc(sizeof *copy);
    *copy = *work;
    copy->next = NULL;
    return copy;
}

CUresult fake_queue(CUstream stream, const fake_work *work)
{
    CUcontext context;
    cuCtxGetCurrent(&context);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    fake_work *copy = copy_of(work);
    pthread_mutex_lock(&lock);
    if (stream->capturing) {
        stream->unwaited = stream->joined;
        *stream->captured->end = copy;
        stream->captured->end = &copy->next;
    } else {
        *stream->end = copy;
        stream->end = &copy->next;
        queued++;
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    ENTER;
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    (*stream)->end = &(*stream)->queue;
    pthread_mutex_lock(&lock);
    (*stream)->next = streams;
    streams = *stream;
    pthread_mutex_unlock(&lock);
    fake_count(FAKE_STREAM, 1);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream)
{
    LEAVE;
    finish(stream);
    pthread_mutex_lock(&lock);
    for (CUstream *link = &streams; *link; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(stream);
    fake_count(FAKE_STREAM, -1);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    ENTER;
    if (stream->capturing)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    finish(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
    ENTER;
    return stream->queue ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* A stream that waits for an event of a capture is captured, too. */
static CUresult join_capture(CUstream stream, CUevent event)
{
    bool live = false;
    pthread_mutex_lock(&lock);
    for (CUstream s = streams; s && event->captured; s = s->next)
        live = live || (s->capturing && s->captured == event->captured);
    if (live && !stream->capturing) {
        stream->capturing = stream->joined = true;
        stream->captured = event->captured;
    }
    bool same = !stream->capturing || (live && stream->captured == event->captured);
    if (live && same)
        event->capturer->unwaited = false;
    pthread_mutex_unlock(&lock);
    return same ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    ENTER;
    (void)flags;
    /* The default streams do no work of their own here. */
    if ((uintptr_t)stream <= 2)
        return CUDA_SUCCESS;
    CUresult refused = join_capture(stream, event);
    if (refused != CUDA_SUCCESS)
        return refused;
    return fake_queue(stream, &(fake_work){.what = FAKE_WAIT, .event = event,
                                           .recording = event->recorded});
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    ENTER;
    (void)flags;
    *event = calloc(1, sizeof **event);
    fake_count(FAKE_EVENT, 1);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    LEAVE;
    fake_finish();
    free(event);
    fake_count(FAKE_EVENT, -1);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    ENTER;
    if ((uintptr_t)stream <= 2) {
        event->reached = ++event->recorded;
        return CUDA_SUCCESS;
    }
    event->captured = stream->captured;
    event->capturer = stream;
    if (!stream->capturing) {
        event->recorded++;
        event->stream = stream;
    }
    return fake_queue(stream, &(fake_work){.what = FAKE_RECORD, .event = event});
}

CUresult cuEventQuery(CUevent event)
{
    ENTER;
    return event->reached < event->recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
    ENTER;
    pthread_mutex_lock(&lock);
    do_until(event, event->recorded);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent stop)
{
    ENTER;
    *milliseconds = 0.25f;
    if (!start->recorded || !stop->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    return start->reached < start->recorded || stop->reached < stop->recorded
               ? CUDA_ERROR_NOT_READY
               : CUDA_SUCCESS;
}

static CUresult queue_copy(CUstream stream, void *to, const void *from, size_t bytes)
{
    return fake_queue(stream, &(fake_work){.what = FAKE_COPY, .to = to, .from = from,
                                           .bytes = bytes});
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ENTER;
    return queue_copy(stream, (void *)(uintptr_t)to, from, bytes);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER;
    return queue_copy(stream, to, (const void *)(uintptr_t)from, bytes);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER;
    return queue_copy(stream, (void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t count, CUstream stream)
{
    ENTER;
    return fake_queue(stream, &(fake_work){.what = FAKE_FILL, .to = (void *)(uintptr_t)to,
                                           .byte = byte, .bytes = count});
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    ENTER;
    (void)mode;
    stream->captured = calloc(1, sizeof *stream->captured);
    stream->captured->end = &stream->captured->first;
    stream->capturing = true;
    fake_count(FAKE_GRAPH, 1);
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    *graph = NULL;
    if (!stream->capturing)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph captured = stream->captured;
    CUresult refused = fake_enter(__func__);
    for (CUstream s = streams; s; s = s->next) {
        if (!s->capturing || s->captured != captured)
            continue;
        if (s->unwaited)
            refused = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        s->capturing = s->joined = s->unwaited = false;
        s->captured = NULL;
    }
    if (refused != CUDA_SUCCESS)
        cuGraphDestroy(captured);
    else
        *graph = captured;
    return refused;
}

static fake_work *copy_list(const fake_work *from)
{
    fake_work *first = NULL, **end = &first;
    for (; from; from = from->next, end = &(*end)->next)
        *end = copy_of(from);
    return first;
}

static void free_list(fake_work *first)
{
    while (first) {
        fake_work *next = first->next;
        free(first);
        first = next;
    }
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    ENTER;
    (void)nodes;
    *count = 0;
    for (const fake_work *work = graph->first; work; work = work->next)
        ++*count;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *runnable, CUgraph graph,
                                     unsigned long long flags)
{
    ENTER;
    (void)flags;
    *runnable = calloc(1, sizeof **runnable);
    (*runnable)->first = copy_list(graph->first);
    fake_count(FAKE_RUNNABLE, 1);
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec runnable, CUstream stream)
{
    ENTER;
    for (const fake_work *work = runnable->first; work; work = work->next)
        fake_queue(stream, work);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec runnable)
{
    LEAVE;
    free_list(runnable->first);
    free(runnable);
    fake_count(FAKE_RUNNABLE, -1);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    LEAVE;
    free_list(graph->first);
    free(graph);
    fake_count(FAKE_GRAPH, -1);
    return CUDA_SUCCESS;
}
