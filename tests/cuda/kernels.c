/* Compiling: with the fake NVRTC, and with the real one where it is. */
#include "cuda/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cuda/unit.h"
#include "support.h"
#include "test.h"

TEST(kernels_get_the_same)
{
    kernel_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    char file[] = "add.cu", entry[] = "fake_add", name[] = "VEC";
    cup__knob knobs[] = {{"CUP_T", 3}, {"VEC", 8}}, turned[] = {{name, 8}, {"CUP_T", 3}};
    cup__knob others[] = {{"CUP_T", 3}, {"VEC", 4}};
    cup__kernel *kernel = cup__kernel_get(gpu, "add.cu", "fake_add", knobs, 2);
    EXPECT(kernel != NULL);
    for (int i = 0; i < 3; i++) {
        EXPECT(cup__kernel_get(gpu, "add.cu", "fake_add", knobs, 2) == kernel);
        EXPECT(cup__kernel_get(gpu, file, entry, turned, 2) == kernel);
    }
    EXPECT_INT(kernels_compiled(), 1);
    EXPECT(cup__kernel_get(gpu, "add.cu", "fake_add", others, 2) != kernel);
    EXPECT(cup__kernel_get(gpu, "add.cu", "fake_add", knobs, 1) != kernel);
    EXPECT_INT(kernels_compiled(), 3);
    /* A text is known by itself, not by the name that it goes by. */
    static const char text[] = FAKE_ADD, longer[] = FAKE_ADD "/* longer */\n";
    cup__kernel *own = cup__kernel_of_text(gpu, "add.cu", text, "fake_add", knobs, 2);
    EXPECT(own != NULL);
    EXPECT(cup__kernel_of_text(gpu, "add.cu", text, "fake_add", knobs, 2) == own);
    EXPECT(cup__kernel_of_text(gpu, "add.cu", longer, "fake_add", knobs, 2) != own);
    EXPECT(cup__kernel_get(gpu, "add.cu", "fake_add", knobs, 2) == kernel);
    /* Many, so that the table grows. */
    cup__kernel *many[300];
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 300; i++) {
            cup__knob knob = {"CUP_T", 100 + i};
            cup__kernel *got = cup__kernel_get(gpu, "add.cu", "fake_add", &knob, 1);
            EXPECT(got && (!round || got == many[i]));
            many[i] = got;
        }
    EXPECT(cup__kernel_get(gpu, "add.cu", "fake_add", knobs, 2) == kernel);
    gpu->device.calls->close(&gpu->device);
    fake_expect_nothing_left();
}

/* Sources in a folder take the place of the library's, in a tree like src and side by side. */
TEST(kernels_in_a_folder)
{
    static const char *const places[] = {"src/ops/conv", "src/kernels", "ops/conv", "conv", ""};
    kernel_begin();
    for (int i = 0; i < 5; i++) {
        char root[20], folder[200];
        int own = 0;
        cup__error error = {0};
        cup__unit unit;
        snprintf(root, sizeof root, "sources%d", i);
        snprintf(folder, sizeof folder, "%s/%s/%s", kernel_folder, root, places[i]);
        EXPECT_INT(cup__folder_make(&error, folder), CUP_OK);
        fake_source(folder, "wgmma.cu", "#include \"vec.cuh\"\n  #include \"own.cuh\"\n");
        fake_source(folder, "own.cuh", "/* one's own */\n");
        snprintf(folder, sizeof folder, "%s/%s", kernel_folder, root);
        setenv("CUP_KERNELS", folder, 1);
        EXPECT_OK(&error, cup__unit_open(&error, "wgmma.cu", NULL, &unit));
        EXPECT_CONTAINS(unit.parts[0].text, "own.cuh");
        for (int j = 0; j < unit.count; j++)
            own += strstr(unit.parts[j].text, "one's own") != NULL;
        EXPECT_INT(own, 1);
        EXPECT(unit.count > 3); /* what vec.cuh includes is the library's */
        cup__unit_close(&unit);
    }
}

