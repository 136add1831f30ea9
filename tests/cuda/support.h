/* A GPU for tests: the fake driver's, or the machine's. */
#ifndef CUDA_SUPPORT_H
#define CUDA_SUPPORT_H

#include "cuda/gpu.h"
#include "fake/fake.h"

/* Makes the library take the fake driver and the fake NVRTC; call it before anything else. The
 * cache and the kernel sources are in the test's folder, whose path is returned. */
const char *fake_begin(void);
/* The same in a folder that is there, for each of several processes. */
void fake_begin_in(const char *folder);
/* Writes a kernel source there. */
void fake_source(const char *folder, const char *name, const char *text);
#define FAKE_ADD "extern \"C\" __global__ void fake_add(uint32_t *p, uint32_t n, uint32_t v) {}\n"

extern fake_fail_function *fake_fail;
extern fake_calls_function *fake_calls;
extern fake_live_function *fake_live;
extern fake_queued_function *fake_queued;

/* Opens cuda:0 of it; the test fails when that does. */
cup__cuda *fake_open(cup__error *error);
/* Launches the kernel fake_add of add.cu, which the fake driver carries out: it adds `value` to
 * `count` numbers of 32 bits. */
cup_status fake_add(cup__cuda *gpu, void *memory, uint32_t count, uint32_t value);
/* Fails the test when the driver still holds anything. */
void fake_expect_nothing_left(void);

/* The machine's own GPU; the test is skipped where there is none. */
cup__cuda *gpu_open(cup__error *error);

/* For tests of the compiler: fake_begin, with a count of compilations by all processes. */
extern const char *kernel_folder;
void kernel_begin(void);
int kernels_compiled(void);
/* Gets the code of a file with one knob, for sm_90a. */
cup_status kernel_code(cup__error *error, const char *file, int64_t knob);

#define EXPECT_OK(error, call)                                                                     \
    do {                                                                                           \
        if ((call) != CUP_OK)                                                                      \
            test_fail(__FILE__, __LINE__, "%s: %s", #call, (error)->text);                         \
    } while (0)

#endif
