/* Lists of products: sentences, and results that are those of matmul. */
#include "../test.h"
#include "cupola/ops.h"

static void expect_error(cup_context *c, const char *text)
{
    EXPECT_CONTAINS(cup_error_text(c), text);
    cup_error_clear(c);
}

static cup_tensor *random(cup_context *c, int64_t rows, int64_t columns)
{
    return cup_uniform(c, CUP_F32, 2, (int64_t[]){rows, columns}, -1, 1);
}

TEST(matmul_list_sentences)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *a = random(c, 2, 3), *b = random(c, 3, 4), *y = random(c, 2, 5);
    EXPECT(cup_matmul_list(c, (cup_tensor *[]){a, b}, 2, false, false) != CUP_OK);
    expect_error(c, "the list does not consist of three tensors each");
    EXPECT(cup_matmul_list(c, (cup_tensor *[]){a, b, y}, 3, false, false) != CUP_OK);
    expect_error(c, "inputs 1 to 3 do not fit: [2,3] by [3,4] into [2,5]");
    EXPECT(cup_matmul_list(c, (cup_tensor *[]){a, b, cup_cast(c, y, CUP_BF16)}, 3, false, false) !=
           CUP_OK);
    expect_error(c, "different dtypes");
    cup_context_free(c);
}

TEST(matmul_list_of_many)
{
    enum { MANY = 130 };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *list[3 * MANY];
    for (int i = 0; i < MANY; i++) {
        list[3 * i] = random(c, 1 + i % 7, 1 + i % 5);
        list[3 * i + 1] = random(c, 1 + i % 11, 1 + i % 5);
        list[3 * i + 2] = random(c, 1 + i % 7, 1 + i % 11);
    }
    EXPECT(cup_matmul_list(c, list, 3 * MANY, false, true) == CUP_OK);
    for (int i = 0; i < MANY; i++) {
        const float *want = cup_tensor_data(cup_linear(c, list[3 * i], list[3 * i + 1], NULL));
        const float *got = cup_tensor_data(list[3 * i + 2]);
        for (int k = 0; k < (1 + i % 7) * (1 + i % 11); k++)
            EXPECT_NEAR((double)got[k], (double)want[k], 1e-5);
    }
    cup_context_free(c);
}
