/* Runs the tests with Check: each in its own process, with a time limit, as many at once as there
 * are cores or as TEST_JOBS says. Arguments are words; a test runs when its name contains one of
 * them. TEST_TIMES=1 tells the processor time of each, TEST_SLOW=5 of those that took over five
 * seconds as they end; SIGTERM tells which tests had begun. */
#include "test.h"

#include <check.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define MOST_TESTS 4096
#define USUAL_SECONDS 60

typedef struct test_entry {
    char name[96];
    TTest check;
    test_function run;
    void *user;
    double seconds;
    bool wanted, alone;
} test_entry;

/* What all processes of a run share. */
typedef struct run_state {
    _Atomic int next; /* of the tests that nobody has begun */
    _Atomic int passed;
    char skipped[MOST_TESTS][160];
    double seconds[MOST_TESTS]; /* of processor time */
    _Atomic bool running[MOST_TESTS];
} run_state;

static test_entry entries[MOST_TESTS];
static int entry_count;
static run_state *state;
static int current;
static uint64_t random_state = 0x243f6a8885a308d3u;

static void run_entry(int index)
{
    current = index;
    entries[index].run(entries[index].user);
}

void test_add(const char *name, const char *file, int line, test_function run, void *user,
              double seconds)
{
    if (entry_count == MOST_TESTS) {
        fprintf(stderr, "tests: more than %d; raise MOST_TESTS\n", MOST_TESTS);
        exit(1);
    }
    test_entry *entry = &entries[entry_count++];
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->check = (TTest){entry->name, run_entry, file, line};
    entry->run = run;
    entry->user = user;
    entry->seconds = seconds > 0 ? seconds : USUAL_SECONDS;
}

void test_alone(void)
{
    entries[entry_count - 1].alone = true;
}

void test_fail(const char *file, int line, const char *format, ...)
{
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    _ck_assert_failed(file, line, "", "%s", text);
    abort();
}

void test_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(state->skipped[current], sizeof state->skipped[current], format, args);
    va_end(args);
    exit(0);
}

void test_expect_int(const char *file, int line, const char *what, int64_t got, int64_t want)
{
    if (got != want)
        test_fail(file, line, "%s is %lld, expected %lld", what, (long long)got, (long long)want);
}

void test_expect_text(const char *file, int line, const char *what, const char *got,
                      const char *want)
{
    if (!got || strcmp(got, want))
        test_fail(file, line, "%s is \"%s\", expected \"%s\"", what, got ? got : "(null)", want);
}

void test_expect_contains(const char *file, int line, const char *what, const char *got,
                          const char *part)
{
    if (!got || !strstr(got, part))
        test_fail(file, line, "%s is \"%s\", without \"%s\"", what, got ? got : "(null)", part);
}

void test_expect_near(const char *file, int line, const char *what, double got, double want,
                      double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        test_fail(file, line, "%s is %.17g, expected %.17g within %g", what, got, want, tolerance);
}

