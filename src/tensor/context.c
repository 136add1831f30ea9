#include "tensor/context.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/parallel.h"
#include "cuda/dry.h"
#include "tensor/coming.h"
#include "tensor/debug.h"

#define TEXT(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *cup_version(void)
{
    return VERSION_TEXT(CUP_VERSION_MAJOR, CUP_VERSION_MINOR, CUP_VERSION_PATCH);
}

static cup_status open_auto(cup_context *c)
{
    char why[512], text[600];
    if (cup__cuda_count(why) > 0) {
        cup_status status =
            cup__cuda_open(&c->error, 0, c->options.memory_limit, &c->device);
        if (status == CUP_OK)
            return CUP_OK;
        snprintf(why, sizeof why, "%.500s", c->error.text);
        cup__error_clear(&c->error);
    }
    snprintf(text, sizeof text, "no GPU: %s", why);
    return cup__cpu_open(&c->error, c->options.memory_limit, text, &c->device);
}

static cup_status open_device(cup_context *c, const char *name)
{
    if (!strcmp(name, "auto"))
        return open_auto(c);
    if (!strcmp(name, "cpu"))
        return cup__cpu_open(&c->error, c->options.memory_limit, NULL, &c->device);
    if (!strcmp(name, "cuda"))
        return cup__cuda_open(&c->error, 0, c->options.memory_limit, &c->device);
    if (!strncmp(name, "cuda:", 5) && name[5] >= '0' && name[5] <= '9') {
        char *end;
        long index = strtol(name + 5, &end, 10);
        if (!*end && index < 1 << 20)
            return cup__cuda_open(&c->error, (int)index, c->options.memory_limit, &c->device);
    }
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "device \"%.100s\" is unknown; use auto, cpu, cuda or cuda:N", name);
}

/* What a context needs beside its device. */
static cup_status open_random(cup_context *c)
{
    c->device->error = &c->error;
    void *state;
    CUP_TRY(c->device->calls->allocate(c->device, 2 * sizeof(uint64_t), "random state", &state));
    c->random.state = state;
    cup_seed(c, c->options.seed);
    return c->error.status;
}

static void limit_share(cup_context *c)
{
    cup__memory_use use = {0};
    if (!(c->options.memory_share > 0))
        return;
    c->device->calls->memory_use(c->device, &use);
    int64_t bytes = (int64_t)((double)use.total * c->options.memory_share);
    if (bytes > 0 && (!c->options.memory_limit || bytes < c->options.memory_limit))
        c->device->calls->limit(c->device, bytes);
}

static cup_status open_context(cup_context *c)
{
    double share = c->options.memory_share;
    if (c->options.memory_limit < 0 || c->options.threads < 0)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "memory_limit and threads must not be negative; 0 means the default");
    if (!(share >= 0 && share <= 1))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "memory_share is a part of the device's memory, from 0 to 1; 0 means no "
                         "limit");
    int64_t threads = c->options.threads;
    if (!threads)
        CUP_TRY(cup__env_integer(&c->error, CUP__ENV_THREADS, &threads));
    cup__threads_set((int)threads);
    CUP_TRY(cup__precision_find(&c->error, cup__env_get(CUP__ENV_PRECISION), &c->precision));
    CUP_TRY(open_device(c, c->options.device ? c->options.device : cup__env_get(CUP__ENV_DEVICE)));
    limit_share(c);
    CUP_TRY(cup__env_check(&c->error, CUP__ENV_DEBUG));
    if (c->options.debug || !strcmp(cup__env_get(CUP__ENV_DEBUG), "1"))
        CUP_TRY(cup__debug_open(c));
    return open_random(c);
}

static cup_context *context_struct(void)
{
    cup_context *c = cup__calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->recording = true;
    c->preferences = cup__env_get(CUP__ENV_IMPL);
    c->scopes = cup__calloc(8, sizeof *c->scopes);
    c->scope_capacity = 8;
    c->depth = 1;
    if (!c->scopes) {
        cup__free(c);
        return NULL;
    }
    return c;
}

cup_context *cup_context_new(const cup_options *options)
{
    cup_context *c = context_struct();
    if (!c)
        return NULL;
    if (cup__options_take(&c->error, "context", &c->options, sizeof *options, options) == CUP_OK &&
        open_context(c) == CUP_OK)
        cup__log(CUP__INFO, "device: %s", c->device->text);
    return c;
}

cup_context *cup__context_cpu(int threads)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = threads));
}

cup_context *cup__context_dry(const char *arch)
{
    cup_context *c = context_struct();
    if (c && cup__dry_open(&c->error, arch, &c->device) == CUP_OK)
        open_random(c);
    return c;
}

/* Whose end frees the tensors of a list. The context's frees what a guest holds as well; that of a
 * scope that the caller closes is also the end of what the tape holds, for the caller. */
