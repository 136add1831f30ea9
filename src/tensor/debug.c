#include "tensor/debug.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "cuda/gpu.h"

#define MOST_BURIED 65536
#define MOST_LEAKS 32
#define PATIENCE 10 /* seconds for the call of another thread */

struct cup__debug {
    pthread_mutex_t lock; /* held during a call */
    _Atomic long owner;   /* the thread that holds it */
    _Atomic(const char *) call;
    _Atomic bool told; /* the log knows of two threads */
    int depth; /* of calls inside the call */
    const char *op;
    uint64_t count;
    char mark[CUP__MARK_TEXT];
    cup_tensor *oldest, *newest; /* the buried ones, in their order */
    size_t buried;
    bool closing, named, searching;
};

/* Every tensor of a watched context is one of these. */
typedef struct watched {
    cup_tensor tensor;
    char by[2 * CUP__MARK_TEXT]; /* what made it, in what; copied, as ops of users come to an end */
    uint64_t made, ended;        /* counts of calls */
    const char *how;             /* its owner let go of it; NULL: it has not */
    char made_at[CUP__MARK_TEXT], ended_at[CUP__MARK_TEXT];
} watched;

cup_status cup__debug_open(cup_context *c)
{
    c->debug = cup__calloc(1, sizeof *c->debug);
    if (!c->debug)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a context");
    pthread_mutex_init(&c->debug->lock, NULL);
    return CUP_OK;
}

void cup__debug_close(cup_context *c)
{
    cup__debug *d = c->debug;
    while (d->oldest) {
        cup_tensor *t = d->oldest;
        d->oldest = t->next;
        cup__free(t);
    }
    pthread_mutex_destroy(&d->lock);
    cup__free(d);
    c->debug = NULL;
}

/* Waits until the call of the other thread is over; false: it takes too long. */
static bool wait_for_other(cup_context *c, long me, const char *name)
{
    cup__debug *d = c->debug;
    const char *call = atomic_load(&d->call);
    char other[32] = "another thread";
    if (atomic_load(&d->owner)) /* 0: it is just about to leave */
        snprintf(other, sizeof other, "thread %ld", atomic_load(&d->owner));
    /* Before the wait, which is for ever where that one waits for this one. */
    if (!atomic_exchange(&d->told, true))
        cup__log(CUP__QUIET, "debug: thread %ld calls %s while %s is in %s of the same context", me,
                 name, other, call ? call : "a call");
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE;
    bool mine = pthread_mutex_timedlock(&d->lock, &until) == 0;
    cup__fail(&c->error, CUP_STATE,
              "thread %ld called %s while %s was in %s: a context is used by one thread at "
              "a time; make one for each thread, or lock around the calls",
              me, name, other, call ? call : "a call");
    return mine;
}

void cup__debug_enter(cup_context *c, const char *name)
{
    cup__debug *d = c->debug;
    long me = syscall(SYS_gettid);
    if (atomic_load(&d->owner) == me) {
        d->depth++;
        return;
    }
    if (pthread_mutex_trylock(&d->lock) && !wait_for_other(c, me, name))
        return;
    atomic_store(&d->owner, me);
    atomic_store(&d->call, name);
    d->depth = 1;
}

void cup__debug_leave(cup_context *c)
{
    cup__debug *d = c->debug;
    if (atomic_load(&d->owner) != syscall(SYS_gettid) || --d->depth > 0)
        return;
    atomic_store(&d->call, NULL);
    atomic_store(&d->owner, 0);
    pthread_mutex_unlock(&d->lock);
}

const char *cup__debug_op(cup_context *c, const char *name)
{
    const char *outer = c->debug->op;
    c->debug->op = name;
    return outer;
}

uint64_t cup__debug_count(cup_context *c)
{
    return ++c->debug->count;
}

bool cup__debug_named(cup_context *c)
{
    bool was = c->debug->named;
    c->debug->named = true;
    return was;
}

bool cup__debug_searching(const cup_context *c)
{
    return c->debug->searching;
}

void cup__debug_search(cup_context *c, bool on)
{
    c->debug->searching = on;
}

static const char *place(char out[CUP__PLACE_TEXT], uint64_t count, const char *mark)
{
    snprintf(out, CUP__PLACE_TEXT, " (call %llu%s%s)", (unsigned long long)count,
             *mark ? ", at " : "", mark);
    return out;
}