TEST(kernels_failures_are_told)
{
    kernel_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    EXPECT(!cup__kernel_get(gpu, "nothing.cu", "x", NULL, 0));
    EXPECT_INT(error.status, CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "there is no kernel source nothing.cu");
    cup__error_clear(&error);
    EXPECT(!cup__kernel_get(gpu, "add.cu", "nothing", NULL, 0));
    EXPECT_CONTAINS(error.text, "add.cu has no entry nothing");
    cup__error_clear(&error);
    fake_source(kernel_folder, "bad.cu", "#error");
    for (int i = 0; i < 3; i++) {
        EXPECT(!cup__kernel_get(gpu, "bad.cu", "x", NULL, 0));
        EXPECT_INT(error.status, CUP_COMPILE);
        EXPECT_CONTAINS(error.text, "x.cu(1): error: asked for");
        cup__error_clear(&error);
    }
    EXPECT_INT(kernels_compiled(), 2); /* what does not compile is not tried again */
    gpu->device.calls->close(&gpu->device);
    setenv("CUP_KERNELS", "/nowhere", 1);
    EXPECT(kernel_code(&error, "bad.cu", 0) != CUP_OK);
    EXPECT_CONTAINS(error.text, "CUP_KERNELS=/nowhere is not a folder");
}

static void expect_unfit(const char *report, const char *part)
{
    static int64_t knob;
    cup__error error = {0};
    setenv("FAKE_NVRTC_REPORT", report, 1);
    EXPECT_INT(kernel_code(&error, "add.cu", ++knob), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, part);
}

TEST(kernels_reports_are_judged)
{
    kernel_begin();
    static const char spilled[] =
        "ptxas info    : Function properties for k\n"
        "    180 bytes stack frame, 180 bytes spill stores, 212 bytes spill loads\n";
    /* A user's run goes on with slow code; our build does not. */
    setenv("FAKE_NVRTC_REPORT", spilled, 1);
    EXPECT_INT(kernel_code(NULL, "add.cu", 49), CUP_OK);
    cup__compile_strictly();
    expect_unfit(spilled, "180 bytes spill stores");
    expect_unfit("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions "
                 "are serialized due to x in function 'k'\n",
                 "wgmma");
    expect_unfit("ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; y\n",
                 "setmaxnreg");
    setenv("FAKE_NVRTC_REPORT",
           "    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n", 1);
    EXPECT_INT(kernel_code(NULL, "add.cu", 50), CUP_OK);
    setenv("FAKE_NVRTC_REPORT", spilled, 1);
    fake_source(kernel_folder, "may.cu", "/* CUP_SPILLS_ALLOWED: few registers. */\n" FAKE_ADD);
    EXPECT_INT(kernel_code(NULL, "may.cu", 50), CUP_OK);
}

typedef struct seen {
    int calls, failures, most;
} seen;

static void note(void *user, int done, int count, const cup__kernel_request *request,
                 const char *failure)
{
    seen *s = user;
    EXPECT_INT(done, ++s->calls);
    EXPECT(request->file != NULL);
    s->most = count;
    s->failures += failure != NULL;
}

TEST(kernels_prepare)
{
    kernel_begin();
    fake_source(kernel_folder, "bad.cu", "#error");
    cup__knob knobs[40];
    cup__kernel_request requests[40];
    for (int i = 0; i < 40; i++) {
        knobs[i] = (cup__knob){"CUP_T", i / 2}; /* each twice */
        requests[i] = (cup__kernel_request){i == 17 ? "bad.cu" : "add.cu", &knobs[i], 1, NULL};
    }
    seen s = {0};
    cup__error error = {0};
    EXPECT_INT(cup__kernels_prepare(&error, "sm_80", requests, 40, 8, note, &s), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "bad.cu for sm_80 (CUP_T=8) does not compile");
    EXPECT_INT(s.calls, 40);
    EXPECT_INT(s.most, 40);
    EXPECT_INT(s.failures, 1);
    EXPECT_INT(kernels_compiled(), 21);
    cup__error_clear(&error);
    EXPECT_INT(cup__kernels_prepare(&error, "nonsense", requests, 1, 1, NULL, NULL), CUP_ARGUMENT);
    EXPECT_CONTAINS(error.text, "architecture \"nonsense\" is unknown");
}

