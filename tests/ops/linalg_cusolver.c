/* Factors by cuSOLVER, on the stand-in for it: on a CPU, where all that is done around its calls is
 * computed, held against the specification, and on the stand-in for the driver. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cuda/dry.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "dispatch/attributes.h"
#include "fake/cusolver.h"
#include "ops/linalg/cusolver.h"
#include "test.h"

static fake_cusolver_fail_function *fake_cusolver_fail;
static fake_cusolver_calls_function *fake_cusolver_calls;
static fake_cusolver_live_function *fake_cusolver_live;

static void begin(void)
{
    char path[4400];
    fake_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    snprintf(path, sizeof path, "%s/fake/libcusolver.so", test_build());
    setenv("CUP_LIBCUSOLVER", path, 1);
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        test_fail(__FILE__, __LINE__, "%s", dlerror());
    *(void **)&fake_cusolver_fail = dlsym(library, "fake_cusolver_fail");
    *(void **)&fake_cusolver_calls = dlsym(library, "fake_cusolver_calls");
    *(void **)&fake_cusolver_live = dlsym(library, "fake_cusolver_live");
    EXPECT(cup__library_open(CUP__LIBCUSOLVER));
}

static cup_context *open_device(const char *name)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = name));
}

static const cup__impl *impl_of(const char *op, const char *name)
{
    const cup__impl *i = cup__row_find(op)->op->impls;
    while (i->name && strcmp(i->name, name))
        i++;
    EXPECT(i->name != NULL);
    return i;
}

/* Numbers that no two rows or columns have alike, larger on the diagonal where it is wished. */
static cup_tensor *matrices(cup_context *c, cup_dtype dtype, const int64_t shape[3], double more)
{
    int64_t count = shape[0] * shape[1] * shape[2];
    double *values = calloc((size_t)count + 1, sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = i / shape[2] % shape[1], column = i % shape[2];
        values[i] = sin((double)(i * i % 101) + 0.3 * (double)i + 1) + (row == column ? more : 0);
    }
    cup_tensor *t = cup_cast(c, cup_tensor_from(c, CUP_F64, 3, shape, values), dtype);
    free(values);
    return t;
}

static cup__call call_of(cup_context *c, const char *op, cup_tensor *const *in, double ridge)
{
    static union {
        cup__cholesky_attributes one;
        cup__solve_attributes other;
    } a;
    cup__call call;
    bool solves = !strcmp(op, "solve");
    if (solves)
        a.other.ridge = (float)ridge;
    else
        a.one.ridge = (float)ridge;
    cup__call_begin(&call, c, cup__row_find(op), in, solves ? 2 : 1, &a);
    cup__call_allocate(&call);
    EXPECT_TEXT(cup_error_text(c), "");
    return call;
}

static double *numbers(cup_tensor *t)
{
    cup_context *c = cup_tensor_context(t);
    cup_tensor *wide = cup_cast(c, t, CUP_F64);
    double *all = calloc((size_t)cup_tensor_count(t) + 1, sizeof *all);
    EXPECT_INT(cup_tensor_read(wide, all, (size_t)cup_tensor_count(t) * sizeof *all), CUP_OK);
    return all;
}

/* Runs both and holds one against the other. */
static void hold(const char *op, const char *impl, cup_tensor *const *in, double ridge)
{
    cup_context *c = cup_tensor_context(in[0]);
    cup__call got = call_of(c, op, in, ridge), want = call_of(c, op, in, ridge);
    EXPECT_INT(impl_of(op, impl)->run(&got), CUP_OK);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(want.op->specification(&want), CUP_OK);
    for (int k = 0; k < got.out_count; k++) {
        double *a = numbers(got.out[k]), *b = numbers(want.out[k]);
        double room = cup_tensor_dtype(in[0]) == CUP_F64 ? 1e-11 : 3e-5;
        for (int64_t i = 0; i < cup_tensor_count(got.out[k]); i++)
            if (isfinite(a[i]) != isfinite(b[i]) || fabs(a[i] - b[i]) > room * (1 + fabs(b[i])))
                test_fail(__FILE__, __LINE__, "%s by %s, result %d, number %lld: %g in place of %g",
                          op, impl, k, (long long)i, a[i], b[i]);
        free(a);
        free(b);
    }
}

TEST(cusolver_agrees_with_the_specification)
{
    static const int64_t sizes[][3] = {{2, 5, 5}, {1, 1, 1}, {3, 4, 7}, {2, 7, 4}, {1, 12, 12}};
    begin();
    cup_context *c = open_device("cpu");
    for (int wide = 0; wide < 2; wide++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            cup_dtype dtype = wide ? CUP_F64 : CUP_F32;
            const int64_t *size = sizes[i];
            cup_tensor *in[2] = {matrices(c, dtype, size, 0)};
            hold("qr", "cusolver", in, 0);
            if (!wide)
                hold("svd", "cusolver", in, 0);
            if (size[1] != size[2])
                continue;
            in[0] = matrices(c, dtype, size, 3);
            in[1] = matrices(c, dtype, (int64_t[]){size[0], size[1], 3}, 1);
            hold("solve", "cusolver", in, 0.5);
            hold("solve", "cusolver", in, 0);
            in[0] = matrices(c, dtype, size, 13);
            hold("cholesky", "cusolver", in, 0);
            hold("cholesky", "cusolver_batched", in, 2);
        }
    EXPECT(fake_cusolver_calls("cusolverDnDpotrfBatched") > 0);
    cup_context_free(c);
    EXPECT_INT(fake_cusolver_live(), 0);
}

