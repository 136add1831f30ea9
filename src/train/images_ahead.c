#include "train/images_ahead.h"

#include <pthread.h>
#include <unistd.h>

#include "base/memory.h"
#include "cuda/feed.h"
#include "data/images.h"
#include "tensor/context.h"
#include "tensor/tensor.h"

/* A thread fills one slot while the other is read. Slots lie in pinned memory of the feed, if there
 * is one: the thread alone has loops over all cores then, as nothing is copied on the host. */
struct cup__images_ahead {
    cup_context *c;
    cup__feed *feed;
    cup_tensor *incoming; /* what the feed brings, while a step reads what came before */
    const cup_images *images;
    const cup_classification *how;
    cup__images_share share;
    int64_t bytes; /* of an image */
    uint8_t *pixels[2];
    int64_t *labels[2];
    pthread_t thread;
    bool threaded;
    pid_t owner;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    int64_t wanted, ready; /* steps; -1: none */
    int filled;            /* the slot of the step that is ready */
    cup__error error;      /* of that step */
    bool leave;
};

static cup_status fill(cup__images_ahead *a, cup__error *error, int slot, int64_t step)
{
    const cup__images_share *s = &a->share;
    for (int64_t i = 0; i < s->batches * s->parts; i++) {
        int64_t batch = step * s->batches + i / s->parts, at = i * s->rows;
        CUP_TRY(cup__images_batch(error, a->images, a->how->seed,
                                  batch * a->how->batch + s->from[i % s->parts], s->rows,
                                  &a->how->augmentation, a->pixels[slot] + at * a->bytes,
                                  a->labels[slot] + at));
    }
    return CUP_OK;
}

static void *fill_all(void *user)
{
    cup__images_ahead *a = user;
    pthread_mutex_lock(&a->lock);
    while (!a->leave) {
        int64_t step = a->wanted;
        if (step < 0) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        int slot = !a->filled;
        cup__error error = {0};
        pthread_mutex_unlock(&a->lock);
        fill(a, &error, slot, step);
        pthread_mutex_lock(&a->lock);
        a->error = error;
        a->filled = slot;
        a->ready = step;
        if (a->wanted == step)
            a->wanted = -1;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* Memory for the slots, `count` bytes of pixels and `rows` labels each. */
static cup_status make_slots(cup__images_ahead *a, size_t count, size_t rows)
{
    cup_context *c = a->c;
    bool gpu = cup_device_is_cuda(c);
    if (gpu) {
        const int64_t shape = (int64_t)count;
        CUP_TRY(cup__feed_open(cup__cuda_of(c->device), 2, count, &a->feed));
        a->incoming = cup_keep(cup_tensor_new(c, CUP_U8, 1, &shape));
        CUP_TRY(c->error.status);
        CUP_TRY(cup__feed_begin(a->feed));
    }
    for (int i = 0; i < 1 + gpu; i++) {
        a->pixels[i] = gpu ? (uint8_t *)cup__feed_memory(a->feed, i) : cup__malloc(count);
        a->labels[i] = cup__calloc(rows, sizeof **a->labels);
        if (!a->pixels[i] || !a->labels[i])
            return cup__no_memory(&c->error, "the batches of images");
    }
    return CUP_OK;
}

cup__images_ahead *cup__images_ahead_new(cup_context *c, const cup_images *images,
                                         const cup_classification *how,
                                         const cup__images_share *share)
{
    cup__images_ahead *a = cup__calloc(1, sizeof *a);
    size_t pixels, one = (size_t)(images->height * images->width * images->channels);
    size_t rows = (size_t)(share->batches * share->parts * share->rows);
    if (!a || !cup__multiply(rows, one, &pixels)) {
        cup__no_memory(&c->error, "the batches of images");
        cup__free(a);
        return NULL;
    }
    a->c = c;
    a->images = images;
    a->how = how;
    a->share = *share;
    a->bytes = (int64_t)one;
    a->owner = getpid();
    a->wanted = a->ready = -1;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (make_slots(a, pixels, rows) != CUP_OK) {
        cup__images_ahead_free(a);
        return NULL;
    }
    /* Where the system gives no thread, each batch is made when it is asked for. */
    a->threaded = a->feed && pthread_create(&a->thread, NULL, fill_all, a) == 0;
    return a;
}

void cup__images_ahead_free(cup__images_ahead *a)
{
    if (!a)
        return;
    if (a->threaded && a->owner == getpid()) {
        pthread_mutex_lock(&a->lock);
        a->leave = true;
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    for (int i = 0; i < 2; i++) {
        if (!a->feed)
            cup__free(a->pixels[i]);
        cup__free(a->labels[i]);
    }
    cup__feed_close(a->feed, true);
    cup_tensor_free(a->incoming);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    cup__free(a);
}

/* Waits until the thread has made the batch, and lets it go on with the next one, in the slot from
 * which the batch before has been copied. */
static cup_status take(cup__images_ahead *a, int64_t step, int *slot)
{
    pthread_mutex_lock(&a->lock);
    if (a->ready != step) {
        a->wanted = step;
        pthread_cond_broadcast(&a->changed);
    }
    while (a->ready != step)
        pthread_cond_wait(&a->changed, &a->lock);
    *slot = a->filled;
    cup_status status = a->error.status;
    if (status != CUP_OK)
        cup__fail(&a->c->error, status, "%s", a->error.text);
    else
        status = cup__feed_wait(a->feed, !*slot);
    a->ready = -1;
    a->wanted = status == CUP_OK ? step + 1 : -1;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return status;
}

/* What is in a slot goes to the GPU while it computes, and to `pixels` behind what it computes. */
static cup_status send(cup__images_ahead *a, int slot, cup_tensor *pixels)
{
    size_t bytes = (size_t)pixels->count;
    cup_status status = cup__feed_copy(a->feed, a->incoming->data, a->pixels[slot], bytes);
    CUP_TRY(cup__feed_end(a->feed, slot));
    CUP_TRY(status);
    CUP_TRY(cup__feed_join(a->feed, slot));
    CUP_TRY(cup__tensor_change(pixels, "writing"));
    cup__device *device = a->c->device;
    CUP_TRY(device->calls->copy(device, pixels->data, a->incoming->data, bytes));
    return cup__feed_begin(a->feed);
}

cup_status cup__images_ahead_put(cup__images_ahead *a, int64_t step, cup_tensor *pixels,
                                 const int64_t **labels)
{
    int slot = 0;
    if (a->threaded && a->owner == getpid()) {
        CUP_TRY(take(a, step, &slot));
    } else {
        if (a->feed)
            CUP_TRY(cup__feed_wait(a->feed, slot));
        CUP_TRY(fill(a, &a->c->error, slot, step));
    }
    *labels = a->labels[slot];
    return a->feed ? send(a, slot, pixels)
                   : cup_tensor_write(pixels, a->pixels[slot], (size_t)pixels->count);
}