typedef enum end { OF_CONTEXT, OF_SCOPE, OF_CALLERS_SCOPE } end;

static void free_list(cup_tensor **list, end whose)
{
    while (*list) {
        cup_tensor *t = *list;
        if (t->context->debug && (t->refs == 1 || whose == OF_CALLERS_SCOPE))
            cup__debug_gone(t, "its scope was closed");
        if (whose != OF_CONTEXT) {
            cup__tensor_disown(t);
            continue;
        }
        t->refs = 1;
        t->grad = NULL; /* which stands on a list itself */
        cup__tensor_release(t);
    }
}

static void close_device(cup_context *c)
{
    if (c->device)
        c->device->calls->close(c->device);
    c->device = NULL;
}

static void free_struct(cup_context *c)
{
    close_device(c);
    if (c->debug)
        cup__debug_close(c);
    while (c->spare) {
        cup_tensor *t = c->spare;
        c->spare = t->next;
        cup__free(t);
    }
    while (c->spare_storage) {
        cup__storage *storage = c->spare_storage;
        c->spare_storage = storage->next;
        cup__free(storage);
    }
    cup__free(c->halves);
    cup__free(c->scopes);
    cup__free(c);
}

void cup_context_free(cup_context *c)
{
    if (!c)
        return;
    while (c->helpers) {
        cup__helper *helper = c->helpers;
        c->helpers = helper->next;
        helper->stop(helper->user);
    }
    cup__coming_end_all(c);
    if (c->device)
        c->device->calls->synchronize(c->device);
    if (c->debug)
        cup__debug_leaks(c);
    if (c->tape)
        c->tape_calls->free(c);
    while (c->depth > 0)
        free_list(&c->scopes[--c->depth].tensors, OF_CONTEXT);
    free_list(&c->kept, OF_CONTEXT);
    free_list(&c->held, OF_CONTEXT);
    for (int i = 0; i < CUP__SLOTS; i++)
        if (c->slots[i].kept)
            c->slots[i].free(c->slots[i].kept);
    if (c->random.state)
        c->device->calls->release(c->device, c->random.state);
    if (c->holds == 0)
        close_device(c);
    c->closed = true;
    cup__error_clear(&c->error);
    cup__fail(&c->error, CUP_STATE,
              "the context was freed before what was made of it; free optimizers, models and the "
              "like first");
    if (c->guests == 0)
        free_struct(c);
}

void cup__helper_add(cup_context *c, cup__helper *helper)
{
    helper->next = c->helpers;
    c->helpers = helper;
}

void cup__helper_remove(cup_context *c, cup__helper *helper)
{
    for (cup__helper **link = &c->helpers; *link; link = &(*link)->next)
        if (*link == helper) {
            *link = helper->next;
            return;
        }
}

void cup__context_join(cup_context *c)
{
    c->guests++;
}

void cup__context_leave(cup_context *c)
{
    c->guests--;
    if (c->closed && c->holds == 0)
        close_device(c);
    if (c->closed && c->guests == 0)
        free_struct(c);
}

const char *cup_device_text(const cup_context *c)
{
    return c && c->device ? c->device->text : "none";
}

bool cup_device_is_cuda(const cup_context *c)
{
    return c && c->device && c->device->is_cuda;
}

cup_status cup_synchronize(cup_context *c)
{
    if (!c)
        return CUP_MEMORY;
    CUP__DEBUG_CALL(c);
    cup__coming_end_all(c);
    if (c->device)
        CUP_TRY(c->device->calls->synchronize(c->device));
    return c->error.status;
}

cup_status cup_error(const cup_context *c)
{
    return c ? c->error.status : CUP_MEMORY;
}

const char *cup_error_text(const cup_context *c)
{
    return c ? c->error.text : "there is no host memory for a context";
}

cup_status cup_fail(cup_context *c, cup_status status, const char *format, ...)
{
    char words[CUP__ERROR_TEXT];
    va_list args;
    if (!c || status == CUP_OK)
        return c ? status : CUP_MEMORY;
    va_start(args, format);
    vsnprintf(words, sizeof words, format ? format : "a failure without words", args);
    va_end(args);
    return cup__fail(&c->error, status, "%s", words);
}

void cup_error_clear(cup_context *c)
{
    /* Of a context that could not be made as a whole the error is all there is. */
    if (c && c->random.state && !c->closed)
        cup__error_clear(&c->error);
}

void cup_scope_open(cup_context *c)
{
    if (!c)
        return;
    CUP__DEBUG_CALL(c);
    if (!cup__grow(&c->scopes, &c->scope_capacity, c->depth, sizeof *c->scopes)) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory while opening a scope");
        c->unopened++;
        return;
    }
    c->scopes[c->depth++] = (cup__scope){0};
}

