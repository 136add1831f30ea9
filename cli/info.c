/* cupola info: what this machine offers, and what is missing. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/common/environment.h"
#include "cli/common/exit.h"
#include "cli/common/help.h"
#include "cli/common/json.h"
#include "cli/common/options.h"
#include "cli/common/terminal.h"
#include "cupola/cache.h"
#include "cupola/facts.h"
#include "cupola/text.h"

#define MOST_GPUS 16
#define COLUMN 12

typedef struct info_given {
    bool searched;
} info_given;

static const cli_option options[] = {{"searched", FLAG(info_given, searched), NULL, NULL,
                                      "say also where each missing library was looked for"},
                                     {0}};

/* What is known of this machine, gathered once and then printed in either form. */
typedef struct facts {
    char cpu[128];
    const char *vectors;
    long cores;
    int threads;
    int64_t memory;
    struct utsname system;
    cup_library_facts blas;
    char cache[4096];     /* "": there is none */
    char cache_why[2048]; /* why nothing can be kept there */
    int64_t cached_kernels, cached_bytes;
    char gpu_why[512];
    int gpu_count;
    cup_gpu gpus[MOST_GPUS];
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
    f->threads = cup_threads();
    cup_library_look(CUP_LIBRARY_BLAS, &f->blas);
}

static void gather_cache(facts *f)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = 1));
    cup_error_clear(c);
    if (cup_cache_folder(c, f->cache, sizeof f->cache) == CUP_OK && f->cache[0])
        cup_cache_check(c);
    snprintf(f->cache_why, sizeof f->cache_why, "%s", cup_error_text(c));
    cup_error_clear(c);
    cup_cached_kernels *kernels = cup_cached_kernels_new(c);
    f->cached_kernels = cup_cached_kernels_count(kernels);
    f->cached_bytes = cup_cached_kernels_bytes(kernels);
    cup_cached_kernels_free(kernels);
    cup_context_free(c);
}

static void gather(facts *f)
{
    gather_cpu(f);
    gather_cache(f);
    int count = cup_gpu_count(f->gpu_why, sizeof f->gpu_why);
    for (f->gpu_count = 0; f->gpu_count < count && f->gpu_count < MOST_GPUS; f->gpu_count++)
        cup_gpu_look(f->gpu_count, &f->gpus[f->gpu_count]);
}

static void write_cpu(cli_json *writer, const facts *f)
{
    json_open_object(writer, "system");
    json_add_string(writer, "name", f->system.sysname);
    json_add_string(writer, "release", f->system.release);
    json_add_string(writer, "machine", f->system.machine);
    json_close(writer);
    json_open_object(writer, "cpu");
    json_add_string(writer, "name", f->cpu);
    json_add_string(writer, "vectors", f->vectors);
    json_add_integer(writer, "cores", f->cores);
    json_add_integer(writer, "threads", f->threads);
    json_add_integer(writer, "memory_bytes", f->memory);
    json_close(writer);
    json_open_object(writer, "blas");
    json_add_boolean(writer, "used", f->blas.found);
    json_add_string(writer, "text", f->blas.text);
    json_close(writer);
}

static void write_gpu(cli_json *writer, const cup_gpu *g)
{
    json_open_object(writer, NULL);
    json_add_integer(writer, "index", g->index);
    json_add_string(writer, "name", g->name);
    json_add_string(writer, "arch", g->arch);
    json_add_integer(writer, "multiprocessors", g->multiprocessors);
    json_add_integer(writer, "memory_bytes", g->memory_bytes);
    json_add_boolean(writer, "usable", g->usable);
    if (!g->usable)
        json_add_string(writer, "why", g->why);
    json_close(writer);
}

static const cup_library libraries[] = {CUP_LIBRARY_DRIVER, CUP_LIBRARY_NVRTC,
                                        CUP_LIBRARY_CUBLASLT, CUP_LIBRARY_CUDNN,
                                        CUP_LIBRARY_CUFFT, CUP_LIBRARY_CUSOLVER,
                                        CUP_LIBRARY_NCCL};
enum { LIBRARIES = sizeof libraries / sizeof *libraries };

/* Loading cuBLASLt takes a tenth of a second, and cuDNN and its like too, for nothing where there
 * is no GPU, and NCCL about as long, for nothing where there are not two. */
