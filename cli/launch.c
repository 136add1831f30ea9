/* cupola launch: a command as several processes that compute together. */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/common/exit.h"
#include "cli/launcher.h"
#include "cli/common/options.h"

typedef struct launch_given {
    int64_t processes, restarts;
} launch_given;

static const cli_option options[] = {
    {"processes", INTEGER(launch_given, processes, 1, 4096), "N", "2",
     "processes to start, each with the GPU of its number where there are GPUs"},
    {"restarts", INTEGER(launch_given, restarts, 0, 1000000), "N", "0",
     "how often all are started again when one has failed"},
    {0}};

/* Becomes the command. */
static int work(void *user)
{
    cli_call *call = user;
    execvp(call->operands[0], (char *const *)(uintptr_t)call->operands);
    return cli_fail(errno == ENOENT ? CLI_USAGE : CLI_FAILED, "%s cannot be started: %s",
                    cli_shown(call->operands[0]), strerror(errno));
}

static int launch(cli_call *call)
{
    const launch_given *given = call->given;
    if (call->json)
        return cli_usage("--json: what the processes write goes to stdout; there is no document");
    const launcher l = {.processes = (int)given->processes,
                        .restarts = (int)given->restarts,
                        .work = work,
                        .user = call};
    return launcher_run(&l);
}

const cli_verb verb_launch = {
    .name = "launch",
    .synopsis = "[OPTION]... -- COMMAND [WORD]...",
    .words = "run a command as several processes that compute together",
    .text = "Starts the command so many times on this host and tells each process by variables of "
            "the environment which one it is, so that `cupola train`, or a program with a "
            "communicator of cupola/comm.h, computes on all of them together. Across hosts, "
            "torchrun, mpirun and Slurm start the same command without this verb.\n\n"
            "Each line that a process writes comes behind its number. SIGINT, SIGTERM, SIGHUP, "
            "SIGUSR1 and SIGUSR2 are passed on to all. When one fails, the others have three "
            "seconds to see it and say so, then they get SIGTERM, and SIGKILL ten seconds later; "
            "the exit code is that of the first that failed. With --restarts all are started again "
            "then; `cupola train` goes on from its checkpoint.",
    .examples = "A model on four GPUs of this host:\n"
                "cupola launch --processes 4 -- cupola train --data book.txt --out shared-book\n",
    .options = options,
    .size = sizeof(launch_given),
    .operand_least = 1,
    .operand_most = INT_MAX,
    .run = launch,
};
