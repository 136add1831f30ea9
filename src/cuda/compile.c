/* The compiler, NVRTC, and what its report may not say. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "cuda/loader.h"
#include "cuda/unit.h"

#define MOST_OPTIONS (CUP__MOST_KNOBS + 8)

int cup__compiler_version(void)
{
    return cup__library_open(CUP__LIBNVRTC) ? cup__library_report_of(CUP__LIBNVRTC)->version : 0;
}

/* The architecture to compile for: as asked where the compiler knows it, else PTX of the highest
 * one below it, which the driver finishes. */
static cup_status choose_target(cup__error *error, const char *arch, char target[32])
{
    int count = 0, archs[128] = {0}, wanted = atoi(arch + 3), best = 0;
    if (strncmp(arch, "sm_", 3) || wanted <= 0)
        return cup__fail(error, CUP_ARGUMENT,
                         "architecture \"%.40s\" is unknown; give one such as sm_80 or sm_90a",
                         arch);
    if (cup__nvrtc.nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS || count > 128 ||
        cup__nvrtc.nvrtcGetSupportedArchs(archs) != NVRTC_SUCCESS)
        count = 0;
    for (int i = 0; i < count; i++)
        if (archs[i] <= wanted && archs[i] > best)
            best = archs[i];
    if (best == wanted || count == 0)
        snprintf(target, 32, "%.31s", arch);
    else if (best)
        snprintf(target, 32, "compute_%d", best);
    else
        return cup__fail(error, CUP_COMPILE,
                         "NVRTC %d.%d compiles for nothing as old as %s; install an older one and "
                         "set CUP_LIBNVRTC",
                         cup__compiler_version() / 1000, cup__compiler_version() % 1000 / 10, arch);
    return CUP_OK;
}

typedef struct options {
    char text[MOST_OPTIONS][96];
    const char *list[MOST_OPTIONS];
    int count;
} options;

__attribute__((format(printf, 2, 3))) static void add_option(options *o, const char *format, ...)
{
    char *text = o->text[o->count];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof *o->text, format, args);
    va_end(args);
    o->list[o->count++] = text;
}

static void make_options(options *o, const char *target, const cup__knob *knobs, int knob_count)
{
    o->count = 0;
    add_option(o, "--gpu-architecture=%s", target);
    add_option(o, "-std=c++17");
    add_option(o, "-default-device");
    if (!strncmp(target, "sm_", 3))
        add_option(o, "--ptxas-options=-v");
    if (cup__log_wants(CUP__SOURCE))
        add_option(o, "-lineinfo");
    for (int i = 0; i < knob_count; i++)
        add_option(o, "-D%s=%lld", knobs[i].name, (long long)knobs[i].value);
}

/* Cuts one line of the report; gives what follows it. */
static const char *next_line(const char *at, char *line, size_t size)
{
    size_t length = strcspn(at, "\n");
    snprintf(line, size, "%.*s", (int)(length < size ? length : size - 1), at);
    return at[length] ? at + length + 1 : at + length;
}

/* Bytes of registers a thread may spill, stored and loaded, before its code counts as slow: 16
 * words once around the loop of a kernel that fills all registers cost nothing measurable. */
#define SPILLED_MOST 192

/* The line of a report that makes the code unfit for use; false when there is none. */
static bool find_fault(const char *report, bool spills_allowed, char *line, size_t size)
{
    while (*report) {
        report = next_line(report, line, size);
        const char *stores = strstr(line, "stack frame, ");
        long stored = 0, loaded = 0;
        if (!spills_allowed && stores &&
            sscanf(stores, "stack frame, %ld bytes spill stores, %ld", &stored, &loaded) == 2 &&
            stored + loaded > SPILLED_MOST)
            return true;
        if (strstr(line, "wgmma") && strstr(line, "serialized"))
            return true;
        if (strstr(line, "setmaxnreg") && strstr(line, "ignored"))
            return true;
    }
    return false;
}

static char *read_report(nvrtcProgram program)
{
    size_t size = 0;
    char *report = NULL;
    if (cup__nvrtc.nvrtcGetProgramLogSize(program, &size) == NVRTC_SUCCESS && size)
        report = cup__calloc(size + 1, 1);
    if (report && cup__nvrtc.nvrtcGetProgramLog(program, report) != NVRTC_SUCCESS)
        report[0] = 0;
    return report;
}

/* What the user needs of a long report: from its first error on. */
static const char *first_error(const char *report)
{
    const char *error = strstr(report, "error");
    if (!error)
        return report;
    while (error > report && error[-1] != '\n')
        error--;
    return error;
}

