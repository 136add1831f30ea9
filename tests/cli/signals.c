#include "cli/signals.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

/* A process that catches, then raises the signals, the second one `ms` later; exits with the first
 * one's number when it is still there after them. Returns its wait status. */
static int status_after(int first, int second, int ms)
{
    pid_t child = fork();
    if (child == 0) {
        signals_catch();
        if (signals_caught() != 0)
            _exit(99);
        raise(first);
        usleep(1000 * (unsigned)ms);
        if (second)
            raise(second);
        _exit(signals_caught());
    }
    int status = -1;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST(signals_first_sets_a_flag)
{
    EXPECT_INT(status_after(SIGINT, 0, 0), SIGINT);
    EXPECT_INT(status_after(SIGTERM, 0, 0), SIGTERM);
    EXPECT_INT(status_after(SIGHUP, 0, 0), SIGHUP);
    EXPECT_INT(status_after(SIGPIPE, 0, 0), 0);
}

TEST(signals_second_leaves_at_once)
{
    EXPECT_INT(status_after(SIGINT, SIGINT, 600), 128 + SIGINT);
    EXPECT_INT(status_after(SIGINT, SIGTERM, 600), 128 + SIGTERM);
}

/* timeout(1) signals its child and then the child's group. */
TEST(signals_twice_at_a_time_are_one)
{
    EXPECT_INT(status_after(SIGTERM, SIGTERM, 0), SIGTERM);
}

TEST(signals_hangup_stays_ignored)
{
    signal(SIGHUP, SIG_IGN);
    EXPECT_INT(status_after(SIGHUP, 0, 0), 0);
}
