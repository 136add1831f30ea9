/* Batches are planned by the caller's thread, filled by the loader's, or without one by the
 * caller's, and given in their order out of a ring of slots. */
#include "cupola/loader.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/options.h"
#include "cuda/dry.h"
#include "cuda/feed.h"
#include "cuda/gpu.h"
#include "data/source.h"
#include "tensor/debug.h"

#define PREFETCH 2
#define PREFETCH_MOST 16
#define EPOCHS_MOST ((int64_t)1 << 62) /* of a state to go on from, so that counting on is safe */
#define ALIGN 256

typedef struct slot {
    cup_loader_state from; /* of its first sample */
    int64_t rows;
    void *host[CUP_LOADER_ARRAYS];
    cup_tensor *tensors[CUP_LOADER_ARRAYS]; /* kept; NULL before they are made */
    bool sent; /* to the GPU */
    cup__error error;
} slot;

struct cup_loader {
    cup_context *c;
    cup__helper helper;
    cup_loader_options options;
    cup__source sources[CUP_LOADER_ARRAYS];
    int count;
    int64_t samples;
    cup_loader_state at, ahead; /* of the batches that are given and planned next */
    uint32_t *order;            /* belongs to whoever fills, as do the next two */
    int64_t order_epoch;
    uint64_t order_seed;
    size_t offset[CUP_LOADER_ARRAYS], bytes; /* of the arrays in a slot */
    cup__feed *feed;                         /* on a GPU */
    slot *ring;
    int slots;
    pthread_t thread;
    bool threaded;
    pid_t owner;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    uint64_t asked, filled, given;
    bool leave;
};

static slot *slot_at(cup_loader *l, uint64_t number)
{
    return &l->ring[number % (uint64_t)l->slots];
}

/* Filling. */

static int64_t index_of(const cup_loader *l, int64_t place)
{
    return l->order ? l->order[place] : place;
}

static cup_status fill(cup_loader *l, slot *s)
{
    if (l->order && (l->order_epoch != s->from.epoch || l->order_seed != s->from.seed)) {
        cup__order_make(l->order, l->samples, s->from.seed, s->from.epoch);
        l->order_epoch = s->from.epoch;
        l->order_seed = s->from.seed;
    }
    for (int i = 0; i < l->count; i++) {
        const cup__source *source = &l->sources[i];
        char *to = s->host[i];
        for (int64_t r = 0, run; r < s->rows; r += run, to += (size_t)run * source->bytes) {
            int64_t first = index_of(l, s->from.sample + r);
            for (run = 1; r + run < s->rows; run++)
                if (index_of(l, s->from.sample + r + run) != first + run)
                    break;
            CUP_TRY(cup__source_read(&s->error, source, first, run, to));
        }
    }
    return CUP_OK;
}

