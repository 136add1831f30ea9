/* cupola check: every implementation of every op held against its specification. */
#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cli/check.h"
#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/op_names.h"
#include "cli/common/options.h"
#include "cli/common/terminal.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "prof/check.h"
#include "prof/check_backward.h"

#define MOST_IMPLS 16
#define MAPPED_FROM (32 << 20) /* bytes, the most that can be said */
#define MOST_NOTES 3 /* of one implementation, that are printed */

typedef struct check_given {
    const char *device, *graph, *gradient, *repeat, *precision;
    cli_files ops;
    int64_t random, kernels, from, graphs, gradients, seed;
    bool small;
} check_given;

static const cli_option options[] = {
    {"op", NAMES(check_given, ops), "NAME", NULL, "check these ops alone"},
    {"device", TEXT(check_given, device), "auto|cpu|cuda[:N]", NULL,
     "where to run; without it CUP_DEVICE, else the first usable GPU, else the CPU"},
    {"random", INTEGER(check_given, random, 1, 1000000000), "N", NULL,
     "instead, N random calls"},
    {"kernels", INTEGER(check_given, kernels, 1, 1000000000), "N", NULL,
     "with --random on a GPU, choose calls that need about N kernels at most, as compiling takes "
     "longest; without it any number"},
    {"small", FLAG(check_given, small), NULL, NULL,
     "with --random, no calls of the sizes of models, of which each takes as long as hundreds of "
     "others under a tool that looks at every access"},
    {"precision", TEXT(check_given, precision), "highest|high|medium", NULL,
     "with --random or --repeat on a GPU, how products of f32 may be rounded, of which errors may "
     "then be as large; without it they may not, whatever CUP_PRECISION says"},
    {"from", INTEGER(check_given, from, 0, 1000000000), "N", NULL,
     "with --random and --seed, leave out the calls before this one, as a check says that had to "
     "stop"},
    {"repeat", TEXT(check_given, repeat), "CALL", NULL,
     "instead, the one random call that a failure names"},
    {"graphs", INTEGER(check_given, graphs, 1, 1000000000), "N", NULL,
     "instead, N random graphs of ops, forward and backward"},
    {"gradients", INTEGER(check_given, gradients, 1, 1000000000), "N", NULL,
     "instead, gradients of the ops' samples and of N random calls"},
    {"gradient", TEXT(check_given, gradient), "CALL", NULL,
     "instead, the gradients of the one random call that a failure names"},
    {"graph", TEXT(check_given, graph), "TEXT", NULL,
     "instead, the one graph that a failure names"},
    {"seed", INTEGER(check_given, seed, 0, INT64_MAX), "N", NULL,
     "of what is random; without it 1, and for random calls another one each time"},
    {0}};

/* What was found of one implementation of the op at hand. */
typedef struct tally {
    const char *impl;
    cup_check_result worst; /* the largest error as a share of its tolerance */
    int64_t calls, failed;
} tally;

typedef struct check_run {
    cli_call *call;
    cli_json writer;
    tally tallies[MOST_IMPLS];
    int count;
    int64_t calls, failed;
    double begin, waited; /* seconds */
} check_run;

static tally *tally_of(check_run *run, const char *impl)
{
    for (int i = 0; i < run->count; i++)
        if (!strcmp(run->tallies[i].impl, impl))
            return &run->tallies[i];
    tally *t = &run->tallies[run->count < MOST_IMPLS ? run->count++ : MOST_IMPLS - 1];
    *t = (tally){.impl = impl};
    return t;
}

static void write_result(cli_json *writer, const cup_check_result *r)
{
    json_open_object(writer, NULL);
    json_add_string(writer, "op", r->op);
    json_add_string(writer, "implementation", r->impl);
    json_add_string(writer, "dtype", cup_dtype_name(r->dtype));
    json_add_string(writer, "layout", r->layout);
    json_add_string(writer, "shapes", r->shapes);
    json_add_number(writer, "error", r->error); /* null: there was no value to compare */
    json_add_number(writer, "tolerance", r->tolerance);
    json_add_boolean(writer, "passed", r->passed);
    json_add_boolean(writer, "unreached", r->unreached);
    if (!r->passed || r->unreached)
        json_add_string(writer, "note", r->note);
    json_close(writer);
}

static void print_failure(const cup_check_result *r)
{
    printf("%sFAILED%s %s %s, %s, %s, shapes %s: ", color(stdout, COLOR_RED),
           color(stdout, COLOR_OFF), r->op, r->impl, cup_dtype_name(r->dtype), r->layout,
           r->shapes);
    if (*r->note)
        printf("%s\n", r->note);
    else
        printf("error %.3g epsilons, at most %.3g allowed\n", r->error, r->tolerance);
}

static void print_unreached(const cup_check_result *r)
{
    printf("%s%-6s%s %-16s %-14s was not checked: %s\n",
           color(stdout, r->passed ? COLOR_BOLD : COLOR_RED), r->passed ? "-" : "FAILED",
           color(stdout, COLOR_OFF), r->op, r->impl, r->note);
}

