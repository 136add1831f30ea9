#include "cuda/kernel.h"

#include <string.h>

#include "base/memory.h"
#include "cuda/dry.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"

struct cup__module {
    CUmodule handle;
    const cup__code *code; /* what it was loaded from; one of each a GPU */
    cup__kernel *kernels;
    cup__module *next;
};

/* The short way: equal pointers and values. */

static size_t slot_of(const cup__kernels *k, const cup__kernel_alias *of)
{
    const char *source = of->text ? of->text : of->file;
    uint64_t hash = (uintptr_t)source * 0x9e3779b97f4a7c15u + (uintptr_t)of->entry;
    for (int i = 0; i < of->knob_count; i++)
        hash = (hash ^ (uint64_t)of->knobs[i].value) * 0xff51afd7ed558ccdu;
    hash = (hash ^ hash >> 32) * 0xc4ceb9fe1a85ec53u;
    return (size_t)(hash >> 32) & (k->alias_capacity - 1);
}

static bool same(const cup__kernel_alias *a, const cup__kernel_alias *b)
{
    if (a->file != b->file || a->text != b->text || a->entry != b->entry ||
        a->knob_count != b->knob_count)
        return false;
    for (int i = 0; i < a->knob_count; i++)
        if (a->knobs[i].name != b->knobs[i].name || a->knobs[i].value != b->knobs[i].value)
            return false;
    return true;
}

/* Where it stands, or the empty slot where it would. */
static cup__kernel_alias *alias_slot(cup__kernels *k, const cup__kernel_alias *of)
{
    size_t slot = slot_of(k, of);
    while (k->aliases[slot].kernel && !same(&k->aliases[slot], of))
        slot = (slot + 1) & (k->alias_capacity - 1);
    return &k->aliases[slot];
}

static bool alias_reserve(cup__kernels *k)
{
    if (k->alias_count * 2 < k->alias_capacity)
        return true;
    cup__kernels larger = *k;
    larger.alias_capacity = k->alias_capacity ? k->alias_capacity * 2 : 256;
    larger.aliases = cup__calloc(larger.alias_capacity, sizeof *larger.aliases);
    if (!larger.aliases)
        return false;
    for (size_t i = 0; i < k->alias_capacity; i++)
        if (k->aliases[i].kernel)
            *alias_slot(&larger, &k->aliases[i]) = k->aliases[i];
    cup__free(k->aliases);
    *k = larger;
    return true;
}

/* Remembers the call. Without memory for that, it will only be slower again. */
static void alias_add(cup__kernels *k, const cup__kernel_alias *found)
{
    cup__knob *copy =
        alias_reserve(k) ? cup__calloc((size_t)found->knob_count, sizeof *copy) : NULL;
    if (!copy)
        return;
    if (found->knob_count)
        memcpy(copy, found->knobs, (size_t)found->knob_count * sizeof *copy);
    cup__kernel_alias *slot = alias_slot(k, found);
    *slot = *found;
    slot->knobs = copy;
    k->alias_count++;
}

/* The long way: code, module, function. */

static cup_status fail_load(cup__cuda *gpu, CUresult result, const char *file, const char *log)
{
    int driver = cup__library_report_of(CUP__LIBCUDA)->version;
    int compiler = cup__compiler_version();
    char words[CUP__RESULT_TEXT];
    bool foreign = result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
                   result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    if (!foreign)
        return cup__cuda_check(gpu, result, "loading a kernel");
    cup__cuda_result_text(result, words);
    return cup__fail(gpu->device.error, CUP_DRIVER,
                     "the driver refuses the code of %s for %s: %s%s%s%s", file, gpu->facts.arch,
                     words, *log ? ": " : "", log,
                     driver < compiler
                         ? "; it is older than the NVRTC that made it: update the driver, or "
                           "install an NVRTC of its version and set CUP_LIBNVRTC"
                         : "; clear the cache with \"cupola kernels clear\"");
}

static cup_status load_module(cup__cuda *gpu, const char *file, const cup__code *code,
                              cup__module **out)
{
    for (cup__module *m = gpu->kernels.modules; m; m = m->next)
        if (m->code == code) {
            *out = m;
            return CUP_OK;
        }
    cup__module *module = cup__calloc(1, sizeof *module);
    if (!module)
        return cup__fail(gpu->device.error, CUP_MEMORY, "out of host memory for %s", file);
    char log[1024] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    CUresult result =
        cup__driver.cuModuleLoadDataEx(&module->handle, code->bytes, 2, options, values);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && cup__pool_trim(gpu->pool) > 0)
        result = cup__driver.cuModuleLoadDataEx(&module->handle, code->bytes, 2, options, values);
    if (result != CUDA_SUCCESS) {
        cup__free(module);
        return fail_load(gpu, result, file, log);
    }
    module->code = code;
    module->next = gpu->kernels.modules;
    gpu->kernels.modules = module;
    *out = module;
    return CUP_OK;
}