static void *fill_all(void *user)
{
    cup_loader *l = user;
    pthread_mutex_lock(&l->lock);
    while (!l->leave) {
        if (l->filled == l->asked) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        slot *s = slot_at(l, l->filled);
        pthread_mutex_unlock(&l->lock);
        fill(l, s);
        pthread_mutex_lock(&l->lock);
        l->filled++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Waits until a batch is filled, or fills it; false: it is not, and `wait` did not ask for that. */
static bool is_filled(cup_loader *l, uint64_t number, bool wait)
{
    if (!l->threaded) {
        if (wait && l->filled == number && number < l->asked) {
            fill(l, slot_at(l, number));
            l->filled++;
        }
        return l->filled > number;
    }
    pthread_mutex_lock(&l->lock);
    while (wait && l->filled <= number)
        pthread_cond_wait(&l->changed, &l->lock);
    bool filled = l->filled > number;
    pthread_mutex_unlock(&l->lock);
    return filled;
}

/* Planning. */

static cup_status make_tensors(cup_loader *l, slot *s)
{
    for (int i = 0; i < l->count; i++) {
        cup__shape shape = l->sources[i].sample;
        memmove(shape.size + 1, shape.size, sizeof *shape.size * (size_t)shape.ndim++);
        shape.size[0] = s->rows;
        s->tensors[i] = cup_keep(cup__tensor_make(l->c, &shape, "batch"));
        if (!s->tensors[i])
            return l->c->error.status;
    }
    return CUP_OK;
}

/* The next batch from `at` on, which is moved behind it. */
static void plan(const cup_loader *l, cup_loader_state *at, slot *s)
{
    int64_t least = l->options.drop_last ? l->options.batch : 1, left = l->samples - at->sample;
    if (left < least) {
        at->epoch++;
        at->sample = 0;
        left = l->samples;
    }
    s->from = *at;
    s->rows = left < l->options.batch ? left : l->options.batch;
    at->sample += s->rows;
}

static cup_status ask(cup_loader *l)
{
    cup_loader_state ahead = l->ahead;
    int number = (int)(l->asked % (uint64_t)l->slots);
    slot *s = &l->ring[number];
    cup__error_clear(&s->error);
    s->sent = false;
    plan(l, &ahead, s);
    if (l->feed)
        CUP_TRY(cup__feed_wait(l->feed, number));
    else
        CUP_TRY(make_tensors(l, s));
    for (int i = 0; i < l->count; i++)
        s->host[i] = l->feed ? cup__feed_memory(l->feed, number) + l->offset[i]
                             : cup_tensor_data(s->tensors[i]);
    l->ahead = ahead;
    pthread_mutex_lock(&l->lock);
    l->asked++;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return CUP_OK;
}

/* Waits for the thread, and forgets all that was not given. */
static void forget(cup_loader *l)
{
    for (; l->given < l->asked; l->given++) {
        slot *s = slot_at(l, l->given);
        is_filled(l, l->given, true);
        if (s->sent)
            cup__feed_wait(l->feed, (int)(l->given % (uint64_t)l->slots));
    }
    for (int k = 0; k < l->slots; k++)
        for (int i = 0; i < l->count; i++) {
            cup_tensor_free(l->ring[k].tensors[i]);
            l->ring[k].tensors[i] = NULL;
        }
    l->ahead = l->at;
}

/* Giving. */

static cup_status copy_arrays(cup_loader *l, slot *s)
{
    CUP_TRY(make_tensors(l, s));
    CUP_TRY(cup__feed_begin(l->feed));
    for (int i = 0; i < l->count; i++)
        CUP_TRY(cup__feed_copy(l->feed, cup_tensor_data(s->tensors[i]), s->host[i],
                               (size_t)s->rows * l->sources[i].bytes));
    return CUP_OK;
}

static cup_status send(cup_loader *l, uint64_t number)
{
    slot *s = slot_at(l, number);
    if (s->sent || s->error.status != CUP_OK)
        return CUP_OK;
    cup_status status = copy_arrays(l, s);
    /* Also after a failure, so that copies that were queued are waited for. */
    cup_status ended = cup__feed_end(l->feed, (int)(number % (uint64_t)l->slots));
    s->sent = true;
    return status != CUP_OK ? status : ended;
}

static cup_status give(cup_loader *l, cup_tensor **batch)
{
    while (l->asked - l->given < (uint64_t)l->slots)
        CUP_TRY(ask(l));
    is_filled(l, l->given, true);
    slot *s = slot_at(l, l->given);
    if (s->error.status != CUP_OK)
        return cup__fail(&l->c->error, s->error.status, "%s", s->error.text);
    if (l->feed) {
        CUP_TRY(send(l, l->given));
        CUP_TRY(cup__feed_join(l->feed, (int)(l->given % (uint64_t)l->slots)));
        if (l->given + 1 < l->asked && is_filled(l, l->given + 1, false))
            CUP_TRY(send(l, l->given + 1));
    }
    for (int i = 0; i < l->count; i++) {
        cup__tensor_adopt(s->tensors[i]);
        batch[i] = s->tensors[i];
        s->tensors[i] = NULL;
    }
    s->sent = false;
    l->at = s->from;
    l->at.sample += s->rows;
    l->given++;
    return CUP_OK;
}

static cup_status check_use(cup_loader *l)
{
    cup_context *c = l->c;
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (l->owner != getpid())
        return cup__fail(&c->error, CUP_STATE,
                         "a loader was made before this process was forked, and its thread is not "
                         "here; make one in the child");
    return CUP_OK;
}

cup_status cup_loader_next(cup_loader *l, cup_tensor **batch)
{
    if (!l)
        return CUP_ARGUMENT;
    CUP__DEBUG_CALL(l->c->closed ? NULL : l->c);
    CUP_TRY(check_use(l));
    if (!batch)
        return cup__fail(&l->c->error, CUP_ARGUMENT, "a loader: the place for a batch is NULL");
    for (int i = 0; i < l->count; i++)
        batch[i] = NULL;
    if (l->c->device->is_cuda && cup__cuda_of(l->c->device)->capturing)
        return cup__fail(&l->c->error, CUP_STATE,
                         "a batch cannot be fetched while a graph is captured; fetch it before, "
                         "and cup_copy_into what the graph reads");
    if (cup__device_is_dry(l->c->device))
        return cup__fail(&l->c->error, CUP_STATE,
                         "a batch cannot be fetched while a training step is rehearsed; give the "
                         "loop a `rehearse` of its own");
    cup_status status = give(l, batch);
    if (status != CUP_OK)
        forget(l);
    return status;
}

int64_t cup_loader_samples(const cup_loader *l)
{
    return l ? l->samples : -1;
}

int64_t cup_loader_batches(const cup_loader *l)
{
    if (!l)
        return -1;
    int64_t whole = l->samples / l->options.batch;
    return whole + (!l->options.drop_last && l->samples % l->options.batch);
}

cup_status cup_loader_where(const cup_loader *l, cup_loader_state *state)
{
    if (!l)
        return CUP_ARGUMENT;
    if (!state)
        return cup__fail(&l->c->error, CUP_ARGUMENT, "a loader: the place for its state is NULL");
    *state = l->at;
    return CUP_OK;
}

cup_status cup_loader_resume(cup_loader *l, const cup_loader_state *state)
{
    if (!l)
        return CUP_ARGUMENT;
    CUP__DEBUG_CALL(l->c->closed ? NULL : l->c);
    CUP_TRY(check_use(l));
    if (!state || state->epoch < 0 || state->epoch > EPOCHS_MOST || state->sample < 0 ||
        state->sample > l->samples)
        return cup__fail(&l->c->error, CUP_ARGUMENT,
                         "a loader of %lld samples cannot go on at %s", (long long)l->samples,
                         state ? "this epoch and sample" : "a state that is NULL");
    l->at = *state;
    forget(l);
    return CUP_OK;
}

/* Making and freeing. */

static cup_status check_options(cup_context *c, const cup_loader_array *arrays, int count,
                                const cup_loader_options *o)
{
    if (!arrays || count < 1 || count > CUP_LOADER_ARRAYS)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "a loader: it needs 1 to %d arrays, and options with a batch",
                         CUP_LOADER_ARRAYS);
    if (o->batch < 1 || o->prefetch < -1 || o->prefetch > PREFETCH_MOST)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "a loader with a batch of %lld and prefetch %d: give 1 or more, and -1 to "
                         "%d",
                         (long long)o->batch, o->prefetch, PREFETCH_MOST);
    return CUP_OK;
}

