/* cupola bench: how fast each op is, next to what the device can do. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/bench.h"
#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/op_names.h"
#include "cuda/cuda.h"
#include "dispatch/op.h"
#include "tensor/context.h"

#define MOST_TIMES 3    /* a call of a file of goals */
#define LONGER_REST 3.0 /* before it is timed again, times the rest before the last time */
#define MOST_BEHIND 12  /* calls that stay so, until it is not for heat and none is timed again */

typedef struct bench_given {
    const char *device, *dtype, *shapes, *attributes, *impl, *format, *from, *peers, *goals,
        *against, *part, *precision;
    double seconds, noise, rest;
    int64_t indices;
    bool no_error, chosen, transposed, channels_last;
    cli_files ops, compare;
} bench_given;

static const cli_option options[] = {
    {"op", NAMES(bench_given, ops), "NAME", NULL, "time these ops alone"},
    {"device", TEXT(bench_given, device), "auto|cpu|cuda[:N]", NULL,
     "where to run; without it CUP_DEVICE, else the first usable GPU, else the CPU"},
    {"dtype", CHOICE(bench_given, dtype), "f32|f64|f16|bf16|i8|f8e4m3|f8e5m2", "f32",
     "dtype of the inputs"},
    {"shapes", TEXT(bench_given, shapes), "SHAPES", NULL,
     "shapes of the inputs, as '32x768 768', of several calls with semicolons between; without it "
     "those each op names itself"},
    {"attributes", TEXT(bench_given, attributes), "'NAME=VALUE ...'", NULL,
     "attributes that go with --shapes, in one word, as 'causal=1 dropout=0'; those not named are "
     "as in the op's first call"},
    {"indices", INTEGER(bench_given, indices, 0, INT64_MAX), "N", "0",
     "whole numbers among the inputs, such as ids, are below this; 0: the op's own choice"},
    {"precision", CHOICE(bench_given, precision), "highest|high|medium", NULL,
     "how f32 products, convolutions and attention may round on a GPU; without it CUP_PRECISION"},
    {"transposed", FLAG(bench_given, transposed), NULL, NULL,
     "inputs lie in memory with their dimensions in reverse order"},
    {"channels-last", FLAG(bench_given, channels_last), NULL, NULL,
     "inputs of four or five dimensions, images and kernels, lie with their channels last"},
    {"impl", TEXT(bench_given, impl), "NAME", NULL, "time this implementation alone"},
    {"chosen", FLAG(bench_given, chosen), NULL, NULL,
     "time the implementation alone that a call would take"},
    {"seconds", REAL(bench_given, seconds, 0.001, 600), "S", "0.2",
     "time for each implementation and shape"},
    {"no-error", FLAG(bench_given, no_error), NULL, NULL,
     "do not measure the error against the specification, which takes a while"},
    GROUP("What is written"),
    {"format", CHOICE(bench_given, format), "text|json|csv|tsv|html|markdown", "text",
     "html is a page with plots; csv and tsv can be read by --from and --compare"},
    {"from", TEXT(bench_given, from), "FILE", NULL,
     "measure nothing; take the newest row of each call from a file of records"},
    {"peers", TEXT(bench_given, peers), "FILE", NULL,
     "file of records to take the times of other libraries from"},
    {"goals", TEXT(bench_given, goals), "FILE", NULL,
     "time the calls of a file of goals, as bench/goals.tsv, or with --from tell how much was "
     "reached of them"},
    {"part", TEXT(bench_given, part), "I/N", NULL,
     "of the calls of --goals every N-th, from the I-th on"},
    {"rest", REAL(bench_given, rest, 0, 60), "S", "0.4",
     "seconds for which a GPU rests before each call of --goals, as one heats it for the next"},
    {"against", TEXT(bench_given, against), "FILE", NULL,
     "file of records; a call of --goals that is behind its newest one is timed again after a "
     "longer rest, up to twice, and the least of its medians counts; none is when 12 stayed so"},
    {"compare", FILES(bench_given, compare), "OLD NEW", NULL,
     "measure nothing; compare two files of records, and fail where the second is slower"},
    {"noise", REAL(bench_given, noise, 0, 1000), "PERCENT", "3",
     "how much slower is no regression, nor behind a record; --compare allows twice the spread of "
     "both in any case"},
    {0}};

