/* Sorting and its family where the table's samples do not go: NaN, equal elements, bad arguments,
 * and rows too long for finite differences, which only a card takes its other kernels for. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

TEST(sort_puts_nan_last_and_keeps_equal_ones_in_order)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    float x[] = {2, NAN, -1, 2, INFINITY, -INFINITY}, got[6];
    int64_t places[6], want[] = {5, 2, 0, 3, 4, 1}, back[] = {1, 4, 0, 3, 2, 5};
    cup_tensor *t = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){6}, x);
    cup_tensor *values = NULL, *order = NULL;
    EXPECT(cup_sort(c, t, 0, false, &values, &order) == CUP_OK);
    EXPECT(cup_tensor_read(values, got, sizeof got) == CUP_OK);
    EXPECT(got[0] == -INFINITY && got[1] == -1 && got[2] == 2 && isnan(got[5]));
    EXPECT(cup_tensor_read(order, places, sizeof places) == CUP_OK);
    EXPECT(!memcmp(places, want, sizeof want));
    values = order = NULL;
    EXPECT(cup_sort(c, t, 0, true, &values, &order) == CUP_OK);
    EXPECT(cup_tensor_read(order, places, sizeof places) == CUP_OK);
    EXPECT(!memcmp(places, back, sizeof back));
    values = order = NULL;
    EXPECT(cup_top_k(c, t, 7, 0, NULL, &values, &order) != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(c), "k is 7, but the axis has 6 elements");
    cup_context_free(c);
}

TEST(scatter_add_adds_up_and_says_which_index_is_bad)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    float x[] = {1, 2, 3}, src[] = {10, 20, 30, 40}, got[3];
    int32_t good[] = {2, 0, 2, 2}, bad[] = {2, 0, 3, 2};
    cup_tensor *t = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){3}, x);
    cup_tensor *s = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){4}, src);
    cup_tensor *y =
        cup_scatter_add(c, t, cup_tensor_from(c, CUP_I32, 1, (int64_t[]){4}, good), s, 0);
    EXPECT(cup_tensor_read(y, got, sizeof got) == CUP_OK);
    EXPECT(got[0] == 21 && got[1] == 2 && got[2] == 83);
    EXPECT(!cup_scatter_add(c, t, cup_tensor_from(c, CUP_I32, 1, (int64_t[]){4}, bad), s, 0));
    EXPECT_CONTAINS(cup_error_text(c), "index 3 at position 2 is none of the 3 along the axis");
    cup_context_free(c);
}

/* Sorts, or takes the k first, on both and expects the same. */
static void compare(cup_context *gpu, cup_context *cpu, cup_dtype dtype, int64_t rows,
                    int64_t length, int64_t k, bool flag)
{
    int64_t size[] = {rows, length};
    cup_scope_open(gpu);
    cup_scope_open(cpu);
    bool whole = dtype == CUP_I32; /* then most are equal */
    cup_tensor *x =
        cup_uniform(gpu, whole ? CUP_F32 : dtype, 2, size, whole ? -3 : -30000, whole ? 3 : 30000);
    x = whole ? cup_cast(gpu, x, dtype) : x;
    cup_tensor *y = cup_tensor_to(cpu, x);
    cup_tensor *values = NULL, *places = NULL, *want = NULL, *want_places = NULL;
    if (k) {
        cup_top_k(gpu, x, k, 1, CUP_OPTIONS(cup_top_k_options, .smallest = flag), &values, &places);
        cup_top_k(cpu, y, k, 1, CUP_OPTIONS(cup_top_k_options, .smallest = flag), &want,
                  &want_places);
    } else {
        cup_sort(gpu, x, 1, flag, &values, &places);
        cup_sort(cpu, y, 1, flag, &want, &want_places);
    }
    EXPECT(values && want);
    cup_tensor *got = cup_tensor_to(cpu, values), *got_places = cup_tensor_to(cpu, places);
    EXPECT(got && got_places);
    EXPECT(!memcmp(got->data, want->data, (size_t)(got->count * cup_dtype_size(dtype))));
    EXPECT(!memcmp(got_places->data, want_places->data, (size_t)got->count * 8));
    cup_scope_close(gpu);
    cup_scope_close(cpu);
}

static cup_context *open_gpu(void)
{
    cup_context *gpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(gpu) != CUP_OK) {
        cup_context_free(gpu);
        test_skip("no GPU");
    }
    return gpu;
}

TEST_LIMITED(gpu_sort_of_short_rows, 120)
{
    cup_context *gpu = open_gpu();
    cup_context *cpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_I32};
    const int64_t lengths[] = {16, 17, 32, 100, 700, 1024, 1025, 2048};
    for (int i = 0; i < 3; i++)
        for (int l = 0; l < 8; l++) {
            compare(gpu, cpu, dtypes[i], 7, lengths[l], 0, l % 2);
            compare(gpu, cpu, dtypes[i], 7, lengths[l], 1 + l, l % 2);
            compare(gpu, cpu, dtypes[i], 6, lengths[l], 13, l % 2);
        }
    cup_context_free(cpu);
    cup_context_free(gpu);
}

TEST_LIMITED(gpu_sort_of_long_rows, 120)
{
    cup_context *gpu = open_gpu();
    cup_context *cpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F64, CUP_I32};
    for (int i = 0; i < 4; i++) {
        compare(gpu, cpu, dtypes[i], 2, 2049, 0, false);
        compare(gpu, cpu, dtypes[i], 1, 300001, 0, true);
        compare(gpu, cpu, dtypes[i], 3, 50257, 0, true);
        compare(gpu, cpu, dtypes[i], 3, 50257, 2000, false);
        compare(gpu, cpu, dtypes[i], 3, 50257, 50, i % 2);
        compare(gpu, cpu, dtypes[i], 3, 5000, 256, i % 2);
        compare(gpu, cpu, dtypes[i], 5, 3000, 2500, true);
        compare(gpu, cpu, dtypes[i], 1, 300001, 100, false);
    }
    cup_context_free(cpu);
    cup_context_free(gpu);
}
