/* cupola info: what this machine offers, and what is missing. */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/blas.h"
#include "base/env.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "cli/exit.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cuda/cuda.h"

/* What is known of this machine, gathered once and then printed in either form. */
typedef struct facts {
    char cpu[128];
    const char *vectors;
    long cores;
    int threads;
    int64_t memory;
    struct utsname system;
    char *cache; /* NULL: the environment names no place */
    const cup__blas *blas;
    char gpu_why[512];
    int gpus;
} facts;

static void read_cpu_name(char *out, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(out, size, "unknown");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            snprintf(out, size, "%s", strchr(line, ':') + 2);
            out[strcspn(out, "\n")] = 0;
            break;
        }
    if (file)
        fclose(file);
}

/* The widest vectors the CPU has. */
static const char *vector_words(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") ? "AVX-512"
           : __builtin_cpu_supports("avx2")  ? "AVX2"
                                             : "SSE2";
#elif defined(__aarch64__)
    return "NEON";
#else
    return "unknown vectors";
#endif
}

static int gather(facts *f)
{
    cup__error error = {0};
    read_cpu_name(f->cpu, sizeof f->cpu);
    f->vectors = vector_words();
    f->blas = cup__blas_get();
    f->cores = sysconf(_SC_NPROCESSORS_ONLN);
    f->memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    uname(&f->system);
    int64_t threads;
    if (cup__env_integer(&error, CUP__ENV_THREADS, 0, 4096, &threads))
        return cli_fail(CLI_USAGE, "%s", error.text);
    cup__threads_set((int)threads);
    f->threads = cup__threads();
    const char *cache = cup__env_get(CUP__ENV_CACHE);
    if (!*cache && cup__user_folder_find(&error, CUP__CACHE_FOLDER, &f->cache))
        return cli_fail(cli_exit_of(error.status), "%s", error.text);
    if (*cache)
        f->cache = cup__strdup(cache);
    f->gpus = cup__cuda_count(f->gpu_why);
    return CLI_OK;
}

static void add_environment(cup__json_writer *writer)
{
    cup__json_open(writer, "environment", CUP__JSON_OBJECT);
    for (int i = 0; i < CUP__ENV_COUNT; i++)
        cup__json_add_string(writer, cup__env_name((cup__env)i), cup__env_get((cup__env)i));
    cup__json_close(writer);
}

static int write_document(const facts *f)
{
    cup__json_writer writer;
    json_begin(&writer, "info");
    cup__json_add_string(&writer, "version", cup_version());
    cup__json_open(&writer, "cpu", CUP__JSON_OBJECT);
    cup__json_add_string(&writer, "name", f->cpu);
    cup__json_add_string(&writer, "vectors", f->vectors);
    cup__json_add_integer(&writer, "cores", f->cores);
    cup__json_add_integer(&writer, "threads", f->threads);
    cup__json_add_integer(&writer, "memory_bytes", f->memory);
    cup__json_close(&writer);
    cup__json_open(&writer, "blas", CUP__JSON_OBJECT);
    cup__json_add_boolean(&writer, "used", f->blas->found);
    cup__json_add_string(&writer, "text", f->blas->text);
    cup__json_close(&writer);
    cup__json_add_string(&writer, "system", f->system.sysname);
    cup__json_add_string(&writer, "release", f->system.release);
    cup__json_add_string(&writer, "machine", f->system.machine);
    cup__json_add_integer(&writer, "gpus", f->gpus);
    if (!f->gpus)
        cup__json_add_string(&writer, "gpus_why", f->gpu_why);
    if (f->cache)
        cup__json_add_string(&writer, "cache", f->cache);
    else
        cup__json_add_null(&writer, "cache");
    add_environment(&writer);
    return json_end(&writer);
}

static void headline(const char *words)
{
    printf("%s%-10s%s", color(stdout, COLOR_BOLD), words, color(stdout, COLOR_OFF));
}

static void print_environment(void)
{
    for (int i = 0; i < CUP__ENV_COUNT; i++) {
        const char *value = cup__env_get((cup__env)i);
        if (strcmp(value, cup__env_default((cup__env)i))) {
            headline("set");
            printf("%s=%s\n", cup__env_name((cup__env)i), value);
        }
    }
}

static void print_text(const facts *f)
{
    char memory[32];
    headline("cupola");
    printf("%s, %s %s %s\n", cup_version(), f->system.sysname, f->system.release,
           f->system.machine);
    headline("cpu");
    printf("%s, %s, %ld cores, %d threads used, %s\n", f->cpu, f->vectors, f->cores, f->threads,
           cup__text_bytes((double)f->memory, memory));
    headline("blas");
    printf("%s\n", f->blas->text);
    headline("gpu");
    if (f->gpus)
        printf("%d\n", f->gpus);
    else
        printf("none: %s\n", f->gpu_why);
    headline("cache");
    printf("%s\n", f->cache ? f->cache : "none: neither CUP_CACHE, XDG_CACHE_HOME nor HOME is set");
    print_environment();
}

static int run(cli_call *call)
{
    facts f = {0};
    int code = gather(&f);
    if (!code && call->json)
        code = write_document(&f);
    else if (!code)
        print_text(&f);
    cup__free(f.cache);
    return code;
}

const cli_verb verb_info = {
    .name = "info",
    .synopsis = "[OPTION]...",
    .words = "devices, libraries and folders in use, or why not",
    .text = "Prints what this machine offers: the CPU, the GPUs or why none can be used, and the "
            "folder of compiled kernels. Each thing that is missing is followed by what mends it.",
    .examples = "What to put into a report of a problem:\ncupola info --json\n",
    .run = run,
};
