/* Layernorm where the table's samples do not go: far from zero, mixed dtypes, bad shapes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

static cup_tensor *make(cup_context *c, cup_dtype dtype, int64_t rows, int64_t columns,
                        const void *data)
{
    int64_t shape[] = {rows, columns};
    return rows ? cup_tensor_from(c, dtype, 2, shape, data)
                : cup_tensor_from(c, dtype, 1, shape + 1, data);
}

TEST(layernorm_far_from_zero)
{
    enum { WIDTH = 768 };
    float x[WIDTH], y[WIDTH];
    double mean = 0, squares = 0;
    for (int i = 0; i < WIDTH; i++)
        x[i] = 1e4f + (float)test_uniform(-1, 1);
    for (int i = 0; i < WIDTH; i++)
        mean += (double)x[i] / WIDTH;
    for (int i = 0; i < WIDTH; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean) / WIDTH;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *out = cup_layernorm(c, make(c, CUP_F32, 1, WIDTH, x), NULL, NULL, 1e-5);
    EXPECT(cup_tensor_read(out, y, sizeof y) == CUP_OK);
    for (int i = 0; i < WIDTH; i++)
        EXPECT_NEAR(y[i], ((double)x[i] - mean) / sqrt(squares + 1e-5), 2e-6);
    cup_context_free(c);
}

TEST(layernorm_of_a_constant_row_is_beta)
{
    float x[100], beta[100], y[100];
    for (int i = 0; i < 100; i++) {
        x[i] = 3e5f;
        beta[i] = (float)i;
    }
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *out = cup_layernorm(c, make(c, CUP_F32, 1, 100, x), NULL,
                                    make(c, CUP_F32, 0, 100, beta), 1e-5);
    EXPECT(cup_tensor_read(out, y, sizeof y) == CUP_OK);
    for (int i = 0; i < 100; i++)
        EXPECT(y[i] == beta[i]);
    cup_context_free(c);
}

/* bf16 activations with f32 parameters, as mixed-precision training has them. */
TEST(layernorm_takes_f32_parameters_with_bf16)
{
    uint16_t x[] = {0x3f80, 0x4000, 0x4040, 0x4080}; /* 1 2 3 4 */
    float gamma[] = {1, 2, 3, 4}, beta[] = {0.5f, 0, 0, -0.5f};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *g = cup_require_grad(make(c, CUP_F32, 0, 4, gamma));
    cup_tensor *out = cup_layernorm(c, make(c, CUP_BF16, 1, 4, x), g, make(c, CUP_F32, 0, 4, beta),
                                    0);
    EXPECT_INT(cup_tensor_dtype(out), CUP_BF16);
    EXPECT(cup_backward(c, cup_sum(c, out, NULL, 0, false)) == CUP_OK);
    EXPECT_INT(cup_tensor_dtype(cup_grad(g)), CUP_F32);
    float dgamma[4];
    EXPECT(cup_tensor_read(cup_grad(g), dgamma, sizeof dgamma) == CUP_OK);
    EXPECT_NEAR(dgamma[0], -1.5 / sqrt(1.25), 1e-6);
    EXPECT_NEAR(dgamma[3], 1.5 / sqrt(1.25), 1e-6);
    cup_context_free(c);
}

TEST(layernorm_bad_shapes_get_a_sentence)
{
    float x[6] = {0};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT(!cup_layernorm(c, make(c, CUP_F32, 2, 3, x), make(c, CUP_F32, 0, 2, x), NULL, 1e-5));
    EXPECT_CONTAINS(cup_error_text(c), "gamma must have one dimension of size 3");
    cup_error_clear(c);
    int64_t rows[] = {1, 2};
    EXPECT(!cup_layernorm(c, make(c, CUP_I64, 1, 2, rows), NULL, NULL, 1e-5));
    EXPECT_CONTAINS(cup_error_text(c), "must be f32");
    cup_error_clear(c);
    cup_tensor *y, *sum;
    EXPECT(cup_add_rmsnorm(c, make(c, CUP_F32, 2, 3, x), make(c, CUP_F32, 3, 2, x), NULL, 1e-5, &y,
                           &sum) == CUP_SHAPE);
    EXPECT_CONTAINS(cup_error_text(c), "must have one shape");
    cup_context_free(c);
}

/* A result of over 32 MB is written around the caches: the same bits as those of a few rows. */
static void check_large(cup_dtype dtype)
{
    enum { ROWS = 4100, WIDTH = 4098 };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_uniform(c, dtype, 2, (int64_t[]){ROWS, WIDTH}, -1, 1);
    cup_tensor *results[2] = {NULL};
    EXPECT(cup_add_layernorm(c, x, x, NULL, NULL, 1e-5, &results[0], &results[1]) == CUP_OK);
    size_t size = (size_t)cup_dtype_size(dtype), row = WIDTH * size;
    char *whole = malloc(ROWS * row), *part = malloc(2 * row);
    for (int k = 0; k < 2; k++) {
        EXPECT(cup_tensor_read(results[k], whole, ROWS * row) == CUP_OK);
        for (int64_t i = 0; i < ROWS; i += 1366) {
            cup_tensor *in = cup_slice(c, x, (int64_t[]){i, 0}, 2, (int64_t[]){2, -1}, 2);
            cup_tensor *few[2] = {NULL};
            EXPECT(cup_add_layernorm(c, in, in, NULL, NULL, 1e-5, &few[0], &few[1]) == CUP_OK);
            EXPECT(cup_tensor_read(few[k], part, 2 * row) == CUP_OK);
            EXPECT(!memcmp(part, whole + (size_t)i * row, 2 * row));
        }
    }
    free(whole);
    free(part);
    cup_context_free(c);
}

TEST(layernorm_of_many_rows_is_that_of_a_few)
{
    check_large(CUP_F32);
    check_large(CUP_BF16);
}
