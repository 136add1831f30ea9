/* Kernels of the user: their declarations, their checks, their launches. */
#include "cupola/kernel.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/text.h"
#include "cuda/gpu.h"
#include "cuda/unit.h"
#include "tensor/debug.h"

#define NAME_MOST 63
#define DEFINES_MOST 16
#define ANY (-1)

/* One argument as it was declared. */
typedef struct declared {
    int dtype; /* ANY: of every dtype */
    bool tensor, read_only;
    char name[NAME_MOST + 1];
} declared;

struct cup_kernel {
    cup_context *c;
    cup__kernel *kernel;
    char name[NAME_MOST + 1];
    declared arguments[CUP__MOST_ARGUMENTS];
    int count;
};

__attribute__((format(printf, 3, 4))) static cup_status fail(cup_context *c, const char *name,
                                                             const char *format, ...)
{
    char words[600];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    return cup__fail(&c->error, CUP_ARGUMENT, "kernel %s: %s", name, words);
}

/* Declarations. */

static size_t word_length(const char *at)
{
    size_t length = 0;
    while (isalnum((unsigned char)at[length]) || at[length] == '_')
        length++;
    return length;
}

static bool take_word(const char **at, const char *word)
{
    size_t length = strlen(word);
    if (word_length(*at) != length || strncmp(*at, word, length))
        return false;
    *at += length;
    *at += strspn(*at, " ");
    return true;
}

/* "const f32 *x" */
static bool read_argument(const char **at, declared *to)
{
    char dtype[16];
    *to = (declared){.read_only = take_word(at, "const")};
    size_t length = word_length(*at);
    if (length == 0 || length >= sizeof dtype)
        return false;
    memcpy(dtype, *at, length);
    dtype[length] = 0;
    *at += length;
    *at += strspn(*at, " ");
    to->read_only |= take_word(at, "const");
    cup_dtype found = CUP_F32;
    bool any = !strcmp(dtype, "any");
    if (!any && cup_dtype_find(dtype, &found) != CUP_OK)
        return false;
    to->dtype = any ? ANY : (int)found;
    if (**at == '*') {
        to->tensor = true;
        ++*at;
        *at += strspn(*at, " ");
    }
    length = word_length(*at);
    snprintf(to->name, sizeof to->name, "%.*s",
             (int)(length < sizeof to->name ? length : sizeof to->name - 1), *at);
    *at += length;
    *at += strspn(*at, " ");
    bool number = found == CUP_F32 || found == CUP_F64 || found == CUP_I32 || found == CUP_I64;
    return to->tensor || (number && !any);
}

static cup_status read_arguments(cup_context *c, cup_kernel *k, const char *text)
{
    const char *at = text + strspn(text, " ");
    while (*at) {
        const char *from = at;
        if (k->count == CUP__MOST_ARGUMENTS)
            return fail(c, k->name, "it has more than %d arguments", CUP__MOST_ARGUMENTS);
        if (!read_argument(&at, &k->arguments[k->count++]) || (*at && *at != ','))
            return fail(c, k->name,
                        "argument %d, \"%.*s\", is no declaration; write \"const f32 *x\" for a "
                        "tensor, \"f32 x\", \"f64 x\", \"i32 n\" or \"i64 n\" for a number",
                        k->count, (int)strcspn(from, ","), from);
        if (*at == ',') {
            at++;
            at += strspn(at, " ");
            if (!*at)
                return fail(c, k->name, "an argument is missing behind the last comma");
        }
    }
    return CUP_OK;
}

/* "TILE=64 VEC=4"; the names are kept in `words`. */
static cup_status read_defines(cup_context *c, const cup_kernel *k, char *words,
                               cup__knob *knobs, int *count)
{
    *count = 0;
    for (char *at = words + strspn(words, " "); *at; at += strspn(at, " ")) {
        char *end = at + word_length(at);
        if (end == at || end - at > NAME_MOST || isdigit((unsigned char)*at) || *end != '=' ||
            *count == DEFINES_MOST)
            return fail(c, k->name, "its defines must be up to %d of NAME=number, at \"%.40s\"",
                        DEFINES_MOST, at);
        knobs[*count].name = at;
        *end = 0;
        at = end + 1;
        errno = 0;
        knobs[(*count)++].value = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ' ') || errno)
            return fail(c, k->name, "the value of its define %s is no whole number of 64 bits",
                        knobs[*count - 1].name);
        at = end;
    }
    return CUP_OK;
}

