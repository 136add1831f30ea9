/* Processes that end, stop, stay away or do something else are named by all others in time. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/together.h"
#include "test.h"

#define COUNT 3

static void sum(cup_context *c, cup_comm *m)
{
    cup_tensor *t = cup_full(c, CUP_F32, 1, (int64_t[]){1000}, 1);
    cup_comm_all_reduce(m, &t, 1, CUP_COMBINE_SUM);
}

static void look(double timeout, together_body body, void *user, together_end *ends)
{
    together_look(COUNT,
                  CUP_OPTIONS(cup_comm_options, .count = COUNT, .address = together_address(),
                              .timeout = timeout, .silence = 2),
                  body, user, ends);
}

/* All but rank 1 failed within the time, and say so in these words. */
static void expect_named(const together_end *ends, const char *words, double seconds)
{
    for (int i = 0; i < COUNT; i++) {
        if (i == 1)
            continue;
        EXPECT_INT(ends[i].code, 1);
        EXPECT_CONTAINS(ends[i].text, "communicator: rank 1 (process ");
        EXPECT_CONTAINS(ends[i].text, words);
        if (ends[i].seconds > seconds)
            test_fail(__FILE__, __LINE__, "rank %d took %.1f s", i, ends[i].seconds);
    }
}

/* Rank 1 is killed when the others have had a second to begin what it does not take part in. */
static void killed(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    for (int step = 0; step < 5; step++) {
        cup_comm_step(m, step);
        if (cup_comm_rank(m) == 1 && step == 3) {
            sleep(1);
            raise(SIGKILL);
        }
        sum(c, m);
    }
}

TEST(comm_names_who_was_killed)
{
    together_end ends[COUNT];
    look(30, killed, NULL, ends);
    EXPECT_INT(ends[1].code, 128 + SIGKILL);
    expect_named(ends, "has ended, or its host has", 5);
}

/* Where they meet, without "file:" and the file's name. */
static const char *folder(void)
{
    static char text[400];
    const char *address = together_address();
    snprintf(text, sizeof text, "%.*s", (int)(strrchr(address, '/') - address - 5), address + 5);
    return text;
}

static void expect_in_file(int rank, const char *words)
{
    char path[440], text[20000];
    snprintf(path, sizeof path, "%s/flight-%d.json", folder(), rank);
    FILE *file = fopen(path, "r");
    size_t count = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[count] = 0;
    EXPECT_CONTAINS(text, words);
}

/* What each did last is written where a run fails, but by who was killed. */
TEST(comm_writes_what_each_did_last)
{
    together_end ends[COUNT];
    char killed_one[440];
    together_look(COUNT,
                  CUP_OPTIONS(cup_comm_options, .count = COUNT, .address = together_address(),
                              .timeout = 30, .silence = 2, .record = folder()),
                  killed, NULL, ends);
    for (int i = 0; i < COUNT; i += 2) {
        expect_in_file(i, "\"why\": \"rank 1 (process ");
        expect_in_file(i, "has ended, or its host has");
        expect_in_file(i, "\"was\": \"in all_reduce, operation 4 of step 3\"");
        expect_in_file(i, "\"operation\": \"all_reduce\"");
        expect_in_file(i, "\"sequence\": 4");
    }
    snprintf(killed_one, sizeof killed_one, "%s/flight-1.json", folder());
    EXPECT(access(killed_one, F_OK) != 0);
}

/* Rank 1 stops; its parent ends it when the others are through. */
static void stopped(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    sum(c, m);
    if (cup_comm_rank(m) == 1) {
        pid_t own = getpid();
        if (fork() == 0) {
            sleep(6);
            kill(own, SIGKILL);
            _exit(0);
        }
        raise(SIGSTOP);
    }
    sum(c, m);
}

TEST(comm_names_who_was_stopped)
{
    together_end ends[COUNT];
    look(30, stopped, NULL, ends);
    expect_named(ends, "has given no sign of life for 2 s", 5);
}

static void late(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    cup_comm_step(m, 17);
    sum(c, m);
    if (cup_comm_rank(m) == 1)
        sleep(4);
    sum(c, m);
}

TEST(comm_names_who_is_late)
{
    together_end ends[COUNT];
    look(1, late, NULL, ends);
    expect_named(ends, "wait for more than 1 s: this one is in all_reduce, operation 2 of step 17, "
                       "and that one is computing behind operation 1 of step 17",
                 4.5);
    EXPECT_INT(ends[1].code, 1);
    EXPECT_CONTAINS(ends[1].text, "wait for more than 1 s");
}

/* Who says that it is busy may be late. */
static void busy(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    sum(c, m);
    if (cup_comm_rank(m) == 1) {
        cup_comm_busy(m, true);
        sleep(3);
        cup_comm_busy(m, false);
    }
    sum(c, m);
}

TEST(comm_waits_for_who_is_busy)
{
    together_end ends[COUNT];
    look(1, busy, NULL, ends);
    for (int i = 0; i < COUNT; i++)
        EXPECT_TEXT(ends[i].text, "");
}

