/* cupola train, started by what clusters start processes with: it saves when it is told to end,
 * goes on when it is started again, and has the bits of a run that was left alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test.h"

#define MOST "1000000"
#define TRAIN                                                                                      \
    "train --data text.txt --device cpu --layers 1 --heads 2 --width 16 --context 16 --batch 4 "   \
    "--accumulate 2 --warmup 5 --decline constant --evaluate-every 0 --evaluate-texts 8 "          \
    "--save-every 40 "

/* What all begin with: the command, a text, and functions. `saved` waits for a checkpoint,
 * `steps_of` says at which step the run of a log stopped, and `alone` trains as many and
 * compares. */
#define BEGIN                                                                                      \
    "cd '%s'; cupola='%s'; seq 3000 | tr 0-9 a-j >text.txt; "                                      \
    "saved() { i=0; while [ ! -f run/state.json ] && [ $i -lt 500 ]; do sleep 0.02; "              \
    "i=$((i + 1)); done; sleep 0.1; }; "                                                           \
    "steps_of() { sed -n 's/^.*stopped at step \\([0-9]*\\) .*/\\1/p' $1 | head -n 1; }; "         \
    "alone() { $cupola " TRAIN "--processes 2 --steps $1 --out alone >alone.log 2>&1 && "          \
    "cmp alone/losses.csv run/losses.csv && "                                                      \
    "cmp alone/model.safetensors run/model.safetensors && echo the same; }; "

static char out[100000];

static const char *command(void)
{
    static char path[4200];
    char folder[4096];
    EXPECT(realpath(test_build(), folder) != NULL);
    snprintf(path, sizeof path, "%s/cupola", folder);
    return path;
}

static bool has(const char *program)
{
    return !test_command(out, sizeof out, "command -v %s", program);
}

/* Runs a script behind BEGIN. */
static void expect_goes_on(const char *script)
{
    char text[8000];
    EXPECT((size_t)snprintf(text, sizeof text, BEGIN "%s", test_folder(), command(), script) <
           sizeof text);
    int code = test_command(out, sizeof out, "%s", text);
    if (code)
        test_fail(__FILE__, __LINE__, "code %d: %.9000s", code, out);
    EXPECT_CONTAINS(out, "2 processes, joined by sockets");
    EXPECT_CONTAINS(out, "stopped at step");
    EXPECT_CONTAINS(out, "resumed  behind step");
    EXPECT_CONTAINS(out, "the same");
}

/* Begins a run by a starter of MPI's, tells it to end, and begins another one. */
static void expect_mpi(const char *start)
{
    char script[2000];
    snprintf(script, sizeof script,
             "%s $cupola " TRAIN "--out run --steps " MOST " >log 2>&1 & own=$!; saved; "
             "kill -USR1 $own; wait $own; code=$?; cat log; "
             "[ $code != 0 ] || exit 9; n=$(($(steps_of log) + 10)); "
             "export CUP_RESTARTS=1; %s $cupola " TRAIN "--out run --steps $n && alone $n",
             start, start);
    expect_goes_on(script);
}

TEST_LIMITED(launchers_open_mpi, 120)
{
    if (!has("mpirun.openmpi"))
        test_skip("there is no mpirun.openmpi");
    expect_mpi("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
               "mpirun.openmpi --oversubscribe -n 2");
}

TEST_LIMITED(launchers_mpich, 120)
{
    if (!has("mpiexec.hydra"))
        test_skip("there is no mpiexec.hydra of MPICH");
    expect_mpi("mpiexec.hydra -n 2");
}

/* The one of an environment is named by TORCHRUN. */
TEST(launchers_torchrun)
{
    if (!has("${TORCHRUN:-torchrun}"))
        test_skip("there is no torchrun; TORCHRUN may name one");
    expect_goes_on("${TORCHRUN:-torchrun} --standalone --nproc-per-node=2 --no-python "
                   "$cupola " TRAIN "--out run --steps " MOST " >log 2>&1 & own=$!; "
                   "i=0; while [ ! -d run ] && [ $i -lt 1000 ]; do sleep 0.02; i=$((i + 1)); done; "
                   "saved; kill -TERM $own; wait $own; code=$?; cat log; "
                   "[ $code != 0 ] || exit 9; n=$(($(steps_of log) + 10)); "
                   "$cupola " TRAIN "--processes 2 --resume --steps $n --out run && "
                   "alone $n");
}

/* Two nodes on this host, of which the first is called as the host is: a name that cannot be looked
 * up would do for Slurm, but processes look for the first node by it. */