static void on_unreached(check_run *run, const cup_check_result *r)
{
    run->failed += !r->passed;
    if (run->call->json)
        write_result(&run->writer, r);
    else
        print_unreached(r);
}

static void on_result(const cup_check_result *r, void *user)
{
    check_run *run = user;
    if (r->unreached) {
        on_unreached(run, r);
        return;
    }
    tally *t = tally_of(run, r->impl);
    if (!t->calls || !(r->error / r->tolerance <= t->worst.error / t->worst.tolerance))
        t->worst = *r;
    t->calls++;
    t->failed += !r->passed;
    if (run->call->json)
        write_result(&run->writer, r);
    else if (!r->passed && t->failed <= MOST_NOTES)
        print_failure(r);
}

static void print_tally(const char *op, const tally *t)
{
    const cup_check_result *w = &t->worst;
    printf("%s%-6s%s %-16s %-14s", color(stdout, t->failed ? COLOR_RED : COLOR_GREEN),
           t->failed ? "FAILED" : "ok", color(stdout, COLOR_OFF), op, t->impl);
    if (t->failed)
        printf(" %lld of %lld calls\n", (long long)t->failed, (long long)t->calls);
    else
        printf(" %5lld calls, worst %.2g of %g epsilons (%s, %s, %s)\n", (long long)t->calls,
               w->error, w->tolerance, cup_dtype_name(w->dtype), w->layout, w->shapes);
}

/* Checks one op. What keeps the check itself from running counts as a failure, but for a want of
 * memory, which says nothing of the op. */
static int check_op(check_run *run, cup_context *c, cup__checking *checking, const cup__row *row)
{
    const char *op = row->name;
    run->count = 0;
    cup_status status = cup__checking_row(checking, row, on_result, run);
    for (int i = 0; i < run->count; i++) {
        run->calls += run->tallies[i].calls;
        run->failed += run->tallies[i].failed;
        if (!run->call->json)
            print_tally(op, &run->tallies[i]);
    }
    if (!run->count && status == CUP_OK && !run->call->json)
        printf("%-6s %-16s has nothing to check on this device\n", "-", op);
    fflush(stdout);
    if (status == CUP_OK)
        return CLI_OK;
    run->failed += status != CUP_MEMORY;
    int code = cli_fail_status(status, op, cup_error_text(c));
    cup_error_clear(c);
    return code;
}

static int named_rows(const check_given *given, const cup__row *rows[CUP__OP_COUNT])
{
    int count = 0;
    for (const cup__row *row = cup__rows; row->name; row++)
        if (op_is_named((int)(row - cup__rows), given->ops.name, given->ops.count, true))
            rows[count++] = row;
    return count;
}

static int make_random(cli_call *call, cup_context *c)
{
    const check_given *given = call->given;
    const cup__row *rows[CUP__OP_COUNT] = {0};
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    check_random_given random = {.repeat = given->repeat,
                                 .rows = rows,
                                 .row_count = named_rows(given, rows),
                                 .calls = given->random,
                                 .kernels = given->kernels,
                                 .small = given->small,
                                 .first = given->from < given->random ? given->from
                                                                      : given->random,
                                 .device = given->device,
                                 .precision = given->precision};
    random.seed = call_has(call, "seed") ? (uint64_t)given->seed
                                         : (uint64_t)time.tv_sec * 1000 +
                                               (uint64_t)time.tv_nsec / 1000000;
    return check_random(call, c, &random);
}

static void on_gradient(const cup__backward_result *r, void *user)
{
    check_run *run = user;
    cup_check_result same = {.op = r->op, .impl = "gradient", .dtype = r->dtype,
                             .layout = "row-major", .shapes = r->call, .note = r->note,
                             .error = r->error, .tolerance = r->tolerance, .passed = r->passed};
    run->calls++;
    run->failed += !r->passed;
    if (run->call->json) {
        write_result(&run->writer, &same);
    } else if (!r->passed) {
        print_failure(&same);
        printf("       error %.3g epsilons, at most %.3g allowed; cupola check --op %s\n", r->error,
               r->tolerance, r->op);
    }
}

/* The gradients of the samples, which no implementation's own check sees. */
static int check_slopes(check_run *run, cup_context *c, const cup__row *const *rows, int count)
{
    int64_t calls = run->calls, failed = run->failed;
    if (cup__check_backward_samples(c, rows, count, on_gradient, run) != CUP_OK)
        return cli_report(c);
    failed = run->failed - failed;
    calls = run->calls - calls;
    if (calls && !run->call->json)
        printf("%s%-6s%s gradients of %lld samples in f32, %lld failed\n",
               color(stdout, failed ? COLOR_RED : COLOR_GREEN), failed ? "FAILED" : "ok",
               color(stdout, COLOR_OFF), (long long)calls, (long long)failed);
    return CLI_OK;
}

