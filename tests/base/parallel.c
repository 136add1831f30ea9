#include "base/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

#define COUNT 100003

static void add_one(int64_t begin, int64_t end, void *user)
{
    int *at = user;
    EXPECT(begin < end);
    for (int64_t i = begin; i < end; i++)
        at[i]++;
}

/* Every index must have been visited once. */
static void visit_all(int64_t count, int64_t grain)
{
    static int seen[COUNT];
    memset(seen, 0, sizeof seen);
    cup__parallel_for(count, grain, add_one, seen);
    for (int64_t i = 0; i < COUNT; i++)
        EXPECT_INT(seen[i], i < count);
}

TEST(parallel_visits_each_index_once)
{
    static const int64_t counts[] = {0, 1, 2, 7, 8, 9, 1000, COUNT};
    static const int64_t grains[] = {-1, 1, 3, 1000, INT64_MAX};
    for (int threads = 1; threads <= 16; threads *= 2) {
        cup__threads_set(threads);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (size_t k = 0; k < sizeof grains / sizeof *grains; k++)
                visit_all(counts[i], grains[k]);
    }
}

static void count_piece(int64_t begin, int64_t end, void *user)
{
    (void)begin, (void)end;
    atomic_fetch_add((_Atomic int *)user, 1);
}

static void nested(int64_t begin, int64_t end, void *user)
{
    (void)begin, (void)end;
    cup__parallel_for(100, 1, count_piece, user);
}

TEST(parallel_nested_loops_run_in_their_thread)
{
    _Atomic int pieces = 0;
    cup__threads_set(4);
    cup__parallel_for(4, 1, nested, &pieces);
    EXPECT_INT(pieces, 4);
}

static void *many_loops(void *user)
{
    for (int i = 0; i < 2000; i++) {
        static _Thread_local int seen[64];
        memset(seen, 0, sizeof seen);
        cup__parallel_for(64, 1, add_one, seen);
        for (int k = 0; k < 64; k++)
            if (seen[k] != 1)
                *(_Atomic int *)user = 1;
    }
    return NULL;
}

TEST(parallel_from_several_threads)
{
    pthread_t threads[4];
    _Atomic int wrong = 0;
    cup__threads_set(3);
    for (int i = 0; i < 4; i++)
        EXPECT_INT(pthread_create(&threads[i], NULL, many_loops, &wrong), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    EXPECT_INT(wrong, 0);
}

TEST(parallel_in_a_forked_child)
{
    cup__threads_set(4);
    visit_all(1000, 1);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            visit_all(1000, 1);
            _exit(0);
        }
        int status = -1;
        EXPECT(child > 0 && waitpid(child, &status, 0) == child);
        EXPECT_INT(status, 0);
    }
    visit_all(1000, 1);
}