uint64_t test_random(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double test_uniform(double low, double high)
{
    return low + (high - low) * (double)(test_random() >> 11) * 0x1p-53;
}

static char scratch[4096];

const char *test_folder(void)
{
    static char folder[4200];
    snprintf(folder, sizeof folder, "%s/%s", scratch, entries[current].name);
    if (mkdir(folder, 0777))
        test_fail(__FILE__, __LINE__, "the folder %s cannot be made", folder);
    return folder;
}

int test_command(char *out, size_t size, const char *format, ...)
{
    char command[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command - 16, format, args);
    va_end(args);
    char whole[8300];
    snprintf(whole, sizeof whole, "{ %s\n} 2>&1", command);
    fflush(NULL);
    FILE *pipe = popen(whole, "r");
    if (!pipe)
        test_fail(__FILE__, __LINE__, "cannot run: %s", command);
    size_t used = size ? fread(out, 1, size - 1, pipe) : 0;
    if (size)
        out[used] = 0;
    char rest[4096];
    while (fread(rest, 1, sizeof rest, pipe) > 0)
        ;
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

const char *test_build(void)
{
    const char *build = getenv("BUILD");
    return build && *build ? build : "build";
}

/* Whether one of the words is in the name, or there are none, and none that has a "-" before it. */
static bool wanted(const char *name, int words, char **word)
{
    bool any = false, all = true;
    for (int i = 0; i < words; i++) {
        if (word[i][0] == '-' && strstr(name, word[i] + 1))
            return false;
        all = all && word[i][0] == '-';
        any = any || strstr(name, word[i]);
    }
    return any || all;
}

static double processor_seconds(void)
{
    struct rusage use;
    getrusage(RUSAGE_CHILDREN, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

/* Tells of a test that took longer than TEST_SLOW says. */
static void tell_slow(const test_entry *entry, double seconds)
{
    const char *slow = getenv("TEST_SLOW");
    if (slow && *slow && seconds > strtod(slow, NULL))
        fprintf(stderr, "%.1f s: %s\n", seconds, entry->name);
}

static void run_one(int index)
{
    test_entry *entry = &entries[index];
    double began = cup__clock();
    state->running[index] = true;
    TCase *only = tcase_create(entry->name);
    tcase_set_timeout(only, entry->seconds);
    tcase_add_loop_test(only, &entry->check, index, index + 1);
    Suite *suite = suite_create(entry->name);
    suite_add_tcase(suite, only);
    SRunner *runner = srunner_create(suite);
    double before = processor_seconds();
    srunner_run_all(runner, CK_SILENT);
    state->seconds[index] = processor_seconds() - before;
    if (srunner_ntests_failed(runner) > 0) {
        TestResult **results = srunner_failures(runner);
        fprintf(stderr, "FAILED %s: %s\n", entry->name, tr_msg(results[0]));
        free(results);
    } else if (!state->skipped[index][0]) {
        state->passed++;
    }
    srunner_free(runner);
    state->running[index] = false;
    tell_slow(entry, cup__clock() - began);
}

static void on_end(int number)
{
    for (int i = 0; i < entry_count; i++)
        if (state->running[i] &&
            (write(2, entries[i].name, strlen(entries[i].name)) < 0 ||
             write(2, " was running\n", 13) < 0))
            break;
    signal(number, SIG_DFL);
    raise(number);
}

/* Takes tests off the list until it is empty. */
static void work(void)
{
    for (int i = state->next++; i < entry_count; i = state->next++)
        if (entries[i].wanted && !entries[i].alone)
            run_one(i);
}

/* Those that run alone, in order. */
static void work_alone(void)
{
    for (int i = 0; i < entry_count; i++)
        if (entries[i].wanted && entries[i].alone)
            run_one(i);
}

/* In as many processes at once, and waits for them. */
static void run_in(int workers, void (*run)(void))
{
    fflush(NULL);
    for (int i = 0; i < workers; i++)
        if (fork() == 0) {
            signal(SIGTERM, SIG_DFL);
            run();
            fflush(NULL);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
}

/* What neither passed nor was skipped has failed, even when the process that ran it is gone. */
static int report(int tests)
{
    int skips = 0;
    for (int i = 0; i < entry_count; i++)
        if (state->skipped[i][0]) {
            printf("skipped %s: %s\n", entries[i].name, state->skipped[i]);
            skips++;
        }
    if (getenv("TEST_TIMES"))
        for (int i = 0; i < entry_count; i++)
            printf("%8.2f s of processor time: %s\n", state->seconds[i], entries[i].name);
    int failed = tests - state->passed - skips;
    printf("%d passed, %d failed, %d skipped\n", state->passed, failed, skips);
    return failed || tests == 0 ? 1 : 0;
}

static int workers_for(int tests)
{
    const char *jobs = getenv("TEST_JOBS");
    long workers = jobs && *jobs ? strtol(jobs, NULL, 10) : sysconf(_SC_NPROCESSORS_ONLN);
    return workers < 1 ? 1 : workers < tests ? (int)workers : tests;
}

/* OpenMP's threads spin while they wait unless told otherwise before the program begins, and
 * processes that share the cores then take them from each other. */
static void wait_without_spinning(char **argv)
{
    if (!getenv("OMP_WAIT_POLICY") && !setenv("OMP_WAIT_POLICY", "passive", 1))
        execv("/proc/self/exe", argv);
}

/* What started us may ignore signals, as nohup does; the tests send them. */
static void hear_signals(void)
{
    signal(SIGHUP, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

static const char help[] =
    "usage: test [WORD|-WORD]...\n\n"
    "Runs the tests with one of the words in their name, all without any, and none of those with\n"
    "a word in their name that has a - before it.\n\n"
    "  --help  this\n\n"
    "Environment: TEST_JOBS=N runs as many at once, TEST_TIMES=1 tells the processor time of\n"
    "each, TEST_SLOW=5 those that took over five seconds as they end, TEST_SEED=N draws other\n"
    "numbers.\n";

/* -1: the arguments are words. Otherwise the exit code with which all is said. */
static int answer_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help"))
            return fputs(help, stdout) < 0;
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "--", 2)) {
            fprintf(stderr, "tests: there is no option %s; --help tells what there is\n", argv[i]);
            return 2;
        }
    return -1;
}

int main(int argc, char **argv)
{
    int answered = answer_options(argc, argv);
    if (answered >= 0)
        return answered;
    wait_without_spinning(argv);
    hear_signals();
    const char *seed = getenv("TEST_SEED");
    if (seed)
        random_state = strtoull(seed, NULL, 0);
    printf("seed %llu\n", (unsigned long long)random_state);
    const char *tmp = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/cupola-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (state == MAP_FAILED || !mkdtemp(scratch)) {
        fprintf(stderr, "tests: no memory or no temporary folder\n");
        return 1;
    }
    int tests = 0;
    for (int i = 0; i < entry_count; i++)
        tests += entries[i].wanted = wanted(entries[i].name, argc - 1, argv + 1);
    signal(SIGTERM, on_end);
    run_in(workers_for(tests), work);
    run_in(1, work_alone);
    int code = report(tests);
    char out[1];
    test_command(out, sizeof out, "rm -rf '%s'", scratch);
    return code;
}