static cup_status check_samples(cup_loader *l)
{
    cup__error *error = &l->c->error;
    const cup_loader_options *o = &l->options;
    l->samples = l->sources[0].samples;
    for (int i = 1; i < l->count; i++)
        if (l->sources[i].samples != l->samples)
            return cup__fail(error, CUP_SHAPE,
                             "the arrays of a loader have %lld and %lld samples; the first "
                             "dimension of all must be the same",
                             (long long)l->samples, (long long)l->sources[i].samples);
    if (l->samples < 1 || (o->drop_last && l->samples < o->batch))
        return cup__fail(error, CUP_ARGUMENT,
                         "%lld samples make no batch of %lld; use a smaller batch, or more samples",
                         (long long)l->samples, (long long)o->batch);
    if (o->shuffle && l->samples > UINT32_MAX)
        return cup__fail(error, CUP_UNSUPPORTED,
                         "%lld samples are more than can be shuffled, 2^32; use fewer",
                         (long long)l->samples);
    int64_t most = o->batch < l->samples ? o->batch : l->samples;
    for (int i = 0; i < l->count; i++) {
        size_t bytes;
        l->offset[i] = l->bytes;
        if (!cup__multiply((size_t)most, l->sources[i].bytes, &bytes) ||
            bytes > SIZE_MAX / 64 - l->bytes)
            return cup__fail(error, CUP_SHAPE, "a batch of the loader is too large to address");
        l->bytes += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return CUP_OK;
}

static cup_status open_ring(cup_loader *l)
{
    int prefetch = l->options.prefetch ? l->options.prefetch : PREFETCH;
    bool cuda = l->c->device->is_cuda;
    /* On a GPU one batch is under way while others are filled. */
    l->slots = prefetch < 1 ? 1 : prefetch + cuda;
    l->ring = cup__calloc((size_t)l->slots, sizeof *l->ring);
    if (l->options.shuffle)
        l->order = cup__calloc((size_t)l->samples, sizeof *l->order);
    if (!l->ring || (l->options.shuffle && !l->order))
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a loader");
    l->order_epoch = -1;
    if (cuda)
        CUP_TRY(cup__feed_open(cup__cuda_of(l->c->device), l->slots, l->bytes, &l->feed));
    if (prefetch < 1)
        return CUP_OK;
    l->threaded = pthread_create(&l->thread, NULL, fill_all, l) == 0;
    return l->threaded ? CUP_OK
                       : cup__fail(&l->c->error, CUP_MEMORY,
                                   "the system gives no thread for a loader; use prefetch -1");
}

static cup_status open_loader(cup_loader *l, const cup_loader_array *arrays)
{
    for (int i = 0; i < l->count; i++)
        CUP_TRY(cup__source_open(&l->c->error, &arrays[i], &l->sources[i]));
    CUP_TRY(check_samples(l));
    return open_ring(l);
}

/* Before the context ends, or with the loader: afterwards nothing of the context is used. */
static void stop(void *user)
{
    cup_loader *l = user;
    if (l->threaded && l->owner == getpid()) {
        pthread_mutex_lock(&l->lock);
        l->leave = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    l->threaded = false;
    l->asked = l->given; /* what was not filled will not be */
    cup__feed_close(l->feed, true);
    l->feed = NULL;
    if (l->ring)
        forget(l);
}

cup_loader *cup_loader_new(cup_context *c, const cup_loader_array *arrays, int count,
                           const cup_loader_options *options)
{
    CUP__DEBUG_CALL(c);
    cup_loader_options o;
    if (!c || c->error.status != CUP_OK ||
        cup__options_take(&c->error, "cup_loader_new", &o, sizeof o, options) != CUP_OK ||
        check_options(c, arrays, count, &o) != CUP_OK)
        return NULL;
    cup_loader *l = cup__calloc(1, sizeof *l);
    if (!l) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a loader");
        return NULL;
    }
    l->c = c;
    l->options = o;
    l->count = count;
    l->owner = getpid();
    l->at.seed = l->ahead.seed = o.seed;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->helper = (cup__helper){.stop = stop, .user = l};
    cup__context_join(c);
    cup__helper_add(c, &l->helper);
    if (open_loader(l, arrays) == CUP_OK)
        return l;
    cup_loader_free(l);
    return NULL;
}

void cup_loader_free(cup_loader *l)
{
    if (!l)
        return;
    if (!l->c->closed) {
        cup__helper_remove(l->c, &l->helper);
        stop(l);
    }
    for (int i = 0; i < l->count; i++)
        cup__source_close(&l->sources[i]);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    cup__free(l->ring);
    cup__free(l->order);
    cup__context_leave(l->c);
    cup__free(l);
}
