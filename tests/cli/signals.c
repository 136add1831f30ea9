#include "cli/common/signals.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

/* A process that catches, then raises the signals, each `ms` behind the one before; exits with the
 * first one's number when it is still there after them. Returns its exit code. */
static int status_after(signals_at_stake stake, int first, int second, int third, int ms)
{
    pid_t child = fork();
    if (child == 0) {
        EXPECT(freopen("/dev/null", "w", stderr) != NULL);
        signals_catch();
        signals_stake(stake);
        if (signals_caught() != 0)
            _exit(99);
        raise(first);
        usleep(1000 * (unsigned)ms);
        if (second)
            raise(second);
        usleep(1000 * (unsigned)ms);
        if (third)
            raise(third);
        _exit(signals_caught());
    }
    int status = -1;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST(signals_first_sets_a_flag)
{
    EXPECT_INT(status_after(SIGNALS_OUTPUT, SIGINT, 0, 0, 0), SIGINT);
    EXPECT_INT(status_after(SIGNALS_OUTPUT, SIGTERM, 0, 0, 0), SIGTERM);
    EXPECT_INT(status_after(SIGNALS_OUTPUT, SIGHUP, 0, 0, 0), SIGHUP);
    EXPECT_INT(status_after(SIGNALS_OUTPUT, SIGPIPE, 0, 0, 0), 0);
}

TEST(signals_second_leaves_at_once)
{
    EXPECT_INT(status_after(SIGNALS_OUTPUT, SIGINT, SIGINT, 0, 600), 128 + SIGINT);
    EXPECT_INT(status_after(SIGNALS_OUTPUT, SIGINT, SIGTERM, 0, 600), 128 + SIGTERM);
}

/* timeout(1) signals its child and then the child's group. */
TEST(signals_twice_at_a_time_are_one)
{
    EXPECT_INT(status_after(SIGNALS_OUTPUT, SIGTERM, SIGTERM, 0, 0), SIGTERM);
}

TEST(signals_hangup_stays_ignored)
{
    signal(SIGHUP, SIG_IGN);
    EXPECT_INT(status_after(SIGNALS_OUTPUT, SIGHUP, 0, 0, 0), 0);
}

TEST(signals_end_at_once_where_nothing_is_lost)
{
    EXPECT_INT(status_after(SIGNALS_NOTHING, SIGTERM, 0, 0, 0), 128 + SIGTERM);
}

TEST(signals_spare_work_until_the_third)
{
    EXPECT_INT(status_after(SIGNALS_WORK, SIGINT, SIGINT, 0, 600), SIGINT);
    EXPECT_INT(status_after(SIGNALS_WORK, SIGINT, SIGINT, SIGTERM, 600), 128 + SIGTERM);
    EXPECT_INT(status_after(SIGNALS_WORK, SIGINT, SIGINT, SIGTERM, 0), SIGINT);
    /* The limit on a process's time is told once a second, and must not cost the checkpoint. */
    EXPECT_INT(status_after(SIGNALS_WORK, SIGXCPU, SIGXCPU, SIGXCPU, 600), SIGXCPU);
    EXPECT_INT(status_after(SIGNALS_OUTPUT, SIGXCPU, SIGXCPU, SIGTERM, 600), 128 + SIGTERM);
}
