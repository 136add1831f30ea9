/* Transforms by cuFFT, on the stand-ins for it and for the driver. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"
#include "fake/cufft.h"
#include "ops/fourier/fft.h"
#include "test.h"

static fake_cufft_fail_function *fake_cufft_fail;
static fake_cufft_calls_function *fake_cufft_calls;
static fake_cufft_live_function *fake_cufft_live;

static void begin(void)
{
    char path[4400];
    fake_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    snprintf(path, sizeof path, "%s/fake/libcufft.so", test_build());
    setenv("CUP_LIBCUFFT", path, 1);
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        test_fail(__FILE__, __LINE__, "%s", dlerror());
    *(void **)&fake_cufft_fail = dlsym(library, "fake_cufft_fail");
    *(void **)&fake_cufft_calls = dlsym(library, "fake_cufft_calls");
    *(void **)&fake_cufft_live = dlsym(library, "fake_cufft_live");
}

static cup_context *open_device(const char *name)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = name));
}

/* [outer,length,inner,2]. */
static cup_tensor *lines(cup_context *c, cup_dtype dtype, int64_t outer, int64_t length,
                         int64_t inner)
{
    double *values = calloc((size_t)(outer * length * inner * 2), sizeof *values);
    float *few = calloc((size_t)(outer * length * inner * 2), sizeof *few);
    for (int64_t i = 0; i < outer * length * inner * 2; i++)
        few[i] = (float)(values[i] = (double)((i * 7 + 3) % 11 - 5));
    cup_tensor *t = cup_tensor_from(c, dtype, 4, (int64_t[]){outer, length, inner, 2},
                                    dtype == CUP_F64 ? (void *)values : few);
    free(values);
    free(few);
    return t;
}

static double number(const void *all, cup_dtype dtype, int64_t i)
{
    return dtype == CUP_F64 ? ((const double *)all)[i] : (double)((const float *)all)[i];
}

/* Lengths with a factor above 5 do not go to blocks; lines lie one behind another, beside each
 * other, and in pieces of lines beside each other. */
TEST(cufft_computes)
{
    static const int64_t sizes[][3] = {{3, 7, 1}, {1, 14, 4}, {3, 11, 2}, {1, 7, 1}};
    begin();
    cup_context *gpu = open_device("cuda"), *cpu = open_device("cpu");
    for (int wide = 0; wide < 2; wide++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const int64_t *n = sizes[i];
            cup_dtype dtype = wide ? CUP_F64 : CUP_F32;
            long ran = fake_cufft_calls(wide ? "cufftExecZ2Z" : "cufftExecC2C");
            cup_tensor *got = cup_fft(gpu, lines(gpu, dtype, n[0], n[1], n[2]), 1, false);
            cup_tensor *want = cup_fft(cpu, lines(cpu, dtype, n[0], n[1], n[2]), 1, false);
            double a[200], b[200];
            size_t bytes = (size_t)(cup_tensor_count(want) * cup_dtype_size(dtype));
            EXPECT_INT(cup_tensor_read(got, a, bytes), CUP_OK);
            EXPECT_INT(cup_tensor_read(want, b, bytes), CUP_OK);
            EXPECT_INT(fake_cufft_calls(wide ? "cufftExecZ2Z" : "cufftExecC2C"),
                       ran + (n[2] > 1 ? n[0] : 1));
            for (int64_t k = 0; k < cup_tensor_count(want); k++)
                EXPECT_NEAR(number(a, dtype, k), number(b, dtype, k), wide ? 1e-12 : 1e-4);
        }
    cup_context_free(gpu);
    cup_context_free(cpu);
    EXPECT_INT(fake_cufft_live(), 0);
    fake_expect_nothing_left();
}

/* Equal lines have one plan, both ways. */
TEST(cufft_remembers)
{
    begin();
    cup_context *c = open_device("cuda");
    cup_tensor *x = lines(c, CUP_F32, 2, 7, 1);
    for (int i = 0; i < 4; i++)
        EXPECT(cup_fft(c, x, 1, i % 2) != NULL);
    EXPECT_INT(fake_cufft_calls("cufftMakePlanMany64"), 1);
    EXPECT_INT(fake_cufft_calls("cufftSetStream"), 1);
    EXPECT_INT(fake_cufft_calls("cufftExecC2C"), 4);
    cup_context_free(c);
    EXPECT_INT(fake_cufft_live(), 0);
}

static cup__call call_of(cup_context *c, cup_tensor **x)
{
    static const cup__fft_attributes along = {1, false};
    cup__call call;
    cup__call_begin(&call, c, cup__row_find("fft"), x, 1, &along);
    cup__call_allocate(&call);
    EXPECT_TEXT(cup_error_text(c), "");
    return call;
}

