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

/* What all begin with: the command, a text, and functions. `fail` says what went wrong, with all
 * logs, `saved` waits for a checkpoint, `steps_of` says at which step the run of a log stopped, and
 * `alone` trains as many and compares. */
#define BEGIN                                                                                      \
    "cd '%s'; cupola='%s'; seq 3000 | tr 0-9 a-j >text.txt; "                                      \
    "fail() { echo \"$1\"; for f in *log; do [ ! -f $f ] || { echo \"-- $f\"; cat $f; }; done; "   \
    "exit 1; }; "                                                                                  \
    "saved() { i=0; while [ ! -f run/state.json ]; do sleep 0.02; i=$((i + 1)); "                  \
    "[ $i -lt 2500 ] || fail 'no checkpoint within 50 s'; done; sleep 0.1; }; "                    \
    "steps_of() { sed -n 's/^.*stopped at step \\([0-9]*\\) .*/\\1/p' $1 | head -n 1; }; "         \
    "alone() { $cupola " TRAIN "--processes 2 --steps $1 --out alone >alone.log 2>&1 || "          \
    "fail \"the run that was left alone ended with $?\"; "                                         \
    "cmp alone/losses.csv run/losses.csv || fail 'other losses than those of one left alone'; "    \
    "cmp alone/model.safetensors run/model.safetensors || fail 'other weights'; echo the same; }; "

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
        test_fail(__FILE__, __LINE__, "code %d: %.20000s", code, out);
    EXPECT_CONTAINS(out, "2 processes, joined by sockets");
    EXPECT_CONTAINS(out, "stopped at step");
    EXPECT_CONTAINS(out, "resumed  behind step");
    EXPECT_CONTAINS(out, "the same");
}

/* Writes down how its process ended. The shell that has the signal, too, waits for that. Starters
 * without a name for a run have processes meet by the one that started them, here several. */
#define NOTED                                                                                      \
    "sh -c 'trap : USR1; \"$@\"; code=$?; echo $code >$OMPI_COMM_WORLD_RANK$PMI_RANK.code; "       \
    "exit $code' noted "

/* Begins a run by a starter of MPI's, tells it to end, and begins another one. `untold` is a code
 * that the starter may end with by a fault of its own. */
static void expect_mpi(const char *start, const char *untold)
{
    char script[3000];
    snprintf(script, sizeof script,
             "CUP_ADDRESS=file:$PWD/meet %s " NOTED "$cupola " TRAIN "--out run --steps " MOST " "
             ">first.log 2>&1 & own=$!; saved; kill -USR1 $own; wait $own; code=$?; "
             "both=$(echo $(cat 0.code 1.code)); "
             "[ \"$both\" = '138 138' ] || fail \"processes that were told to end gave $both\"; "
             "[ $code = 138 ] || [ $code = %s ] || fail \"the starter ended with $code\"; "
             "n=$(steps_of first.log); [ \"$n\" ] || fail 'the run did not say where it stopped'; "
             "n=$((n + 10)); export CUP_RESTARTS=1; "
             "%s $cupola " TRAIN "--out run --steps $n >second.log 2>&1 || "
             "fail \"the run that went on ended with $?\"; cat first.log second.log; alone $n",
             start, untold, start);
    expect_goes_on(script);
}

TEST_LIMITED(launchers_open_mpi, 120)
{
    if (!has("mpirun.openmpi"))
        test_skip("there is no mpirun.openmpi");
    expect_mpi("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
               "mpirun.openmpi --oversubscribe -n 2",
               "138");
}

/* Before 4.1 its starter takes those processes for well that have ended together after it passed a
 * signal on to them, and then gives 0. */
TEST_LIMITED(launchers_mpich, 120)
{
    if (!has("mpiexec.hydra"))
        test_skip("there is no mpiexec.hydra of MPICH");
    expect_mpi("mpiexec.hydra -n 2", "0");
}

/* Others take a process that has ended for a reason to end the rest. So all have the same code, and
 * none before the run was told of, whoever got the signal. */
TEST(launchers_tell_one_process_to_end)
{
    expect_goes_on("for who in 0 1; do rm -rf run alone; "
                   "$cupola launch --processes 2 -- sh -c '\"$@\" 2>$CUP_RANK.log & "
                   "echo $! >$CUP_RANK.id; wait $!; code=$?; told=$(grep -c stopped 0.log); "
                   "echo $code $told >$CUP_RANK.code; exit $code' noted "
                   "$cupola " TRAIN "--out run --steps " MOST " & own=$!; "
                   "saved; kill -USR1 $(cat $who.id); wait $own; code=$?; "
                   "[ $code = 138 ] || fail \"with a signal to rank $who launch gave $code\"; "
                   "for r in 0 1; do [ \"$(cat $r.code)\" = '138 1' ] || "
                   "fail \"of a signal to rank $who rank $r had code, report: $(cat $r.code)\"; "
                   "done; cat 0.log; n=$(($(steps_of 0.log) + 10)); "
                   "$cupola " TRAIN "--processes 2 --resume --out run --steps $n || "
                   "fail \"the run that went on ended with $?\"; alone $n; done");
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
                   "[ $code != 0 ] || fail 'torchrun ended with 0'; "
                   "n=$(($(steps_of log) + 10)); "
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
