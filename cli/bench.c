/* cupola bench: how fast each op is, next to what the device can do. */
#include <stdio.h>
#include <string.h>

#include "cli/exit.h"
#include "cli/json.h"
#include "cli/op_names.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cupola/prof.h"

typedef struct bench_given {
    const char *device, *dtype, *shapes, *impl;
    double seconds;
    cli_files ops;
} bench_given;

static const cli_option options[] = {
    {"op", NAMES(bench_given, ops), "NAME", NULL, "time these ops alone"},
    {"device", TEXT(bench_given, device), "auto|cpu|cuda[:N]", NULL,
     "where to run; without it CUP_DEVICE, else the first usable GPU, else the CPU"},
    {"dtype", CHOICE(bench_given, dtype), "f32|f64|f16|bf16", "f32", "dtype of the inputs"},
    {"shapes", TEXT(bench_given, shapes), "SHAPES", NULL,
     "shapes of the inputs, as '32x768 768'; without it those each op names itself"},
    {"impl", TEXT(bench_given, impl), "NAME", NULL, "time this implementation alone"},
    {"seconds", REAL(bench_given, seconds, 0.001, 600), "S", "0.2",
     "time for each implementation and shape"},
    {0}};

typedef struct bench_run {
    cli_call *call;
    cup__json_writer writer;
    int64_t count;
} bench_run;

static void write_result(cup__json_writer *writer, const cup_bench_result *r)
{
    cup__json_open(writer, NULL, CUP__JSON_OBJECT);
    cup__json_add_string(writer, "op", r->op);
    cup__json_add_string(writer, "implementation", r->impl);
    cup__json_add_string(writer, "dtype", cup_dtype_name(r->dtype));
    cup__json_add_string(writer, "shapes", r->shapes);
    cup__json_add_integer(writer, "runs", r->runs);
    cup__json_add_number(writer, "median_us", r->median_us);
    cup__json_add_number(writer, "low_us", r->low_us);
    cup__json_add_number(writer, "high_us", r->high_us);
    cup__json_add_number(writer, "bytes", r->bytes);
    cup__json_add_number(writer, "flops", r->flops);
    cup__json_add_number(writer, "floor_us", r->floor_us);
    cup__json_close(writer);
}

static void print_head(void)
{
    printf("%s%-16s %-12s %-5s %-28s %11s %10s %9s %7s%s\n", color(stdout, COLOR_BOLD), "op", "by",
           "dtype", "shapes", "median us", "GB/s", "TFLOP/s", "reached", color(stdout, COLOR_OFF));
}

static void on_result(const cup_bench_result *r, void *user)
{
    bench_run *run = user;
    if (run->call->json) {
        write_result(&run->writer, r);
        run->count++;
        return;
    }
    if (!run->count++)
        print_head();
    double seconds = r->median_us * 1e-6;
    printf("%-16s %-12s %-5s %-28s %11.2f %10.1f %9.3f %6.1f%%\n", r->op, r->impl,
           cup_dtype_name(r->dtype), r->shapes, r->median_us, r->bytes / seconds * 1e-9,
           r->flops / seconds * 1e-12, 100 * r->floor_us / r->median_us);
    fflush(stdout);
}

static int bench_all(bench_run *run, cup_context *c, const cup_ceiling *ceiling)
{
    const bench_given *given = run->call->given;
    cup_bench_options how = {
        .shapes = given->shapes, .impl = given->impl, .seconds = given->seconds};
    int code = CLI_OK;
    if (cup_dtype_find(given->dtype, &how.dtype) != CUP_OK)
        return cli_usage("--dtype %s: there is no such dtype", given->dtype);
    for (const cup__row *row = cup__rows; row->name; row++) {
        if (!op_is_named(row, given->ops.name, given->ops.count, true) ||
            cup_bench(c, row->name, &how, ceiling, on_result, run) == CUP_OK)
            continue;
        int one = cli_fail(cli_exit_of(cup_error(c)), "%s", cup_error_text(c));
        cup_error_clear(c);
        code = code ? code : one;
    }
    if (!run->count && !code)
        code = cli_fail(CLI_FAILED, "nothing to time: no implementation on %s takes this",
                        cup_device_text(c));
    return code;
}

static int measure(cli_call *call, cup_context *c)
{
    bench_run run = {.call = call};
    cup_ceiling ceiling;
    if (cup_ceiling_measure(c, &ceiling) != CUP_OK)
        return cli_report(c);
    if (!call->json) {
        printf("%s; copies %.1f GB/s\n", cup_device_text(c), ceiling.copy_bytes * 1e-9);
        return bench_all(&run, c, &ceiling);
    }
    json_begin(&run.writer, "bench");
    cup__json_add_string(&run.writer, "device", cup_device_text(c));
    cup__json_add_number(&run.writer, "copy_bytes_per_second", ceiling.copy_bytes);
    cup__json_open(&run.writer, "results", CUP__JSON_ARRAY);
    int code = bench_all(&run, c, &ceiling);
    cup__json_close(&run.writer);
    int written = json_end(&run.writer);
    return code ? code : written;
}

static int run(cli_call *call)
{
    const bench_given *given = call->given;
    int code = op_names_check(given->ops.name, given->ops.count);
    if (code)
        return code;
    if (given->shapes && given->ops.count != 1)
        return cli_usage("--shapes are those of one op: name it with --op");
    cup_context *c = cup_context_new(&(cup_options){.device = given->device});
    code = cli_report(c);
    if (!code)
        code = measure(call, c);
    cup_context_free(c);
    return code;
}

const cli_verb verb_bench = {
    .name = "bench",
    .synopsis = "[OPTION]...",
    .words = "how fast each op is, next to what the device can do",
    .text = "Times each implementation of each op at the shapes the op names, with the caches "
            "flushed before every run. Prints the median time, the bytes and operations a second, "
            "and the share of what the device can do at best, by the bytes the call must move and "
            "the operations it must do.",
    .examples = "One op at one shape:\n"
                "cupola bench --op layernorm --shapes '8192x768 768 768' --dtype bf16\n",
    .options = options,
    .size = sizeof(bench_given),
    .run = run,
};
