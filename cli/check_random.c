#include "cli/check.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/progress.h"
#include "cli/common/terminal.h"
#include "cuda/cuda.h"

#define MOST_NOTES 3 /* of one implementation, that are printed */
#define MOST_IMPLS 1024
#define MOST_TIMES 12      /* that are printed, */
#define LEAST_SECONDS 0.5  /* of those that took so long */

/* What came of an implementation, and the seconds that its results took. */
typedef struct found {
    const char *op, *impl; /* names of the tables, of which an op's stands in one place */
    int64_t results, failed;
    double seconds;
} found;

typedef struct random_run {
    cli_call *call;
    const check_random_given *given;
    cli_json writer;
    cli_progress progress;
    bool shows_progress;
    double begin, last;     /* when all began, and the last call or result */
    double planned, waited; /* seconds until the first call, below 0 before it, and between calls */
    found found[MOST_IMPLS];
    int found_count;
    int64_t results, failed, next; /* next: the call behind the last one that was made */
} random_run;

/* The command that repeats the call at hand of this thread, for a process that does not survive
 * it. */
static _Thread_local char last_words[1600];
static _Thread_local size_t last_length;
/* What the command has beside the call: where, and how products may be rounded. */
static char last_options[200];
/* Whether this thread makes the calls; others work out specifications. */
static _Thread_local bool makes_calls;

/* Seconds since the last call or result. */
static double lap(random_run *run)
{
    double now = cup__clock(), since = now - run->last;
    run->last = now;
    return since;
}

static void note_call(random_run *run)
{
    double since = lap(run);
    if (run->planned < 0)
        run->planned = since;
    else
        run->waited += since;
}

static void on_crash(int number)
{
    static const char begin[] = "cupola: ended by a signal in a call; repeat it with\n";
    ssize_t ignored = write(STDERR_FILENO, begin, sizeof begin - 1);
    ignored = write(STDERR_FILENO, last_words, last_length);
    (void)ignored;
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_crashes(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_RESETHAND};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
}

static void on_begin(const char *text, void *user)
{
    random_run *run = user;
    if (makes_calls)
        note_call(run);
    int length = snprintf(last_words, sizeof last_words, "cupola check%s --repeat '%s'\n",
                          last_options, text);
    last_length = length < 0 ? 0 : (size_t)length;
    if (last_length >= sizeof last_words)
        last_length = sizeof last_words - 1;
}

/* A bar on a terminal, when it takes a while. */
static void on_done(int64_t calls, void *user)
{
    random_run *run = user;
    run->next = calls;
    if (!run->shows_progress && isatty(STDERR_FILENO) && cup__clock() - run->begin > 2) {
        progress_begin(&run->progress, stderr, NULL, run->given->calls, 0);
        run->progress.noun = "call";
        run->shows_progress = true;
    }
    if (run->shows_progress)
        progress_step(&run->progress, calls, calls, NAN);
}

static found *found_of(random_run *run, const cup_check_result *r)
{
    for (int i = 0; i < run->found_count; i++)
        if (run->found[i].op == r->op && !strcmp(run->found[i].impl, r->impl))
            return &run->found[i];
    found *f = &run->found[run->found_count < MOST_IMPLS ? run->found_count++ : MOST_IMPLS - 1];
    *f = (found){.op = r->op, .impl = r->impl};
    return f;
}

static void print_failure(random_run *run, const cup_check_result *r)
{
    char words[300];
    if (*r->note)
        snprintf(words, sizeof words, "%.290s", r->note);
    else
        snprintf(words, sizeof words, "wrong");
    if (run->given->repeat && isfinite(r->error))
        printf("%sFAILED%s %s %s: %s: %.3g epsilons, %g allowed\n", color(stdout, COLOR_RED),
               color(stdout, COLOR_OFF), r->op, r->impl, words, r->error, r->tolerance);
    else
        printf("%sFAILED%s %s %s: %s (%.3g epsilons, %g allowed): cupola check%s --repeat '%s'\n",
               color(stdout, COLOR_RED), color(stdout, COLOR_OFF), r->op, r->impl, words, r->error,
               r->tolerance, last_options, r->repeat);
    fflush(stdout);
}

static void write_failure(cli_json *writer, const cup_check_result *r)
{
    json_open_object(writer, NULL);
    json_add_string(writer, "op", r->op);
    json_add_string(writer, "implementation", r->impl);
    json_add_string(writer, "dtype", cup_dtype_name(r->dtype));
    json_add_string(writer, "shapes", r->shapes);
    json_add_number(writer, "error", r->error);
    json_add_number(writer, "tolerance", r->tolerance);
    json_add_string(writer, "note", r->note);
    json_add_string(writer, "repeat", r->repeat);
    json_close(writer);
}

