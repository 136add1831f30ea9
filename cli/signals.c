#include "cli/signals.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include "cli/exit.h"

static volatile sig_atomic_t caught, caught_ms;

static int now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int)(now.tv_sec % 1000000 * 1000 + now.tv_nsec / 1000000);
}

/* Who asks again wants it at once; but timeout(1) and process managers send one request twice, to
 * the process and to its group, and that must not cost the checkpoint. */
static void on_signal(int number)
{
    int now = now_ms();
    if (!caught) {
        caught_ms = now;
        caught = number;
    } else if (now - caught_ms > 500 || now < caught_ms) {
        _exit(CLI_SIGNAL + number);
    }
}

void signals_catch(void)
{
    /* SA_RESTART: a read or write that the signal meets goes on; the flag is looked at later. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (!sigaction(SIGHUP, NULL, &old) && old.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

int signals_caught(void)
{
    return caught;
}
