/* Embedding where the table's samples do not go: both id types, bad ids. */
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

TEST(embedding_adds_up_repeated_ids)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    float values[] = {1, 2, 3, 4, 5, 6}, dy[] = {1, 10, 2, 20, 4, 40}, got[6];
    int32_t ids[] = {2, 0, 2};
    cup_tensor *table = cup_require_grad(
        cup_tensor_from(c, CUP_F32, 2, (int64_t[]){3, 2}, values));
    cup_tensor *y = cup_embedding(c, table, cup_tensor_from(c, CUP_I32, 1, (int64_t[]){3}, ids));
    EXPECT(cup_tensor_read(y, got, sizeof got) == CUP_OK);
    EXPECT(got[0] == 5 && got[1] == 6 && got[2] == 1 && got[3] == 2 && got[4] == 5);
    cup_tensor *weights = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){3, 2}, dy);
    EXPECT(cup_backward(c, cup_sum(c, cup_mul(c, y, weights), NULL, 0, false)) == CUP_OK);
    EXPECT(cup_tensor_read(cup_grad(table), got, sizeof got) == CUP_OK);
    EXPECT(got[0] == 2 && got[1] == 20 && got[2] == 0 && got[3] == 0);
    EXPECT(got[4] == 5 && got[5] == 50);
    cup_context_free(c);
}

TEST(embedding_says_which_id_is_bad)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    float values[6] = {0};
    int64_t ids[] = {2, 3, -1};
    cup_tensor *table = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){3, 2}, values);
    EXPECT(!cup_embedding(c, table, cup_tensor_from(c, CUP_I64, 1, (int64_t[]){3}, ids)));
    EXPECT_CONTAINS(cup_error_text(c), "id 3 at position 1 is none of the 3 rows");
    cup_error_clear(c);
    EXPECT(!cup_embedding(c, table, table));
    EXPECT_CONTAINS(cup_error_text(c), "must be i32 or i64");
    cup_context_free(c);
}
