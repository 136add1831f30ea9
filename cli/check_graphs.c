#include "cli/check.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/terminal.h"
#include "prof/check_backward.h"
#include "prof/check_graph.h"

typedef struct graphs_run {
    cli_call *call;
    cli_json writer;
    int64_t wanted, count, failed;
    double begin;
} graphs_run;

static void write_result(cli_json *writer, const cup__graph_result *r)
{
    json_open_object(writer, NULL);
    json_add_string(writer, "graph", r->graph);
    json_add_string(writer, "repeat", r->repeat);
    json_add_string(writer, "dtype", cup_dtype_name(r->dtype));
    json_add_number(writer, "error", r->error);
    json_add_number(writer, "tolerance", r->tolerance);
    json_add_boolean(writer, "passed", r->passed);
    json_add_string(writer, "note", r->note);
    json_close(writer);
}

static void print_failure(const cup__graph_result *r)
{
    printf("%sFAILED%s %s: %s", color(stdout, COLOR_RED), color(stdout, COLOR_OFF),
           cup_dtype_name(r->dtype), r->note);
    if (isfinite(r->error))
        printf(", error %.3g epsilons, at most %.3g allowed", r->error, r->tolerance);
    printf("\n       %s\n       cupola check --graph %s\n", r->graph, r->repeat);
}

static void on_result(const cup__graph_result *r, void *user)
{
    graphs_run *run = user;
    run->count++;
    run->failed += !r->passed;
    if (run->call->json)
        write_result(&run->writer, r);
    else if (!r->passed)
        print_failure(r);
    else if (run->wanted == 1)
        printf("%sok%s     %s, error %.3g epsilons, at most %.3g allowed: %s\n",
               color(stdout, COLOR_GREEN), color(stdout, COLOR_OFF), cup_dtype_name(r->dtype),
               r->error, r->tolerance, r->graph);
    else if (run->count % 500 == 0)
        printf("%lld of %lld graphs\n", (long long)run->count, (long long)run->wanted);
    fflush(stdout);
}

static void on_gradient(const cup__backward_result *r, void *user)
{
    graphs_run *run = user;
    run->count++;
    run->failed += !r->passed;
    if (run->call->json) {
        cup__graph_result same = {r->call, r->call, r->note, r->dtype, r->error, r->tolerance,
                                  r->passed};
        write_result(&run->writer, &same);
    } else if (!r->passed) {
        printf("%sFAILED%s %s: %s", color(stdout, COLOR_RED), color(stdout, COLOR_OFF), r->call,
               r->note);
        if (isfinite(r->error))
            printf(", error %.3g epsilons, at most %.3g allowed", r->error, r->tolerance);
        if (r->drawn)
            printf("\n       cupola check --gradient '%s'\n", r->call);
        else
            printf("\n       cupola check --gradients 1 --op %s\n", r->op);
    } else if (run->wanted == 1) {
        printf("%sok%s     %s, error %.3g epsilons, at most %.3g allowed\n",
               color(stdout, COLOR_GREEN), color(stdout, COLOR_OFF), r->call, r->error,
               r->tolerance);
    } else if (run->count % 500 == 0) {
        printf("%lld gradients\n", (long long)run->count);
    }
    fflush(stdout);
}

static int finish(graphs_run *run, cup_context *c)
{
    int code = CLI_OK;
    if (run->call->json) {
        json_close(&run->writer);
        json_add_integer(&run->writer, "calls", run->count);
        json_add_integer(&run->writer, "failed", run->failed);
        code = json_end(&run->writer);
    } else {
        printf("%lld calls, %lld failed, on %s, in %.1f s\n", (long long)run->count,
               (long long)run->failed, cup_device_text(c), cup__clock() - run->begin);
    }
    return run->failed ? CLI_FAILED : code;
}

static void begin(graphs_run *run, cup_context *c)
{
    if (!run->call->json)
        return;
    json_begin(&run->writer, "check");
    json_add_string(&run->writer, "device", cup_device_text(c));
    json_open_array(&run->writer, "results");
}

int check_graphs(cli_call *call, cup_context *c, uint64_t seed, int64_t count, const char *graph)
{
    graphs_run run = {.call = call, .wanted = graph ? 1 : count, .begin = cup__clock()};
    begin(&run, c);
    cup_status status = graph ? cup__check_graph(c, graph, on_result, &run)
                              : cup__check_graphs(c, seed, count, on_result, &run);
    int code = status == CUP_OK ? finish(&run, c) : cli_report(c);
    json_drop(&run.writer);
    return code;
}

int check_gradients(cli_call *call, cup_context *c, const cup__row *const *rows, int row_count,
                    uint64_t seed, int64_t count, const char *gradient)
{
    graphs_run run = {.call = call, .wanted = gradient ? 1 : 0, .begin = cup__clock()};
    begin(&run, c);
    cup_status status =
        gradient ? cup__check_backward_call(c, gradient, on_gradient, &run)
                 : cup__check_backward(c, rows, row_count, seed, count, on_gradient, &run);
    int code = status == CUP_OK ? finish(&run, c) : cli_report(c);
    json_drop(&run.writer);
    return code;
}