static size_t size_of(const declared *d)
{
    return d->tensor ? sizeof(void *) : (size_t)cup_dtype_size((cup_dtype)d->dtype);
}

/* The declaration against what the driver knows of the entry. */
static cup_status check_declaration(cup_context *c, const cup_kernel *k)
{
    const cup__kernel *kernel = k->kernel;
    if (kernel->argument_count < 0)
        return CUP_OK;
    if (kernel->argument_count != k->count)
        return fail(c, k->name, "its entry %s takes %d arguments, %d are declared", kernel->name,
                    kernel->argument_count, k->count);
    for (int i = 0; i < k->count; i++)
        if (kernel->argument_sizes[i] != size_of(&k->arguments[i]))
            return fail(c, k->name,
                        "argument %d (%s) of its entry %s has %zu bytes, what is declared has %zu",
                        i + 1, k->arguments[i].name, kernel->name, kernel->argument_sizes[i],
                        size_of(&k->arguments[i]));
    return CUP_OK;
}

static cup_status compile(cup_context *c, cup_kernel *k, const cup_kernel_source *source)
{
    cup__knob knobs[DEFINES_MOST];
    int count = 0;
    char file[NAME_MOST + 4], *words = cup__strdup(source->defines ? source->defines : "");
    if (!words)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for kernel %s", k->name);
    snprintf(file, sizeof file, "%s.cu", k->name);
    cup_status status = read_defines(c, k, words, knobs, &count);
    if (status == CUP_OK) {
        k->kernel = cup__kernel_from_text(cup__cuda_of(c->device), file, source->text,
                                          source->entry, knobs, count);
        status = k->kernel ? check_declaration(c, k) : c->error.status;
    }
    cup__free(words);
    return status;
}

static cup_status take_source(cup_context *c, const cup_kernel_source *from, cup_kernel_source *s)
{
    CUP_TRY(cup__options_take(&c->error, "kernel", s, sizeof *s, from));
    if (!s->name || !s->text || !s->entry || !s->arguments)
        return fail(c, s->name ? s->name : "?",
                    "its name, text, entry and arguments must be given");
    for (const char *at = s->name; *at; at++)
        if (!isalnum((unsigned char)*at) && *at != '_' && *at != '-')
            return fail(c, "?", "\"%.60s\" is no name: letters, digits, - and _ make one", s->name);
    if (!*s->name || strlen(s->name) > NAME_MOST)
        return fail(c, "?", "a name has 1 to %d letters", NAME_MOST);
    if (!c->device->is_cuda)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "kernel %s: the context computes on the CPU; CUDA kernels need one on a "
                         "GPU",
                         s->name);
    return CUP_OK;
}

cup_kernel *cup_kernel_new(cup_context *c, const cup_kernel_source *from)
{
    cup_kernel_source own, *const source = &own;
    if (!c || c->error.status != CUP_OK || take_source(c, from, source) != CUP_OK)
        return NULL;
    cup_kernel *k = cup__calloc(1, sizeof *k);
    if (!k) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for kernel %s", source->name);
        return NULL;
    }
    k->c = c;
    cup__context_join(c);
    snprintf(k->name, sizeof k->name, "%s", source->name);
    if (read_arguments(c, k, source->arguments) == CUP_OK && compile(c, k, source) == CUP_OK)
        return k;
    cup_kernel_free(k);
    return NULL;
}

void cup_kernel_free(cup_kernel *kernel)
{
    if (kernel)
        cup__context_leave(kernel->c);
    cup__free(kernel); /* the code stays with the context */
}

cup_status cup_kernel_ask(cup_kernel *kernel, cup_kernel_facts *facts)
{
    if (!kernel)
        return CUP_ARGUMENT;
    if (kernel->c->error.status != CUP_OK)
        return kernel->c->error.status;
    if (!facts)
        return fail(kernel->c, kernel->name, "the place for its facts is NULL");
    const cup__kernel *k = kernel->kernel;
    *facts = (cup_kernel_facts){k->registers, k->local_bytes, k->static_shared, k->threads_most};
    return CUP_OK;
}

