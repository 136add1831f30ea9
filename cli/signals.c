#include "cli/signals.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "cli/exit.h"

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    if (caught)
        _exit(CLI_SIGNAL + number);
    caught = number;
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
