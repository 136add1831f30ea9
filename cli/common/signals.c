#include "cli/common/signals.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/common/exit.h"

static volatile sig_atomic_t caught, caught_ms, times, at_stake;

static int now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int)(now.tv_sec % 1000000 * 1000 + now.tv_nsec / 1000000);
}

static void say(const char *words)
{
    int number = errno;
    (void)!write(STDERR_FILENO, words, strlen(words));
    errno = number;
}

/* Who asks again wants it at once; but timeout(1) and process managers send one request twice, to
 * the process and to its group, and that must not cost the checkpoint. */
static void on_signal(int number)
{
    int now = now_ms();
    if (caught && now - caught_ms <= 500 && now >= caught_ms)
        return;
    if (caught && number == SIGXCPU) /* the kernel sends it each second until the process ends */
        return;
    if (!caught && at_stake == SIGNALS_NOTHING)
        _exit(CLI_SIGNAL + number);
    if (caught && (at_stake != SIGNALS_WORK || times > 1))
        _exit(CLI_SIGNAL + number);
    if (caught)
        say("\ncupola: the checkpoint is being saved; a third signal ends the run without it\n");
    times++;
    caught_ms = now;
    caught = caught ? caught : number;
}

void signals_stake(signals_at_stake what)
{
    at_stake = (sig_atomic_t)what;
}

void signals_catch(void)
{
    /* SA_RESTART: a read or write that the signal meets goes on; the flag is looked at later. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL); /* what schedulers are told to send before a time limit */
    sigaction(SIGXCPU, &action, NULL);
    if (!sigaction(SIGHUP, NULL, &old) && old.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

int signals_caught(void)
{
    return caught;
}