static void *many_gets(void *user)
{
    for (int i = 0; i < 60; i++)
        if (kernel_code(NULL, "add.cu", (i + (int)(intptr_t)user) % 12) != CUP_OK)
            return user;
    return NULL;
}

TEST(kernels_threads)
{
    kernel_begin();
    pthread_t threads[8];
    void *failed;
    for (intptr_t i = 0; i < 8; i++)
        EXPECT_INT(pthread_create(&threads[i], NULL, many_gets, (void *)(i + 1)), 0);
    for (int i = 0; i < 8; i++) {
        EXPECT_INT(pthread_join(threads[i], &failed), 0);
        EXPECT(!failed);
    }
    EXPECT_INT(kernels_compiled(), 12);
}

static void *own_gpu(void *user)
{
    cup__error error = {0};
    cup__device *d;
    uint32_t number = (uint32_t)(uintptr_t)user, one = 1;
    void *memory, *failed = user;
    if (cup__cuda_open(&error, 0, 0, &d) != CUP_OK)
        return failed;
    cup__cuda *gpu = cup__cuda_of(d);
    if (d->calls->allocate(d, 4, "number", &memory) == CUP_OK &&
        d->calls->write(d, memory, &number, 4) == CUP_OK) {
        for (int i = 0; i < 50; i++) {
            cup__kernel *kernel = cup__kernel_get(gpu, "add.cu", "fake_add", NULL, 0);
            cup__grid grid = {.x = 1, .threads = 32};
            cup__launch(gpu, kernel, grid, CUP__ARG(memory), CUP__ARG(one), CUP__ARG(one));
        }
        if (d->calls->read(d, &number, memory, 4) == CUP_OK &&
            number == (uint32_t)(uintptr_t)user + 50)
            failed = NULL;
        d->calls->release(d, memory);
    }
    d->calls->close(d);
    return failed;
}

/* A context in each of several threads. */
TEST(cuda_fake_threads)
{
    kernel_begin();
    pthread_t threads[6];
    void *failed;
    for (intptr_t i = 0; i < 6; i++)
        EXPECT_INT(pthread_create(&threads[i], NULL, own_gpu, (void *)(i + 1)), 0);
    for (int i = 0; i < 6; i++) {
        EXPECT_INT(pthread_join(threads[i], &failed), 0);
        EXPECT(!failed);
    }
    EXPECT_INT(kernels_compiled(), 1);
    fake_expect_nothing_left();
}

TEST(kernels_for_a_card_the_compiler_does_not_know)
{
    setenv("FAKE_NVRTC_ARCHS", "89", 1);
    kernel_begin();
    cup__kernel_request request = {"add.cu", NULL, 0, NULL};
    const cup__code *code;
    cup__error error = {0};
    EXPECT_OK(&error, cup__code_get(&error, "sm_90a", &request, &code));
    EXPECT_INT(cup__code_get(&error, "sm_70", &request, &code), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "compiles for nothing as old as sm_70");
}

/* What CUP_LOG=source writes stands alone: includes are in place, each once. */
TEST(kernels_source_is_written)
{
    kernel_begin();
    fake_source(kernel_folder, "a.cu",
                "// a\n#include \"b.cuh\"\n#include \"c.cuh\"\n" FAKE_ADD "// end\n");
    fake_source(kernel_folder, "b.cuh", "#include \"c.cuh\"\n// b\n");
    fake_source(kernel_folder, "c.cuh", "// c");
    cup__unit unit;
    char *text;
    EXPECT_INT(cup__unit_open(NULL, "a.cu", NULL, &unit), CUP_OK);
    EXPECT_INT(unit.count, 3);
    cup__knob knob = {"CUP_T", 3};
    char *path = cup__unit_dump(&unit, "sm_80", &knob, 1, kernel_folder);
    EXPECT(path != NULL);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text, NULL), CUP_OK);
    EXPECT_TEXT(text, "#define CUP_T 3\n// a\n// c\n\n// b\n\n\n\n" FAKE_ADD "// end\n\n");
    cup__free(text);
    cup__free(path);
    cup__unit_close(&unit);
}

/* The real compiler. */

static char *only_file(void)
{
    cup__cached_list list;
    EXPECT_INT(cup__cache_list(NULL, &list), CUP_OK);
    EXPECT_INT(list.count, 1);
    char *path = cup__strdup(list.items[0].path);
    cup__cache_list_free(&list);
    return path;
}