typedef struct bench_run {
    cli_call *call;
    cli_json writer;
    cli_records records, peers, against, calls; /* calls: those of a file of goals */
    char card[64], date[24];
    int64_t shown; /* rows */
    int timed;     /* so often the call of a file of goals was; 0: there is no such file */
    int behind;    /* calls that stayed so, timed again or not */
    int64_t first, step;
    int code;
} bench_run;

static const char *format_of(const cli_call *call)
{
    const bench_given *given = call->given;
    return call->json ? "json" : given->format;
}

static bool is_format(const cli_call *call, const char *format)
{
    return !strcmp(format_of(call), format);
}

static char separator_of(const cli_call *call)
{
    return is_format(call, "csv") ? ',' : '\t';
}

/* The peer's time of the newest record of the same call. */
static void add_peer(const cli_records *peers, cli_record *row)
{
    const cli_record *found = records_find(peers, row);
    if (!found || !(found->peer_us > 0))
        return;
    memcpy(row->peer, found->peer, sizeof row->peer);
    row->peer_us = found->peer_us;
    row->peer_error = found->peer_error;
    row->ratio = found->peer_us / row->ours_us;
}

static void show(bench_run *run, const cli_record *row)
{
    if (is_format(run->call, "text")) {
        if (!run->shown)
            bench_print_head();
        bench_print_row(row);
    } else if (is_format(run->call, "csv") || is_format(run->call, "tsv")) {
        int code = run->shown ? CLI_OK : bench_write_line(NULL, separator_of(run->call));
        code = code ? code : bench_write_line(row, separator_of(run->call));
        run->code = run->code ? run->code : code;
    }
    run->shown++;
}

static void on_result(const cup_bench_result *r, void *user)
{
    bench_run *run = user;
    cli_record row = record_of(r, run->card, run->date);
    add_peer(&run->peers, &row);
    if (run->timed > 1) {
        cli_record *best = &run->records.row[run->records.count - 1];
        row.error = best->error;
        if (row.ours_us < best->ours_us)
            *best = row;
        best->timed = run->timed;
        return;
    }
    row.timed = run->timed ? run->timed : NAN;
    int code = records_add(&run->records, &row);
    run->code = run->code ? run->code : code;
    if (!run->timed)
        show(run, &row);
}

static int bench_op(bench_run *run, cup_context *c, const cup__row *row,
                    const cup_bench_options *how, const cup_ceiling *ceiling)
{
    if (cup_bench(c, row->name, ceiling, how, on_result, run) == CUP_OK)
        return CLI_OK;
    cup_status status = cup_error(c);
    int code = cli_report(c);
    cup_error_clear(c);
    /* Shapes of the command line that no call can have are a wrong command line. */
    bool named = ((const bench_given *)run->call->given)->shapes;
    return named && (status == CUP_SHAPE || status == CUP_DTYPE) ? CLI_USAGE : code;
}

/* Each of the calls whose shapes were given. */
static int bench_shapes(bench_run *run, cup_context *c, const cup__row *row,
                        const cup_bench_options *how, const cup_ceiling *ceiling)
{
    char *list = cup__strdup(how->shapes);
    int code = list ? CLI_OK : cli_fail(CLI_MEMORY, "no host memory for the shapes");
    for (char *at = list, *next; at; at = next) {
        cup_bench_options one = *how;
        next = strchr(at, ';');
        if (next)
            *next++ = 0;
        one.shapes = at + strspn(at, " ");
        int each = bench_op(run, c, row, &one, ceiling);
        code = code ? code : each;
    }
    cup__free(list);
    return code;
}