/* What is not its to do, and what it is not asked for twice. */
TEST(cufft_refuses)
{
    begin();
    cup_context *c = open_device("cuda");
    cup_tensor *x = lines(c, CUP_F32, 65, 7, 2);
    cup__call call = call_of(c, &x);
    EXPECT_CONTAINS(cup__fft_cufft_refuses(&call), "up to 64 pieces");
    EXPECT_TEXT(cup__call_choose(&call)->name, "products");
    x = lines(c, CUP_F32, 2, 60, 1);
    call = call_of(c, &x);
    EXPECT_TEXT(cup__call_choose(&call)->name, "blocks");
    for (int64_t i = 0; i < 65; i++) {
        x = lines(c, CUP_F32, i + 1, 7, 1);
        call = call_of(c, &x);
        const char *why = cup__fft_cufft_refuses(&call);
        EXPECT_CONTAINS(why ? why : "nothing", i < 64 ? "nothing" : "as many plans");
        EXPECT(cup_fft(c, x, 1, false) != NULL);
        EXPECT_TEXT(cup_error_text(c), "");
    }
    EXPECT_INT(fake_cufft_live(), 64);
    cup_context_free(c);
    EXPECT_INT(fake_cufft_live(), 0);
}

/* Where any one call of the library fails, products do the call, and the next one as well. */
TEST(cufft_fails_softly)
{
    begin();
    for (long n = 1; n <= 6; n++) {
        cup_context *c = open_device("cuda");
        cup_tensor *x = lines(c, CUP_F32, 2, 7, 1);
        fake_cufft_fail(n);
        EXPECT(cup_fft(c, x, 1, false) != NULL);
        EXPECT_TEXT(cup_error_text(c), "");
        cup__call call = call_of(c, &x);
        EXPECT_CONTAINS(cup__fft_cufft_refuses(&call), "cuFFT failed with number 5 when");
        EXPECT_INT(cup__fft_cufft(&call), CUP_DRIVER);
        EXPECT_CONTAINS(cup_error_text(c), "CUP_LIBCUFFT=off does without it");
        cup_error_clear(c);
        long ran = fake_cufft_calls("cufftExecC2C");
        EXPECT(cup_fft(c, x, 1, false) != NULL);
        EXPECT_INT(fake_cufft_calls("cufftExecC2C"), ran);
        cup_context_free(c);
        EXPECT_INT(fake_cufft_live(), 0);
    }
    fake_expect_nothing_left();
}

/* A plan is made before; then what is captured goes to the library. */
TEST(cufft_is_captured)
{
    begin();
    cup_context *c = open_device("cuda");
    cup_tensor *x = lines(c, CUP_F32, 2, 7, 1);
    cup_fft(c, x, 1, false);
    EXPECT_INT(cup_capture_begin(c), CUP_OK);
    EXPECT(cup_fft(c, x, 1, true) != NULL);
    EXPECT_INT(fake_cufft_calls("cufftExecC2C"), 2);
    EXPECT(cup_fft(c, lines(c, CUP_F32, 1, 7, 1), 1, false) != NULL);
    cup_graph *graph = cup_capture_end(c);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(fake_cufft_calls("cufftExecC2C"), 2);
    EXPECT_INT(fake_cufft_calls("cufftMakePlanMany64"), 1);
    cup_graph_free(graph);
    cup_context_free(c);
    EXPECT_INT(fake_cufft_live(), 0);
    fake_expect_nothing_left();
}

TEST(cufft_that_is_not_there)
{
    fake_begin();
    cup_context *c = open_device("cuda");
    cup_tensor *x = lines(c, CUP_F32, 2, 7, 1);
    cup__call call = call_of(c, &x);
    EXPECT_CONTAINS(cup__fft_cufft_refuses(&call), "cuFFT was not found");
    EXPECT_TEXT(cup__call_choose(&call)->name, "products");
    cup_context_free(c);
}

/* Without host memory a call fails with that, and leaves nothing behind. */
TEST(cufft_out_of_memory)
{
    begin();
    bool failed = true;
    for (long n = 1; failed; n++) {
        cup_context *c = open_device("cuda");
        cup_tensor *x = lines(c, CUP_F32, 2, 7, 1);
        cup__memory_fail_at(n, false);
        cup_tensor *y = cup_fft(c, x, 1, false);
        cup__memory_fail_at(0, false);
        failed = !y;
        EXPECT_INT(cup_error(c), failed ? CUP_MEMORY : CUP_OK);
        cup_context_free(c);
        EXPECT_INT(fake_cufft_live(), 0);
        EXPECT(n < 100);
    }
    fake_expect_nothing_left();
}
