/* Matrix products: sentences for wrong shapes, special values, layouts, and our own code against
 * a BLAS. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "base/blas.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/op.h"
#include "ops/matmul/product.h"
#include "ops/matmul/product_cpu_kernel.h"
#include "prof/check.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static cup_tensor *zeros(cup_context *c, int64_t rows, int64_t columns)
{
    return cup_full(c, CUP_F32, 2, (int64_t[]){rows, columns}, 0);
}

static void expect_error(cup_context *c, const char *text)
{
    EXPECT_CONTAINS(cup_error_text(c), text);
    cup_error_clear(c);
}

TEST(matmul_sentences)
{
    cup_context *c = cpu();
    EXPECT(!cup_matmul(c, zeros(c, 8, 64), zeros(c, 32, 64), false, false));
    expect_error(c, "matmul: [8,64] f32, [32,64] f32: inner sizes 64 and 32 differ; transpose b?");
    EXPECT(!cup_matmul(c, zeros(c, 64, 8), zeros(c, 64, 32), false, false));
    expect_error(c, "inner sizes 8 and 64 differ; transpose a?");
    cup_tensor *three = cup_full(c, CUP_F32, 3, (int64_t[]){3, 4, 5}, 0);
    cup_tensor *two = cup_full(c, CUP_F32, 3, (int64_t[]){2, 5, 4}, 0);
    EXPECT(!cup_matmul(c, three, two, false, false));
    expect_error(c, "batch sizes 3 and 2 do not broadcast");
    cup_tensor *vector = cup_full(c, CUP_F32, 1, (int64_t[]){5}, 0);
    EXPECT(!cup_matmul(c, three, vector, false, false));
    expect_error(c, "input 2 must have 2 to 8 dimensions");
    EXPECT(!cup_matmul(c, three, cup_full(c, CUP_F64, 2, (int64_t[]){5, 4}, 0), false, false));
    expect_error(c, "different dtypes");
    EXPECT(!cup_linear(c, three, zeros(c, 5, 7), NULL));
    expect_error(c, "x has 5 features and weight [N,K] takes 7; transpose weight?");
    EXPECT(!cup_linear(c, three, zeros(c, 7, 5), vector));
    expect_error(c, "bias must have the shape [7]");
    cup_context_free(c);
}

/* Equal terms are rounded to the same side: one sum along all of k would be off by 1e-4. */
TEST(matmul_of_long_sums)
{
    const int64_t sizes[][2] = {{16, 2}, {3, 2}, {3, 70}};
    cup_context *c = cpu();
    for (int i = 0; i < 3; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = 100000;
        cup_tensor *a = cup_full(c, CUP_F32, 2, (int64_t[]){m, k}, 0.1);
        for (int transposed = 0; transposed < 2; transposed++) {
            cup_tensor *b = cup_full(c, CUP_F32, 2, (int64_t[]){transposed ? n : k,
                                                               transposed ? k : n}, 0.3);
            cup_tensor *y = cup_matmul(c, a, b, false, transposed);
            float got[16 * 70];
            EXPECT_INT(cup_tensor_read(y, got, sizeof *got * (size_t)(m * n)), CUP_OK);
            for (int64_t at = 0; at < m * n; at++)
                EXPECT_NEAR(got[at], (double)0.1f * 0.3f * (double)k, 3000 * 4e-6);
        }
    }
    cup_context_free(c);
}

/* No value of an operand may be lost, and none that is not there may leak in. */
TEST(matmul_special_values)
{
    cup_context *c = cpu();
    for (int64_t n = 1; n <= 130; n += 43) {
        cup_tensor *a = cup_full(c, CUP_F32, 2, (int64_t[]){n, n}, 1);
        cup_tensor *b = cup_full(c, CUP_F32, 2, (int64_t[]){n, n}, 0);
        float *va = cup_tensor_data(a);
        va[n * n - 1] = INFINITY;
        va[0] = n > 1 ? NAN : INFINITY;
        float *y = cup_tensor_data(cup_matmul(c, a, b, false, false));
        for (int64_t i = 0; i < n * n; i++)
            EXPECT(isnan(y[i]) == (i < n || i >= n * (n - 1)));
    }
    cup_context_free(c);
}

