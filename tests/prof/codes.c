/* Codes are held against what they are roundings of. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "prof/compare.h"
#include "prof/reference.h"

/* Whether e4m3's code for `got` is right where the value is `want`, good to 2^-9. */
static bool is_right(double want, double got)
{
    unsigned char byte;
    char note[200] = "";
    cup_tensor w = {.data = &want, .dtype = CUP_F64, .count = 1, .contiguous = true};
    cup_tensor g = {.data = &byte, .dtype = CUP_F8E4M3, .count = 1, .contiguous = true};
    cup__store(&g, 0, got);
    return cup__compare_codes(&w, &g, 0x1p-9, 0, note, sizeof note) <= 0;
}

/* Between 1 and 1.125 the middle is 1.0625. */
TEST(codes_beside_the_middle_are_either)
{
    EXPECT(is_right(1.0624, 1) && is_right(1.0624, 1.125));
    EXPECT(is_right(1.0626, 1) && is_right(1.0626, 1.125));
    EXPECT(is_right(-1.0624, -1.125) && is_right(448, 448) && is_right(0, 0));
    EXPECT(is_right(NAN, NAN));
}

TEST(codes_a_step_off_are_wrong)
{
    EXPECT(is_right(1.03, 1) && !is_right(1.03, 1.125));
    EXPECT(is_right(1.1, 1.125) && !is_right(1.1, 1));
    EXPECT(!is_right(1.0624, 1.25) && !is_right(1.0624, 0.9375) && !is_right(1.0624, -1));
    EXPECT(!is_right(448, 416) && !is_right(1, NAN) && !is_right(NAN, 1));
}

TEST(codes_are_unrounded_in_the_specification)
{
    cup__reference r = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"))};
    const cup__row *row = cup__row_find("linear_quantize");
    const cup__reference_call call = {row, &row->op->samples[3], CUP_BF16};
    EXPECT_INT(cup__reference_run(&r, &call), CUP_OK);
    const cup_tensor *y = r.call.out[0];
    EXPECT_INT(y->dtype, CUP_F64);
    int between = 0;
    for (int64_t i = 0; i < y->count; i++) {
        unsigned char byte;
        cup_tensor one = {.data = &byte, .dtype = CUP_F8E4M3};
        double v = cup__load(y, i);
        cup__store(&one, 0, v);
        between += fabs(cup__load(&one, 0) - v) > 0;
    }
    EXPECT(between > y->count / 2);
    cup_context_free(r.c);
}

/* A part of a large row is forgiven there, and not in a row of small numbers. */
TEST(slack_by_rows_is_of_the_row)
{
    const double want[] = {8, -8, 0.5, -0.5}, large[] = {9, -8, 0.5, -0.5},
                 small[] = {8, -8, 1.5, -0.5};
    double got[4];
    cup_tensor w = {.data = (void *)want, .dtype = CUP_F64, .ndim = 2, .shape = {2, 2},
                    .stride = {2, 1}, .count = 4, .contiguous = true};
    cup_tensor g = w;
    char note[200];
    g.data = got;
    memcpy(got, large, sizeof got);
    EXPECT(cup__compare_above(&w, &g, 0.0625, 1e-300, CUP__COMPARE_ROWS, note, sizeof note) == 0);
    memcpy(got, small, sizeof got);
    EXPECT(cup__compare_above(&w, &g, 0.125, 1e-300, CUP__COMPARE_ROWS, note, sizeof note) > 0);
    EXPECT(cup__compare_above(&w, &g, 0.25, 1e-300, 0, note, sizeof note) == 0);
}

/* Whether f16's `got` will do for `want`, of which the middle of the last number and what would be
 * the next is 65520. */
static bool will_do(double want, double got, int ways)
{
    uint16_t half;
    char note[200] = "";
    cup_tensor w = {.data = &want, .dtype = CUP_F64, .count = 1, .contiguous = true};
    cup_tensor g = {.data = &half, .dtype = CUP_F16, .count = 1, .contiguous = true};
    cup__store(&g, 0, got);
    return cup__compare_above(&w, &g, 0, 1e-300, ways, note, sizeof note) < 4;
}

TEST(what_overflows_is_not_finite_in_either_way)
{
    int library = CUP__COMPARE_OVERFLOWS;
    EXPECT(will_do(-4e6, -INFINITY, 0) && will_do(-4e6, -INFINITY, library));
    EXPECT(!will_do(-4e6, INFINITY, 0) && !will_do(-4e6, NAN, 0));
    EXPECT(will_do(-4e6, INFINITY, library) && will_do(-4e6, NAN, library));
    EXPECT(!will_do(-4e6, 65504, library) && !will_do(-4e6, 0, library));
    EXPECT(!will_do(40000, INFINITY, library) && !will_do(40000, NAN, library));
    EXPECT(!will_do(-40000, INFINITY, library) && will_do(NAN, NAN, library));
}
