/* A stand-in for NVRTC: finds the entries of a source and gives code that the fake driver takes.
 *
 * A source that says "#error" does not compile, nor one with the word FAKE_NVRTC_REFUSES.
 * FAKE_NVRTC_REPORT is the compiler's report, FAKE_NVRTC_ARCHS the highest architecture (121),
 * FAKE_NVRTC_COUNT a file that gets a byte for each compilation, FAKE_NVRTC_MS how long one takes.
 * FAKE_NVRTC_ANY=1 gives code in which every entry is found, also those whose names macros make. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/api.h"

#define EXPORT __attribute__((visibility("default")))
#define NEED(result, name, exported, arguments) EXPORT result name arguments __asm__(exported);
#define MAY NEED
#include "cuda/nvrtc.def"
#undef NEED
#undef MAY

struct _nvrtcProgram {
    char *text;
    char code[8192], report[1024];
    size_t size;
};

static long setting(const char *name, long usual)
{
    const char *text = getenv(name);
    return text && *text ? atol(text) : usual;
}

nvrtcResult nvrtcVersion(int *major, int *minor)
{
    *major = (int)setting("FAKE_NVRTC_MAJOR", 13);
    *minor = 0;
    return NVRTC_SUCCESS;
}

const char *nvrtcGetErrorString(nvrtcResult result)
{
    return result == NVRTC_ERROR_COMPILATION ? "NVRTC_ERROR_COMPILATION" : "an NVRTC error";
}

static const int archs[] = {75, 80, 86, 89, 90, 100, 120, 121};

nvrtcResult nvrtcGetNumSupportedArchs(int *count)
{
    *count = 0;
    while (*count < 8 && archs[*count] <= setting("FAKE_NVRTC_ARCHS", 121))
        ++*count;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int *out)
{
    int count;
    nvrtcGetNumSupportedArchs(&count);
    memcpy(out, archs, sizeof *archs * (size_t)count);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *text, const char *name,
                               int header_count, const char *const *headers,
                               const char *const *header_names)
{
    (void)name, (void)header_count, (void)headers, (void)header_names;
    *program = calloc(1, sizeof **program);
    (*program)->text = strdup(text);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program)
{
    free((*program)->text);
    free(*program);
    *program = NULL;
    return NVRTC_SUCCESS;
}

static int size_of(const char *argument, size_t length)
{
    static const char *const longs[] = {"*", "int64_t", "uint64_t", "double", "size_t", "long"};
    char text[256];
    snprintf(text, sizeof text, "%.*s", (int)length, argument);
    for (int i = 0; i < 6; i++)
        if (strstr(text, longs[i]))
            return 8;
    return 4;
}

static void add(nvrtcProgram p, const char *text, size_t length)
{
    if (p->size + length < sizeof p->code)
        memcpy(p->code + p->size, text, length);
    p->size += length;
}

/* "extern "C" __global__ void name(int a, float *b)" gives "name 4 8". */
static void add_entry(nvrtcProgram p, const char *at)
{
    const char *open = strchr(at, '('), *close = strchr(at, ')');
    if (!open || !close)
        return;
    const char *name = open;
    while (name > at && (isalnum((unsigned char)name[-1]) || name[-1] == '_'))
        name--;
    add(p, name, (size_t)(open - name));
    for (const char *argument = open + 1; argument < close;) {
        size_t length = strcspn(argument, ",)");
        char number[16];
        int used = snprintf(number, sizeof number, " %d", size_of(argument, length));
        add(p, number, (size_t)used);
        argument += length + 1;
    }
    add(p, "\n", 1);
}

static void count_compilation(void)
{
    const char *path = getenv("FAKE_NVRTC_COUNT");
    FILE *file = path ? fopen(path, "ab") : NULL;
    if (file) {
        fputc('.', file);
        fclose(file);
    }
    usleep((useconds_t)setting("FAKE_NVRTC_MS", 0) * 1000);
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options)
{
    const char *report = getenv("FAKE_NVRTC_REPORT");
    count_compilation();
    snprintf(program->report, sizeof program->report, "%s", report ? report : "");
    bool any = setting("FAKE_NVRTC_ANY", 0);
    const char *refused = getenv("FAKE_NVRTC_REFUSES");
    bool refuses = refused && strstr(program->text, refused);
    if (refuses || (!any && strstr(program->text, "#error"))) {
        snprintf(program->report, sizeof program->report, "x.cu(1): error: asked for\n");
        return NVRTC_ERROR_COMPILATION;
    }
    add(program, any ? "\177ELF\n" : "FAKE\n", 5);
    for (const char *at = any ? "" : program->text; (at = strstr(at, "__global__")); at++)
        add_entry(program, at);
    (void)count, (void)options;
    add(program, "", 1);
    return program->size <= sizeof program->code ? NVRTC_SUCCESS : NVRTC_ERROR_OUT_OF_MEMORY;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes)
{
    *bytes = strlen(program->report) + 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log)
{
    strcpy(log, program->report);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes)
{
    *bytes = program->size;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin)
{
    memcpy(cubin, program->code, program->size);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *bytes)
{
    return nvrtcGetCUBINSize(program, bytes);
}

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *ptx)
{
    return nvrtcGetCUBIN(program, ptx);
}
