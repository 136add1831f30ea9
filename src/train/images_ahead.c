#include "train/images_ahead.h"

#include <pthread.h>
#include <unistd.h>

#include "base/memory.h"
#include "data/images.h"

/* The thread fills one slot while the other is read. */
struct cup__images_ahead {
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

cup__images_ahead *cup__images_ahead_new(cup__error *error, const cup_images *images,
                                         const cup_classification *how,
                                         const cup__images_share *share, bool threaded)
{
    cup__images_ahead *a = cup__calloc(1, sizeof *a);
    size_t pixels, one = (size_t)(images->height * images->width * images->channels);
    size_t rows = (size_t)(share->batches * share->parts * share->rows);
    if (!a || !cup__multiply(rows, one, &pixels)) {
        cup__no_memory(error, "the batches of images");
        cup__free(a);
        return NULL;
    }
    a->images = images;
    a->how = how;
    a->share = *share;
    a->bytes = (int64_t)one;
    a->owner = getpid();
    a->wanted = a->ready = -1;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    bool fits = true;
    for (int i = 0; i < 1 + threaded && fits; i++) {
        a->pixels[i] = cup__malloc(pixels);
        a->labels[i] = cup__calloc(rows, sizeof **a->labels);
        fits = a->pixels[i] && a->labels[i];
    }
    if (!fits) {
        cup__no_memory(error, "the batches of images");
        cup__images_ahead_free(a);
        return NULL;
    }
    /* Where the system gives no thread, each batch is made when it is asked for. */
    a->threaded = threaded && pthread_create(&a->thread, NULL, fill_all, a) == 0;
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
        cup__free(a->pixels[i]);
        cup__free(a->labels[i]);
    }
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    cup__free(a);
}

/* Waits until the thread has made the batch, and lets it go on with the next one. */
static cup_status take(cup__error *error, cup__images_ahead *a, int64_t step, int *slot)
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
        cup__fail(error, status, "%s", a->error.text);
    a->ready = -1;
    a->wanted = step + 1;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return status;
}

cup_status cup__images_ahead_get(cup__error *error, cup__images_ahead *a, int64_t step,
                                 const uint8_t **pixels, const int64_t **labels)
{
    int slot = 0;
    if (a->threaded && a->owner == getpid())
        CUP_TRY(take(error, a, step, &slot));
    else
        CUP_TRY(fill(a, error, 0, step));
    *pixels = a->pixels[slot];
    *labels = a->labels[slot];
    return CUP_OK;
}
