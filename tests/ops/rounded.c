/* Tensors of f32 that a GPU rounds to f16 together, wherever their elements lie. */
#include "ops/lowbit/rounded.h"

#include <math.h>
#include <stdlib.h>

#include "cupola/ops.h"
#include "test.h"

enum { TENSORS = 4 };

/* Numbers of up to `by`, among them some that do not count for the largest. */
static cup_tensor *numbers(cup_context *c, int ndim, const int64_t *shape, double by)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        count *= shape[i];
    float *values = malloc((size_t)count * sizeof *values + 1);
    EXPECT(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(test_uniform(-1, 1) * by);
    if (count > 7) {
        values[count / 2] = NAN;
        values[count / 3] = -INFINITY;
    }
    cup_tensor *t = cup_tensor_from(c, CUP_F32, ndim, shape, values);
    free(values);
    return t;
}

/* What is left of a tensor behind `first` of the last dimension. */
static cup_tensor *behind(cup_context *c, cup_tensor *t, int64_t first)
{
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS];
    int last = cup_tensor_ndim(t) - 1;
    for (int i = 0; i <= last; i++)
        sizes[i] = -1;
    starts[last] = first;
    return cup_slice(c, t, starts, last + 1, sizes, last + 1);
}

static double *read(cup_context *c, cup_tensor *t)
{
    cup_tensor *all = cup_copy(c, cup_cast(c, t, CUP_F64));
    size_t bytes = (size_t)cup_tensor_count(t) * sizeof(double);
    double *values = malloc(bytes + 1);
    EXPECT(values);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_tensor_read(all, values, bytes), CUP_OK);
    return values;
}

static void expect_rounded(cup_context *c, const cup__rounding *r, double scale)
{
    int64_t count = cup_tensor_count(r->x);
    double *x = read(c, r->x), *half = read(c, r->half), most = 0;
    EXPECT_INT(cup_tensor_count(r->half), count);
    for (int64_t i = 0; i < count; i++)
        most = isfinite(x[i]) ? fmax(most, fabs(x[i])) : most;
    EXPECT_NEAR(scale / (fmax(most, 1e-30) / r->most), 1, 1e-6);
    for (int64_t i = 0; i < count; i++) {
        double off = fabs(half[i] * scale - x[i]);
        bool same = isnan(x[i]) ? isnan(half[i]) : half[i] == x[i];
        if (!same && !(off <= 0x1.01p-11 * fabs(x[i]) + 0x1p-25 * scale))
            test_fail(__FILE__, __LINE__, "element %lld of %lld is %g for %g", (long long)i,
                      (long long)count, half[i] * scale, x[i]);
    }
    free(x);
    free(half);
}

static void check(cup_context *c, cup_tensor *const *in, int count)
{
    cup__rounding all[TENSORS];
    cup_tensor *scales = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){count});
    for (int i = 0; i < count; i++)
        all[i] = (cup__rounding){.x = in[i], .most = i ? CUP__ROUNDED_MOST : 8};
    EXPECT_INT(cup__round_off(c, all, count, scales), CUP_OK);
    double *of = read(c, scales);
    for (int i = 0; i < count; i++)
        expect_rounded(c, &all[i], of[i]);
    free(of);
}

TEST(gpu_tensors_are_rounded_together)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    cup_tensor *packed = numbers(c, 4, (int64_t[]){2, 70, 3, 64}, 1e20);
    cup_tensor *uneven = numbers(c, 3, (int64_t[]){5, 9, 7}, 1e-20);
    check(c, (cup_tensor *[]){numbers(c, 1, (int64_t[]){1000003}, 1)}, 1);
    check(c,
          (cup_tensor *[]){numbers(c, 2, (int64_t[]){3000, 1000}, 1e30),
                           numbers(c, 1, (int64_t[]){3}, 5)},
          2);
    /* Rows that lie apart in whole vectors, and not; from an odd place on; turned; of zeros. */
    check(c,
          (cup_tensor *[]){cup_slice(c, packed, (int64_t[]){0, 0, 1, 0}, 4,
                                     (int64_t[]){-1, -1, 1, -1}, 4),
                           behind(c, uneven, 2), behind(c, numbers(c, 1, (int64_t[]){4099}, 3), 3),
                           cup_permute(c, packed, (int64_t[]){0, 2, 1, 3}, 4)},
          TENSORS);
    check(c, (cup_tensor *[]){cup_zeros(c, CUP_F32, 1, (int64_t[]){77}),
                              cup_zeros(c, CUP_F32, 2, (int64_t[]){0, 4}),
                              cup_permute(c, uneven, (int64_t[]){2, 0, 1}, 3)},
          3);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}
