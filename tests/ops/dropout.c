/* What dropout promises beside its specification: which elements, how many, and their factor. */
#include <math.h>

#include "../test.h"
#include "base/philox.h"
#include "cupola/ops.h"

#define COUNT (1 << 21)

static float y[COUNT];

static void draw(double p)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
    cup_tensor *x = cup_full(c, CUP_F32, 1, (int64_t[]){COUNT}, 1);
    EXPECT_INT(cup_tensor_read(cup_dropout(c, x, p), y, sizeof y), CUP_OK);
    cup_context_free(c);
}

/* With 16 bits for p the factor of 0.9 was 9.9994. */
TEST(dropout_scales_by_what_p_says)
{
    const double p[] = {0, 0.1, 0.3, 0.5, 0.9, 0.99, 0.9999};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) {
        int64_t kept = 0;
        draw(p[i]);
        for (int64_t k = 0; k < COUNT; k++) {
            kept += y[k] != 0;
            EXPECT(y[k] == 0 || fabs(y[k] * (1 - p[i]) - 1) < 1e-6);
        }
        double want = COUNT * (1 - p[i]);
        EXPECT_NEAR((double)kept, want, 6 * sqrt(want * p[i]) + 1e-9);
    }
}

/* 32 random bits decide: of the elements whose first 16 equal those of p, some stay. */
TEST(dropout_decides_by_32_bits)
{
    const double p = 0.7;
    const uint64_t state[] = {3, 0};
    uint64_t below = (uint64_t)(p * 0x1p32 + 0.5);
    int close = 0;
    draw(p);
    for (int64_t i = 0; i < COUNT; i++) {
        uint64_t block = (uint64_t)i / 8;
        uint32_t first = cup__philox_block(state, 0, block).at[i % 8 / 2] >> i % 2 * 16;
        uint32_t more =
            cup__philox_block(state, 0, block | 1ull << 63).at[i % 8 / 2] >> i % 2 * 16;
        uint64_t number = (uint64_t)(first & 0xffff) << 16 | (more & 0xffff);
        EXPECT((y[i] != 0) == (number >= below));
        close += number >> 16 == below >> 16;
    }
    EXPECT(close > 8);
}
