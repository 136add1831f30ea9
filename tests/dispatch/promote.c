/* Inputs of several dtypes. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

/* NumPy's answers, with i32 where it has i16; -1: a sentence. */
TEST(dtypes_are_promoted)
{
    static const struct {
        cup_dtype a, b;
        int to;
    } pairs[] = {
        {CUP_F32, CUP_F64, CUP_F64},  {CUP_F16, CUP_F32, CUP_F32},  {CUP_BF16, CUP_F32, CUP_F32},
        {CUP_F16, CUP_BF16, CUP_F32}, {CUP_U8, CUP_I8, CUP_I32},    {CUP_I8, CUP_I32, CUP_I32},
        {CUP_I32, CUP_I64, CUP_I64},  {CUP_U8, CUP_F16, CUP_F16},   {CUP_I8, CUP_BF16, CUP_BF16},
        {CUP_U8, CUP_F32, CUP_F32},   {CUP_I32, CUP_F32, CUP_F64},  {CUP_I32, CUP_BF16, CUP_F64},
        {CUP_I32, CUP_F64, CUP_F64},  {CUP_BOOL, CUP_F16, CUP_F16}, {CUP_BOOL, CUP_I64, CUP_I64},
        {CUP_I64, CUP_F32, -1},       {CUP_I64, CUP_F64, -1},       {CUP_F8E4M3, CUP_F32, -1},
    };
    cup_context *c = cpu();
    for (size_t i = 0; i < 2 * sizeof pairs / sizeof *pairs; i++) {
        cup_dtype a = i % 2 ? pairs[i / 2].b : pairs[i / 2].a;
        cup_dtype b = i % 2 ? pairs[i / 2].a : pairs[i / 2].b;
        cup_tensor *y = cup_add(c, cup_cast(c, cup_ones(c, CUP_F32, 1, (int64_t[]){3}), a),
                                cup_cast(c, cup_ones(c, CUP_F32, 0, NULL), b));
        if (pairs[i / 2].to < 0) {
            EXPECT(!y);
            EXPECT_INT(cup_error(c), CUP_DTYPE);
            EXPECT_CONTAINS(cup_error_text(c), "cup_cast");
            cup_error_clear(c);
            continue;
        }
        EXPECT(y && (int)cup_tensor_dtype(y) == pairs[i / 2].to);
        float sum = NAN;
        EXPECT_INT(cup_tensor_read(cup_cast(c, cup_sum(c, y, NULL, 0, false), CUP_F32), &sum,
                                   sizeof sum), CUP_OK);
        EXPECT_NEAR(sum, 6, 0);
    }
    cup_context_free(c);
}

TEST(promoted_inputs_have_gradients)
{
    cup_context *c = cpu();
    cup_tensor *half = cup_require_grad(cup_full(c, CUP_BF16, 1, (int64_t[]){2}, 3));
    cup_tensor *wide = cup_require_grad(cup_full(c, CUP_F64, 0, NULL, 5)), *grads[2];
    cup_tensor *y = cup_mul(c, half, wide);
    EXPECT(cup_tensor_dtype(y) == CUP_F64);
    EXPECT_INT(cup_gradients(c, cup_sum(c, y, NULL, 0, false), (cup_tensor *[]){half, wide}, 2,
                             grads), CUP_OK);
    EXPECT(cup_tensor_dtype(grads[0]) == CUP_BF16 && cup_tensor_dtype(grads[1]) == CUP_F64);
    EXPECT_NEAR(cup_tensor_item(cup_sum(c, grads[0], NULL, 0, false)), 10, 0);
    EXPECT_NEAR(cup_tensor_item(grads[1]), 6, 0);
    cup_context_free(c);
}

TEST(choices_and_joined_parts_are_promoted)
{
    cup_context *c = cpu();
    cup_tensor *whole = cup_arange(c, CUP_I32, 0, 3, NULL);
    cup_tensor *real = cup_full(c, CUP_F16, 0, NULL, .5);
    cup_tensor *y = cup_where(c, cup_greater(c, whole, real), whole, real);
    EXPECT(y && cup_tensor_dtype(y) == CUP_F64);
    EXPECT_NEAR(cup_tensor_item(cup_sum(c, y, NULL, 0, false)), 3.5, 0);
    EXPECT(!cup_where(c, whole, whole, real));
    EXPECT_CONTAINS(cup_error_text(c), "must be bool");
    cup_error_clear(c);
    cup_tensor *parts[] = {whole, cup_cast(c, whole, CUP_I64), cup_cast(c, whole, CUP_U8)};
    y = cup_concat(c, parts, 3, 0);
    EXPECT(y && cup_tensor_dtype(y) == CUP_I64 && cup_tensor_size(y, 0) == 9);
    EXPECT(!cup_matmul(c, cup_ones(c, CUP_F32, 2, (int64_t[]){2, 2}),
                       cup_ones(c, CUP_F64, 2, (int64_t[]){2, 2}), false, false));
    EXPECT_CONTAINS(cup_error_text(c), "different dtypes");
    cup_error_clear(c);
    EXPECT(!cup_add(c, whole, NULL));
    cup_context_free(c);
}
