/* cupola kernels: the compiled kernels on disk. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/kernels.h"
#include "cli/common/nearest.h"
#include "cli/common/terminal.h"
#include "cupola/cache.h"
#include "cupola/text.h"

static void write_kernel(cli_json *json, const cup_cached_kernel *kernel)
{
    json_open_object(json, NULL);
    json_add_string(json, "file", kernel->source);
    json_add_string(json, "arch", kernel->arch);
    json_add_string(json, "knobs", kernel->knobs);
    json_add_string(json, "compiler", kernel->compiler);
    json_add_integer(json, "bytes", kernel->bytes);
    json_add_integer(json, "used", kernel->used);
    json_add_string(json, "path", kernel->path);
    json_close(json);
}

static void print_kernel(const cup_cached_kernel *kernel)
{
    char bytes[32], date[32] = "?";
    time_t used = (time_t)kernel->used;
    struct tm parts;
    if (localtime_r(&used, &parts))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M", &parts);
    printf("%-10s %-24s %10s  %s  %s\n", cli_shown(kernel->arch), cli_shown(kernel->source),
           cup_text_size((double)kernel->bytes, bytes, sizeof bytes), date,
           cli_shown(kernel->knobs));
}

static int list_kernels(cli_call *call, cup_context *c)
{
    cup_cached_kernels *kernels = cup_cached_kernels_new(c);
    int64_t count = cup_cached_kernels_count(kernels), bytes = cup_cached_kernels_bytes(kernels);
    int code = cli_report(c);
    cli_json json;
    char text[32];
    if (!code && call->json) {
        json_begin(&json, call->verb->name);
        json_open_array(&json, "kernels");
        for (int64_t i = 0; i < count; i++)
            write_kernel(&json, cup_cached_kernels_at(kernels, i));
        json_close(&json);
        json_add_integer(&json, "bytes", bytes);
        code = json_end(&json);
    } else if (!code) {
        for (int64_t i = 0; i < count; i++)
            print_kernel(cup_cached_kernels_at(kernels, i));
        printf("%" PRId64 " kernels, %s\n", count, cup_text_size((double)bytes, text, sizeof text));
    }
    cup_cached_kernels_free(kernels);
    return code;
}

static int clear_kernels(cli_call *call, cup_context *c)
{
    int64_t files, bytes;
    char text[32];
    if (cup_cache_clear(c, "", &files, &bytes) != CUP_OK)
        return cli_report(c);
    if (!call->json) {
        printf("%" PRId64 " kernels removed, %s\n", files,
               cup_text_size((double)bytes, text, sizeof text));
        return CLI_OK;
    }
    cli_json json;
    json_begin(&json, call->verb->name);
    json_add_integer(&json, "removed", files);
    json_add_integer(&json, "bytes", bytes);
    return json_end(&json);
}

static int print_path(cli_call *call, cup_context *c)
{
    char folder[4096];
    if (cup_cache_folder(c, folder, sizeof folder) != CUP_OK)
        return cli_report(c);
    if (!folder[0])
        return cli_fail(CLI_FAILED, "there is no cache: CUP_CACHE is off, or neither "
                                    "XDG_CACHE_HOME nor HOME is set");
    if (!call->json) {
        puts(terminal_is(stdout) ? cli_shown(folder) : folder);
        return CLI_OK;
    }
    cli_json json;
    json_begin(&json, call->verb->name);
    json_add_string(&json, "path", folder);
    return json_end(&json);
}

static const cli_option options[] = {
    GROUP("Of build"),
    {"arch", NAMES(kernels_given, archs), "ARCH", NULL,
     "architectures to build for, as sm_90a; without it those of the GPUs in this machine"},
    {"op", NAMES(kernels_given, ops), "NAME", NULL, "build for these ops alone"},
    {"common", FLAG(kernels_given, common), NULL, NULL,
     "build only what calls commonly take: f32, f16 and bf16 at the benchmark's shapes, and the "
     "presets of cupola train"},
    {"pack", TEXT(kernels_given, pack), "FILE", NULL,
     "write all that was built into one file, to be shipped; CUP_KERNEL_PACK names it to its user"},
    {"threads", INTEGER(kernels_given, threads, 0, 1024), "N", "0",
     "compilations at once; 0: one for each core"},
    {0}};

static const struct {
    const char *name;
    int (*run)(cli_call *call, cup_context *c);
} actions[] = {{"list", list_kernels},
               {"build", kernels_build},
               {"clear", clear_kernels},
               {"path", print_path}};

/* The options are those of build. */
static int run_action(cli_call *call, size_t i)
{
    static const char *const none[] = {NULL};
    int code = actions[i].run == kernels_build ? CLI_OK : call_allow(call, actions[i].name, none);
    if (code)
        return code;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    code = cli_report(c);
    if (!code)
        code = actions[i].run(call, c);
    cup_context_free(c);
    return code;
}

static int run(cli_call *call)
{
    const char *names[sizeof actions / sizeof *actions + 1] = {NULL};
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        if (!strcmp(call->operands[0], actions[i].name))
            return run_action(call, i);
        names[i] = actions[i].name;
    }
    return cli_unknown("action", "", call->operands[0], names);
}

const cli_verb verb_kernels = {
    .name = "kernels",
    .synopsis = "list|build|clear|path [OPTION]...",
    .words = "the compiled kernels on disk",
    .text = "Kernels are compiled for the card when they are first needed, and kept in a folder. "
            "list prints them: architecture, source, size, time of the last use, and the knobs "
            "they were compiled with. build compiles what the ops need at the shapes of their "
            "checks and benchmarks ahead of time, also for cards that are not in this machine. "
            "clear removes them; the next use compiles again. path prints the folder.",
    .examples = "How much room they take:\ncupola kernels list | tail -n 1\n"
                "A file that saves others the compiling:\n"
                "cupola kernels build --common --arch sm_90a --pack cupola-sm_90a.pack\n",
    .options = options,
    .size = sizeof(kernels_given),
    .operand_least = 1,
    .operand_most = 1,
    .run = run,
};
