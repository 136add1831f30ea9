/* cupola info: what this machine offers, and what is missing. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/blas.h"
#include "base/env.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/text.h"
#include "cli/environment.h"
#include "cli/exit.h"
#include "cli/help.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cuda/cache.h"
#include "cuda/loader.h"

#define MOST_GPUS 16
#define COLUMN 12

typedef struct info_given {
    bool searched;
} info_given;

static const cli_option options[] = {{"searched", FLAG(info_given, searched), NULL, NULL,
                                      "say also where each missing library was looked for"},
                                     {0}};

typedef struct gpu {
    cup__gpu_facts facts;
    cup__error error; /* why it cannot be used */
} gpu;

/* What is known of this machine, gathered once and then printed in either form. */
typedef struct facts {
    char cpu[128];
    const char *vectors;
    long cores;
    int threads;
    int64_t memory;
    struct utsname system;
    const cup__blas *blas;
    char *cache; /* NULL: there is none */
    cup__error cache_error; /* why nothing can be kept there */
    int64_t cached_kernels, cached_bytes;
    char gpu_why[512];
    int gpu_count;
    gpu gpus[MOST_GPUS];
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

static void gather_cpu(facts *f)
{
    read_cpu_name(f->cpu, sizeof f->cpu);
    f->vectors = vector_words();
    f->cores = sysconf(_SC_NPROCESSORS_ONLN);
    f->memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    uname(&f->system);
    int64_t threads;
    if (cup__env_integer(NULL, CUP__ENV_THREADS, &threads) == CUP_OK)
        cup__threads_set((int)threads);
    f->threads = cup__threads();
    f->blas = cup__blas_get();
}

static void gather_cache(facts *f)
{
    cup__cached_list list = {0};
    if (cup__cache_folder(&f->cache_error, &f->cache) != CUP_OK || !f->cache)
        return;
    cup__folder_check(&f->cache_error, f->cache);
    cup__cache_list(&f->cache_error, &list);
    f->cached_kernels = (int64_t)list.count;
    for (size_t i = 0; i < list.count; i++)
        f->cached_bytes += list.items[i].bytes;
    cup__cache_list_free(&list);
}

static void gather(facts *f)
{
    gather_cpu(f);
    gather_cache(f);
    int count = cup__cuda_count(f->gpu_why);
    for (f->gpu_count = 0; f->gpu_count < count && f->gpu_count < MOST_GPUS; f->gpu_count++) {
        gpu *g = &f->gpus[f->gpu_count];
        cup__cuda_look(&g->error, f->gpu_count, &g->facts);
    }
}

static void write_cpu(cup__json_writer *writer, const facts *f)
{
    cup__json_open(writer, "system", CUP__JSON_OBJECT);
    cup__json_add_string(writer, "name", f->system.sysname);
    cup__json_add_string(writer, "release", f->system.release);
    cup__json_add_string(writer, "machine", f->system.machine);
    cup__json_close(writer);
    cup__json_open(writer, "cpu", CUP__JSON_OBJECT);
    cup__json_add_string(writer, "name", f->cpu);
    cup__json_add_string(writer, "vectors", f->vectors);
    cup__json_add_integer(writer, "cores", f->cores);
    cup__json_add_integer(writer, "threads", f->threads);
    cup__json_add_integer(writer, "memory_bytes", f->memory);
    cup__json_close(writer);
    cup__json_open(writer, "blas", CUP__JSON_OBJECT);
    cup__json_add_boolean(writer, "used", f->blas->found);
    cup__json_add_string(writer, "text", f->blas->text);
    cup__json_close(writer);
}

static void write_gpu(cup__json_writer *writer, const gpu *g)
{
    cup__json_open(writer, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(writer, "index", g->facts.index);
    cup__json_add_string(writer, "name", g->facts.name);
    cup__json_add_string(writer, "arch", g->facts.arch);
    cup__json_add_integer(writer, "multiprocessors", g->facts.multiprocessors);
    cup__json_add_integer(writer, "memory_bytes", g->facts.memory_bytes);
    cup__json_add_boolean(writer, "usable", g->error.status == CUP_OK);
    if (g->error.status != CUP_OK)
        cup__json_add_string(writer, "why", g->error.text);
    cup__json_close(writer);
}

/* Loading cuBLASLt takes a tenth of a second, for nothing where there is no GPU. */
static bool is_looked_for(const facts *f, int library)
{
    return library != CUP__LIBCUBLASLT || f->gpu_count;
}

static void write_library(cup__json_writer *writer, const cup__library_report *r)
{
    cup__json_open(writer, NULL, CUP__JSON_OBJECT);
    cup__json_add_string(writer, "name", r->name);
    cup__json_add_string(writer, "needed_for", r->needed_for);
    cup__json_add_boolean(writer, "found", r->found);
    if (r->found) {
        cup__json_add_integer(writer, "version", r->version);
        cup__json_add_string(writer, "path", r->path);
    } else {
        cup__json_add_string(writer, "why", r->reason);
        cup__json_add_string(writer, "cure", r->cure);
    }
    cup__json_close(writer);
}

static int write_document(const facts *f)
{
    cup__json_writer writer;
    json_begin(&writer, "info");
    cup__json_add_string(&writer, "version", cup_version());
    write_cpu(&writer, f);
    cup__json_open(&writer, "gpus", CUP__JSON_ARRAY);
    for (int i = 0; i < f->gpu_count; i++)
        write_gpu(&writer, &f->gpus[i]);
    cup__json_close(&writer);
    if (!f->gpu_count)
        cup__json_add_string(&writer, "no_gpu_because", f->gpu_why);
    cup__json_open(&writer, "libraries", CUP__JSON_ARRAY);
    for (int i = 0; i < CUP__LIBRARIES; i++)
        if (is_looked_for(f, i))
            write_library(&writer, cup__library_report_of((cup__library)i));
    cup__json_close(&writer);
    if (f->cache)
        cup__json_add_string(&writer, "cache", f->cache);
    else
        cup__json_add_null(&writer, "cache");
    if (f->cache_error.status != CUP_OK)
        cup__json_add_string(&writer, "cache_why", f->cache_error.text);
    cup__json_add_integer(&writer, "cached_kernels", f->cached_kernels);
    cup__json_add_integer(&writer, "cached_bytes", f->cached_bytes);
    cup__json_open(&writer, "environment", CUP__JSON_OBJECT);
    for (int i = 0; i < CUP__ENV_COUNT; i++)
        cup__json_add_string(&writer, cup__env_name((cup__env)i), cup__env_get((cup__env)i));
    cup__json_close(&writer);
    return json_end(&writer);
}

/* One fact: its name, then words. */
static void line(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void line(const char *name, const char *format, ...)
{
    char words[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    printf("%s%-*s%s", color(stdout, COLOR_BOLD), COLUMN, name, color(stdout, COLOR_OFF));
    help_wrap(stdout, cli_shown(words), COLUMN);
}

static void print_gpus(const facts *f)
{
    char memory[32], name[16];
    if (!f->gpu_count)
        line("gpu", "none: %s", f->gpu_why);
    for (int i = 0; i < f->gpu_count; i++) {
        const gpu *g = &f->gpus[i];
        snprintf(name, sizeof name, "cuda:%d", i);
        line(name, "%s, %s, %d multiprocessors, %s", g->facts.name, g->facts.arch,
             g->facts.multiprocessors, cup__text_bytes((double)g->facts.memory_bytes, memory));
        if (g->error.status != CUP_OK)
            line("", "cannot be used: %s", g->error.text);
    }
}

static void print_libraries(const facts *f, bool searched)
{
    for (int i = 0; i < CUP__LIBRARIES; i++) {
        if (!is_looked_for(f, i))
            continue;
        const cup__library_report *r = cup__library_report_of((cup__library)i);
        if (r->found) {
            line(r->name, "%d.%d, %s", r->version / 1000, r->version % 1000 / 10, r->path);
            continue;
        }
        line(r->name, "not found; needed for %s", r->needed_for);
        if (searched)
            line("", "looked for: %s", r->reason);
        line("", "cure: %s", r->cure);
    }
}

static void print_text(const facts *f, bool searched)
{
    char bytes[32];
    line("cupola", "%s, %s %s %s", cup_version(), f->system.sysname, f->system.release,
         f->system.machine);
    line("CPU", "%s, %s, %ld cores, %d threads used, %s", f->cpu, f->vectors, f->cores, f->threads,
         cup__text_bytes((double)f->memory, bytes));
    line("BLAS", "%s", f->blas->text);
    print_gpus(f);
    print_libraries(f, searched);
    if (f->cache)
        line("cache", "%s, %lld kernels, %s", f->cache, (long long)f->cached_kernels,
             cup__text_bytes((double)f->cached_bytes, bytes));
    else
        line("cache", "none: CUP_CACHE is off, or neither XDG_CACHE_HOME nor HOME is set");
    if (f->cache_error.status != CUP_OK)
        line("", "kernels cannot be kept: %s; or set CUP_CACHE", f->cache_error.text);
    for (int i = 0; i < CUP__ENV_COUNT; i++) {
        const char *value = cup__env_get((cup__env)i);
        if (strcmp(value, cup__env_default((cup__env)i)))
            line("set", "%s=%s", cup__env_name((cup__env)i), value);
    }
}

static int run(cli_call *call)
{
    const info_given *given = call->given;
    facts *f = cup__calloc(1, sizeof *f);
    if (!f)
        return cli_fail(CLI_MEMORY, "no host memory");
    gather(f);
    int code = CLI_OK;
    if (call->json)
        code = write_document(f);
    else
        print_text(f, given->searched);
    int wrong = environment_check();
    code = code ? code : wrong;
    cup__free(f->cache);
    cup__free(f);
    return code;
}

const cli_verb verb_info = {
    .name = "info",
    .synopsis = "[OPTION]...",
    .words = "devices, libraries and folders in use, or why not",
    .text = "Prints what this machine offers: the CPU and the library of its matrix products, the "
            "GPUs or why none can be used, the libraries that are found at run time and where, "
            "and the folder of compiled kernels. What is missing is followed by what mends it. An "
            "environment variable that is unknown or has a wrong value is named on stderr, and the "
            "exit code is 2 then.",
    .examples = "What to put into a report of a problem:\ncupola info --json\n",
    .options = options,
    .size = sizeof(info_given),
    .tells_environment = true,
    .run = run,
};