/* Cuts the text before the word; returns what follows the word, NULL where it is not there. */
static const char *cut_word(char *attributes, const char *word)
{
    char *at = strstr(attributes, word);
    if (!at)
        return NULL;
    at[at > attributes ? -1 : 0] = 0;
    return at + strlen(word);
}

/* A call as a record has it, whose last attributes are those that the op has not. */
static int bench_call(bench_run *run, cup_context *c, const cup_ceiling *ceiling, cli_record call)
{
    const bench_given *given = run->call->given;
    const cup__row *row = cup__row_find(call.op);
    cup_bench_options how = {.size = sizeof how,
                             .shapes = call.shapes,
                             .attributes = call.attributes,
                             .chosen = true,
                             .bare = true,
                             .seconds = given->seconds,
                             .no_error = given->no_error || run->timed > 1};
    const char *precision = cut_word(call.attributes, "precision=");
    how.transposed = cut_word(call.attributes, "transposed=1") != NULL;
    how.channels_last = cut_word(call.attributes, "channels_last=1") != NULL;
    if (!row || cup_dtype_find(call.dtype, &how.dtype) != CUP_OK)
        return cli_fail(CLI_FILE, "%s: there is no op %s, or no dtype %s", given->goals, call.op,
                        call.dtype);
    how.indices = row->op->bench_indices;
    if (cup_precision(c, precision ? precision : "highest") != CUP_OK)
        return cli_report(c);
    return bench_op(run, c, row, &how, ceiling);
}

static void rest(const cup_context *c, double seconds)
{
    if (c->device->is_cuda)
        cup__sleep(seconds);
}

/* Whether the last row is slower than its record by more than the noise. */
static bool is_behind(const bench_run *run)
{
    const cli_record *row = &run->records.row[run->records.count - 1];
    const cli_record *before = records_find(&run->against, row);
    double noise = ((const bench_given *)run->call->given)->noise;
    return before && row->ours_us > (1 + noise / 100) * before->ours_us;
}

/* Times a call, and once more while it is behind its record: where the machine code is the same,
 * a hot card is what there was. */
static int bench_goal(bench_run *run, cup_context *c, const cup_ceiling *ceiling,
                      const cli_record *call)
{
    double pause = ((const bench_given *)run->call->given)->rest;
    size_t before = run->records.count;
    int code = CLI_OK, most = run->behind < MOST_BEHIND ? MOST_TIMES : 1;
    bool behind = true;
    for (run->timed = 1; run->timed <= most && behind && !code; run->timed++) {
        rest(c, pause);
        pause *= LONGER_REST;
        code = bench_call(run, c, ceiling, *call);
        behind = run->records.count > before && is_behind(run);
    }
    run->behind += behind;
    if (run->records.count > before)
        show(run, &run->records.row[before]);
    return code;
}

static int bench_file(bench_run *run, cup_context *c, const cup_ceiling *ceiling)
{
    int code = CLI_OK;
    for (size_t i = (size_t)run->first; i < run->calls.count; i += (size_t)run->step) {
        int one = bench_goal(run, c, ceiling, &run->calls.row[i]);
        code = code ? code : one;
    }
    return code ? code : run->code;
}

static int bench_all(bench_run *run, cup_context *c, const cup_ceiling *ceiling)
{
    const bench_given *given = run->call->given;
    cup_bench_options how = {.size = sizeof how,
                             .shapes = given->shapes,
                             .impl = given->impl,
                             .seconds = given->seconds,
                             .attributes = given->attributes,
                             .indices = given->indices,
                             .no_error = given->no_error,
                             .chosen = given->chosen,
                             .transposed = given->transposed,
                             .channels_last = given->channels_last};
    int code = CLI_OK;
    if (cup_dtype_find(given->dtype, &how.dtype) != CUP_OK)
        return cli_usage("--dtype %s: there is no such dtype", given->dtype);
    for (const cup__row *row = cup__rows; row->name; row++) {
        if (!op_is_named((int)(row - cup__rows), given->ops.name, given->ops.count, true))
            continue;
        int one = given->shapes ? bench_shapes(run, c, row, &how, ceiling)
                                : bench_op(run, c, row, &how, ceiling);
        code = code ? code : one;
    }
    if (!run->records.count && !code)
        code = cli_fail(CLI_FAILED, "nothing to time: no implementation on %s takes this",
                        cup_device_text(c));
    return code ? code : run->code;
}