static void elsewhere(cup_context *c, cup_comm *m, void *user)
{
    const int *way = user;
    sum(c, m);
    if (cup_comm_rank(m) != 1) {
        sum(c, m);
    } else if (*way == 0) {
        cup_comm_barrier(m);
    } else {
        cup_tensor *t = cup_full(c, CUP_F32, 1, (int64_t[]){*way == 1 ? 999 : 1000}, 1);
        cup_comm_all_reduce(m, &t, 1, *way == 1 ? CUP_COMBINE_SUM : CUP_COMBINE_MAX);
    }
}

TEST(comm_names_who_is_elsewhere)
{
    together_end ends[COUNT];
    static const char *const words[] = {"all must call the same operations in the same order",
                                        "sizes must be the same", "of another dtype or reduction"};
    for (int way = 0; way < 3; way++) {
        look(10, elsewhere, &way, ends);
        for (int i = 0; i < COUNT; i++) {
            EXPECT_INT(ends[i].code, 1);
            EXPECT_CONTAINS(ends[i].text, words[way]);
            EXPECT_CONTAINS(ends[i].text, "rank 1 (process ");
        }
    }
}

static void fails(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    sum(c, m);
    if (cup_comm_rank(m) == 1)
        cup_fail(c, CUP_IO, "the disk is full");
    sum(c, m);
}

TEST(comm_tells_why_another_failed)
{
    together_end ends[COUNT];
    look(10, fails, NULL, ends);
    EXPECT_TEXT(ends[1].text, "the disk is full");
    expect_named(ends, "has failed: the disk is full", 5);
}

static void leaves(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    sum(c, m);
    if (cup_comm_rank(m) != 1)
        sum(c, m);
}

TEST(comm_names_who_left)
{
    together_end ends[COUNT];
    look(10, leaves, NULL, ends);
    EXPECT_INT(ends[1].code, 0);
    expect_named(ends, "has left while", 5);
}

static void nothing(cup_context *c, cup_comm *m, void *user)
{
    (void)c;
    (void)m;
    (void)user;
}

/* A process that was never started. */
TEST(comm_names_who_never_came)
{
    together_end ends[COUNT];
    together_look(2,
                  CUP_OPTIONS(cup_comm_options, .count = 3, .address = together_address(),
                              .timeout = 1),
                  nothing, NULL, ends);
    EXPECT_INT(ends[0].code, 1);
    EXPECT_CONTAINS(ends[0].text, "rank 2 did not come to rank 0");
    EXPECT_INT(ends[1].code, 1);
}

/* Strangers at the door: connections that say nothing, and ones that say anything. */
static void beset(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    sum(c, m);
}

TEST(comm_lets_strangers_go)
{
    together_end ends[COUNT];
    char address[64];
    cup__endpoint place = {.host = "127.0.0.1", .port = 0};
    int taken = cup__listen(&place, 0);
    EXPECT(taken >= 0);
    close(taken);
    snprintf(address, sizeof address, "127.0.0.1:%d", place.port);
    pid_t stranger = fork();
    if (stranger == 0) {
        char junk[4096];
        for (size_t i = 0; i < sizeof junk; i++)
            junk[i] = (char)test_random();
        for (int i = 0;; i++) {
            int handle = cup__connect(&place, cup__clock() + 1);
            if (handle >= 0 && i % 3)
                cup__send_all(handle, junk + i % 64, (size_t)(i % 300), cup__clock() + 1);
            if (handle >= 0 && i % 2)
                close(handle);
            cup__pause(0.002);
            if (i > 400)
                _exit(0);
        }
    }
    cup__pause(0.1);
    together_look(COUNT,
                  CUP_OPTIONS(cup_comm_options, .count = COUNT, .address = address, .timeout = 30),
                  beset, NULL, ends);
    kill(stranger, SIGKILL);
    for (int i = 0; i < COUNT; i++)
        EXPECT_TEXT(ends[i].text, "");
}

typedef struct pulled {
    _Atomic bool begun, may_end;
} pulled;

/* As NCCL's end of an operation, which waits for the thread that computes to free its graphs. */
static void pull(void *user)
{
    pulled *p = user;
    atomic_store(&p->begun, true);
    while (!atomic_load(&p->may_end))
        cup__pause(0.001);
}

static void wait_on_a_gpu(cup_context *c, cup_comm *m, void *user)
{
    static pulled p;
    cup__rope rope = {.pull = pull, .user = &p};
    (void)user;
    cup__rope_add(m->mesh, &rope);
    if (cup_comm_rank(m) == 1)
        raise(SIGKILL);
    for (double end = cup__clock() + 4; !atomic_load(&p.begun) && cup__clock() < end;)
        cup__pause(0.001);
    if (!atomic_load(&p.begun))
        wrong("nothing was pulled");
    if (cup__comm_check(m) != CUP_PEER)
        wrong("nothing has failed");
    (void)c;
    atomic_store(&p.may_end, true);
    cup__rope_remove(m->mesh, &rope);
}

/* What waits on a GPU for a process that ended is ended, without a call of the host. */
TEST(comm_ends_what_waits_on_a_gpu)
{
    together_end ends[COUNT];
    look(30, wait_on_a_gpu, NULL, ends);
    EXPECT_INT(ends[1].code, 128 + SIGKILL);
    expect_named(ends, "has ended, or its host has", 4);
}
