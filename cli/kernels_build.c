/* cupola kernels build: compiles what the ops need, for cards that need not be there. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/exit.h"
#include "cli/json.h"
#include "cli/kernels.h"
#include "cli/op_names.h"
#include "cli/progress.h"
#include "cuda/cache.h"
#include "cuda/dry.h"
#include "cuda/loader.h"
#include "prof/kernels.h"

#define MOST_ARCHS 32

typedef struct build {
    const kernels_given *given;
    const char *archs[MOST_ARCHS];
    int arch_count;
    cup__gpu_facts gpus[MOST_ARCHS];
    cli_progress progress;
    bool is_begun;
    int failed, compiled;
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
    int count = cup__cuda_count(why);
    for (int i = 0; i < b->given->archs.count; i++)
        add_arch(b, b->given->archs.name[i]);
    for (int i = 0; i < count && i < MOST_ARCHS && !b->given->archs.count; i++)
        if (cup__cuda_look(NULL, i, &b->gpus[i]) == CUP_OK)
            add_arch(b, b->gpus[i].arch);
    if (b->arch_count)
        return CLI_OK;
    char known[256] = "";
    for (const char *const *arch = cup__architectures; *arch; arch++)
        snprintf(known + strlen(known), sizeof known - strlen(known), " %s", *arch);
    return cli_usage("there is no GPU to build for (%s); name architectures with --arch:%s", why,
                     known);
}

static void on_kernel(void *user, int done, int count, const cup__kernel_request *request,
                      const char *failure)
{
    build *b = user;
    (void)request;
    if (!b->is_begun) {
        progress_begin(&b->progress, stderr, NULL, count, 0);
        b->progress.noun = "kernel";
        b->is_begun = true;
    }
    if (failure) {
        b->failed++;
        progress_note(&b->progress, "%s", failure);
    }
    progress_step(&b->progress, done, done, NAN);
}

static int build_one(build *b, const char *arch, const char *op)
{
    cup__error error = {0};
    int count = 0;
    b->is_begun = false;
    int threads = (int)b->given->threads;
    cup_status status = b->given->common
                            ? cup__kernels_build_common(&error, arch, threads, on_kernel, b, &count)
                            : cup__kernels_build(&error, arch, op, threads, on_kernel, b, &count);
    if (b->is_begun)
        progress_end(&b->progress);
    b->compiled += count;
    if (status == CUP_OK)
        return CLI_OK;
    return cli_fail_status(status, arch, error.text);
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

static int report(const build *b, cli_call *call, int packed)
{
    cup__error why = {0};
    int64_t unkept = cup__cache_unkept(&why);
    if (!call->json) {
        printf("%d kernels are ready, %d failed\n", b->compiled - b->failed, b->failed);
        if (b->given->pack && packed >= 0)
            printf("%s holds %d kernels\n", cli_shown(b->given->pack), packed);
    }
    int code = CLI_OK;
    if (unkept && !b->given->pack)
        code = cli_fail(CLI_FILE, "%" PRId64 " kernels were compiled but not kept: %s", unkept,
                        why.text);
    if (!call->json)
        return code;
    cup__json_writer writer;
    json_begin(&writer, call->verb->name);
    cup__json_open(&writer, "architectures", CUP__JSON_ARRAY);
    for (int i = 0; i < b->arch_count; i++)
        cup__json_add_string(&writer, NULL, b->archs[i]);
    cup__json_close(&writer);
    cup__json_add_integer(&writer, "ready", b->compiled - b->failed);
    cup__json_add_integer(&writer, "failed", b->failed);
    cup__json_add_integer(&writer, "unkept", unkept);
    if (b->given->pack && packed >= 0) {
        cup__json_add_string(&writer, "pack", b->given->pack);
        cup__json_add_integer(&writer, "packed", packed);
    }
    int written = json_end(&writer);
    return code ? code : written;
}

/* To be told before an hour of compiling, not behind it. */
static cup_status can_be_written(cup__error *error, const char *path)
{
    cup__writer writer;
    CUP_TRY(cup__writer_open(error, path, &writer));
    cup__writer_abandon(&writer);
    return CUP_OK;
}

int kernels_build(cli_call *call)
{
    build b = {.given = call->given};
    cup__error error = {0};
    int packed = 0;
    if (b.given->common && b.given->ops.count)
        return cli_usage("--common is of all ops: leave out --op");
    int code = op_names_check(b.given->ops.name, b.given->ops.count);
    if (!code)
        code = choose_archs(&b);
    if (code)
        return code;
    if (cup__library_need(&error, CUP__LIBNVRTC) != CUP_OK)
        return cli_fail_status(error.status, NULL, error.text);
    if (b.given->pack && can_be_written(&error, b.given->pack) != CUP_OK)
        return cli_fail_status(error.status, NULL, error.text);
    code = build_all(&b);
    if (b.given->pack && cup__kernels_pack(&error, b.given->pack, &packed) != CUP_OK) {
        code = cli_fail_status(error.status, NULL, error.text);
        packed = -1;
    }
    int written = report(&b, call, packed);
    return code ? code : written;
}