/* Launches. */

typedef union value {
    void *pointer;
    int64_t i64;
    int32_t i32;
    double f64;
    float f32;
} value;

static cup_status take_tensor(const cup_kernel *k, int i, cup_tensor *t, value *to)
{
    const declared *d = &k->arguments[i];
    char text[CUP__SHAPE_TEXT];
    if (!t)
        return fail(k->c, k->name, "argument %d (%s) is NULL", i + 1, d->name);
    if (t->context != k->c)
        return fail(k->c, k->name, "argument %d (%s), %s, is of another context; copy it with "
                                   "cup_tensor_to",
                    i + 1, d->name, cup__tensor_text(t, text));
    if (!cup__usable(t, true, "an argument of a kernel"))
        return k->c->error.status;
    if (d->dtype != ANY && d->dtype != (int)t->dtype)
        return fail(k->c, k->name, "argument %d (%s) is %s, declared as %s", i + 1, d->name,
                    cup__tensor_text(t, text), cup_dtype_name((cup_dtype)d->dtype));
    if (!t->contiguous)
        return fail(k->c, k->name, "argument %d (%s), %s, is a view that is not in row-major "
                                   "order; copy it with cup_copy",
                    i + 1, d->name, cup__tensor_text(t, text));
    to->pointer = t->data;
    return CUP_OK;
}

static cup_status take_integer(const cup_kernel *k, int i, int64_t n, value *to)
{
    const declared *d = &k->arguments[i];
    if (d->dtype == CUP_I32 && n != (int32_t)n)
        return fail(k->c, k->name, "argument %d (%s), %lld, does not fit i32", i + 1, d->name,
                    (long long)n);
    if (d->dtype == CUP_I32)
        to->i32 = (int32_t)n;
    else
        to->i64 = n;
    return CUP_OK;
}

static cup_status take(const cup_kernel *k, int i, const cup_kernel_argument *a, value *to)
{
    static const char *const kinds[] = {"a tensor", "an integer", "a number"};
    const declared *d = &k->arguments[i];
    bool whole = d->dtype == CUP_I32 || d->dtype == CUP_I64;
    int wanted = d->tensor ? CUP_ARGUMENT_KIND_TENSOR
                 : whole   ? CUP_ARGUMENT_KIND_INTEGER
                           : CUP_ARGUMENT_KIND_NUMBER;
    if ((int)a->kind != wanted)
        return fail(k->c, k->name, "argument %d (%s) is %s, declared as %s", i + 1, d->name,
                    (unsigned)a->kind < 3 ? kinds[a->kind] : "nothing known", kinds[wanted]);
    if (d->tensor)
        return take_tensor(k, i, a->tensor, to);
    if (whole)
        return take_integer(k, i, a->integer, to);
    if (d->dtype == CUP_F32)
        to->f32 = (float)a->number;
    else
        to->f64 = a->number;
    return CUP_OK;
}

static cup_status take_grid(const cup_kernel *k, const cup_kernel_grid *from, cup__grid *to)
{
    cup_kernel_grid own, *const g = &own;
    if (!from)
        return fail(k->c, k->name, "the grid is NULL");
    CUP_TRY(cup__options_take(&k->c->error, k->name, g, sizeof *g, from));
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(k->c->device));
    static const int64_t blocks_most[] = {2147483647, 65535, 65535};
    static const int threads_most[] = {1024, 1024, 64};
    int64_t threads = 1;
    int64_t blocks[3];
    int block[3];
    for (int d = 0; d < 3; d++) {
        blocks[d] = d && !g->blocks[d] ? 1 : g->blocks[d];
        block[d] = g->threads[d] ? g->threads[d] : 1;
        if (blocks[d] < 0 || blocks[d] > blocks_most[d])
            return fail(k->c, k->name, "a grid of %lld blocks along %c; a card takes up to %lld",
                        (long long)blocks[d], 'x' + d, (long long)blocks_most[d]);
        if (block[d] < 1 || block[d] > threads_most[d])
            return fail(k->c, k->name, "a block of %d threads along %c; a card takes 1 to %d",
                        block[d], 'x' + d, threads_most[d]);
        threads *= block[d];
    }
    if (threads > k->kernel->threads_most)
        return fail(k->c, k->name, "a block of %lld threads; with its %d registers a thread this "
                                   "kernel can have %d",
                    (long long)threads, k->kernel->registers, k->kernel->threads_most);
    int shared_most = facts->shared_per_block - k->kernel->static_shared;
    if (g->shared_bytes < 0 || g->shared_bytes > shared_most)
        return fail(k->c, k->name, "%d bytes of shared memory; this card leaves it 0 to %d",
                    g->shared_bytes, shared_most);
    *to = (cup__grid){.x = blocks[0], .y = blocks[1], .z = blocks[2], .threads = block[0],
                      .threads_y = block[1], .threads_z = block[2], .shared = g->shared_bytes};
    return CUP_OK;
}