/* Without terms the result is 0, or the bias, whatever was in memory before. */
TEST(matmul_no_terms)
{
    cup_context *c = cpu();
    cup_tensor *full = cup_full(c, CUP_F32, 2, (int64_t[]){4, 6}, NAN);
    cup_tensor_free(full);
    cup_tensor *y = cup_matmul(c, zeros(c, 4, 0), zeros(c, 0, 6), false, false);
    float values[24];
    EXPECT_INT(cup_tensor_read(y, values, sizeof values), CUP_OK);
    for (int i = 0; i < 24; i++)
        EXPECT(values[i] == 0);
    cup_tensor *bias = cup_full(c, CUP_F32, 1, (int64_t[]){6}, 3);
    y = cup_linear(c, zeros(c, 4, 0), zeros(c, 6, 0), bias);
    EXPECT_INT(cup_tensor_read(y, values, sizeof values), CUP_OK);
    for (int i = 0; i < 24; i++)
        EXPECT(values[i] == 3);
    cup_context_free(c);
}

static cup_tensor *random_matrix(cup_context *c, int64_t rows, int64_t columns)
{
    cup_tensor *t = zeros(c, rows, columns);
    float *v = cup_tensor_data(t);
    for (int64_t i = 0; i < rows * columns; i++)
        v[i] = (float)test_uniform(-1, 1);
    return t;
}

/* The result must not depend on the number of threads. */
/* Memory of a hundred kilobytes is mapped and unmapped by each call. */
TEST(matmul_of_small_matrices_takes_little_room)
{
    EXPECT(cup__kernel_space(16, 16, 16) < 100000);
    EXPECT(cup__kernel_space(16, 16, 1 << 20) == cup__kernel_space(16, 16, 256));
    EXPECT(cup__kernel_space(128, 128, 64) < cup__kernel_space(128, 128, 128));
}

TEST(matmul_threads_same_bits)
{
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        cup_context *c =
            cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = threads));
        cup_tensor *a = zeros(c, 300, 200), *b = zeros(c, 200, 500);
        float *va = cup_tensor_data(a), *vb = cup_tensor_data(b);
        for (int i = 0; i < 300 * 200; i++)
            va[i] = sinf((float)i);
        for (int i = 0; i < 200 * 500; i++)
            vb[i] = cosf((float)i * 0.3f);
        float *y = malloc(300 * 500 * sizeof *y);
        cup_tensor *product = cup_matmul(c, a, b, false, false);
        EXPECT_INT(cup_tensor_read(product, y, 300 * 500 * sizeof *y), CUP_OK);
        for (int i = 0; first && i < 300 * 500; i++)
            EXPECT(y[i] == first[i]);
        if (first)
            free(y);
        else
            first = y;
        cup_context_free(c);
    }
    free(first);
}

/* The gradient of a weight that a whole batch shares is one product, not a batch and a sum. */
TEST(matmul_gradient_of_shared_b)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_reshape(c, random_matrix(c, 6, 5), 3, (int64_t[]){2, 3, 5});
    cup_tensor *w = cup_require_grad(random_matrix(c, 5, 4));
    cup_tensor *loss = cup_sum(c, cup_matmul(c, x, w, false, false), NULL, 0, false);
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    const float *d = cup_tensor_data(cup_grad(w)), *vx = cup_tensor_data(x);
    for (int k = 0; k < 5; k++) {
        double sum = 0;
        for (int r = 0; r < 6; r++)
            sum += (double)vx[r * 5 + k];
        for (int j = 0; j < 4; j++)
            EXPECT_NEAR((double)d[k * 4 + j], sum, 1e-5);
    }
    cup_context_free(c);
}

static void report(const cup_check_result *r, void *user)
{
    *(int *)user += r->passed && !strcmp(r->impl, "blas");
    if (!r->passed)
        test_fail(__FILE__, __LINE__, "%s by %s, \"%s\": %s", r->op, r->impl,
                  r->shapes, r->note);
}

/* A library that the user names is used even where our own code would be preferred. */
TEST(matmul_by_named_blas)
{
    setenv("CUP_BLAS", "libopenblas.so.0", 1);
    if (!cup__blas_get()->found)
        test_skip("no libopenblas.so.0: %s", cup__blas_get()->text);
    cup_context *c = cpu();
    int count = 0;
    EXPECT_INT(cup_check(c, "matmul", report, &count), CUP_OK);
    EXPECT_INT(cup_check(c, "linear_gelu", report, &count), CUP_OK);
    EXPECT(count > 50);
    cup_context_free(c);
}