const char *cup__debug_place(cup_context *c, char out[CUP__PLACE_TEXT])
{
    return place(out, c->debug->count, c->debug->mark);
}

cup_tensor *cup__debug_tensor(cup_context *c)
{
    cup__debug *d = c->debug;
    watched *w;
    if (d->buried < MOST_BURIED) {
        w = cup__malloc(sizeof *w);
    } else {
        w = (watched *)d->oldest;
        d->oldest = d->oldest->next;
        d->buried--;
    }
    if (!w)
        return NULL;
    const char *call = atomic_load(&d->call);
    call = call ? call : "the library";
    bool inside = d->op && strcmp(d->op, call);
    snprintf(w->by, sizeof w->by, "%.63s%s%.59s", inside ? d->op : call, inside ? " in " : "",
             inside ? call : "");
    w->made = d->count;
    w->how = NULL;
    memcpy(w->made_at, d->mark, sizeof w->made_at);
    return &w->tensor;
}

void cup__debug_gone(cup_tensor *t, const char *how)
{
    watched *w = (watched *)t;
    const cup__debug *d = t->context->debug;
    if (w->how)
        return;
    w->how = how;
    w->ended = d->count;
    memcpy(w->ended_at, d->mark, sizeof w->ended_at);
}

void cup__debug_bury(cup_tensor *t)
{
    cup__debug *d = t->context->debug;
    cup__debug_gone(t, "the library had released it");
    t->grad = NULL;
    t->storage = NULL;
    t->next = NULL;
    if (d->oldest)
        d->newest->next = t;
    else
        d->oldest = t;
    d->newest = t;
    d->buried++;
}

/* 0xff in every byte is a NaN in all floats. What a graph holds on to it may read again. */
void cup__debug_poison(cup__storage *storage)
{
    cup__device *device = storage->context->device;
    if (storage->bytes && !(device->is_cuda && cup__cuda_of(device)->capturing))
        device->calls->fill(device, storage->data, 0xff, storage->bytes);
}

/* "[2,3] f32 of mul in cup_backward (call 3, at train.c:40)" */
static void describe(const watched *w, char *out, size_t size)
{
    char text[CUP__SHAPE_TEXT], at[CUP__PLACE_TEXT];
    snprintf(out, size, "%s of %s%s", cup__tensor_text(&w->tensor, text), w->by,
             place(at, w->made, w->made_at));
}

cup_status cup__debug_usable(const cup_tensor *t, bool of_owner, const char *what)
{
    const watched *w = (const watched *)t;
    const cup__debug *d = t->context->debug;
    char text[600], at[CUP__PLACE_TEXT];
    if (!w->how || d->closing || (t->refs > 0 && (!of_owner || d->depth > 1)))
        return CUP_OK;
    describe(w, text, sizeof text);
    return cup__fail(&t->context->error, CUP_STATE,
                     "%s: %s is used after %s%s; cup_keep takes a tensor out of its scope, "
                     "cup_scope_return hands one out",
                     what, text, w->how, place(at, w->ended, w->ended_at));
}

void cup__debug_leaks(cup_context *c)
{
    char text[600];
    const cup_tensor *first = NULL;
    int count = 0, said = 0;
    int64_t bytes = 0;
    for (const cup_tensor *t = c->kept; t; t = t->next) {
        first = t;
        count++;
        bytes += (int64_t)t->storage->bytes;
    }
    if (count)
        cup__log(CUP__QUIET,
                 "debug: %d kept tensors, %lld bytes, were not freed before cup_context_free:",
                 count, (long long)bytes);
    for (const cup_tensor *t = first; t && said < MOST_LEAKS; t = t->previous, said++) {
        describe((const watched *)t, text, sizeof text);
        cup__log(CUP__QUIET, "debug:   %s", text);
    }
    if (count > said)
        cup__log(CUP__QUIET, "debug:   and %d more", count - said);
    if (c->guests > c->holds)
        cup__log(CUP__QUIET,
                 "debug: %d optimizers, models, graphs or the like were not freed before "
                 "cup_context_free",
                 c->guests - c->holds);
    c->debug->closing = true;
}

void cup_debug_mark(cup_context *c, const char *text)
{
    if (!c || !c->debug)
        return;
    CUP__DEBUG_CALL(c);
    snprintf(c->debug->mark, sizeof c->debug->mark, "%s", text ? text : "");
}