#define SLURM                                                                                      \
    "h=$(hostname -s); port=$((20000 + $$ %% 3000 * 3)); mkdir state spool; "                      \
    "export SLURM_CONF=$PWD/slurm.conf; : >plugstack.conf; cat >slurm.conf <<END\n"                \
    "ClusterName=test\nFirstJobId=$port\nSlurmctldHost=$h(127.0.0.1)\nSlurmctldPort=$port\n"       \
    "AuthType=auth/none\nCredType=cred/none\nSlurmUser=root\nSlurmdUser=root\n"                    \
    "StateSaveLocation=$PWD/state\nSlurmdSpoolDir=$PWD/spool/%%n\n"                                \
    "SlurmctldPidFile=$PWD/ctl.pid\nSlurmdPidFile=$PWD/%%n.pid\n"                                  \
    "PlugStackConfig=$PWD/plugstack.conf\nProctrackType=proctrack/pgid\n"                          \
    "TaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n"                              \
    "SelectType=select/linear\nSchedulerType=sched/builtin\nMessageTimeout=5\nKillWait=5\n"        \
    "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n"       \
    "NodeName=$h NodeHostname=$h NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=1\n"                   \
    "NodeName=zzz1 NodeHostname=$h NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=1\n"                 \
    "PartitionName=all Nodes=$h,zzz1 Default=YES MaxTime=INFINITE State=UP\nEND\n"                 \
    "slurmctld -D >ctl.log 2>&1 & own=$!; slurmd -D -N $h >first.log 2>&1 & own=\"$own $!\"; "     \
    "slurmd -D -N zzz1 >second.log 2>&1 & own=\"$own $!\"; "                                       \
    "trap '[ -z \"$job\" ] || timeout 5 scancel $job; kill $own; wait' EXIT; "                     \
    "i=0; until timeout 2 sinfo -h -o '%%t %%D' 2>/dev/null | grep -q 'idle 2'; do "               \
    "sleep 0.1; i=$((i + 1)); [ $i -lt 50 ] || exit 77; done; "

/* The script that stands in examples/, which starts what is called cupola here, and goes back into
 * the queue when it was told to end. Slurm lets what was there once wait for two minutes. */
#define JOB                                                                                        \
    "mkdir bin; cat >bin/cupola <<'END'\n#!/bin/sh\n"                                              \
    "[ -z \"$SLURM_RESTART_COUNT\" ] || steps=$(($(sed -n 's/^.*stopped at step \\([0-9]*\\) "     \
    ".*/\\1/p' book.log | head -n 1) + 10))\n"                                                     \
    "exec nice -n 19 $REAL " TRAIN "--out run --steps ${steps:-" MOST "}\nEND\n"                   \
    "chmod +x bin/cupola; export REAL=$cupola PATH=$PWD/bin:$PATH; "                               \
    "state() { timeout 5 scontrol show job $job | sed -n "                                         \
    "'s/^.*JobState=\\([A-Z]*\\).*/\\1/p'; }; "                                                    \
    "until_is() { i=0; until [ \"$(state)\" = $1 ]; do sleep 0.2; i=$((i + 1)); "                  \
    "[ $i -lt 500 ] || { echo not $1; cat book.log; exit 8; }; done; }; "                          \
    "job=$(timeout 5 sbatch --parsable --nodes=2 --ntasks-per-node=1 --gpus-per-node=0 "           \
    "--cpus-per-task=1 $limit \"$script\" text.txt); saved; eval \"$then\"; until_is PENDING; "    \
    "timeout 5 scontrol update JobId=$job StartTime=now; until_is COMPLETED; cat book.log; "       \
    "alone $(($(steps_of book.log) + 10))"

/* The job of two nodes, with options of sbatch and what happens when it has saved once. */
static void expect_slurm(const char *limit, const char *then, const char *ended)
{
    char example[4096], text[12000];
    if (!has("slurmctld") || !has("slurmd") || !has("sbatch") || !has("hostname"))
        test_skip("there is no Slurm");
    if (geteuid())
        test_skip("slurmd runs as root only");
    EXPECT(realpath("examples/train.sbatch", example) != NULL);
    EXPECT((size_t)snprintf(text, sizeof text, BEGIN "script='%s' limit='%s' then='%s'; " SLURM JOB,
                            test_folder(), command(), example, limit, then) < sizeof text);
    int code = test_command(out, sizeof out, "%s", text);
    if (code == 77)
        test_skip("no Slurm can be started here");
    if (code)
        test_fail(__FILE__, __LINE__, "code %d: %.3000s", code, out);
    EXPECT_CONTAINS(out, "2 processes, joined by sockets");
    EXPECT_CONTAINS(out, ended);
    EXPECT_CONTAINS(out, "resumed  behind step");
    EXPECT_CONTAINS(out, "the same");
}

TEST_LIMITED(launchers_slurm, 180)
{
    expect_slurm("", "timeout 5 scancel --signal=USR1 $job", "exit code 138");
}

/* The time of a job is whole minutes, and Slurm looks at it twice in one, so the signal comes some
 * 10 to 40 s behind the beginning. */
TEST_LIMITED(launchers_slurm_ends_a_job_in_time, 180)
{
    expect_slurm("--time=1 --signal=TERM@50", "", "exit code 143");
}