static int check_all(check_run *run, cup_context *c)
{
    const cup__row *rows[CUP__OP_COUNT] = {0};
    int count = named_rows(run->call->given, rows), code = CLI_OK;
    cup__checking *checking = cup__checking_new(c, rows, count);
    if (!checking)
        return cli_report(c);
    for (int i = 0; i < count && !cup__device_is_lost(c->device); i++) {
        int one = check_op(run, c, checking, rows[i]);
        code = code ? code : one;
    }
    run->waited = cup__checking_waited(checking);
    cup__checking_free(checking);
    int slopes = check_slopes(run, c, rows, count);
    code = code ? code : slopes;
    return code ? code : run->failed ? CLI_FAILED : CLI_OK;
}

static int finish(check_run *run, cup_context *c, int code)
{
    if (!run->call->json) {
        printf("%lld calls, %lld failed, on %s, in %.1f s, of which %.1f s were spent waiting for "
               "specifications and kernels\n",
               (long long)run->calls, (long long)run->failed, cup_device_text(c),
               cup__clock() - run->begin, run->waited);
        return code;
    }
    json_close(&run->writer);
    json_add_integer(&run->writer, "calls", run->calls);
    json_add_integer(&run->writer, "failed", run->failed);
    int written = json_end(&run->writer);
    return code ? code : written;
}

/* Memory of results goes to the next ones rather than back to the system, which clears it. */
static void keep_memory(void)
{
    mallopt(M_MMAP_THRESHOLD, MAPPED_FROM);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

static int run(cli_call *call)
{
    const check_given *given = call->given;
    int code = op_names_check(given->ops.name, given->ops.count);
    if (code)
        return code;
    if (given->precision && !given->random && !given->repeat)
        return cli_usage("--precision goes with --random or --repeat");
    keep_memory();
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = given->device));
    cup_precision(c, given->precision ? given->precision : "highest");
    code = cli_report(c);
    uint64_t seed = call_has(call, "seed") ? (uint64_t)given->seed : 1;
    if (!code && (given->repeat || given->random)) {
        code = make_random(call, c);
    } else if (!code && (given->graphs || given->graph)) {
        code = check_graphs(call, c, seed, given->graphs, given->graph);
    } else if (!code && (given->gradients || given->gradient)) {
        const cup__row *rows[CUP__OP_COUNT] = {0};
        code = check_gradients(call, c, rows, named_rows(given, rows), seed,
                               given->gradients, given->gradient);
    } else if (!code) {
        check_run run = {.call = call, .begin = cup__clock()};
        json_begin(&run.writer, "check");
        json_add_string(&run.writer, "device", cup_device_text(c));
        json_open_array(&run.writer, "results");
        code = check_all(&run, c);
        code = finish(&run, c, code);
        json_drop(&run.writer);
    }
    if (c && c->device && cup__device_is_lost(c->device))
        code = cli_fail(CLI_FAILED, "no call behind the one that stopped the GPU was checked");
    cup_context_free(c);
    return code;
}

const cli_verb verb_check = {
    .name = "check",
    .synopsis = "[OPTION]...",
    .words = "every implementation of every op against its specification",
    .text = "Runs each implementation of each op on this machine, over dtypes, odd shapes and "
            "layouts, and compares with the plain specification, which is computed in double on "
            "the CPU. Also looks for writes outside a result and for a second run that gives "
            "other bits, and holds the gradients of the samples, in f32, against the same in "
            "double.\n\n"
            "An error is given in epsilons of the dtype, next to what the op allows. The exit "
            "code is 1 when one is larger, and 4 when memory runs out, which says nothing of the "
            "calls that were not compared.\n\n"
            "With --random the calls are drawn: shapes about the sizes at which implementations "
            "change their path and those of real models, strides, offsets, dtypes, attributes and "
            "values; of up to 8 million elements and 130 million operations, as a specification "
            "takes. What is larger cupola bench holds against the plainest implementation in "
            "double, and that, of products, convolutions and attention, at some elements against "
            "the specification. A call that fails is made smaller while it still does, and the "
            "command is printed that makes it again. Its last lines tell what took longest. With "
            "--kernels, a GPU that has to compile them gets many calls for each: that budget is "
            "spread over the ops and over the check, and calls between are chosen among those of "
            "known kernels. With --precision, calls of f32 take the kernels that round what they "
            "multiply, and are held to that.\n\n"
            "With --graphs, graphs of three to twelve ops are drawn and run with the gradients of "
            "all their leaves, and compared with the same in double on the CPU. What a value may "
            "be wrong by follows from how far it moves, in double, when every value and gradient "
            "on the way to it is moved as rounding would. A graph that fails is shrunk, and "
            "printed with the command that repeats it. --gradients does the same with single "
            "calls: every sample of the ops, and random calls, one in 32 as large as those of "
            "models.",
    .examples = "Whether this GPU computes right:\ncupola check --device cuda\n"
                "Two ops on the CPU:\ncupola check --op softmax matmul --device cpu\n"
                "Graphs of ops that were not drawn before:\n"
                "cupola check --graphs 1000 --seed 20260105\n"
                "Random calls, others each time:\n"
                "cupola check --random 2000 --device cpu\n"
                "As many on a GPU as its compiling allows:\n"
                "cupola check --random 20000 --kernels 5000 --device cuda\n",
    .options = options,
    .size = sizeof(check_given),
    .run = run,
};
