#include "comm/together.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

#define MOST 16

static together_end *own;
static const char *kind = "cpu";
static bool one_order;

void together_on(const char *device, bool deterministic)
{
    kind = device;
    one_order = deterministic;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!*own->text)
        vsnprintf(own->text, sizeof own->text, format, args);
    va_end(args);
    own->code = 1;
}

const char *together_address(void)
{
    static char address[400];
    if (!*address)
        snprintf(address, sizeof address, "file:%s/meeting", test_folder());
    return address;
}

static void live(int rank, const cup_comm_options *options, together_body body, void *user)
{
    cup_comm_options mine = *options;
    mine.rank = rank;
    bool cpu = !strcmp(kind, "cpu");
    char device[32];
    snprintf(device, sizeof device, cpu ? "%s" : "%s:%d", kind, rank);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device, .threads = cpu,
                                                 .deterministic = one_order));
    cup_comm *m = cup_comm_new(c, &mine);
    if (m)
        body(c, m, user);
    if (cup_error(c))
        wrong("%s", cup_error_text(c));
    cup_comm_free(m);
    cup_context_free(c);
}

void together_look(int count, const cup_comm_options *options, together_body body, void *user,
                   together_end *ends)
{
    together_end *shared = mmap(NULL, MOST * sizeof *shared, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[MOST];
    EXPECT(count <= MOST && shared != MAP_FAILED);
    double start = now();
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        EXPECT(children[i] >= 0);
        if (children[i] == 0) {
            own = &shared[i];
            live(i, options, body, user);
            _exit(own->code);
        }
    }
    for (int left = count; left > 0; left--) {
        int status;
        pid_t ended = wait(&status);
        for (int i = 0; i < count; i++)
            if (children[i] == ended) {
                shared[i].code =
                    WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
                shared[i].seconds = now() - start;
            }
    }
    memcpy(ends, shared, (size_t)count * sizeof *ends);
    munmap(shared, MOST * sizeof *shared);
}

void together(int count, together_body body, void *user)
{
    together_end ends[MOST];
    together_look(count,
                  CUP_OPTIONS(cup_comm_options, .count = count, .address = together_address(),
                              .timeout = 30),
                  body, user, ends);
    for (int i = 0; i < count; i++)
        if (ends[i].code)
            test_fail(__FILE__, __LINE__, "rank %d of %d: %d: %s", i, count, ends[i].code,
                      ends[i].text);
}
