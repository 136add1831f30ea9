/* Folds where the table's samples do not go: variances far from 0 and behind one large element,
 * norms whose squares overflow or vanish. On the CPU and on a GPU. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

static const int64_t shapes[][2] = {{1, 7},      {3, 1},      {64, 1000}, {5000, 40},
                                    {3, 150001}, {40000, 3},  {17, 4096}, {2049, 257}};
#define SHAPES ((int)(sizeof shapes / sizeof *shapes))

/* Of [rows, columns] along an axis, in double. */
static double variance_of(const float *x, const int64_t *shape, int64_t axis, int64_t at)
{
    int64_t count = shape[axis], step = axis ? 1 : shape[1];
    const float *from = x + (axis ? at * shape[1] : at);
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < count; i++)
        mean += (double)from[i * step] / (double)count;
    for (int64_t i = 0; i < count; i++)
        squares += ((double)from[i * step] - mean) * ((double)from[i * step] - mean);
    return squares / (double)count;
}

static void check_variances(cup_context *c, const float *x, const int64_t *shape)
{
    for (int64_t axis = 0; axis < 2; axis++) {
        int64_t count = shape[1 - axis];
        cup_tensor *t = cup_tensor_from(c, CUP_F32, 2, shape, x);
        cup_tensor *y = cup_var(c, t, &axis, 1, 0, NULL);
        float *got = malloc((size_t)count * sizeof *got);
        EXPECT(got && cup_tensor_read(y, got, (size_t)count * sizeof *got) == CUP_OK);
        for (int64_t i = 0; i < count; i++) {
            double want = variance_of(x, shape, axis, i);
            if (!(fabs((double)got[i] - want) <= 16 * 0x1p-23 * want + 1e-12))
                test_fail(__FILE__, __LINE__, "%lldx%lld along %lld: %lld is %.9g, not %.9g",
                          (long long)shape[0], (long long)shape[1], (long long)axis, (long long)i,
                          (double)got[i], want);
        }
        free(got);
    }
}

/* The elements lie around `centre`; the first row and column at `first` where that is not 0. */
static void variances(const char *device, double centre, double first)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK)
        test_skip("%s", cup_error_text(c));
    for (int s = 0; s < SHAPES; s++) {
        int64_t columns = shapes[s][1], count = shapes[s][0] * columns;
        float *x = malloc((size_t)count * sizeof *x);
        EXPECT(x != NULL);
        for (int64_t i = 0; i < count; i++) {
            bool at_edge = i < columns || i % columns == 0;
            x[i] = (float)(first != 0 && at_edge ? first : centre + test_uniform(-1, 1));
        }
        cup_scope_open(c);
        check_variances(c, x, shapes[s]);
        cup_scope_close(c);
        free(x);
    }
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

/* Equal numbers of one size, so that the norm is that size times a root, and its gradient one over
 * the root. */
static void norm_of(cup_context *c, cup_dtype dtype, double size, const int64_t *shape,
                    int64_t axis)
{
    double root = sqrt((double)shape[axis]), epsilon = dtype == CUP_BF16 ? 0x1p-7 : 0x1p-23;
    cup_tensor *x = cup_require_grad(cup_full(c, dtype, 2, shape, size));
    cup_tensor *y = cup_norm(c, x, &axis, 1, false);
    cup_tensor *most = cup_max(c, cup_cast(c, y, CUP_F64), NULL, 0, false);
    double rounded = cup_tensor_item(cup_cast(c, cup_full(c, dtype, 0, NULL, size), CUP_F64));
    EXPECT_NEAR(cup_tensor_item(most) / rounded / root, 1, 8 * epsilon);
    EXPECT(cup_backward(c, cup_sum(c, y, NULL, 0, false)) == CUP_OK);
    cup_tensor *slope = cup_min(c, cup_cast(c, cup_grad(x), CUP_F64), NULL, 0, false);
    EXPECT_NEAR(cup_tensor_item(slope) * root, 1, 8 * epsilon);
    EXPECT_TEXT(cup_error_text(c), "");
}

static void norms(const char *device)
{
    static const double sizes[] = {1e30, 1e20, 3, 1e-20, 1e-30};
    static const int64_t few[][2] = {{3, 5}, {1, 1}, {64, 1000}, {2049, 257}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK)
        test_skip("%s", cup_error_text(c));
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < 5; i++)
            for (int64_t axis = 0; axis < 2; axis++) {
                cup_scope_open(c);
                norm_of(c, CUP_F32, sizes[i], few[s], axis);
                norm_of(c, CUP_BF16, sizes[i], few[s], axis);
                cup_scope_close(c);
            }
    cup_context_free(c);
}

TEST(variances_far_from_zero)
{
    variances("cpu", 1e4, 0);
    variances("cpu", -3e5, 0);
}

TEST(variances_behind_a_large_element)
{
    variances("cpu", 0, 1e4);
}

TEST(norms_of_very_large_and_small_numbers)
{
    norms("cpu");
}

TEST_LIMITED(gpu_variances_far_from_zero, 120)
{
    variances("cuda", 1e4, 0);
    variances("cuda", -3e5, 0);
    variances("cuda", 0, 1e4);
}

TEST_LIMITED(gpu_norms_of_very_large_and_small_numbers, 120)
{
    norms("cuda");
}
