/* Copies of views with their dimensions in another order, which the table's samples, laid out with
 * gaps, do not make: matrices of few columns, and columns that begin at odd places. */
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

static cup_tensor *turned(cup_context *c, cup_tensor *x, const int64_t *axes)
{
    return cup_copy(c, cup_permute(c, x, axes, 4));
}

static void compare(cup_context *gpu, cup_context *cpu, cup_dtype dtype, const int64_t *size,
                    const int64_t *axes)
{
    cup_scope_open(gpu);
    cup_scope_open(cpu);
    cup_tensor *x = cup_uniform(gpu, CUP_F32, 4, size, 0, 100);
    x = dtype == CUP_F32 ? x : cup_cast(gpu, x, dtype);
    cup_tensor *want = turned(cpu, cup_tensor_to(cpu, x), axes);
    cup_tensor *got = cup_tensor_to(cpu, turned(gpu, x, axes));
    EXPECT(want && got && got->count == want->count);
    EXPECT(!memcmp(got->data, want->data, (size_t)(got->count * cup_dtype_size(dtype))));
    cup_scope_close(gpu);
    cup_scope_close(cpu);
}

TEST_LIMITED(gpu_copies_of_turned_views, 120)
{
    cup_context *gpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(gpu) != CUP_OK) {
        cup_context_free(gpu);
        test_skip("no GPU");
    }
    cup_context *cpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const cup_dtype dtypes[] = {CUP_U8, CUP_BF16, CUP_F32, CUP_I64};
    const int64_t sizes[][4] = {{2, 3, 20, 33}, {1, 1, 257, 129}, {3, 300, 8, 1}, {1, 3, 64, 64},
                                {2, 15, 10, 13}, {1, 1, 1000, 2}, {5, 70, 64, 1}};
    const int64_t axes[][4] = {{0, 2, 3, 1}, {0, 3, 1, 2}, {1, 0, 3, 2}, {3, 2, 1, 0}};
    for (int i = 0; i < 4; i++)
        for (int s = 0; s < 7; s++)
            for (int a = 0; a < 4; a++)
                compare(gpu, cpu, dtypes[i], sizes[s], axes[a]);
    cup_context_free(cpu);
    cup_context_free(gpu);
}

TEST(copy_of_turned_views_on_the_cpu)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const int64_t size[] = {1, 3, 40, 2}, axes[] = {0, 2, 3, 1};
    cup_tensor *x = cup_uniform(c, CUP_F32, 4, size, 0, 1), *y = turned(c, x, axes);
    for (int64_t i = 0; y && i < y->count; i++)
        EXPECT(((float *)y->data)[i] == ((float *)x->data)[i % 3 * 80 + i / 3]);
    EXPECT(y && y->count == 240);
    cup_context_free(c);
}

/* Parts of several widths, some empty, some transposed, more than a launch takes. */
static cup_tensor *many_parts(cup_context *c, cup_tensor *x, int axis)
{
    cup_tensor *parts[150];
    int64_t at = 0;
    for (int i = 0; i < 150; i++) {
        int64_t size[2] = {x->shape[0], x->shape[1]}, start[2] = {0};
        start[axis] = at;
        size[axis] = i % 5 == 4 ? 0 : i % 3 ? 8 : 3;
        at += size[axis];
        parts[i] = cup_slice(c, x, start, 2, size, 2);
        if (i % 10 == 7 && axis == 0)
            parts[i] = cup_permute(c, cup_copy(c, cup_permute(c, parts[i], (int64_t[]){1, 0}, 2)),
                                   (int64_t[]){1, 0}, 2);
    }
    return cup_concat(c, parts, 150, axis);
}

TEST_LIMITED(gpu_concat_of_many_parts, 120)
{
    cup_context *gpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(gpu) != CUP_OK) {
        cup_context_free(gpu);
        test_skip("no GPU");
    }
    for (int axis = 0; axis < 2; axis++) {
        const int64_t size[] = {axis ? 33 : 1200, axis ? 1200 : 40};
        cup_tensor *x = cup_uniform(gpu, CUP_BF16, 2, size, 0, 100), *y = many_parts(gpu, x, axis);
        EXPECT(y && y->count > 0);
        size_t bytes = (size_t)y->count * 2;
        void *got = malloc(bytes), *want = malloc(bytes);
        cup_tensor *first = cup_slice(gpu, x, (int64_t[]){0, 0}, 2, y->shape, 2);
        EXPECT(got && want && cup_tensor_read(y, got, bytes) == CUP_OK);
        EXPECT(cup_tensor_read(first, want, bytes) == CUP_OK && !memcmp(got, want, bytes));
        free(got);
        free(want);
    }
    cup_context_free(gpu);
}

TEST(concat_of_many_parts_on_the_cpu)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_uniform(c, CUP_F32, 2, (int64_t[]){1200, 5}, 0, 1);
    cup_tensor *y = many_parts(c, x, 0);
    EXPECT(y && !memcmp(y->data, x->data, (size_t)y->count * 4));
    cup_context_free(c);
}

/* Axes beyond what an int holds do not become others. */
TEST(axes_out_of_range_are_refused)
{
    const int64_t size[] = {2, 3}, far[] = {INT64_MAX, INT64_MIN, (int64_t)1 << 32, 2, -3};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_uniform(c, CUP_F32, 2, size, 0, 1);
    for (int i = 0; i < 5; i++) {
        EXPECT(!cup_permute(c, x, (int64_t[]){far[i], 1}, 2));
        EXPECT_CONTAINS(cup_error_text(c), "does not exist");
        cup_error_clear(c);
        EXPECT(!cup_sum(c, x, &far[i], 1, false));
        EXPECT_CONTAINS(cup_error_text(c), "does not exist");
        cup_error_clear(c);
    }
    cup_context_free(c);
}