static void on_result(const cup_check_result *r, void *user)
{
    random_run *run = user;
    found *f = found_of(run, r);
    run->results++;
    f->results++;
    f->seconds += lap(run);
    if (r->passed) {
        if (run->given->repeat && !run->call->json)
            printf("%sok%s     %s %s: %.3g epsilons, %g allowed\n", color(stdout, COLOR_GREEN),
                   color(stdout, COLOR_OFF), r->op, r->impl, r->error, r->tolerance);
        return;
    }
    run->failed++;
    if (f->failed++ >= MOST_NOTES)
        return;
    if (run->call->json)
        write_failure(&run->writer, r);
    else
        print_failure(run, r);
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const found *)a)->seconds, y = ((const found *)b)->seconds;
    return (x < y) - (x > y);
}

/* Where the time went; the order of what was found is lost. */
static void print_times(random_run *run)
{
    printf("%.1f s: %.1f until the first call, %.1f waiting for specifications and kernels",
           cup__clock() - run->begin, run->planned < 0 ? 0 : run->planned, run->waited);
    qsort(run->found, (size_t)run->found_count, sizeof *run->found, by_seconds);
    int count = run->found_count < MOST_TIMES ? run->found_count : MOST_TIMES;
    for (int i = 0; i < count && run->found[i].seconds >= LEAST_SECONDS; i++)
        printf("%s%s %s %.1f (%lld)", i ? ", " : "; longest ", run->found[i].op,
               run->found[i].impl, run->found[i].seconds, (long long)run->found[i].results);
    printf("\n");
}

static int finish(random_run *run, cup_context *c, const cup__random_count *counts)
{
    const check_random_given *given = run->given;
    int64_t drawn = 0, refused = 0;
    for (int i = 0; i < given->row_count; i++) {
        drawn += counts[i].drawn;
        refused += counts[i].refused;
        bool never = counts[i].refused >= 4 && !counts[i].drawn;
        run->failed += never;
        if (never && !run->call->json)
            printf("%sFAILED%s %s: the op refuses every call that is drawn of it\n",
                   color(stdout, COLOR_RED), color(stdout, COLOR_OFF), given->rows[i]->name);
    }
    for (int i = 0; i < run->found_count && !run->call->json; i++)
        if (run->found[i].failed > MOST_NOTES)
            printf("       %s %s: %lld failures in all\n", run->found[i].op, run->found[i].impl,
                   (long long)run->found[i].failed);
    if (run->call->json) {
        json_close(&run->writer);
        json_add_integer(&run->writer, "calls", given->repeat ? 1 : drawn);
        json_add_integer(&run->writer, "refused", refused);
        json_add_integer(&run->writer, "results", run->results);
        json_add_integer(&run->writer, "failed", run->failed);
        int written = json_end(&run->writer);
        return written ? written : run->failed ? CLI_FAILED : CLI_OK;
    }
    if (!given->repeat) {
        print_times(run);
        printf("seed %llu: %lld random calls, %lld results, %lld wrong, on %s\n",
               (unsigned long long)given->seed, (long long)drawn, (long long)run->results,
               (long long)run->failed, cup_device_text(c));
    }
    if (!given->repeat && cup__device_is_lost(c->device) && run->next < given->calls)
        printf("go on behind that call with%s --random %lld --seed %llu --from %lld%s\n",
               last_options, (long long)given->calls, (unsigned long long)given->seed,
               (long long)run->next, given->small ? " --small" : "");
    return run->failed ? CLI_FAILED : CLI_OK;
}

int check_random(cli_call *call, cup_context *c, const check_random_given *given)
{
    static cup__random_count counts[1024];
    static random_run run;
    double now = cup__clock();
    run = (random_run){.call = call, .given = given, .begin = now, .last = now, .planned = -1};
    cup__random_options options = {.rows = given->rows,
                                   .row_count = given->row_count,
                                   .calls = given->calls,
                                   .first = given->first,
                                   .seed = given->seed,
                                   .kernels = given->kernels,
                                   .large = !given->small,
                                   .begins = on_begin,
                                   .done = on_done};
    if (given->device)
        snprintf(last_options, sizeof last_options, " --device %.80s", given->device);
    if (given->precision) {
        size_t length = strlen(last_options);
        snprintf(last_options + length, sizeof last_options - length, " --precision %.20s",
                 given->precision);
    }
    makes_calls = true;
    catch_crashes();
    json_begin(&run.writer, "check");
    json_add_string(&run.writer, "device", cup_device_text(c));
    json_add_string(&run.writer, "mode", given->repeat ? "repeat" : "random");
    if (!given->repeat) {
        char seed[32];
        snprintf(seed, sizeof seed, "%llu", (unsigned long long)given->seed);
        json_add_string(&run.writer, "seed", seed);
    }
    json_open_array(&run.writer, "results");
    if (!call->json && !given->repeat) {
        printf("seed %llu\n", (unsigned long long)given->seed);
        fflush(stdout);
    }
    cup_status status =
        given->repeat ? cup__random_repeat(c, given->repeat, &options, on_result, &run)
                      : cup__random_check(c, &options, counts, on_result, &run);
    if (run.shows_progress)
        progress_end(&run.progress);
    int code = status == CUP_OK ? finish(&run, c, counts)
                                : cli_fail_status(status, "random calls", cup_error_text(c));
    json_drop(&run.writer);
    return code;
}
