#include "cupola/facts.h"

#include <stdio.h>
#include <string.h>

#include "base/blas.h"
#include "base/env.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cache.h"
#include "cuda/cuda.h"
#include "cuda/loader.h"
#include "dispatch/op.h"
#include "dispatch/tuning.h"
#include "tensor/context.h"

int cup_gpu_count(char *why, size_t bytes)
{
    char words[512];
    int count = cup__cuda_count(words);
    if (why && bytes)
        snprintf(why, bytes, "%s", words);
    return count;
}

static void tell_gpu(cup_gpu *to, const cup__gpu_facts *from)
{
    to->index = from->index;
    to->major = from->major;
    to->minor = from->minor;
    to->multiprocessors = from->multiprocessors;
    to->memory_bytes = from->memory_bytes;
    snprintf(to->name, sizeof to->name, "%s", from->name);
    snprintf(to->arch, sizeof to->arch, "%s", from->arch);
}

cup_status cup_gpu_look(int index, cup_gpu *out)
{
    cup__error error = {0};
    cup__gpu_facts facts = {.index = index};
    if (!out)
        return CUP_ARGUMENT;
    cup_status status = cup__cuda_look(&error, index, &facts);
    *out = (cup_gpu){.usable = status == CUP_OK};
    tell_gpu(out, &facts);
    snprintf(out->why, sizeof out->why, "%.511s", error.text);
    return status;
}

bool cup_gpu_of(const cup_context *c, cup_gpu *out)
{
    if (out)
        *out = (cup_gpu){.index = -1};
    if (!out || !c || !cup_device_is_cuda(c))
        return false;
    tell_gpu(out, cup__cuda_facts(cup__cuda_of(c->device)));
    out->usable = true;
    return true;
}

bool cup_device_computes_in(const cup_context *c, cup_dtype dtype)
{
    if (!c || !c->device)
        return false;
    if (dtype == CUP_F32 || dtype == CUP_F64)
        return true;
    if (!c->device->is_cuda)
        return false;
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    int capability = facts->major * 10 + facts->minor;
    return dtype == CUP_F16                             ? true
           : dtype == CUP_BF16                          ? capability >= 80
           : dtype == CUP_F8E4M3 || dtype == CUP_F8E5M2 ? capability >= 89
                                                        : false;
}

int cup_threads(void)
{
    int64_t threads;
    if (cup__env_integer(NULL, CUP__ENV_THREADS, &threads) == CUP_OK && threads > 0)
        return (int)threads;
    return cup__threads_usable();
}

static cup_library_facts blas_facts(void)
{
    const cup__blas *blas = cup__blas_get();
    return (cup_library_facts){.name = "BLAS",
                               .needed_for = "fast matrix products on a CPU",
                               .found = blas->found,
                               .text = blas->text,
                               .cure = "install libopenblas0, or name one with CUP_BLAS"};
}

cup_status cup_library_look(cup_library library, cup_library_facts *out)
{
    static const cup__library ours[] = {[CUP_LIBRARY_DRIVER] = CUP__LIBCUDA,
                                        [CUP_LIBRARY_NVRTC] = CUP__LIBNVRTC,
                                        [CUP_LIBRARY_CUBLASLT] = CUP__LIBCUBLASLT,
                                        [CUP_LIBRARY_NCCL] = CUP__LIBNCCL,
                                        [CUP_LIBRARY_CUDNN] = CUP__LIBCUDNN,
                                        [CUP_LIBRARY_CUFFT] = CUP__LIBCUFFT,
                                        [CUP_LIBRARY_CUSOLVER] = CUP__LIBCUSOLVER};
    if (!out || (unsigned)library > CUP_LIBRARY_CUSOLVER)
        return CUP_ARGUMENT;
    if (library == CUP_LIBRARY_BLAS) {
        *out = blas_facts();
        return CUP_OK;
    }
    const cup__library_report *r = cup__library_report_of(ours[library]);
    *out = (cup_library_facts){.name = r->name,
                               .needed_for = r->needed_for,
                               .found = r->found,
                               .version = r->found ? r->version : 0,
                               .text = r->found ? r->path : r->reason,
                               .cure = r->cure};
    return CUP_OK;
}

bool cup_variable_at(int index, cup_variable *out)
{
    if (!out || index < 0 || index >= CUP__ENV_COUNT)
        return false;
    cup__env variable = (cup__env)index;
    *out = (cup_variable){.name = cup__env_name(variable),
                          .value = cup__env_get(variable),
                          .standard = cup__env_default(variable),
                          .words = cup__env_words(variable)};
    return true;
}

