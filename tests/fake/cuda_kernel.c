/* Modules and kernels of the fake driver. Code of the fake NVRTC is text: "FAKE", then a line for
 * each entry with its name and the sizes of its arguments. The entry fake_add(p, n, v) is carried
 * out: it adds v to n 32-bit numbers; so is adamw_step, see cuda_update.c; others do nothing. */
#define FAKE_INSIDE
#include "fake.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define NEED(result, name, exported, arguments) EXPORT result name arguments __asm__(exported);
#define MAY NEED
#include "cuda/driver.def"
#undef NEED
#undef MAY

struct CUfunc_st {
    struct CUfunc_st *next;
    char name[128];
    int count; /* of arguments; -1: unknown */
    size_t sizes[64];
    int shared;
    fake_update *updates;
};
struct CUmod_st {
    CUfunction functions;
};

static void read_entry(CUmodule module, const char *line)
{
    CUfunction function = calloc(1, sizeof *function);
    int used = 0;
    if (sscanf(line, "%127s%n", function->name, &used) == 1) {
        unsigned long size;
        int more;
        while (function->count < 64 && sscanf(line += used, "%lu%n", &size, &more) == 1) {
            function->sizes[function->count++] = size;
            used = more;
        }
    }
    function->next = module->functions;
    function->shared = 49152;
    module->functions = function;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                            CUjit_option *options, void **values)
{
    ENTER;
    (void)count, (void)options, (void)values;
    const char *text = image;
    if (strncmp(text, "FAKE\n", 5) && strncmp(text, "\177ELF", 4))
        return CUDA_ERROR_INVALID_IMAGE;
    *module = calloc(1, sizeof **module);
    fake_count(FAKE_MODULE, 1);
    for (text = *text == 'F' ? text + 5 : ""; *text; text += *text == '\n') {
        char line[1024];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
        read_entry(*module, line);
        text += strcspn(text, "\n");
    }
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    LEAVE;
    fake_finish();
    while (module->functions) {
        CUfunction gone = module->functions;
        module->functions = gone->next;
        fake_update_free(gone->updates);
        free(gone);
    }
    free(module);
    fake_count(FAKE_MODULE, -1);
    return CUDA_SUCCESS;
}

/* Machine code of the real NVRTC is taken for whatever is asked of it. */
static CUfunction unknown(CUmodule module, const char *name)
{
    CUfunction function = calloc(1, sizeof *function);
    snprintf(function->name, sizeof function->name, "%s", name);
    function->count = -1;
    function->shared = 49152;
    function->next = module->functions;
    module->functions = function;
    return function;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER;
    for (CUfunction f = module->functions; f; f = f->next)
        if (!strcmp(f->name, name)) {
            *function = f;
            return CUDA_SUCCESS;
        }
    if (module->functions && module->functions->count >= 0)
        return CUDA_ERROR_NOT_FOUND;
    *function = unknown(module, name);
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function)
{
    ENTER;
    (void)function;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    ENTER;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK           ? 1024
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS                      ? 32
             : attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? function->shared
                                                                            : 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    ENTER;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        function->shared = value;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
    ENTER;
    *offset = 8 * index;
    if (function->count < 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (index >= (size_t)function->count)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = function->sizes[index];
    return CUDA_SUCCESS;
}

void fake_launch(const fake_work *work)
{
    if (work->update)
        fake_update_run(work->update);
    if (strcmp(work->function->name, "fake_add"))
        return;
    uint32_t *numbers = (uint32_t *)(uintptr_t)work->arguments[0];
    uint32_t count = (uint32_t)work->arguments[1], add = (uint32_t)work->arguments[2];
    for (uint32_t i = 0; i < count; i++)
        numbers[i] += add;
}

static CUresult launch(CUfunction function, CUstream stream, void **arguments, unsigned shared,
                       unsigned blocks)
{
    if ((int)shared > function->shared)
        return CUDA_ERROR_INVALID_VALUE;
    fake_work work = {.what = FAKE_LAUNCH, .function = function};
    if (!strcmp(function->name, "adamw_step"))
        work.update = function->updates = fake_update_new(arguments, blocks, function->updates);
    for (int i = 0; i < function->count; i++)
        if (function->sizes[i] <= sizeof *work.arguments)
            memcpy(&work.arguments[i], arguments[i], function->sizes[i]);
    return fake_queue(stream, &work);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared, CUstream stream,
                        void **arguments, void **extra)
{
    ENTER;
    (void)extra;
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(function, stream, arguments, shared, grid_x);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                          void **extra)
{
    ENTER;
    (void)extra;
    return launch(function, config->hStream, arguments, config->sharedMemBytes, config->gridDimX);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                     int threads, size_t shared)
{
    ENTER;
    (void)function, (void)shared;
    *blocks = 2048 / threads;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                      const CUlaunchConfig *config)
{
    ENTER;
    (void)function;
    *clusters = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            *clusters = (int)(config->gridDimX / config->attrs[i].value.clusterDim.x);
    return CUDA_SUCCESS;
}

/* What the real driver refuses, as its manual says. */
static bool can_encode(CUtensorMapDataType type, uint32_t rank, const void *address,
                       const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                       const uint32_t *steps, CUtensorMapSwizzle swizzle)
{
    uint64_t element = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1
                       : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ||
                               type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                           ? 4
                           : 2;
    uint64_t row = rank ? box[0] * element : 0;
    bool can = rank >= 1 && rank <= 5 && (uintptr_t)address % 16 == 0 && row % 16 == 0;
    for (uint32_t i = 0; i < rank && i < 5; i++) {
        can = can && sizes[i] >= 1 && sizes[i] <= (uint64_t)1 << 32 && box[i] >= 1 &&
              box[i] <= 256 && steps[i] >= 1 && steps[i] <= 8;
        if (i + 1 < rank)
            can = can && strides[i] % 16 == 0 && strides[i] < (uint64_t)1 << 40;
    }
    return can && (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || row <= 16u << swizzle);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank,
                                void *address, const uint64_t *sizes, const uint64_t *strides,
                                const uint32_t *box, const uint32_t *element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    ENTER;
    (void)interleave, (void)promotion, (void)fill;
    memset(map, 0, sizeof *map);
    return can_encode(type, rank, address, sizes, strides, box, element_strides, swizzle)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank,
                                 void *address, const uint64_t *sizes, const uint64_t *strides,
                                 const int *lower, const int *upper, uint32_t channels,
                                 uint32_t pixels, const uint32_t *element_strides,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    ENTER;
    (void)interleave, (void)promotion, (void)fill;
    const uint32_t box[] = {channels, 1, 1, 1};
    bool can = rank == 4 && pixels >= 1 && pixels <= 1024 &&
               can_encode(type, rank, address, sizes, strides, box, element_strides, swizzle);
    for (uint32_t i = 0; i + 2 < 4 && can; i++)
        can = lower[i] >= -128 && lower[i] <= 127 && upper[i] >= -128 && upper[i] <= 127 &&
              (int64_t)sizes[i + 1] + upper[i] > lower[i];
    memset(map, 0, sizeof *map);
    return can ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
    ENTER;
    (void)map;
    return (uintptr_t)address % 16 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
