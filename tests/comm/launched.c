/* The variables of launchers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/launched.h"
#include "test.h"

static const char *const all[] = {"CUP_RANKS", "CUP_RANK", "CUP_LOCAL_RANK", "CUP_ADDRESS",
                                  "CUP_LOCAL_RANKS", "CUP_RESTARTS", "CUP_JOB", "WORLD_SIZE",
                                  "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                                  "MASTER_PORT", "TORCHELASTIC_RUN_ID",
                                  "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT",
                                  "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID",
                                  "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_NODEID",
                                  "SLURM_STEP_TASKS_PER_NODE", "PMI_SIZE", "PMI_RANK"};

static cup_launched run;
static cup__meeting meeting;
static cup__error error;

/* Sets variables, "NAME=VALUE NAME=VALUE", and reads them. */
static cup_status with(const char *words)
{
    char text[1000], *rest = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        unsetenv(all[i]);
    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value++ = 0;
        setenv(word, value, 1);
    }
    memset(&error, 0, sizeof error);
    memset(&meeting, 0, sizeof meeting);
    return cup__launched(&error, &run, &meeting);
}

TEST(launched_by_nobody)
{
    EXPECT_INT(with(""), CUP_OK);
    EXPECT(run.by == NULL && run.count == 1 && run.rank == 0 && run.local_count == 1);
    EXPECT_INT(with("CUP_RESTARTS=2"), CUP_OK);
    EXPECT(run.by == NULL && run.restarts == 2);
    EXPECT_INT(with("WORLD_SIZE=2 RANK=0 LOCAL_WORLD_SIZE=2 CUP_RESTARTS=4 "
                    "TORCHELASTIC_RESTART_COUNT=1"),
               CUP_OK);
    EXPECT_INT(run.restarts, 4);
}

TEST(launched_by_each)
{
    EXPECT_INT(with("CUP_RANKS=4 CUP_RANK=2 CUP_ADDRESS=127.0.0.1:4000 CUP_RESTARTS=3 "
                    "WORLD_SIZE=9 RANK=1"),
               CUP_OK);
    EXPECT_TEXT(run.by, "cupola");
    EXPECT(run.count == 4 && run.rank == 2 && run.local_rank == 2 && run.restarts == 3);
    EXPECT_TEXT(meeting.place.host, "127.0.0.1");
    EXPECT_INT(meeting.place.port, 4000);
    EXPECT_INT(with("WORLD_SIZE=8 RANK=5 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h "
                    "MASTER_PORT=29400 TORCHELASTIC_USE_AGENT_STORE=True"),
               CUP_OK);
    EXPECT_TEXT(run.by, "torchrun");
    EXPECT(run.count == 8 && run.rank == 5 && run.local_rank == 1 && run.local_count == 4);
    EXPECT_TEXT(meeting.place.host, "h");
    EXPECT_INT(meeting.place.port, 29401);
    EXPECT_INT(with("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                    "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=job1"),
               CUP_OK);
    EXPECT_TEXT(run.by, "Open MPI");
    EXPECT_TEXT(meeting.place.host, "127.0.0.1");
    int port = meeting.place.port;
    EXPECT(port >= 20000 && port < 30000);
    for (int i = 0; i < 4; i++)
        unsetenv(((const char *[]){"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                                   "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"})[i]);
    EXPECT_INT(with("SLURM_STEP_NUM_TASKS=16 SLURM_PROCID=15 SLURM_LOCALID=7 SLURM_JOB_ID=77 "
                    "SLURM_STEP_NODELIST=node[07-09,12],other"),
               CUP_OK);
    EXPECT_TEXT(run.by, "Slurm");
    EXPECT(run.count == 16 && run.rank == 15 && run.local_rank == 7 && run.local_count == 16);
    EXPECT_TEXT(meeting.place.host, "node07");
    /* Processes of several hosts have nothing in common but the address. */
    EXPECT_INT(with("WORLD_SIZE=2 RANK=0 MASTER_ADDR=h MASTER_PORT=29400"), CUP_OK);
    uint64_t job = meeting.job;
    pid_t child = fork();
    if (child == 0)
        _exit(with("WORLD_SIZE=2 RANK=1 MASTER_ADDR=h MASTER_PORT=29400") != CUP_OK ||
              meeting.job != job);
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT_INT(with("WORLD_SIZE=2 RANK=0 MASTER_ADDR=h MASTER_PORT=29401"), CUP_OK);
    EXPECT(meeting.job != job);
    EXPECT_INT(with("PMI_SIZE=3 PMI_RANK=2 CUP_ADDRESS=file:/tmp/x"), CUP_OK);
    EXPECT_TEXT(run.by, "PMI");
    EXPECT_TEXT(meeting.file, "/tmp/x");
}

/* How many are on this host shares out its cores. */
TEST(launched_by_slurm_on_several_hosts)
{
    static const struct {
        const char *tasks;
        int node, here;
    } shared[] = {{"8(x2)", 1, 8},         {"8(x1),4(x2)", 2, 4}, {"3,5,8", 1, 5},
                  {"3,5,8", 2, 8},         {"3,5", 2, 16},        {"x", 0, 16},
                  {"0", 0, 16},            {"8(x", 0, 16},        {"17", 0, 16},
                  {"99999999999", 0, 16},  {"8(x-3),7", 1, 7},    {"8(x99999999999)", 65536, 8}};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        char words[300];
        snprintf(words, sizeof words,
                 "SLURM_STEP_NUM_TASKS=16 SLURM_PROCID=15 SLURM_LOCALID=0 SLURM_JOB_ID=77 "
                 "SLURM_STEP_NODELIST=a,b SLURM_NODEID=%d SLURM_STEP_TASKS_PER_NODE=%s",
                 shared[i].node, shared[i].tasks);
        EXPECT_INT(with(words), CUP_OK);
        EXPECT_INT(run.local_count, shared[i].here);
    }
}

TEST(launched_wrongly)
{
    EXPECT_INT(with("CUP_RANKS=4"), CUP_ARGUMENT);
    EXPECT_CONTAINS(error.text, "CUP_RANKS is set and CUP_RANK is not");
    EXPECT_INT(with("CUP_RANKS=4 CUP_RANK=4"), CUP_ARGUMENT);
    EXPECT_CONTAINS(error.text, "CUP_RANK=4: a launcher sets a whole number from 0 to 3");
    EXPECT_INT(with("WORLD_SIZE=x RANK=0"), CUP_ARGUMENT);
    EXPECT_INT(with("WORLD_SIZE=99999999999 RANK=0"), CUP_ARGUMENT);
    EXPECT_INT(with("CUP_RANKS=2 CUP_RANK=0 CUP_ADDRESS=nowhere"), CUP_ARGUMENT);
    EXPECT_CONTAINS(error.text, "is not HOST:PORT");
    EXPECT_INT(with("CUP_RANKS=2 CUP_RANK=0 CUP_ADDRESS=h:70000"), CUP_ARGUMENT);
    EXPECT_INT(with("CUP_RANKS=2 CUP_RANK=0 CUP_ADDRESS=file:"), CUP_ARGUMENT);
    EXPECT_INT(with("WORLD_SIZE=8 RANK=5 LOCAL_WORLD_SIZE=4"), CUP_ARGUMENT);
    EXPECT_CONTAINS(error.text, "set MASTER_ADDR and MASTER_PORT");
    EXPECT_INT(run.count, 8);
}