static void real_compiler(void)
{
    kernel_folder = test_folder();
    setenv("CUP_CACHE", kernel_folder, 1);
    setenv("CUP_KERNELS", kernel_folder, 1);
    if (!cup__library_open(CUP__LIBNVRTC))
        test_skip("no NVRTC: %.120s", cup__library_report_of(CUP__LIBNVRTC)->reason);
}

static const char *const archs[] = {"sm_75",  "sm_80",   "sm_86", "sm_89",
                                    "sm_90a", "sm_100a", "sm_120"};

static const char brick_test[] =
    "#include \"dtype.cuh\"\n#include \"reduce.cuh\"\n#include \"philox.cuh\"\n"
    "extern \"C\" __global__ void brick(T *y, const T *x, const uint64_t *state)\n"
    "{\n"
    "    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    vec<T, 2> v = load<2>(x + 2 * i);\n"
    "    real r[2];\n"
    "    to_reals(v, r);\n"
    "    r[0] = block_sum(r[0]) + (real)philox_uniform(philox_block(state, 1, i).at[0]);\n"
    "    store(y + 2 * i, from_reals<T, 2>(r));\n"
    "}\n";

TEST_LIMITED(nvrtc_bricks_for_all_cards, 300)
{
    real_compiler();
    fake_source(kernel_folder, "brick.cu", brick_test);
    static const int64_t types[] = {0, 1, 2, 3, 4, 5, 9, 10};
    cup__knob knobs[8];
    cup__kernel_request requests[8];
    for (int i = 0; i < 8; i++) {
        knobs[i] = (cup__knob){"CUP_T", types[i]};
        requests[i] = (cup__kernel_request){"brick.cu", &knobs[i], 1, NULL};
    }
    cup__error error = {0};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        cup_status status = cup__kernels_prepare(&error, archs[i], requests,
                                                 i == 4 ? 8 : 2, 2, NULL, NULL);
        if (status == CUP_COMPILE && strstr(error.text, "as old as")) {
            cup__error_clear(&error);
            continue;
        }
        EXPECT_OK(&error, status);
    }
}

TEST(nvrtc_errors_are_told)
{
    real_compiler();
    cup__error error = {0};
    fake_source(kernel_folder, "wrong.cu",
                "#include \"dtype.cuh\"\nextern \"C\" __global__ void k(float *x) { x[0] = y; }\n");
    EXPECT_INT(kernel_code(&error, "wrong.cu", 0), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "wrong.cu for sm_90a (CUP_T=0) does not compile");
    EXPECT_CONTAINS(error.text, "wrong.cu(2)");
    EXPECT_CONTAINS(error.text, "identifier \"y\" is undefined");
    cup__error_clear(&error);
    cup__compile_strictly();
    fake_source(kernel_folder, "spill.cu",
                "extern \"C\" __global__ void __launch_bounds__(1024, 2) k(float *x) {\n"
                "    float a[96];\n"
                "#pragma unroll\n"
                "    for (int i = 0; i < 96; i++) a[i] = x[i * 1024 + threadIdx.x];\n"
                "    __syncthreads();\n"
                "#pragma unroll\n"
                "    for (int i = 0; i < 96; i++) x[i * 999 + threadIdx.x] = a[95 - i];\n"
                "}\n");
    EXPECT_INT(kernel_code(&error, "spill.cu", 0), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "spill stores");
}

TEST(nvrtc_code_is_cached)
{
    real_compiler();
    fake_source(kernel_folder, "small.cu",
                "extern \"C\" __global__ void k(float *x) { x[0] = CUP_T; }\n");
    cup__kernel_request request = {"small.cu", &(cup__knob){"CUP_T", 7}, 1, NULL};
    const cup__code *code;
    cup__error error = {0};
    EXPECT_OK(&error, cup__code_get(&error, "sm_90a", &request, &code));
    EXPECT(code->size > 500 && !memcmp(code->bytes, "\177ELF", 4));
    char *path = only_file();
    EXPECT_CONTAINS(path, "small.sm_90a.");
    cup__free(path);
}