/* Who is told what is wrong, and whether anything that counts was. */
typedef struct findings {
    void (*report)(const char *sentence, bool counts, void *user);
    void *user;
    bool any;
} findings;

static void find(findings *f, const char *sentence, bool counts)
{
    f->any |= counts;
    if (f->report)
        f->report(sentence, counts, f->user);
}

static bool has_impl(const cup__row *row, const char *name)
{
    for (const cup__impl *impl = row->op->impls; impl && impl->name; impl++)
        if (!strcmp(impl->name, name))
            return true;
    return false;
}

/* CUP_IMPL, op=name,op=name: both must be there. */
static void check_impls(findings *f)
{
    for (const char *at = cup__env_get(CUP__ENV_IMPL); *at; at += *at == ',') {
        cup__error error = {0};
        char op[128], *name;
        size_t length = strcspn(at, ",");
        snprintf(op, sizeof op, "%.*s", (int)length, at);
        at += length;
        name = op + strcspn(op, "=");
        if (*name)
            *name++ = 0;
        const cup__row *row = cup__row_find(op);
        if (!row)
            cup__fail(&error, CUP_ARGUMENT, "CUP_IMPL: there is no op %s; write op=name,op=name",
                      op);
        else if (!has_impl(row, name))
            cup__fail(&error, CUP_ARGUMENT,
                      "CUP_IMPL: %s has no implementation \"%s\"; see cupola ops %s", op, name, op);
        if (error.status != CUP_OK)
            find(f, error.text, true);
    }
}

/* A line that is no record costs that record alone. */
static void check_tuning(findings *f)
{
    cup__error error = {0}, told = {0};
    cup__tuning tuning = {0};
    char *path = NULL;
    if (cup__tuning_path(&error, &path) == CUP_OK && path)
        cup__tuning_read(&error, path, false, &tuning);
    if (error.status != CUP_OK) {
        cup__fail(&told, error.status, "%s; %s", error.text,
                  tuning.count ? "the other lines count" : "no record of it counts");
        find(f, told.text, false);
    }
    cup__tuning_free(&tuning);
    cup__free(path);
}

/* A pack that cannot be used would be passed over without a word. */
static void check_pack(findings *f)
{
    cup__error error = {0}, told = {0};
    const char *path = cup__env_get(CUP__ENV_KERNEL_PACK);
    if (!*path || cup__env_check(NULL, CUP__ENV_KERNEL_PACK) != CUP_OK ||
        cup__pack_check(&error, path) == CUP_OK)
        return;
    cup__fail(&told, error.status, "CUP_KERNEL_PACK: %s", error.text);
    find(f, told.text, true);
}

cup_status cup_variables_check(void (*report)(const char *sentence, bool counts, void *user),
                               void *user)
{
    findings f = {.report = report, .user = user};
    check_impls(&f);
    check_pack(&f);
    check_tuning(&f);
    for (int i = 0; i < CUP__ENV_COUNT; i++) {
        cup__error error = {0};
        if (cup__env_check(&error, (cup__env)i) != CUP_OK)
            find(&f, error.text, true);
    }
    return f.any ? CUP_ARGUMENT : CUP_OK;
}

static const cup__row *row_at(int index)
{
    const cup__row *row = index < 0 ? NULL : cup__rows;
    for (int i = 0; row && row->name && i < index; i++)
        row++;
    return row && row->name ? row : NULL;
}

bool cup_op_at(int index, cup_op_facts *out)
{
    const cup__row *row = row_at(index);
    if (!row || !out)
        return false;
    *out = (cup_op_facts){.name = row->name,
                          .inputs = row->inputs,
                          .attributes = row->attributes_text,
                          .results = row->results,
                          .words = row->words,
                          .is_public = row->is_public,
                          .has_gradient = row->op->gradient != NULL,
                          .has_second_derivatives = row->op->composed != NULL,
                          .is_view = row->op->view != NULL};
    return true;
}

int cup_op_find(const char *name)
{
    const cup__row *row = name ? cup__row_find(name) : NULL;
    return row ? (int)(row - cup__rows) : -1;
}

bool cup_op_way_at(int op, int index, cup_op_way *out)
{
    const cup__row *row = row_at(op);
    const cup__impl *impl = row && index >= 0 ? row->op->impls : NULL;
    for (int i = 0; impl && impl->name && i < index; i++)
        impl++;
    if (!impl || !impl->name || !out)
        return false;
    *out = (cup_op_way){.name = impl->name, .is_cuda = impl->place == CUP__CUDA};
    return true;
}