static int write_document(bench_run *run, const char *device)
{
    json_begin(&run->writer, "bench");
    json_add_string(&run->writer, "device", device);
    json_add_number(&run->writer, "copy_bytes_per_second", records_copy_rate(&run->records));
    json_open_array(&run->writer, "results");
    for (size_t i = 0; i < run->records.count; i++)
        bench_write_row(&run->writer, &run->records.row[i]);
    json_close(&run->writer);
    return json_end(&run->writer);
}

/* What is written when all rows are there. */
static int write_records(bench_run *run, const char *device)
{
    cup__text out = {0};
    if (is_format(run->call, "json"))
        return write_document(run, device);
    if (is_format(run->call, "html")) {
        bench_page(&out, &run->records, device);
    } else if (is_format(run->call, "markdown")) {
        bench_markdown(&out, &run->records);
    } else if (!is_format(run->call, "text") && !run->shown) {
        return bench_write_line(NULL, separator_of(run->call));
    }
    int code = out.failed ? cli_fail(CLI_MEMORY, "no host memory for what is written") : CLI_OK;
    if (!code && out.length)
        cli_write(out.bytes, out.length);
    cup__text_free(&out);
    return code;
}

static int measure(bench_run *run)
{
    const bench_given *given = run->call->given;
    int read = given->goals ? bench_goal_calls(given->goals, &run->calls) : CLI_OK;
    if (read)
        return read;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = given->device));
    cup_ceiling ceiling;
    int code = cli_report(c);
    if (!code && given->precision && cup_precision(c, given->precision) != CUP_OK)
        code = cli_report(c);
    if (!code && cup_ceiling_measure(c, &ceiling) != CUP_OK)
        code = cli_report(c);
    if (!code) {
        const char *name = c->device->is_cuda ? cup__cuda_facts(cup__cuda_of(c->device))->name
                                              : cup_device_text(c);
        snprintf(run->card, sizeof run->card, "%.63s", name);
        if (is_format(run->call, "text"))
            printf("%s; copies %.1f GB/s\n", cup_device_text(c), ceiling.copy_bytes * 1e-9);
        code = given->goals ? bench_file(run, c, &ceiling) : bench_all(run, c, &ceiling);
        int written = write_records(run, cup_device_text(c));
        code = code ? code : written;
    }
    cup_context_free(c);
    return code;
}

static int retell(bench_run *run, const char *path)
{
    int code = records_read(&run->records, path);
    if (code)
        return code;
    records_keep_latest(&run->records);
    const char *goals = ((const bench_given *)run->call->given)->goals;
    if (goals)
        return bench_goals(goals, &run->records, format_of(run->call));
    for (size_t i = 0; i < run->records.count; i++)
        show(run, &run->records.row[i]);
    size_t count = run->records.count;
    return write_records(run, count ? run->records.row[count - 1].card : "no rows");
}

/* Which of the calls of a file of goals: "2/8" is the second, the tenth, and so on. */
static int read_part(bench_run *run, const char *part)
{
    long long first = 1, step = 1;
    char end;
    if (part && (sscanf(part, "%lld/%lld%c", &first, &step, &end) != 2 || first < 1 ||
                 first > step || step > INT32_MAX))
        return cli_usage("--part %s: write it as 2/8, the second of eight parts", part);
    run->first = first - 1;
    run->step = step;
    return CLI_OK;
}