static bool look(const facts *f, int i, cup_library_facts *out)
{
    bool computes = libraries[i] != CUP_LIBRARY_DRIVER && libraries[i] != CUP_LIBRARY_NVRTC &&
                    libraries[i] != CUP_LIBRARY_NCCL;
    if ((computes && !f->gpu_count) || (libraries[i] == CUP_LIBRARY_NCCL && f->gpu_count < 2))
        return false;
    return cup_library_look(libraries[i], out) == CUP_OK;
}

static void write_library(cli_json *writer, const cup_library_facts *r)
{
    json_open_object(writer, NULL);
    json_add_string(writer, "name", r->name);
    json_add_string(writer, "needed_for", r->needed_for);
    json_add_boolean(writer, "found", r->found);
    if (r->found) {
        json_add_integer(writer, "version", r->version);
        json_add_string(writer, "path", r->text);
    } else {
        json_add_string(writer, "why", r->text);
        json_add_string(writer, "cure", r->cure);
    }
    json_close(writer);
}

static int write_document(const facts *f)
{
    cli_json writer;
    json_begin(&writer, "info");
    json_add_string(&writer, "version", cup_version());
    write_cpu(&writer, f);
    json_open_array(&writer, "gpus");
    for (int i = 0; i < f->gpu_count; i++)
        write_gpu(&writer, &f->gpus[i]);
    json_close(&writer);
    if (!f->gpu_count)
        json_add_string(&writer, "no_gpu_because", f->gpu_why);
    json_open_array(&writer, "libraries");
    cup_library_facts library;
    for (int i = 0; i < LIBRARIES; i++)
        if (look(f, i, &library))
            write_library(&writer, &library);
    json_close(&writer);
    if (f->cache[0])
        json_add_string(&writer, "cache", f->cache);
    else
        json_add_null(&writer, "cache");
    if (f->cache_why[0])
        json_add_string(&writer, "cache_why", f->cache_why);
    json_add_integer(&writer, "cached_kernels", f->cached_kernels);
    json_add_integer(&writer, "cached_bytes", f->cached_bytes);
    json_open_object(&writer, "environment");
    cup_variable variable;
    for (int i = 0; cup_variable_at(i, &variable); i++)
        json_add_string(&writer, variable.name, variable.value);
    json_close(&writer);
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
        const cup_gpu *g = &f->gpus[i];
        snprintf(name, sizeof name, "cuda:%d", i);
        line(name, "%s, %s, %d multiprocessors, %s", g->name, g->arch, g->multiprocessors,
             cup_text_size((double)g->memory_bytes, memory, sizeof memory));
        if (!g->usable)
            line("", "cannot be used: %s", g->why);
    }
}

static void print_libraries(const facts *f, bool searched)
{
    cup_library_facts r;
    for (int i = 0; i < LIBRARIES; i++) {
        if (!look(f, i, &r))
            continue;
        if (r.found) {
            line(r.name, "%d.%d, %s", r.version / 1000, r.version % 1000 / 10, r.text);
            continue;
        }
        line(r.name, "not found; needed for %s", r.needed_for);
        if (searched)
            line("", "looked for: %s", r.text);
        line("", "cure: %s", r.cure);
    }
}

static void print_text(const facts *f, bool searched)
{
    char bytes[32];
    line("cupola", "%s, %s %s %s", cup_version(), f->system.sysname, f->system.release,
         f->system.machine);
    line("CPU", "%s, %s, %ld cores, %d threads used, %s", f->cpu, f->vectors, f->cores, f->threads,
         cup_text_size((double)f->memory, bytes, sizeof bytes));
    line("BLAS", "%s", f->blas.text);
    print_gpus(f);
    print_libraries(f, searched);
    if (f->cache[0])
        line("cache", "%s, %lld kernels, %s", f->cache, (long long)f->cached_kernels,
             cup_text_size((double)f->cached_bytes, bytes, sizeof bytes));
    else
        line("cache", "none: CUP_CACHE is off, or neither XDG_CACHE_HOME nor HOME is set");
    if (f->cache_why[0])
        line("", "kernels cannot be kept: %s; or set CUP_CACHE", f->cache_why);
    cup_variable variable;
    for (int i = 0; cup_variable_at(i, &variable); i++)
        if (strcmp(variable.value, variable.standard))
            line("set", "%s=%s", variable.name, variable.value);
}

static int run(cli_call *call)
{
    const info_given *given = call->given;
    facts *f = calloc(1, sizeof *f);
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
    free(f);
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