/* Many small matrices are not for a library that takes them one after another. */
TEST(cusolver_takes_few_matrices)
{
    cup_context *c = cup__context_dry("sm_90a");
    EXPECT_TEXT(cup_error_text(c), "");
    for (int many = 0; many < 2; many++) {
        cup_tensor *in[] = {cup_zeros(c, CUP_F32, 3, (int64_t[]){many ? 17 : 16, 20, 20})};
        cup__call call = call_of(c, "qr", in, 0);
        const char *why = cup__cusolver_in_turn_refuses(&call);
        EXPECT_INT(why && strstr(why, "too many") != NULL, many);
    }
    cup_context_free(c);
}

/* What the library does not say it can do is left to our own: a matrix that is not positive
 * definite beside one that is, one that holds NaN, and a singular one. */
TEST(cusolver_leaves_what_has_no_factors)
{
    static const double values[2][3][3] = {{{4, 1, 1}, {1, -1, 1}, {1, 1, 5}},
                                           {{4, 1, 1}, {1, 5, 1}, {1, 1, 5}}};
    static const double other[2][3][3] = {{{4, 1, 1}, {1, NAN, 1}, {1, 1, 5}},
                                          {{4, 1, 1}, {1, 5, 1}, {1, 1, 5}}};
    static const double singular[1][3][3] = {{{1, 2, 0}, {2, 4, 0}, {3, 5, 0}}};
    begin();
    cup_context *c = open_device("cpu");
    cup_tensor *in[2] = {cup_tensor_from(c, CUP_F64, 3, (int64_t[]){2, 3, 3}, values)};
    hold("cholesky", "cusolver", in, 0);
    hold("cholesky", "cusolver_batched", in, 0);
    in[0] = cup_tensor_from(c, CUP_F64, 3, (int64_t[]){2, 3, 3}, other);
    hold("qr", "cusolver", in, 0);
    in[0] = cup_cast(c, in[0], CUP_F32);
    hold("svd", "cusolver", in, 0);
    in[0] = cup_tensor_from(c, CUP_F64, 3, (int64_t[]){1, 3, 3}, singular);
    in[1] = cup_cast(c, in[0], CUP_F32);
    hold("svd", "cusolver", in + 1, 0); /* of which the stand-in makes a vector of zeros */
    in[1] = cup_ones(c, CUP_F64, 3, (int64_t[]){1, 3, 2});
    hold("solve", "cusolver", in, 0);
    cup_context_free(c);
}

static const struct {
    const char *op, *impl, *call;
} ways[] = {{"cholesky", "cusolver", "cusolverDnSpotrf"},
            {"cholesky", "cusolver_batched", "cusolverDnSpotrfBatched"},
            {"solve", "cusolver", "cusolverDnSgetrs"},
            {"qr", "cusolver", "cusolverDnSorgqr"},
            {"svd", "cusolver", "cusolverDnDgesvdj"}};
#define WAYS (sizeof ways / sizeof *ways)

/* Whichever call of the library fails, the sentence names it, and it is not asked again. */
TEST(cusolver_says_that_it_failed)
{
    begin();
    for (size_t i = 0; i < WAYS; i++) {
        bool failed = true;
        for (long n = 1; failed; n++) {
            cup_context *c = open_device("cpu");
            cup_tensor *in[2] = {matrices(c, CUP_F32, (int64_t[]){2, 4, 4}, 5),
                                 matrices(c, CUP_F32, (int64_t[]){2, 4, 1}, 1)};
            cup__call call = call_of(c, ways[i].op, in, 0);
            long ran = fake_cusolver_calls(ways[i].call);
            fake_cusolver_fail(n);
            failed = impl_of(ways[i].op, ways[i].impl)->run(&call) != CUP_OK;
            fake_cusolver_fail(0);
            const char *words = failed ? "cuSOLVER failed with number 7 when it" : "";
            EXPECT_CONTAINS(cup_error_text(c), words);
            EXPECT_CONTAINS(cup_error_text(c), failed ? "CUP_LIBCUSOLVER=off" : "");
            EXPECT(failed || fake_cusolver_calls(ways[i].call) > ran);
            EXPECT(n < 20);
            cup_context_free(c);
            EXPECT_INT(fake_cusolver_live(), 0);
        }
    }
}