static cup_status read_code(cup__error *error, nvrtcProgram program, bool ptx, cup__code *out)
{
    nvrtcResult result = ptx ? cup__nvrtc.nvrtcGetPTXSize(program, &out->size)
                             : cup__nvrtc.nvrtcGetCUBINSize(program, &out->size);
    if (result == NVRTC_SUCCESS && out->size) {
        out->bytes = cup__malloc(out->size);
        if (!out->bytes)
            return cup__fail(error, CUP_MEMORY, "out of host memory for a compiled kernel");
        result = ptx ? cup__nvrtc.nvrtcGetPTX(program, out->bytes)
                     : cup__nvrtc.nvrtcGetCUBIN(program, out->bytes);
    }
    if (result == NVRTC_SUCCESS && out->size)
        return CUP_OK;
    cup__free(out->bytes);
    *out = (cup__code){0};
    return cup__fail(error, CUP_COMPILE, "NVRTC gave no code: %s",
                     cup__nvrtc.nvrtcGetErrorString(result));
}

typedef struct job {
    const cup__unit *unit;
    const char *target;
    const options *options;
    char title[640]; /* "gelu.cu for sm_90a (CUP_T=3)", for messages */
} job;

static _Atomic bool strict;

void cup__compile_strictly(void)
{
    strict = true;
}

static cup_status judge(cup__error *error, const job *j, nvrtcResult result, const char *report)
{
    char line[512];
    if (result == NVRTC_ERROR_OUT_OF_MEMORY)
        return cup__fail(error, CUP_MEMORY, "out of host memory while compiling %s", j->title);
    if (result != NVRTC_SUCCESS)
        return cup__fail(error, CUP_COMPILE, "%s does not compile: %s: %s", j->title,
                         cup__nvrtc.nvrtcGetErrorString(result), first_error(report));
    bool spills_allowed = strstr(j->unit->parts[0].text, "CUP_SPILLS_ALLOWED");
    if (*report)
        cup__log(CUP__SASS, "%s:\n%s", j->title, report);
    if (!find_fault(report, spills_allowed, line, sizeof line))
        return CUP_OK;
    if (strict)
        return cup__fail(error, CUP_COMPILE, "%s compiles to code that is unfit for use: %s",
                         j->title, line + strspn(line, " "));
    cup__log(CUP__INFO, "%s compiles to slow code: %s", j->title, line + strspn(line, " "));
    return CUP_OK;
}

static cup_status compile(cup__error *error, const job *j, cup__code *out)
{
    const char *texts[CUP__MOST_PARTS], *names[CUP__MOST_PARTS];
    for (int i = 1; i < j->unit->count; i++) {
        texts[i - 1] = j->unit->parts[i].text;
        names[i - 1] = j->unit->parts[i].name;
    }
    nvrtcProgram program;
    nvrtcResult result =
        cup__nvrtc.nvrtcCreateProgram(&program, j->unit->parts[0].text, j->unit->parts[0].name,
                                      j->unit->count - 1, texts, names);
    if (result != NVRTC_SUCCESS)
        return judge(error, j, result, "");
    result = cup__nvrtc.nvrtcCompileProgram(program, j->options->count, j->options->list);
    char *report = read_report(program);
    cup_status status = judge(error, j, result, report ? report : "");
    if (status == CUP_OK)
        status = read_code(error, program, !strncmp(j->target, "compute_", 8), out);
    cup__free(report);
    cup__nvrtc.nvrtcDestroyProgram(&program);
    return status;
}

cup_status cup__unit_compile(cup__error *error, const cup__unit *unit, const char *arch,
                             const cup__knob *knobs, int knob_count, cup__code *out)
{
    *out = (cup__code){0};
    if (!cup__library_open(CUP__LIBNVRTC)) {
        const cup__library_report *report = cup__library_report_of(CUP__LIBNVRTC);
        return cup__fail(error, CUP_COMPILE, "%s must be compiled, and NVRTC is missing: %s; %s",
                         unit->parts[0].name, report->reason, report->cure);
    }
    char target[32];
    CUP_TRY(choose_target(error, arch, target));
    options *o = cup__malloc(sizeof *o);
    if (!o)
        return cup__fail(error, CUP_MEMORY, "out of host memory while compiling");
    make_options(o, target, knobs, knob_count);
    job j = {.unit = unit, .target = target, .options = o};
    cup__text words = {0};
    cup__knobs_text(&words, knobs, knob_count);
    snprintf(j.title, sizeof j.title, "%s for %s (%.500s)", unit->parts[0].name, target,
             cup__text_string(&words));
    cup__text_free(&words);
    cup_status status = compile(error, &j, out);
    cup__free(o);
    return status;
}
