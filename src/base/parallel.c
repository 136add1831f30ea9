/* A pool of threads that loops share. Whoever is free takes the next piece, the caller included, so
 * that a loop never waits for a thread that the system does not run; and who waits does so awake
 * for a moment only. On a machine with other work this is what keeps loops fast. */
#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#define MOST_THREADS 1024
#define SPINS 2000 /* some tens of microseconds, about the time between two loops of a model */

static _Atomic int limit;

/* One loop at a time; what is below `lock` changes under it only. */
static struct {
    pthread_mutex_t busy, lock;
    pthread_cond_t work, done;
    _Atomic unsigned loops;     /* begun so far */
    _Atomic int64_t unfinished; /* pieces */
    int64_t next;               /* the piece to be taken; `pieces` when all are */
    int64_t pieces, count;
    cup__body body;
    void *user;
    int workers, asleep;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static _Thread_local bool inside; /* a piece is worked on in this thread, or it shall be alone */

/* The processors this process may use. */
static int processors(void)
{
    static _Atomic int known;
    int count = atomic_load_explicit(&known, memory_order_relaxed);
    if (count)
        return count;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        count = CPU_COUNT(&set);
    else /* more of them than a set holds */
        count = (int)sysconf(_SC_NPROCESSORS_ONLN);
    count = count > 0 ? count : 1;
    atomic_store(&known, count);
    return count;
}

int cup__threads_usable(void)
{
    return processors();
}

int cup__threads(void)
{
    int threads = atomic_load_explicit(&limit, memory_order_relaxed);
    return threads > 0 ? threads : processors();
}

void cup__threads_set(int threads)
{
    atomic_store(&limit, threads);
}

void cup__parallel_alone(void)
{
    inside = true;
}

static void pause_a_little(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Where a piece begins; piece number `pieces` is the end of the loop. */
static int64_t first_of(int64_t piece)
{
    return pool.count / pool.pieces * piece + pool.count % pool.pieces * piece / pool.pieces;
}

/* Takes pieces until there are none left. Called and left with the lock held. */
static void take_pieces(void)
{
    while (pool.next < pool.pieces) {
        int64_t piece = pool.next++, begin = first_of(piece), end = first_of(piece + 1);
        cup__body body = pool.body;
        void *user = pool.user;
        pthread_mutex_unlock(&pool.lock);
        inside = true;
        body(begin, end, user);
        inside = false;
        pthread_mutex_lock(&pool.lock);
        if (atomic_fetch_sub(&pool.unfinished, 1) == 1)
            pthread_cond_signal(&pool.done);
    }
}

static void *work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        take_pieces();
        unsigned seen = atomic_load(&pool.loops);
        pthread_mutex_unlock(&pool.lock);
        for (int i = 0; i < SPINS && atomic_load(&pool.loops) == seen; i++)
            pause_a_little();
        pthread_mutex_lock(&pool.lock);
        pool.asleep++;
        while (pool.next >= pool.pieces)
            pthread_cond_wait(&pool.work, &pool.lock);
        pool.asleep--;
    }
    return NULL;
}

/* Starts threads until there are `wanted`; fewer when the system has no more. Signals are for the
 * threads of the program. */
static void start_workers(int64_t wanted)
{
    sigset_t all, old;
    pthread_attr_t detached;
    if (pool.workers >= wanted || pool.workers >= MOST_THREADS || pthread_attr_init(&detached))
        return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t thread;
    while (pool.workers < wanted && pool.workers < MOST_THREADS &&
           !pthread_create(&thread, &detached, work, NULL))
        pool.workers++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&detached);
}

static void wait_for_others(void)
{
    for (int i = 0; i < SPINS && atomic_load(&pool.unfinished); i++)
        pause_a_little();
    pthread_mutex_lock(&pool.lock);
    while (atomic_load(&pool.unfinished))
        pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

static void run(int64_t count, int64_t pieces, cup__body body, void *user)
{
    pthread_mutex_lock(&pool.lock);
    start_workers(pieces - 1);
    pool.count = count;
    pool.pieces = pieces;
    pool.body = body;
    pool.user = user;
    pool.next = 0;
    atomic_store(&pool.unfinished, pieces);
    atomic_fetch_add(&pool.loops, 1);
    if (pool.asleep)
        pthread_cond_broadcast(&pool.work);
    take_pieces();
    pthread_mutex_unlock(&pool.lock);
    wait_for_others();
}

/* A forked child has none of the threads. */
static void forget_workers(void)
{
    pthread_mutex_init(&pool.busy, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.next = pool.pieces = 0;
    pool.workers = pool.asleep = 0;
    inside = false;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_workers);
}

void cup__parallel_for(int64_t count, int64_t grain, cup__body body, void *user)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (count <= 0)
        return;
    if (grain < 1)
        grain = 1;
    int64_t pieces = (count - 1) / grain + 1;
    int threads = cup__threads();
    if (pieces > threads)
        pieces = threads;
    if (pieces > MOST_THREADS)
        pieces = MOST_THREADS;
    /* A loop inside a piece, or while another thread of the program has the pool, runs alone. */
    if (pieces <= 1 || inside || pthread_mutex_trylock(&pool.busy)) {
        body(0, count, user);
        return;
    }
    pthread_once(&once, watch_forks);
    run(count, pieces, body, user);
    pthread_mutex_unlock(&pool.busy);
}