/* On a GPU it is the usual choice for few large matrices alone, and takes its work there. */
TEST(cusolver_is_chosen_for_few_large_matrices)
{
    static const struct {
        int64_t shape[3];
        const char *name;
    } cases[] = {{{1, 256, 256}, "cusolver_best"}, {{4, 256, 256}, "cusolver_best"},
                 {{5, 256, 256}, "blocks"},        {{1, 255, 255}, "blocks"},
                 {{8, 600, 600}, "cusolver_best"}};
    begin();
    cup_context *c = open_device("cuda");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cup_tensor *a = cup_tensor_new(c, CUP_F32, 3, cases[i].shape);
        cup__call call = call_of(c, "cholesky", &a, 0);
        if (i == 4)
            EXPECT_TEXT(cup__call_choose(&call)->name, "cusolver_best");
        EXPECT_TEXT(cup__call_choose(&call)->name, cases[i].name);
    }
    cup_tensor *a = cup_tensor_new(c, CUP_F32, 3, (int64_t[]){1, 300, 300});
    EXPECT(cup_cholesky(c, a, 0) != NULL);
    EXPECT_INT(fake_cusolver_calls("cusolverDnSpotrf"), 1);
    EXPECT_INT(fake_cusolver_calls("cusolverDnSetStream"), 1);
    cup_context_free(c);
    EXPECT_INT(fake_cusolver_live(), 0);
    fake_expect_nothing_left();
}

/* A failure is taken over by our own kernel, and so is a capture, which may not wait. */
TEST(cusolver_is_done_without)
{
    begin();
    for (long n = 1; n < 7; n++) {
        cup_context *c = open_device("cuda");
        cup_tensor *a = cup_tensor_new(c, CUP_F32, 3, (int64_t[]){1, 300, 300});
        fake_cusolver_fail(n);
        for (int again = 0; again < 2; again++)
            EXPECT(cup_cholesky(c, a, 0) != NULL);
        fake_cusolver_fail(0);
        EXPECT_TEXT(cup_error_text(c), "");
        long ran = fake_cusolver_calls("cusolverDnSpotrf");
        EXPECT_INT(cup_capture_begin(c), CUP_OK);
        EXPECT(cup_cholesky(c, a, 0) != NULL);
        cup_graph *graph = cup_capture_end(c);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(fake_cusolver_calls("cusolverDnSpotrf"), ran);
        cup_graph_free(graph);
        cup_context_free(c);
        EXPECT_INT(fake_cusolver_live(), 0);
    }
    fake_expect_nothing_left();
}

/* What LAPACK has no factors of, or is no number, is our own code's. */
TEST(lapack_leaves_what_has_no_factors)
{
    const int64_t size[] = {2, 20, 20};
    cup_context *c = open_device("cpu");
    cup_tensor *in[2] = {matrices(c, CUP_F64, size, 0), matrices(c, CUP_F64, size, 0)};
    cup__call call = call_of(c, "svd", in, 0);
    if (impl_of("svd", "lapack")->refuses(&call))
        test_skip("no LAPACK");
    hold("cholesky", "lapack", in, 0);
    in[0] = cup_log(c, in[0]); /* some are below 0 */
    hold("cholesky", "lapack", in, 3);
    hold("solve", "lapack", in, 0);
    hold("qr", "lapack", in, 0);
    hold("svd", "lapack", in, 0);
    in[0] = cup_zeros(c, CUP_F64, 3, size);
    hold("solve", "lapack", in, 0);
    hold("solve", "lapack", in, 0.5);
    cup_context_free(c);
}

TEST(cusolver_that_is_not_there)
{
    fake_begin();
    cup_context *c = open_device("cuda");
    cup_tensor *a = cup_tensor_new(c, CUP_F32, 3, (int64_t[]){1, 300, 300});
    cup__call call = call_of(c, "cholesky", &a, 0);
    EXPECT_CONTAINS(cup__cusolver_refuses(&call), "cuSOLVER was not found");
    EXPECT_TEXT(cup__call_choose(&call)->name, "blocks");
    cup_context_free(c);
}

/* Without host memory a call fails with that, and leaves nothing behind. */
TEST(cusolver_out_of_memory)
{
    begin();
    for (size_t i = 0; i < WAYS; i++) {
        bool failed = true;
        for (long n = 1; failed; n++) {
            cup_context *c = open_device("cpu");
            cup_tensor *in[2] = {matrices(c, CUP_F32, (int64_t[]){2, 4, 3 + (i < 3)}, 5),
                                 matrices(c, CUP_F32, (int64_t[]){2, 4, 1}, 1)};
            cup__call call = call_of(c, ways[i].op, in, 0);
            cup__memory_fail_at(n, false);
            failed = impl_of(ways[i].op, ways[i].impl)->run(&call) != CUP_OK;
            cup__memory_fail_at(0, false);
            EXPECT_INT(cup_error(c), failed ? CUP_MEMORY : CUP_OK);
            cup_context_free(c);
            EXPECT_INT(fake_cusolver_live(), 0);
            EXPECT(n < 900);
        }
    }
}