/* What measures nothing has no use for how to measure. */
static int check_instead(const cli_call *call)
{
    static const char *const compare[] = {"compare", "noise", NULL};
    static const char *const from[] = {"from", "format", "goals", NULL};
    const bench_given *given = call->given;
    if (given->compare.count)
        return call_allow(call, "--compare", compare);
    if (given->from)
        return call_allow(call, "--from", from);
    if (!given->goals && (given->part || given->against || call_has(call, "rest")))
        return cli_usage("--part, --rest and --against go with --goals");
    return call_has(call, "noise") && !given->against
               ? cli_usage("--noise goes with --compare or --against")
               : CLI_OK;
}

static int check_words(const bench_given *given)
{
    if (given->shapes && given->ops.count != 1)
        return cli_usage("--shapes are those of one op: name it with --op");
    if (given->attributes && !given->shapes)
        return cli_usage("--attributes go with --shapes");
    if (given->goals && (given->shapes || given->ops.count))
        return cli_usage("--goals name their ops and shapes themselves");
    if (given->compare.count && given->compare.count != 2)
        return cli_usage("--compare takes two files, the old one and the new one");
    return op_names_check(given->ops.name, given->ops.count);
}

static int run(cli_call *call)
{
    const bench_given *given = call->given;
    bench_run all = {.call = call};
    time_t now = time(NULL);
    struct tm utc;
    int code = check_instead(call);
    code = code ? code : check_words(given);
    code = code ? code : read_part(&all, given->part);
    if (code)
        return code;
    if (given->compare.count)
        return bench_compare(call, given->compare.name, given->noise);
    if (gmtime_r(&now, &utc))
        strftime(all.date, sizeof all.date, "%Y-%m-%dT%H:%M", &utc);
    if (given->peers)
        code = records_read(&all.peers, given->peers);
    if (!code && given->against)
        code = records_read(&all.against, given->against);
    records_keep_latest(&all.peers);
    records_keep_latest(&all.against);
    if (!code)
        code = given->from ? retell(&all, given->from) : measure(&all);
    records_free(&all.records);
    records_free(&all.peers);
    records_free(&all.against);
    records_free(&all.calls);
    return code;
}

const cli_verb verb_bench = {
    .name = "bench",
    .synopsis = "[OPTION]...",
    .words = "how fast each op is, next to what the device can do",
    .text = "Times each implementation of each op at the shapes the op names, on random data, with "
            "the caches flushed before every run. Prints the median time, half the distance of "
            "the quartiles, the bytes and operations a second, the share of what the device can "
            "do at best, by the bytes the call must move and the operations it must do, and, where "
            "bytes set that limit, the time of a plain copy of as many bytes over ours; then the "
            "largest error in units of the dtype's epsilon, relative to the element and to the "
            "size of the whole: against the specification or, where that would take long, against "
            "the same call in double on the same device. Ops that are not for double are held "
            "against the specification at shapes that are cut down.\n\n"
            "Two files of records are compared call by call, in the time of the peer where both "
            "have one, because cards and days differ.",
    .examples = "One op at one shape:\n"
                "cupola bench --op layernorm --shapes '8192x768 768 768' --dtype bf16\n"
                "From small to large:\n"
                "cupola bench --op exp --shapes '4096;65536;1048576;16777216;268435456'\n"
                "A page with plots:\n"
                "cupola bench --dtype bf16 --format html >bench.html\n"
                "The calls that matter most, in a checkout of the sources:\n"
                "cupola bench --goals bench/goals.tsv\n"
                "Which of them are behind their records, whatever the card's heat:\n"
                "cupola bench --goals bench/goals.tsv --against bench/records.tsv --no-error\n"
                "What was reached there of what was to be:\n"
                "cupola bench --from bench/records.tsv --goals bench/goals.tsv\n"
                "Records of today, to be kept:\n"
                "cupola bench --op add --shapes '512x512 512x512' --format csv >new.csv\n"
                "Whether anything became slower than in the records of yesterday:\n"
                "cupola bench --compare old.csv new.csv\n",
    .options = options,
    .size = sizeof(bench_given),
    .run = run,
};