/* A gradient that is recorded would silently end here. */
static cup_status check_recorded(cup_kernel *k, const cup_kernel_argument *arguments, int count)
{
    cup_context *c = k->c;
    for (int i = 0; i < count && c->twice; i++)
        if (k->arguments[i].tensor && c->tape_calls->wants(c, &arguments[i].tensor, 1))
            return fail(c, k->name,
                        "argument %d leads to a parameter in a gradient that is recorded, and a "
                        "launch is not; launch it in the forward of a cup_custom_op",
                        i + 1);
    return CUP_OK;
}

cup_status cup_kernel_launch(cup_kernel *k, const cup_kernel_grid *grid,
                             const cup_kernel_argument *arguments, int count)
{
    value values[CUP__MOST_ARGUMENTS];
    cup__argument list[CUP__MOST_ARGUMENTS];
    cup__grid checked;
    if (!k)
        return CUP_ARGUMENT;
    CUP__DEBUG_CALL(k->c);
    if (k->c->error.status != CUP_OK)
        return k->c->error.status;
    if (k->count && !arguments)
        return fail(k->c, k->name, "the list of its arguments is NULL, %d are declared", k->count);
    if (count != k->count)
        return fail(k->c, k->name, "launched with %d arguments, %d are declared", count, k->count);
    CUP_TRY(take_grid(k, grid, &checked));
    for (int i = 0; i < count; i++) {
        CUP_TRY(take(k, i, &arguments[i], &values[i]));
        list[i] = (cup__argument){&values[i], size_of(&k->arguments[i])};
    }
    CUP_TRY(check_recorded(k, arguments, count));
    for (int i = 0; i < count; i++)
        if (k->arguments[i].tensor && !k->arguments[i].read_only)
            CUP_TRY(cup__tensor_change(arguments[i].tensor, "a kernel that writes to"));
    cup__cuda *gpu = cup__cuda_of(k->c->device);
    cup__cuda_op(gpu, "a kernel of the user");
    return cup__launch_arguments(gpu, k->kernel, checked, list, count);
}

#define RUNS 20
#define WARM 3

cup_status cup_kernel_time(cup_kernel *k, const cup_kernel_grid *grid,
                           const cup_kernel_argument *arguments, int count, double *microseconds)
{
    double us[RUNS], milliseconds = 0;
    cup__timer *timer;
    if (!k)
        return CUP_ARGUMENT;
    if (!microseconds)
        return fail(k->c, k->name, "the place for its time is NULL");
    CUP_TRY(cup_kernel_launch(k, grid, arguments, count));
    CUP_TRY(cup__timer_new(cup__cuda_of(k->c->device), &timer));
    cup_status status = CUP_OK;
    for (int i = 0; i < WARM + RUNS && status == CUP_OK; i++) {
        status = cup__timer_start(timer);
        if (status == CUP_OK)
            status = cup_kernel_launch(k, grid, arguments, count);
        if (status == CUP_OK)
            status = cup__timer_stop(timer, &milliseconds);
        us[i < WARM ? 0 : i - WARM] = milliseconds * 1000;
    }
    cup__timer_free(timer);
    if (status == CUP_OK)
        *microseconds = cup__median(us, RUNS);
    return status;
}