static void pop(cup_context *c, end whose)
{
    if (c->unopened > 0)
        c->unopened--;
    else if (c->depth > 1) {
        cup__scope *scope = &c->scopes[--c->depth];
        if (scope->without_grad)
            c->recording = scope->recorded;
        free_list(&scope->tensors, whose);
    }
}

void cup__scope_pop(cup_context *c)
{
    pop(c, OF_SCOPE);
}

void cup__callback_begin(cup_context *c, cup__callback *callback)
{
    *callback = (cup__callback){c->depth + c->unopened, c->floor, c->recording};
    c->floor = callback->scopes;
}

bool cup__callback_is_even(const cup_context *c, const cup__callback *callback)
{
    return c->depth + c->unopened == callback->scopes;
}

void cup__callback_end(cup_context *c, const cup__callback *callback)
{
    while (!cup__callback_is_even(c, callback))
        pop(c, OF_SCOPE);
    c->floor = callback->floor;
    c->recording = callback->recording;
}

/* Closes a scope for the caller, if it is one of its own. */
static void close_own(cup_context *c)
{
    if (c->floor && c->depth + c->unopened == c->floor)
        cup__fail(&c->error, CUP_STATE,
                  "an op or a block of yours closes a scope that was opened before it was called; "
                  "it must close the scopes it opens, and no other");
    else
        pop(c, OF_CALLERS_SCOPE);
}

void cup_scope_open_without_grad(cup_context *c)
{
    size_t depth = c ? c->depth : 0;
    cup_scope_open(c);
    if (!c || c->depth == depth)
        return;
    c->scopes[c->depth - 1].without_grad = true;
    c->scopes[c->depth - 1].recorded = c->recording;
    c->recording = false;
}

cup_status cup_scope_return_all(cup_context *c, cup_tensor *const *tensors, int count)
{
    if (!c)
        return CUP_MEMORY;
    CUP__DEBUG_CALL(c);
    if (count < 0 || (count > 0 && !tensors))
        cup__fail(&c->error, CUP_ARGUMENT, "%d tensors to return from a scope%s", count,
                  count < 0 ? "" : "; the list of them is NULL");
    for (int i = 0; tensors && i < count; i++)
        if (cup__usable(tensors[i], true, "cup_scope_return_all"))
            cup__tensor_hand_out(tensors[i]);
    close_own(c);
    return c->error.status;
}

cup_tensor *cup_scope_return(cup_context *c, cup_tensor *t)
{
    if (!c)
        return NULL;
    CUP__DEBUG_CALL(c);
    if (!cup__usable(t, true, "cup_scope_return"))
        t = NULL;
    cup__tensor_hand_out(t);
    close_own(c);
    return t;
}

void cup_scope_close(cup_context *c)
{
    if (!c)
        return;
    CUP__DEBUG_CALL(c);
    bool outermost = c->depth == 2 && !c->unopened && !c->floor;
    if (outermost && c->tape && !c->scopes[1].without_grad)
        c->tape_calls->clear(c);
    close_own(c);
}

void cup_seed(cup_context *c, uint64_t seed)
{
    if (!c)
        return;
    c->random.seed = seed;
    cup_random_step(c, 0);
}

void cup_random_step(cup_context *c, uint64_t step)
{
    if (!c || !c->random.state)
        return;
    CUP__DEBUG_CALL(c);
    c->random.step = step;
    c->random.sequence = 0;
    uint64_t state[2] = {c->random.seed, step};
    c->device->calls->write(c->device, c->random.state, state, sizeof state);
}

void cup_random_skip(cup_context *c, int64_t calls)
{
    if (!c)
        return;
    CUP__DEBUG_CALL(c);
    c->random.sequence += (uint32_t)calls;
}

void cup_stop_when(cup_context *c, bool (*stop)(void *user), void *user)
{
    if (!c)
        return;
    CUP__DEBUG_CALL(c);
    c->stop = stop;
    c->stop_user = user;
}

cup_status cup__stopped(cup_context *c)
{
    if (!c->stop || !c->stop(c->stop_user))
        return CUP_OK;
    return cup__fail(&c->error, CUP_INTERRUPTED, "stopped, as was asked for");
}

const char *const cup__precision_names[] = {
    [CUP__HIGHEST] = "highest", [CUP__HIGH] = "high", [CUP__MEDIUM] = "medium"};

cup_status cup__precision_find(cup__error *error, const char *name, cup__precision *out)
{
    for (int i = 0; name && i < 3; i++)
        if (!strcmp(name, cup__precision_names[i])) {
            *out = (cup__precision)i;
            return CUP_OK;
        }
    return cup__fail(error, CUP_ARGUMENT,
                     "precision \"%.100s\" is unknown; use highest, high or medium",
                     name ? name : "NULL");
}

cup_status cup_precision(cup_context *c, const char *precision)
{
    return c ? cup__precision_find(&c->error, precision, &c->precision) : CUP_MEMORY;
}
