/* cupola train as one of several processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/signals.h"
#include "cli/train.h"
#include "cupola/facts.h"
#include "cupola/network.h"

int train_plan(const train_given *given, int *processes)
{
    cup_launched by;
    int64_t wanted = given->gpus ? given->gpus : given->processes;
    bool launched = cup_launched_look(NULL, &by) == CUP_OK && by.by;
    const char *const *networks = cup_network_names();
    *processes = 1;
    for (int i = 0; given->preset && !train_is_images(given) && networks[i]; i++)
        if (!strcmp(given->preset, networks[i]))
            return cli_usage("--preset %s is a network for images: give --task classify, too",
                             given->preset);
    if (given->gpus && given->processes)
        return cli_usage("--gpus and --processes both say how many processes there are; give one "
                         "of them");
    if (given->gpus && given->device && strcmp(given->device, "cuda") != 0)
        return cli_usage("--gpus %lld takes the first GPUs, and --device %s something else",
                         (long long)given->gpus, given->device);
    if (wanted > 1 && launched)
        return cli_usage("%s has started %d processes already; leave --%s out", by.by, by.count,
                         given->gpus ? "gpus" : "processes");
    if (given->restarts && wanted < 2)
        return cli_usage("--restarts is of several processes: give --gpus or --processes, or "
                         "cupola launch --restarts");
    *processes = wanted > 1 ? (int)wanted : 1;
    train_parts parts;
    return launched ? CLI_OK : train_parallel(given, *processes, &parts);
}

static bool has_gpu(int index)
{
    cup_gpu gpu;
    return cup_gpu_look(index, &gpu) == CUP_OK;
}

/* Where a launcher shows each process its own GPU alone, that is the first one. */
static void find_gpu(const char *wish, int number, char out[32])
{
    bool any = has_gpu(0);
    if (!any && !strcmp(wish, "auto"))
        snprintf(out, 32, "cpu");
    else if (any && (has_gpu(number) || has_gpu(1)))
        snprintf(out, 32, "cuda:%d", number);
    else
        snprintf(out, 32, "cuda:0");
}

/* The cores that a process has where several share this host. Slurm gives each of them its own, if
 * it is told to, which must not be shared once more. */
static int share_cores(const cup_launched *run)
{
    const char *own = strcmp(run->by, "Slurm") ? NULL : getenv("SLURM_CPUS_PER_TASK");
    int all = cup_threads(), each = own ? atoi(own) : 0;
    int share = each > 0 ? (each < all ? each : all) : all / run->local_count;
    return share > 1 ? share : 1;
}

int train_find_place(const train_given *given, train_place *out)
{
    const char *set = getenv("CUP_DEVICE"), *threads = getenv("CUP_THREADS");
    const char *wish = given->device ? given->device : set && *set ? set : "auto";
    cup_context *c = NULL;
    *out = (train_place){.threads = (int)given->threads};
    if (cup_launched_look(NULL, &out->run) != CUP_OK) {
        c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        cup_launched_look(c, &out->run);
        int code = cli_report(c);
        cup_context_free(c);
        return code;
    }
    if (given->gpus)
        wish = "cuda";
    if (out->run.count > 1 && (!strcmp(wish, "auto") || !strcmp(wish, "cuda")))
        find_gpu(wish, out->run.local_rank, out->device);
    else if (given->gpus)
        snprintf(out->device, sizeof out->device, "cuda");
    if (out->run.count > 1 && !out->threads && !(threads && *threads))
        out->threads = share_cores(&out->run);
    return CLI_OK;
}

bool train_goes_on(cup_context *c, cup_comm *m, const train_place *place, const train_given *given)
{
    cup_checkpoint checkpoint;
    int64_t found = 0;
    if (!place->run.restarts || given->resume || given->overwrite)
        return false;
    if (cup_comm_rank(m) == 0) {
        found = cup_checkpoint_look(c, given->out, &checkpoint) == CUP_OK;
        cup_error_clear(c);
    }
    if (m)
        cup_comm_agree(m, &found, 1);
    return found;
}

/* A launcher may end all processes as soon as one has failed, so none leaves before rank 0 has told
 * of the run. A signal that reached some of them ended it for all. */
int train_leave(cup_comm *m, cup_status status, int code)
{
    int64_t number = signals_caught();
    if (status == CUP_INTERRUPTED && m)
        cup_comm_agree(m, &number, 1);
    if (code || status != CUP_INTERRUPTED || !number)
        return code ? code : cli_exit_of(status);
    return CLI_SIGNAL + (int)number;
}