/* The arguments a launch is checked against; -1 when the driver, before 12.4, cannot tell. */
static int read_arguments(cup__kernel *kernel)
{
    size_t offset;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    int count = 0;
    if (!cup__driver.cuFuncGetParamInfo)
        return -1;
    while (count < CUP__MOST_ARGUMENTS &&
           (result = cup__driver.cuFuncGetParamInfo(kernel->function, (size_t)count, &offset,
                                                    &kernel->argument_sizes[count])) ==
               CUDA_SUCCESS)
        count++;
    return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE ? count : -1;
}

static cup_status read_attributes(cup__cuda *gpu, cup__kernel *kernel)
{
    const struct {
        CUfunction_attribute attribute;
        int *to;
    } wanted[] = {
        {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &kernel->threads_most},
        {CU_FUNC_ATTRIBUTE_NUM_REGS, &kernel->registers},
        {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &kernel->local_bytes},
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &kernel->static_shared},
        {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, &kernel->shared_allowed},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        CUP_TRY(cup__cuda_check(gpu,
                                cup__driver.cuFuncGetAttribute(
                                    wanted[i].to, wanted[i].attribute, kernel->function),
                                "asking for a kernel's properties"));
    kernel->argument_count = read_arguments(kernel);
    return CUP_OK;
}

static void kernel_free(cup__kernel *kernel)
{
    cup__free(kernel->name);
    cup__free(kernel);
}

static cup_status load_kernel(cup__cuda *gpu, cup__module *module, const char *file,
                              const char *entry, cup__kernel **out)
{
    for (cup__kernel *k = module->kernels; k; k = k->next)
        if (!strcmp(k->name, entry)) {
            *out = k;
            return CUP_OK;
        }
    cup__kernel *kernel = cup__calloc(1, sizeof *kernel);
    if (!kernel || !(kernel->name = cup__strdup(entry))) {
        cup__free(kernel);
        return cup__fail(gpu->device.error, CUP_MEMORY, "out of host memory for %s", file);
    }
    CUresult result = cup__driver.cuModuleGetFunction(&kernel->function, module->handle, entry);
    cup_status status = CUP_OK;
    if (result == CUDA_ERROR_NOT_FOUND)
        status = cup__fail(gpu->device.error, CUP_COMPILE,
                           "%s has no entry %s; is it extern \"C\" __global__?", file, entry);
    else
        status = cup__cuda_check(gpu, result, "loading a kernel");
    /* At once, since loading it at its first launch may wait, which a capture does not allow. */
    if (status == CUP_OK && cup__driver.cuFuncLoad)
        status = cup__cuda_check(gpu, cup__driver.cuFuncLoad(kernel->function),
                                 "loading a kernel");
    if (status == CUP_OK)
        status = read_attributes(gpu, kernel);
    if (status != CUP_OK) {
        kernel_free(kernel);
        return status;
    }
    kernel->module = module;
    kernel->next = module->kernels;
    module->kernels = kernel;
    *out = kernel;
    return CUP_OK;
}

cup__kernel *cup__kernel_from_text(cup__cuda *gpu, const char *name, const char *text,
                                   const char *entry, const cup__knob *knobs, int knob_count)
{
    cup__kernel_request request = {name, knobs, knob_count, text};
    const cup__code *code;
    cup__module *module;
    cup__kernel *kernel = NULL;
    if (gpu->dry)
        return cup__dry_kernel(gpu, &request);
    if (cup__cuda_enter(gpu) != CUP_OK ||
        cup__code_get(gpu->device.error, gpu->facts.arch, &request, &code) != CUP_OK ||
        load_module(gpu, name, code, &module) != CUP_OK ||
        load_kernel(gpu, module, name, entry, &kernel) != CUP_OK)
        return NULL;
    return kernel;
}

cup__kernel *cup__kernel_of_text(cup__cuda *gpu, const char *file, const char *text,
                                 const char *entry, const cup__knob *knobs, int knob_count)
{
    cup__kernels *k = &gpu->kernels;
    cup__kernel_alias call = {file, text, entry, knobs, knob_count, NULL};
    if (k->alias_capacity) {
        cup__kernel *known = alias_slot(k, &call)->kernel;
        if (known)
            return known;
    }
    call.kernel = cup__kernel_from_text(gpu, file, text, entry, knobs, knob_count);
    if (call.kernel)
        alias_add(k, &call);
    return call.kernel;
}

cup__kernel *cup__kernel_get(cup__cuda *gpu, const char *file, const char *entry,
                             const cup__knob *knobs, int knob_count)
{
    return cup__kernel_of_text(gpu, file, NULL, entry, knobs, knob_count);
}

void cup__kernels_close(cup__cuda *gpu, bool driver)
{
    cup__kernels *k = &gpu->kernels;
    while (k->modules) {
        cup__module *module = k->modules;
        k->modules = module->next;
        while (module->kernels) {
            cup__kernel *kernel = module->kernels;
            module->kernels = kernel->next;
            kernel_free(kernel);
        }
        if (driver)
            cup__driver.cuModuleUnload(module->handle);
        cup__free(module);
    }
    for (size_t i = 0; i < k->alias_capacity; i++)
        cup__free((void *)(uintptr_t)k->aliases[i].knobs);
    cup__free(k->aliases);
    *k = (cup__kernels){0};
}
