/* cupola tune: measures the ways to do a call on the card and remembers the fastest. */
#include <stdio.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/op_names.h"
#include "cli/common/options.h"
#include "cupola/prof.h"

typedef struct tune_given {
    const char *device, *dtype, *shapes, *attributes, *to;
    cli_files ops, merge;
    bool channels_last;
} tune_given;

static const cli_option options[] = {
    {"op", NAMES(tune_given, ops), "NAME", NULL,
     "tune these ops, which may be any; without it matmul, linear and linear_gelu"},
    {"shapes", TEXT(tune_given, shapes), "SHAPES", NULL,
     "shapes of the inputs, as '32768x768 3072x768 3072'; without it those of the benchmark"},
    {"attributes", TEXT(tune_given, attributes), "'NAME=VALUE ...'", NULL,
     "attributes that go with --shapes, in one word, as 'stride=1 padding=1'; others are 0"},
    {"dtype", CHOICE(tune_given, dtype), "f32|f64|f16|bf16|i8|f8e4m3|f8e5m2", "bf16",
     "dtype of the inputs"},
    {"channels-last", FLAG(tune_given, channels_last), NULL, NULL,
     "inputs of four or five dimensions, images and kernels, lie with their channels last"},
    {"device", TEXT(tune_given, device), "cuda[:N]", "cuda", "the GPU to measure on"},
    GROUP("Instead of measuring"),
    {"merge", FILES(tune_given, merge), "FILE", NULL,
     "put the records of these files together, of two for the same call the later one"},
    {"to", TEXT(tune_given, to), "FILE", NULL, "where --merge writes"},
    {0}};

typedef struct tune_run {
    cli_call *call;
    cli_json writer;
    int count;
} tune_run;

static void on_result(const cup_tune_result *r, void *user)
{
    tune_run *run = user;
    run->count++;
    if (!run->call->json) {
        printf("%-12s %-5s %-36s %10.2f us  %2d ways in %.1f s: %s\n", r->op,
               cup_dtype_name(r->dtype), r->shapes, r->us, r->ways, r->seconds, r->way);
        fflush(stdout);
        return;
    }
    cli_json *w = &run->writer;
    json_open_object(w, NULL);
    json_add_string(w, "op", r->op);
    json_add_string(w, "dtype", cup_dtype_name(r->dtype));
    json_add_string(w, "shapes", r->shapes);
    json_add_string(w, "way", r->way);
    json_add_number(w, "us", r->us);
    json_add_integer(w, "ways", r->ways);
    json_add_number(w, "seconds", r->seconds);
    json_close(w);
}

static int measure(tune_run *run, cup_context *c)
{
    static const char *all[] = {"matmul", "linear", "linear_gelu"};
    const tune_given *given = run->call->given;
    const char **ops = given->ops.count ? given->ops.name : all;
    int count = given->ops.count ? given->ops.count : 3;
    cup_bench_options how = {
        .size = sizeof how, .shapes = given->shapes, .attributes = given->attributes,
        .channels_last = given->channels_last};
    cup_dtype_find(given->dtype, &how.dtype);
    if (!run->call->json)
        printf("%s\n", cup_device_text(c));
    for (int i = 0; i < count; i++)
        if (cup_tune(c, ops[i], &how, on_result, run) != CUP_OK)
            return cli_report(c);
    if (!run->count && !run->call->json)
        printf("There is one way to do each of these calls.\n");
    return CLI_OK;
}

static int run_measuring(cli_call *call)
{
    const tune_given *given = call->given;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = given->device));
    int code = cli_report(c);
    if (!code) {
        tune_run run = {.call = call};
        json_begin(&run.writer, "tune");
        json_add_string(&run.writer, "device", cup_device_text(c));
        json_open_array(&run.writer, "results");
        code = measure(&run, c);
        json_close(&run.writer);
        if (call->json && !code)
            code = json_end(&run.writer);
        json_drop(&run.writer);
    }
    cup_context_free(c);
    return code;
}

static int run_merging(cli_call *call)
{
    const tune_given *given = call->given;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int code = cli_report(c);
    if (!code && cup_tuning_merge(c, given->merge.name, given->merge.count, given->to) != CUP_OK)
        code = cli_report(c);
    cup_context_free(c);
    if (!code && call->json) {
        cli_json writer;
        json_begin(&writer, call->verb->name);
        json_add_string(&writer, "to", given->to);
        json_add_integer(&writer, "merged", given->merge.count);
        code = json_end(&writer);
    }
    return code;
}

static int run(cli_call *call)
{
    const tune_given *given = call->given;
    if (!given->merge.count != !given->to)
        return cli_usage("--merge and --to belong together: cupola tune --merge a.tsv b.tsv "
                         "--to both.tsv");
    static const char *const merging[] = {"merge", "to", NULL};
    int code = given->merge.count ? call_allow(call, "--merge", merging) : CLI_OK;
    if (!code)
        code = op_names_check(given->ops.name, given->ops.count);
    if (code)
        return code;
    return given->merge.count ? run_merging(call) : run_measuring(call);
}

const cli_verb verb_tune = {
    .name = "tune",
    .synopsis = "[OPTION]...",
    .words = "measure the ways to do a call and remember the fastest",
    .text = "Tries the implementations that take a call, and for matrix products the kernels of "
            "this library, in the tile shapes that could be best, and the algorithms that cuBLASLt "
            "proposes, for convolutions those that cuDNN proposes, and cuFFT and cuSOLVER for "
            "transforms and factors, where they are installed, with the L2 "
            "cache flushed before each run. The fastest is kept in a file of tuning "
            "records, which every later run on this card reads: tuning.tsv in the folder of "
            "`cupola kernels path`, or the one that CUP_TUNING names. CUP_LOG=dispatch tells what "
            "is taken.\n\n"
            "Records are for one card, CUDA version of the driver and version of this library. "
            "Without one, the order of the implementations and a model of the card's times choose. "
            "`cupola train --tune` measures what its model needs.",
    .examples = "One product of a model:\n"
                "cupola tune --op linear --shapes '32768x768 3072x768 -'\n"
                "Attention, by each of its implementations:\n"
                "cupola tune --op attention --shapes '8x12x2048x64 8x12x2048x64 8x12x2048x64' "
                "--attributes causal=1\n"
                "A convolution of images whose channels lie last:\n"
                "cupola tune --op conv2d --channels-last --shapes '64x256x56x56 64x256x1x1 -' "
                "--attributes groups=1\n"
                "What two people measured:\ncupola tune --merge mine.tsv yours.tsv --to both.tsv\n",
    .options = options,
    .size = sizeof(tune_given),
    .run = run,
};
