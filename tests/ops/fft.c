/* Transforms by products, which a CPU takes only when asked to. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "cupola/ops.h"

/* Of numbers that are all alike nothing but their sum is left, whatever the order of the sums. */
TEST(fft_by_products_of_a_constant_is_its_sum)
{
    enum { LENGTH = 3552 }; /* 2^5 3 37 */
    setenv("CUP_IMPL", "fft=products", 1);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_full(c, CUP_F32, 2, (int64_t[]){LENGTH, 2}, 1.9);
    static float y[LENGTH][2];
    EXPECT_INT(cup_tensor_read(cup_fft(c, x, 0, false), y, sizeof y), CUP_OK);
    EXPECT_NEAR(y[0][0], LENGTH * 1.9, 1e-3);
    for (int k = 1; k < LENGTH; k++)
        if (fabsf(y[k][0]) > 1e-6f || fabsf(y[k][1]) > 1e-6f)
            test_fail(__FILE__, __LINE__, "at %d: %g and %g", k, (double)y[k][0], (double)y[k][1]);
    cup_context_free(c);
}
