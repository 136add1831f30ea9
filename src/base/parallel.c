#include "base/parallel.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/wide.h"

static _Atomic int limit;

int cup__threads(void)
{
    int threads = atomic_load_explicit(&limit, memory_order_relaxed);
    return threads > 0 ? threads : omp_get_num_procs();
}

void cup__threads_set(int threads)
{
    atomic_store(&limit, threads);
}

typedef struct loop {
    int64_t count, pieces;
    cup__body body;
    void *user;
} loop;

/* Where a piece begins; piece number `pieces` is the end of the loop. */
static int64_t first_of(const loop *l, int64_t piece)
{
    return l->count / l->pieces * piece + l->count % l->pieces * piece / l->pieces;
}

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer cannot see how OpenMP's threads wait for each other, but how these do. */
#include <pthread.h>

#define MOST_PIECES 64

static _Thread_local bool inside;

typedef struct piece {
    const loop *loop;
    int64_t index;
    pthread_t thread;
    bool started;
} piece;

static void *run_piece(void *user)
{
    const piece *p = user;
    inside = true;
    p->loop->body(first_of(p->loop, p->index), first_of(p->loop, p->index + 1), p->loop->user);
    inside = false;
    return NULL;
}

static bool in_parallel(void)
{
    return inside;
}

static void run(loop *l)
{
    piece pieces[MOST_PIECES];
    l->pieces = l->pieces < MOST_PIECES ? l->pieces : MOST_PIECES;
    for (int64_t i = 0; i < l->pieces; i++) {
        pieces[i] = (piece){.loop = l, .index = i};
        pieces[i].started =
            i > 0 && !pthread_create(&pieces[i].thread, NULL, run_piece, &pieces[i]);
        if (!pieces[i].started)
            run_piece(&pieces[i]);
    }
    for (int64_t i = 0; i < l->pieces; i++)
        if (pieces[i].started)
            pthread_join(pieces[i].thread, NULL);
}
#else
static bool in_parallel(void)
{
    return omp_in_parallel();
}

static void run(loop *l)
{
#pragma omp parallel for num_threads((int)l->pieces) schedule(static, 1)
    for (int64_t piece = 0; piece < l->pieces; piece++)
        l->body(first_of(l, piece), first_of(l, piece + 1), l->user);
}
#endif

void cup__parallel_for(int64_t count, int64_t grain, cup__body body, void *user)
{
    if (count <= 0)
        return;
    if (grain < 1)
        grain = 1;
    int64_t pieces = (count + grain - 1) / grain;
    int threads = cup__threads();
    if (pieces > threads)
        pieces = threads;
    if (pieces <= 1 || in_parallel()) {
        body(0, count, user);
        return;
    }
    run(&(loop){count, pieces, body, user});
}
