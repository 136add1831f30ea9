#include "prof/ahead.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/parallel.h"

#define MOST_THREADS 64
#define ROOMS_EACH 4 /* for a thread: one slow item does not stop the others soon */

typedef enum state { FREE, BUSY, READY } state;

typedef struct slot {
    void *room;
    int64_t item;
    state state;
} slot;

struct cup__ahead {
    /* The items to be begun and to be prepared; the first that is not given up. */
    int64_t count, next, next_prepared, wanted;
    cup__ahead_prepare prepare;
    cup__ahead_make make;
    cup__ahead_drop drop;
    void *user;
    slot *slots;
    int rooms, started;
    bool over;
    double waited;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t threads[MOST_THREADS];
};

/* Whether the next item has a room. */
static bool can_begin(const cup__ahead *a)
{
    return a->next < a->count && a->next < a->wanted + a->rooms &&
           a->slots[a->next % a->rooms].state != BUSY;
}

static bool can_prepare(const cup__ahead *a)
{
    return a->prepare && a->next_prepared < a->count;
}

/* Called and left with the lock held. */
static void prepare_next(cup__ahead *a)
{
    int64_t item = a->next_prepared++;
    pthread_mutex_unlock(&a->lock);
    a->prepare(item, a->user);
    pthread_mutex_lock(&a->lock);
}

/* Called and left with the lock held. */
static void make_next(cup__ahead *a)
{
    int64_t item = a->next++;
    bool unprepared = can_prepare(a) && a->next_prepared <= item;
    slot *s = &a->slots[item % a->rooms];
    s->state = BUSY;
    s->item = item;
    if (unprepared)
        a->next_prepared = item + 1;
    pthread_mutex_unlock(&a->lock);
    if (unprepared)
        a->prepare(item, a->user);
    a->make(item, s->room, a->user);
    pthread_mutex_lock(&a->lock);
    s->state = READY;
    pthread_cond_signal(&a->done);
    /* Where the item was given up meanwhile, its room was what others waited for. */
    pthread_cond_broadcast(&a->work);
}

static void *work(void *user)
{
    cup__ahead *a = user;
    cup__parallel_alone();
    pthread_mutex_lock(&a->lock);
    while (!a->over && a->next < a->count) {
        if (can_begin(a))
            make_next(a);
        else if (can_prepare(a))
            prepare_next(a);
        else
            pthread_cond_wait(&a->work, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* A system that grants no threads is served by the one that asks. Signals are for the program's. */
static void start(cup__ahead *a, int threads)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (a->started < threads && a->started < MOST_THREADS &&
           !pthread_create(&a->threads[a->started], NULL, work, a))
        a->started++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

cup__ahead *cup__ahead_new(int64_t count, size_t size, cup__ahead_prepare prepare,
                           cup__ahead_make make, cup__ahead_drop drop, void *user)
{
    int threads = cup__threads(), rooms = ROOMS_EACH * threads;
    cup__ahead *a = cup__calloc(1, sizeof *a);
    slot *slots = a ? cup__calloc((size_t)rooms, sizeof *slots) : NULL;
    bool good = slots != NULL;
    for (int i = 0; good && i < rooms; i++)
        good = (slots[i].room = cup__calloc(1, size)) != NULL;
    if (!a)
        return NULL;
    *a = (cup__ahead){.count = count, .prepare = prepare, .make = make, .drop = drop,
                      .user = user, .slots = slots, .rooms = slots ? rooms : 0};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->work, NULL);
    pthread_cond_init(&a->done, NULL);
    if (good) {
        start(a, threads);
        return a;
    }
    cup__ahead_free(a);
    return NULL;
}

void *cup__ahead_get(cup__ahead *a, int64_t i)
{
    double begin = cup__clock();
    pthread_mutex_lock(&a->lock);
    a->wanted = i;
    if (a->next < i)
        a->next = i;
    pthread_cond_broadcast(&a->work);
    slot *s = &a->slots[i % a->rooms];
    while (s->item != i || s->state != READY) {
        if (a->next == i && can_begin(a))
            make_next(a);
        else
            pthread_cond_wait(&a->done, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    a->waited += cup__clock() - begin;
    return s->room;
}

double cup__ahead_waited(const cup__ahead *a)
{
    return a->waited;
}

void cup__ahead_free(cup__ahead *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->over = true;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < a->started; i++)
        pthread_join(a->threads[i], NULL);
    for (int i = 0; i < a->rooms; i++) {
        if (a->slots[i].room)
            a->drop(a->slots[i].room);
        cup__free(a->slots[i].room);
    }
    cup__free(a->slots);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->work);
    pthread_cond_destroy(&a->done);
    cup__free(a);
}

void cup__ahead_nothing(int64_t i, void *room, void *user)
{
    (void)i;
    (void)room;
    (void)user;
}
