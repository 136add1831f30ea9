/* cupola kernels build: compiles what the ops need, for cards that need not be there. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/kernels.h"
#include "cli/common/op_names.h"
#include "cli/common/progress.h"
#include "cupola/cache.h"
#include "cupola/facts.h"
#include "cupola/io.h"

#define MOST_ARCHS 32

typedef struct build {
    const kernels_given *given;
    cup_context *c;
    const char *archs[MOST_ARCHS];
    int arch_count;
    cup_gpu gpus[MOST_ARCHS];
    cli_progress progress;
    bool is_begun;
    cup_cache_built built; /* all together */
} build;

static void add_arch(build *b, const char *arch)
{
    for (int i = 0; i < b->arch_count; i++)
        if (!strcmp(b->archs[i], arch))
            return;
    if (b->arch_count < MOST_ARCHS)
        b->archs[b->arch_count++] = arch;
}

/* Those that were named, else those of the GPUs in this machine. */
static int choose_archs(build *b)
{
    char why[512];
    int count = cup_gpu_count(why, sizeof why);
    for (int i = 0; i < b->given->archs.count; i++)
        add_arch(b, b->given->archs.name[i]);
    for (int i = 0; i < count && i < MOST_ARCHS && !b->given->archs.count; i++)
        if (cup_gpu_look(i, &b->gpus[i]) == CUP_OK)
            add_arch(b, b->gpus[i].arch);
    if (b->arch_count)
        return CLI_OK;
    char known[256] = "";
    for (const char *const *arch = cup_architectures(); *arch; arch++)
        snprintf(known + strlen(known), sizeof known - strlen(known), " %s", *arch);
    return cli_usage("there is no GPU to build for (%s); name architectures with --arch:%s", why,
                     known);
}

static void on_kernel(int64_t done, int64_t count, const char *failure, void *user)
{
    build *b = user;
    if (!b->is_begun) {
        progress_begin(&b->progress, stderr, NULL, count, 0);
        b->progress.noun = "kernel";
        b->is_begun = true;
    }
    if (failure)
        progress_note(&b->progress, "%s", failure);
    progress_step(&b->progress, done, done, NAN);
}

static int build_one(build *b, const char *arch, const char *op)
{
    cup_cache_built built;
    b->is_begun = false;
    cup_status status = cup_cache_build(
        b->c, arch,
        CUP_OPTIONS(cup_cache_build_options, .op = op, .common = b->given->common,
                    .threads = (int)b->given->threads, .progress = on_kernel, .user = b),
        &built);
    if (b->is_begun)
        progress_end(&b->progress);
    b->built.kernels += built.kernels;
    b->built.failed += built.failed;
    if (!b->built.unkept)
        memcpy(b->built.why, built.why, sizeof built.why);
    b->built.unkept += built.unkept;
    if (status == CUP_OK)
        return CLI_OK;
    int code = cli_fail_status(status, arch, cup_error_text(b->c));
    cup_error_clear(b->c);
    return code;
}

static int build_all(build *b)
{
    int code = CLI_OK;
    for (int i = 0; i < b->arch_count; i++) {
        fprintf(stderr, "kernels for %s\n", cli_shown(b->archs[i]));
        for (int k = 0; k < b->given->ops.count || k == 0; k++) {
            int one = build_one(b, b->archs[i], b->given->ops.count ? b->given->ops.name[k] : NULL);
            code = code ? code : one;
        }
    }
    return code;
}

/* `packed` is how many kernels went into the pack; -1 where there is none. */
static int report(const build *b, cli_call *call, int64_t packed)
{
    int code = CLI_OK;
    if (!call->json) {
        printf("%" PRId64 " kernels are ready, %" PRId64 " failed\n", b->built.kernels,
               b->built.failed);
        if (packed >= 0)
            printf("%s holds %" PRId64 " kernels\n", cli_shown(b->given->pack), packed);
    }
    if (b->built.unkept && !b->given->pack)
        code = cli_fail(CLI_FILE, "%" PRId64 " kernels were compiled but not kept: %s",
                        b->built.unkept, b->built.why);
    if (!call->json)
        return code;
    cli_json json;
    json_begin(&json, call->verb->name);
    json_open_array(&json, "architectures");
    for (int i = 0; i < b->arch_count; i++)
        json_add_string(&json, NULL, b->archs[i]);
    json_close(&json);
    json_add_integer(&json, "ready", b->built.kernels);
    json_add_integer(&json, "failed", b->built.failed);
    json_add_integer(&json, "unkept", b->built.unkept);
    if (packed >= 0) {
        json_add_string(&json, "pack", b->given->pack);
        json_add_integer(&json, "packed", packed);
    }
    int written = json_end(&json);
    return code ? code : written;
}

int kernels_build(cli_call *call, cup_context *c)
{
    build b = {.given = call->given, .c = c};
    cup_library_facts nvrtc;
    int64_t packed = -1;
    if (b.given->common && b.given->ops.count)
        return cli_usage("--common is of all ops: leave out --op");
    int code = op_names_check(b.given->ops.name, b.given->ops.count);
    if (!code)
        code = choose_archs(&b);
    if (code)
        return code;
    cup_library_look(CUP_LIBRARY_NVRTC, &nvrtc);
    if (!nvrtc.found)
        return cli_fail(CLI_NO_GPU, "%s: %s; %s", nvrtc.name, nvrtc.text, nvrtc.cure);
    /* To be told before an hour of compiling, not behind it. */
    if (b.given->pack && cup_file_check(c, b.given->pack) != CUP_OK)
        return cli_report(c);
    code = build_all(&b);
    if (b.given->pack && cup_cache_pack(c, b.given->pack, &packed) != CUP_OK) {
        code = cli_report(c);
        packed = -1;
    }
    int written = report(&b, call, packed);
    return code ? code : written;
}
