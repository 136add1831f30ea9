/* cupola kernels: the compiled kernels on disk. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/exit.h"
#include "cli/json.h"
#include "cli/kernels.h"
#include "cli/nearest.h"
#include "cli/terminal.h"
#include "cuda/cache.h"

/* The value behind "name: " in a kernel's description; "" when there is none. */
static void word_of(const cup__cached *kernel, const char *name, char *out, size_t size)
{
    char head[32];
    out[0] = 0;
    snprintf(head, sizeof head, "\n%s: ", name);
    const char *at = kernel->words ? strstr(kernel->words, head) : NULL;
    if (at)
        snprintf(out, size, "%.*s", (int)strcspn(at + strlen(head), "\n"), at + strlen(head));
}

static const char *const words[] = {"file", "arch", "knobs", "compiler"};
enum { FILE_WORD, ARCH_WORD, KNOBS_WORD, COMPILER_WORD, WORD_COUNT };

static void write_kernel(cup__json_writer *writer, const cup__cached *kernel)
{
    char value[1024];
    cup__json_open(writer, NULL, CUP__JSON_OBJECT);
    for (int i = 0; i < WORD_COUNT; i++) {
        word_of(kernel, words[i], value, sizeof value);
        cup__json_add_string(writer, words[i], value);
    }
    cup__json_add_integer(writer, "bytes", kernel->bytes);
    cup__json_add_integer(writer, "used", kernel->used);
    cup__json_add_string(writer, "path", kernel->path);
    cup__json_close(writer);
}

static void print_kernel(const cup__cached *kernel)
{
    char value[WORD_COUNT][1024], bytes[32], date[32] = "?";
    for (int i = 0; i < WORD_COUNT; i++)
        word_of(kernel, words[i], value[i], sizeof value[i]);
    time_t used = (time_t)kernel->used;
    struct tm parts;
    if (localtime_r(&used, &parts))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M", &parts);
    printf("%-10s %-24s %10s  %s  %s\n", cli_shown(value[ARCH_WORD]),
           cli_shown(value[FILE_WORD]), cup__text_bytes((double)kernel->bytes, bytes), date,
           cli_shown(value[KNOBS_WORD]));
}

static int list_kernels(cli_call *call)
{
    cup__error error = {0};
    cup__cached_list list = {0};
    if (cup__cache_list(&error, &list) != CUP_OK)
        return cli_fail_status(error.status, NULL, error.text);
    cup__json_writer writer;
    int64_t bytes = 0;
    if (call->json) {
        json_begin(&writer, call->verb->name);
        cup__json_open(&writer, "kernels", CUP__JSON_ARRAY);
    }
    for (size_t i = 0; i < list.count; i++) {
        bytes += list.items[i].bytes;
        if (call->json)
            write_kernel(&writer, &list.items[i]);
        else
            print_kernel(&list.items[i]);
    }
    int code = CLI_OK;
    if (call->json) {
        cup__json_close(&writer);
        cup__json_add_integer(&writer, "bytes", bytes);
        code = json_end(&writer);
    } else {
        char text[32];
        printf("%zu kernels, %s\n", list.count, cup__text_bytes((double)bytes, text));
    }
    cup__cache_list_free(&list);
    return code;
}

static int clear_kernels(cli_call *call)
{
    cup__error error = {0};
    int64_t files = 0, bytes = 0;
    if (cup__cache_clear(&error, &files, &bytes) != CUP_OK)
        return cli_fail_status(error.status, NULL, error.text);
    if (!call->json) {
        char text[32];
        printf("%" PRId64 " kernels removed, %s\n", files, cup__text_bytes((double)bytes, text));
        return CLI_OK;
    }
    cup__json_writer writer;
    json_begin(&writer, call->verb->name);
    cup__json_add_integer(&writer, "removed", files);
    cup__json_add_integer(&writer, "bytes", bytes);
    return json_end(&writer);
}

static int print_path(cli_call *call)
{
    cup__error error = {0};
    char *folder = NULL;
    if (cup__cache_folder(&error, &folder) != CUP_OK)
        return cli_fail_status(error.status, NULL, error.text);
    int code = CLI_OK;
    if (!folder) {
        code = cli_fail(CLI_FAILED, "there is no cache: CUP_CACHE is off, or neither "
                                    "XDG_CACHE_HOME nor HOME is set");
    } else if (call->json) {
        cup__json_writer writer;
        json_begin(&writer, call->verb->name);
        cup__json_add_string(&writer, "path", folder);
        code = json_end(&writer);
    } else {
        puts(terminal_is(stdout) ? cli_shown(folder) : folder);
    }
    cup__free(folder);
    return code;
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
    int (*run)(cli_call *call);
} actions[] = {{"list", list_kernels},
               {"build", kernels_build},
               {"clear", clear_kernels},
               {"path", print_path}};

/* The options are those of build. */
static int run_action(cli_call *call, size_t i)
{
    static const char *const none[] = {NULL};
    int code = actions[i].run == kernels_build ? CLI_OK : call_allow(call, actions[i].name, none);
    return code ? code : actions[i].run(call);
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
