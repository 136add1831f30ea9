#include "cli/launcher.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/common/exit.h"
#include "cli/common/progress.h"

#define LINE 4096
#define TICK_MS 50
/* Those that are left when one has failed see it by themselves and say so; then they are told to
 * end, and then they are ended. */
#define SEE_SECONDS 3
#define END_SECONDS 10

/* One stream of one process. */
typedef struct stream {
    int from, to, rank; /* from: -1 at its end */
    size_t used;
    char line[LINE];
} stream;

typedef struct process {
    pid_t id; /* 0: it has ended */
    int code;
} process;

typedef struct run {
    const launcher *l;
    process *processes;
    stream *streams; /* two for each */
    struct pollfd *polls;
    int left, code, failed; /* running; the exit code; the rank it is of, -1: none */
    double failed_at;
    int told; /* how often the others were told to end */
    unsigned passed; /* signals that were passed on */
    int unwritten;   /* errno of the first write to stdout that failed */
    struct sigaction pipe; /* what SIGPIPE did before */
} run;

static volatile sig_atomic_t signal_number, signal_count;

static void on_signal(int number)
{
    signal_number = number;
    signal_count++;
}

static void catch_signals(void (*handler)(int))
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action = {.sa_handler = handler}, old;
        if (numbers[i] == SIGHUP && !sigaction(SIGHUP, NULL, &old) && old.sa_handler == SIG_IGN)
            continue;
        sigaction(numbers[i], &action, NULL);
    }
}

/* A port of this host that nobody listens at now; where another takes it first, rank 0 goes on to
 * the next ones. */
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    int handle = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 29500;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (handle >= 0 && !bind(handle, (struct sockaddr *)&at, sizeof at) &&
        !getsockname(handle, (struct sockaddr *)&at, &size))
        port = ntohs(at.sin_port);
    if (handle >= 0)
        close(handle);
    return port < 65520 ? port : 29500;
}

static void set_number(const char *name, long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    setenv(name, text, 1);
}

/* What all processes of an attempt share; a launcher that started this one has no say any more. */
static void set_common(const launcher *l, int attempt)
{
    char text[64];
    unsigned long long job[2] = {(unsigned long long)getpid(), (unsigned long long)time(NULL)};
    (void)!getrandom(job, sizeof job, GRND_NONBLOCK);
    snprintf(text, sizeof text, "%016llx%016llx", job[0], job[1]);
    setenv("CUP_JOB", text, 1);
    snprintf(text, sizeof text, "127.0.0.1:%d", free_port());
    setenv("CUP_ADDRESS", text, 1);
    set_number("CUP_RANKS", l->processes);
    set_number("CUP_LOCAL_RANKS", l->processes);
    set_number("CUP_RESTARTS", attempt);
}

