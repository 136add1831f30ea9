/* The variables that launchers set, in this order: our own, torchrun's, Open MPI's, those of PMI
 * (MPICH, Intel MPI) and Slurm's. */
#include "comm/launched.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/hash.h"

#define RANKS_MOST 65536
#define OWN_RESTARTS "CUP_RESTARTS" /* counts with any launcher, and without one */
/* Ports for runs that were not given any, below those that systems hand out by themselves. */
#define PORT_LEAST 20000
#define PORT_COUNT 10000

static const struct launcher {
    const char *by, *count, *rank, *local_rank, *local_count, *restarts;
    /* Differ between runs, or are NULL. Where they are not set, the address does, or on one host
     * the process that started this one. */
    const char *job, *part;
    const char *tasks; /* on each node, where there is no local_count */
} launchers[] = {
    {"cupola", "CUP_RANKS", "CUP_RANK", "CUP_LOCAL_RANK", "CUP_LOCAL_RANKS", OWN_RESTARTS,
     "CUP_JOB", NULL, NULL},
    {"torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", NULL, NULL},
    {"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, "PMIX_NAMESPACE", NULL, NULL},
    {"PMI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL, NULL, NULL},
    {"Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", NULL,
     "SLURM_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_TASKS_PER_NODE"},
};

static const char *value_of(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

/* A whole number in [least, most]; `standard` where the variable is not set. */
static cup_status number(cup__error *error, const char *name, long least, long most, long standard,
                         int *out)
{
    const char *text = value_of(name);
    char *end = NULL;
    errno = 0;
    long value = text ? strtol(text, &end, 10) : standard;
    *out = (int)standard;
    if (text && (errno || end == text || *end || value < least || value > most))
        return cup__fail(error, CUP_ARGUMENT,
                         "%s=%.100s: a launcher sets a whole number from %ld to %ld there", name,
                         text, least, most);
    *out = (int)value;
    return CUP_OK;
}

/* How many of a list of Slurm's, "8(x2),4", are on the node of this number; 0 where it does not
 * say. */
static int tasks_of_node(const char *list, int node)
{
    while (list && *list) {
        char *end;
        long tasks = strtol(list, &end, 10), times = 1;
        if (end == list || tasks < 1 || tasks > RANKS_MOST)
            return 0;
        if (end[0] == '(' && end[1] == 'x')
            times = strtol(end + 2, &end, 10);
        if (node < times)
            return (int)tasks;
        node -= (int)(times < 1 ? 1 : times > RANKS_MOST ? RANKS_MOST : times);
        end += strcspn(end, ",");
        list = end + (*end == ',');
    }
    return 0;
}

static cup_status read_row(cup__error *error, const struct launcher *row, cup_launched *out)
{
    CUP_TRY(number(error, row->count, 1, RANKS_MOST, 1, &out->count));
    CUP_TRY(number(error, row->rank, 0, out->count - 1, 0, &out->rank));
    CUP_TRY(number(error, row->local_count, 1, out->count, out->count, &out->local_count));
    if (row->tasks) {
        int node, tasks;
        CUP_TRY(number(error, "SLURM_NODEID", 0, RANKS_MOST, 0, &node));
        tasks = tasks_of_node(value_of(row->tasks), node);
        out->local_count = tasks > 0 && tasks <= out->count ? tasks : out->local_count;
    }
    CUP_TRY(number(error, row->local_rank, 0, RANKS_MOST, out->rank, &out->local_rank));
    const char *restarts = value_of(OWN_RESTARTS) ? OWN_RESTARTS : row->restarts;
    CUP_TRY(number(error, restarts, 0, 1 << 30, 0, &out->restarts));
    out->by = row->by;
    return CUP_OK;
}

static uint64_t job_of(const struct launcher *row)
{
    char text[1024];
    const char *job = value_of(row->job), *part = value_of(row->part);
    const char *address = cup__env_get(CUP__ENV_ADDRESS), *host = value_of("MASTER_ADDR");
    const char *port = value_of("MASTER_PORT");
    if (!job && (*address || host)) {
        job = *address ? address : host;
        part = *address ? NULL : port;
    }
    if (job)
        snprintf(text, sizeof text, "%s/%.400s/%.100s", row->by, job, part ? part : "");
    else
        snprintf(text, sizeof text, "%s/%ld", row->by, (long)getppid());
    return cup__hash_bytes(text, strlen(text));
}

/* The first host of a list of Slurm's: "node[07-09,12],other" begins with node07. */
static bool first_host(const char *list, char host[CUP__HOST_TEXT])
{
    size_t length = strcspn(list, ",[");
    const char *digits = list[length] == '[' ? list + length + 1 : "";
    int written = snprintf(host, CUP__HOST_TEXT, "%.*s%.*s", (int)length, list,
                           (int)strcspn(digits, ",-]"), digits);
    return written > 0 && written < CUP__HOST_TEXT;
}

/* Where the launcher gives no address: this host, if all are on it, or Slurm's first one, and a
 * port that follows from the run. */
static cup_status guess_place(cup__error *error, const cup_launched *run, cup__meeting *out)
{
    const char *list = value_of("SLURM_STEP_NODELIST");
    out->place.port = PORT_LEAST + (int)(out->job % PORT_COUNT);
    if (run->local_count == run->count && !(list && strpbrk(list, ",["))) {
        snprintf(out->place.host, sizeof out->place.host, "127.0.0.1");
        return CUP_OK;
    }
    if (list && first_host(list, out->place.host))
        return CUP_OK;
    return cup__fail(error, CUP_ARGUMENT,
                     "communicator: %s runs %d processes on several hosts and does not say where "
                     "the first of them is; set MASTER_ADDR and MASTER_PORT, or CUP_ADDRESS, for "
                     "all of them",
                     run->by, run->count);
}

/* torchrun itself listens at the port that it names; the run goes to one behind it. */
static cup_status place_of(cup__error *error, const cup_launched *run, cup__meeting *out)
{
    const char *address = cup__env_get(CUP__ENV_ADDRESS), *host = value_of("MASTER_ADDR");
    const char *store = value_of("TORCHELASTIC_USE_AGENT_STORE");
    if (*address)
        return cup__meeting_at(error, address, out);
    if (!host)
        return guess_place(error, run, out);
    CUP_TRY(number(error, "MASTER_PORT", 1, 65535 - 8, 29500, &out->place.port));
    if (store && !strcasecmp(store, "True"))
        out->place.port++;
    if (snprintf(out->place.host, sizeof out->place.host, "%s", host) >= CUP__HOST_TEXT)
        return cup__fail(error, CUP_ARGUMENT, "MASTER_ADDR=%.100s... is too long for a host", host);
    return CUP_OK;
}

cup_status cup__meeting_at(cup__error *error, const char *address, cup__meeting *out)
{
    if (strncmp(address, "file:", 5))
        return cup__endpoint_read(error, address, &out->place);
    if (snprintf(out->file, sizeof out->file, "%s", address + 5) < (int)sizeof out->file &&
        *out->file)
        return CUP_OK;
    return cup__fail(error, CUP_ARGUMENT,
                     "communicator: the address \"%.100s\" names no file; give file:PATH", address);
}

cup_status cup__launched(cup__error *error, cup_launched *out, cup__meeting *meeting)
{
    *out = (cup_launched){.count = 1, .local_count = 1};
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *row = &launchers[i];
        if (!value_of(row->count))
            continue;
        cup_launched found = {0};
        cup_status status = !value_of(row->rank)
                                ? cup__fail(error, CUP_ARGUMENT,
                                            "%s is set and %s is not: a launcher sets both; unset "
                                            "the first to run one process",
                                            row->count, row->rank)
                                : read_row(error, row, &found);
        if (status != CUP_OK)
            return status;
        *out = found;
        if (!meeting)
            return CUP_OK;
        *meeting = (cup__meeting){.job = job_of(row), .more = 7};
        return out->count > 1 ? place_of(error, out, meeting) : CUP_OK;
    }
    return number(error, OWN_RESTARTS, 0, 1 << 30, 0, &out->restarts);
}