TEST(matmul_blas_turned_off)
{
    setenv("CUP_BLAS", "off", 1);
    EXPECT(!cup__blas_get()->found);
    EXPECT_CONTAINS(cup__blas_get()->text, "CUP_BLAS=off");
}

TEST(matmul_blas_not_there)
{
    setenv("CUP_BLAS", "/nowhere/libblas.so", 1);
    EXPECT(!cup__blas_get()->found);
    EXPECT_CONTAINS(cup__blas_get()->text, "CUP_BLAS=/nowhere/libblas.so");
}

/* The precision of f32 products is a setting of the context. */
TEST(matmul_precision_setting)
{
    cup_context *c = cpu();
    EXPECT_INT(cup_precision(c, "high"), CUP_OK);
    EXPECT_INT(cup_precision(c, "highest"), CUP_OK);
    EXPECT_INT(cup_precision(c, "fast"), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "use highest, high or medium");
    cup_context_free(c);
    setenv("CUP_PRECISION", "low", 1);
    c = cpu();
    EXPECT_INT(cup_error(c), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "\"low\" is unknown");
    cup_context_free(c);
    setenv("CUP_PRECISION", "medium", 1);
    c = cpu();
    EXPECT_INT(cup_error(c), CUP_OK);
    EXPECT_INT(c->precision, CUP__MEDIUM);
    cup_context_free(c);
    unsetenv("CUP_PRECISION");
}

/* The rows of a product do not overlap, whatever the strides of its inputs: libraries and copies
 * of whole tiles cannot say so. */
TEST(matmul_rows_are_apart)
{
    cup_context *c = cpu();
    cup_tensor *row = cup_full(c, CUP_F32, 3, (int64_t[]){1, 1, 8}, 1);
    cup_tensor *many = cup_broadcast(c, row, 3, (int64_t[]){5, 1, 8});
    cup__shape y = {CUP_F32, 3, {5, 1, 4}};
    cup__product p;
    cup__product_make(&p, many, false, zeros(c, 8, 4), false, &y);
    EXPECT(p.m == 1 ? p.batch_count == 5 : p.a.row >= 8);
    cup_context_free(c);
}

/* A product of inputs that lie well lies well itself, and names the same elements, for all strides
 * of sizes that may be 1. */
TEST(matmul_merged_batches_lie_well)
{
    cup_context *c = cpu();
    static const int64_t sizes[] = {1, 2, 3}, steps[] = {1, 2, 3, 4, 7, 29};
    for (int i = 0; i < 3 * 3 * 3 * 216; i++) {
        int64_t batch = sizes[i % 3], m = sizes[i / 3 % 3], k = sizes[i / 9 % 3];
        int64_t stride[] = {steps[i / 27 % 6], steps[i / 162 % 6], steps[i / 972 % 6]};
        cup_tensor a = {.dtype = CUP_F64, .ndim = 3, .shape = {batch, m, k}};
        memcpy(a.stride, stride, sizeof stride);
        cup_tensor b = {.dtype = CUP_F64, .ndim = 2, .shape = {k, 2}, .stride = {2, 1}};
        cup__shape y = {CUP_F64, 3, {batch, m, 2}};
        cup__product p;
        cup__product_make(&p, &a, false, &b, false, &y);
        if (cup__product_lies_well(&a) && !cup__product_in_lines(p.m, p.k, p.a.row, p.a.column))
            test_fail(__FILE__, __LINE__, "%lld x %lld x %lld, strides %lld, %lld and %lld",
                      (long long)batch, (long long)m, (long long)k, (long long)stride[0],
                      (long long)stride[1], (long long)stride[2]);
        for (int64_t at = 0; at < batch * m * k; at++) {
            int64_t t = at / k / p.m, row = at / k % p.m;
            EXPECT_INT(cup__product_offset(&p, &p.a, t) + row * p.a.row + at % k * p.a.column,
                       at / k / m * stride[0] + at / k % m * stride[1] + at % k * stride[2]);
        }
    }
    cup_context_free(c);
}