static void become(const run *r, int rank, const int *pipes)
{
    const launcher *l = r->l;
    int nothing = open("/dev/null", O_RDONLY);
    catch_signals(SIG_DFL);
    sigaction(SIGPIPE, &r->pipe, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    for (int i = 0; i < 2; i++)
        if (pipes[2 * i + 1] >= 0)
            dup2(pipes[2 * i + 1], STDOUT_FILENO + i);
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    set_number("CUP_RANK", rank);
    set_number("CUP_LOCAL_RANK", rank);
    exit(cli_close_output(l->work(l->user)));
}

static int start_one(run *r, int rank)
{
    int pipes[4] = {-1, -1, -1, -1};
    bool plain = r->l->first_plain && rank == 0;
    for (int i = 0; i < 2; i++)
        if (!plain && pipe2(pipes + 2 * i, O_CLOEXEC))
            return cli_fail(CLI_FAILED, "no pipe for rank %d: %s", rank, strerror(errno));
    fflush(stdout);
    fflush(stderr);
    pid_t id = fork();
    if (id == 0)
        become(r, rank, pipes);
    if (id < 0)
        return cli_fail(CLI_FAILED, "rank %d cannot be started: %s", rank, strerror(errno));
    setpgid(id, id);
    for (int i = 0; i < 2; i++) {
        r->streams[2 * rank + i] =
            (stream){.from = pipes[2 * i], .to = STDOUT_FILENO + i, .rank = rank};
        if (pipes[2 * i + 1] >= 0)
            close(pipes[2 * i + 1]);
    }
    r->processes[rank] = (process){.id = id};
    r->left++;
    return CLI_OK;
}

/* Returns 0, or why not all was written. */
static int write_all(int handle, const char *bytes, size_t count)
{
    while (count) {
        ssize_t written = write(handle, bytes, count);
        struct pollfd room = {.fd = handle, .events = POLLOUT};
        if (written < 0 && errno == EAGAIN)
            poll(&room, 1, -1);
        else if (written < 0 && errno != EINTR)
            return errno;
        bytes += written > 0 ? written : 0;
        count -= written > 0 ? (size_t)written : 0;
    }
    return 0;
}

static void end_stream(stream *s)
{
    if (s->from >= 0)
        close(s->from);
    s->from = -1;
}

/* A line, or what there is of it, behind the number of its process. Who wrote it is to see that
 * nobody reads any more as it would without a launcher; a full disk ends no work. */
static void pass_line(run *r, stream *s)
{
    char text[LINE + 32];
    int length = snprintf(text, sizeof text, "[%d] %.*s\n", s->rank, (int)s->used, s->line);
    int why = s->used ? write_all(s->to, text, (size_t)length) : 0;
    s->used = 0;
    if (why && s->to == STDOUT_FILENO && !r->unwritten)
        r->unwritten = why;
    if (why == EPIPE)
        end_stream(s);
}

static void pass_on(run *r, stream *s)
{
    char bytes[LINE];
    ssize_t got = read(s->from, bytes, sizeof bytes);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    for (ssize_t i = 0; i < got && s->from >= 0; i++) {
        bool ends = bytes[i] == '\n' || bytes[i] == '\r';
        if (!ends)
            s->line[s->used++] = bytes[i];
        if (ends || s->used == LINE)
            pass_line(r, s);
    }
    if (got > 0)
        return;
    pass_line(r, s);
    end_stream(s);
}

/* Whether something came. */
static bool pass_streams(run *r, int wait_ms)
{
    int count = 0, all = 2 * r->l->processes;
    for (int i = 0; i < all; i++)
        r->polls[count++] = (struct pollfd){.fd = r->streams[i].from, .events = POLLIN};
    int found = poll(r->polls, (nfds_t)count, wait_ms);
    for (int i = 0; i < all && found > 0; i++)
        if (r->polls[i].revents)
            pass_on(r, &r->streams[i]);
    return found > 0;
}

static void signal_all(const run *r, int number)
{
    for (int i = 0; i < r->l->processes; i++)
        if (r->processes[i].id)
            kill(-r->processes[i].id, number);
}

/* A process that ended because another one had is not the first, whenever that is seen. */
static void note_end(run *r, int rank, int status)
{
    process *p = &r->processes[rank];
    p->id = 0;
    p->code = WIFSIGNALED(status) ? CLI_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
    r->left--;
    if (!p->code || r->told)
        return;
    if (r->failed >= 0 && (r->code != CLI_PEER || p->code == CLI_PEER))
        return;
    if (r->failed < 0)
        r->failed_at = progress_clock();
    r->failed = rank;
    r->code = p->code;
}

static void reap(run *r)
{
    int status;
    for (int i = 0; i < r->l->processes; i++)
        if (r->processes[i].id && waitpid(r->processes[i].id, &status, WNOHANG) > 0)
            note_end(r, i, status);
}

static void end_others(run *r)
{
    double since = progress_clock() - r->failed_at;
    if (r->failed < 0 || !r->left)
        return;
    if (r->told == 0 && since > SEE_SECONDS) {
        signal_all(r, SIGTERM);
        r->told = 1;
    } else if (r->told > 0 && since > SEE_SECONDS + END_SECONDS) {
        signal_all(r, SIGKILL);
        r->told = 2;
    }
}

static void pass_signals(run *r)
{
    unsigned count = (unsigned)signal_count;
    if (count == r->passed)
        return;
    r->passed = count;
    signal_all(r, signal_number);
}

/* One attempt, from the start of all to the end of all. */
static int attempt(run *r, int number)
{
    int code = CLI_OK;
    r->left = 0;
    r->code = CLI_OK;
    r->failed = -1;
    r->told = 0;
    memset(r->processes, 0, (size_t)r->l->processes * sizeof *r->processes);
    for (int i = 0; i < 2 * r->l->processes; i++)
        r->streams[i].from = -1;
    set_common(r->l, number);
    for (int i = 0; i < r->l->processes && !code; i++)
        code = start_one(r, i);
    if (code) {
        signal_all(r, SIGKILL);
        r->failed = 0;
        r->code = code;
        r->told = 2;
    }
    while (r->left) {
        pass_streams(r, TICK_MS);
        pass_signals(r);
        reap(r);
        end_others(r);
    }
    while (pass_streams(r, 0)) {
    }
    /* What a process left running may hold the other ends for long. */
    for (int i = 0; i < 2 * r->l->processes; i++)
        end_stream(&r->streams[i]);
    return r->code;
}

static void say_end(const run *r, int number)
{
    char how[64];
    if (r->code > CLI_SIGNAL)
        snprintf(how, sizeof how, "was ended by SIG%s", sigabbrev_np(r->code - CLI_SIGNAL));
    else
        snprintf(how, sizeof how, "ended with exit code %d", r->code);
    fprintf(stderr, "cupola: rank %d %s", r->failed, how);
    if (number <= r->l->restarts)
        fprintf(stderr, "; all are started again, %d of %d times", number, r->l->restarts);
    fprintf(stderr, "\n");
}

int launcher_run(const launcher *l)
{
    size_t count = (size_t)l->processes;
    run r = {.l = l,
             .processes = calloc(count, sizeof *r.processes),
             .streams = calloc(2 * count, sizeof *r.streams),
             .polls = calloc(2 * count, sizeof *r.polls)};
    int code = CLI_MEMORY;
    if (r.processes && r.streams && r.polls) {
        catch_signals(on_signal);
        sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &r.pipe);
        for (int number = 0; number <= l->restarts; number++) {
            code = attempt(&r, number);
            if (!code || signal_count)
                break;
            say_end(&r, number + 1);
            /* What is wrong with a command line is so the next time. */
            if (code == CLI_USAGE)
                break;
        }
    } else {
        cli_fail(code, "no host memory for %d processes", l->processes);
    }
    free(r.processes);
    free(r.streams);
    free(r.polls);
    return code == CLI_OK && r.unwritten ? cli_output_failed(r.unwritten) : code;
}
