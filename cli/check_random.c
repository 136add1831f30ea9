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

typedef struct found {
    const char *op, *impl;
    int64_t failed;
} found;

/* What the results of an implementation took. */
typedef struct spent {
    const char *op, *impl;
    int64_t results;
    double seconds;
} spent;

/* Where the time of all calls goes. */
typedef struct times {
    double begin, last;
    double planned, waited; /* planned: until the first call; below 0 before it */
    spent all[MOST_IMPLS];
} times;

typedef struct random_run {
    cli_call *call;
    const check_random_given *given;
    cli_json writer;
    cli_progress progress;
    bool shows_progress;
    double begin;
    times times;
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

static void times_begin(times *t)
{
    t->begin = t->last = cup__clock();
    t->planned = -1;
}

/* Seconds since the one before. */
static double lap(times *t)
{
    double now = cup__clock(), since = now - t->last;
    t->last = now;
    return since;
}

static void times_call(times *t)
{
    double since = lap(t);
    if (t->planned < 0)
        t->planned = since;
    else
        t->waited += since;
}

static void times_result(times *t, const char *op, const char *impl)
{
    double since = lap(t);
    for (int i = 0; i < MOST_IMPLS; i++) {
        spent *one = &t->all[i];
        if (one->op && (one->op != op || one->impl != impl))
            continue;
        *one = (spent){op, impl, one->results + 1, one->seconds + since};
        return;
    }
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const spent *)a)->seconds, y = ((const spent *)b)->seconds;
    return (x < y) - (x > y);
}

static void times_print(times *t)
{
    printf("%.1f s: %.1f until the first call, %.1f waiting for specifications and kernels",
           cup__clock() - t->begin, t->planned < 0 ? 0 : t->planned, t->waited);
    qsort(t->all, MOST_IMPLS, sizeof *t->all, by_seconds);
    for (int i = 0; i < MOST_TIMES && t->all[i].seconds >= LEAST_SECONDS; i++)
        printf("%s%s %s %.1f (%lld)", i ? ", " : "; longest ", t->all[i].op, t->all[i].impl,
               t->all[i].seconds, (long long)t->all[i].results);
    printf("\n");
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
        times_call(&run->times);
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
        if (!strcmp(run->found[i].impl, r->impl) && !strcmp(run->found[i].op, r->op))
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
    run->results++;
    times_result(&run->times, r->op, r->impl);
    if (r->passed) {
        if (run->given->repeat && !run->call->json)
            printf("%sok%s     %s %s: %.3g epsilons, %g allowed\n", color(stdout, COLOR_GREEN),
                   color(stdout, COLOR_OFF), r->op, r->impl, r->error, r->tolerance);
        return;
    }
    run->failed++;
    found *f = found_of(run, r);
    if (f->failed++ >= MOST_NOTES)
        return;
    if (run->call->json)
        write_failure(&run->writer, r);
    else
        print_failure(run, r);
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
    if (!given->repeat)
        times_print(&run->times);
    if (!given->repeat)
        printf("seed %llu: %lld random calls, %lld results, %lld wrong, on %s\n",
               (unsigned long long)given->seed, (long long)drawn, (long long)run->results,
               (long long)run->failed, cup_device_text(c));
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
    run = (random_run){.call = call, .given = given, .begin = cup__clock()};
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
    times_begin(&run.times);
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
