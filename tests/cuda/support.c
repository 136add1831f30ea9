#include "support.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cuda/kernels.h"
#include "test.h"

fake_fail_function *fake_fail;
fake_calls_function *fake_calls;
fake_live_function *fake_live;
fake_queued_function *fake_queued;

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        test_fail(__FILE__, __LINE__, "the fake driver lacks %s", name);
    return found;
}

const char *fake_begin(void)
{
    const char *folder = test_folder();
    fake_begin_in(folder);
    return folder;
}

void fake_begin_in(const char *folder)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/fake/libnvrtc.so", test_build());
    setenv("CUP_LIBNVRTC", path, 1);
    snprintf(path, sizeof path, "%s/fake/libcuda.so.1", test_build());
    setenv("CUP_LIBCUDA", path, 1);
    setenv("CUP_LIBCUBLASLT", "off", 1); /* which does not know the fake driver */
    setenv("CUP_LIBCUDNN", "off", 1);
    setenv("CUP_LIBCUFFT", "off", 1);
    setenv("CUP_LIBCUSOLVER", "off", 1);
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        test_fail(__FILE__, __LINE__, "%s", dlerror());
    *(void **)&fake_fail = symbol(library, "fake_cuda_fail");
    *(void **)&fake_calls = symbol(library, "fake_cuda_calls");
    *(void **)&fake_live = symbol(library, "fake_cuda_live");
    *(void **)&fake_queued = symbol(library, "fake_cuda_queued");
    setenv("CUP_KERNELS", folder, 1);
    snprintf(path, sizeof path, "%s/cache", folder);
    setenv("CUP_CACHE", path, 1);
    fake_source(folder, "add.cu", FAKE_ADD);
}

void fake_source(const char *folder, const char *name, const char *text)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fputs(text, file) < 0 || fclose(file))
        test_fail(__FILE__, __LINE__, "%s cannot be written", path);
}

cup__cuda *fake_open(cup__error *error)
{
    cup__device *device;
    EXPECT_OK(error, cup__cuda_open(error, 0, 0, &device));
    return cup__cuda_of(device);
}

cup_status fake_add(cup__cuda *gpu, void *memory, uint32_t count, uint32_t value)
{
    cup__kernel *kernel = cup__kernel_get(gpu, "add.cu", "fake_add", NULL, 0);
    cup__grid grid = {.x = 1, .threads = 32};
    return cup__launch(gpu, kernel, grid, CUP__ARG(memory), CUP__ARG(count), CUP__ARG(value));
}

void fake_expect_nothing_left(void)
{
    char words[512];
    if (fake_live(words))
        test_fail(__FILE__, __LINE__, "left in the driver: %s", words);
}

cup__cuda *gpu_open(cup__error *error)
{
    char why[512];
    cup__device *device;
    if (cup__cuda_count(why) == 0)
        test_skip("no GPU: %.120s", why);
    EXPECT_OK(error, cup__cuda_open(error, 0, 0, &device));
    return cup__cuda_of(device);
}

const char *kernel_folder;

void kernel_begin(void)
{
    char path[4400];
    kernel_folder = fake_begin();
    snprintf(path, sizeof path, "%s/compiled", kernel_folder);
    setenv("FAKE_NVRTC_COUNT", path, 1);
}

/* Compilations of all processes so far. */
int kernels_compiled(void)
{
    char path[4400];
    struct stat status;
    snprintf(path, sizeof path, "%s/compiled", kernel_folder);
    return stat(path, &status) ? 0 : (int)status.st_size;
}

cup_status kernel_code(cup__error *error, const char *file, int64_t knob)
{
    cup__knob knobs[] = {{"CUP_T", knob}};
    cup__kernel_request request = {file, knobs, 1, NULL};
    const cup__code *code;
    return cup__code_get(error, "sm_90a", &request, &code);
}
