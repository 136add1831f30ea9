/* What is remembered of calls, on a GPU that is not there. */
#include "../test.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "dispatch/memo.h"
#include "tensor/context.h"

static cup__memo *memo_of(cup_context *c, cup_tensor *x, cup_tensor *weight)
{
    cup__call call;
    cup_tensor *in[3] = {x, weight, NULL};
    EXPECT(cup__call_begin(&call, c, &cup__rows[CUP__OP_linear], in, 3, NULL) == CUP_OK);
    EXPECT(cup__call_allocate(&call) == CUP_OK);
    return cup__memo_of(&call);
}

TEST(calls_are_remembered_by_shape_stride_and_alignment)
{
    cup_context *c = cup__context_dry("sm_90a");
    cup_tensor *a = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){64, 64});
    cup_tensor *b = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){64, 64});
    cup_tensor *wide = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){64, 128});
    cup_tensor *f16 = cup_tensor_new(c, CUP_F16, 2, (int64_t[]){64, 64});
    cup_tensor *left = cup_slice(c, wide, (int64_t[]){0, 0}, 2, (int64_t[]){64, 64}, 2);
    cup_tensor *right = cup_slice(c, wide, (int64_t[]){0, 1}, 2, (int64_t[]){64, 64}, 2);
    EXPECT(cup_error(c) == CUP_OK);
    cup__memo *memo = memo_of(c, a, b);
    EXPECT(memo != NULL && memo->impl == NULL);
    memo->impl = cup__op_linear.impls;
    EXPECT(memo_of(c, b, a) == memo);
    EXPECT(memo_of(c, left, b) != memo && memo_of(c, left, b) != memo_of(c, right, b));
    EXPECT(memo_of(c, left, b) == memo_of(c, left, a));
    EXPECT(memo_of(c, f16, f16) != memo);
    c->precision = CUP__MEDIUM;
    EXPECT(memo_of(c, a, b) != memo);
    c->precision = CUP__HIGHEST;
    EXPECT(memo_of(c, a, b) == memo && memo->impl != NULL);
    cup__memo_forget(c);
    EXPECT(memo_of(c, a, b) == memo && memo->impl == NULL);
    cup_context_free(c);
}

/* The second call is the first one's launch, aimed at other memory, whatever the product is for;
 * a call whose input must be copied first has none. */
TEST(products_are_launched_again)
{
    cup_context *c = cup__context_dry("sm_90a");
    cup_tensor *a = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){512, 512});
    cup_tensor *strewn = cup_tensor_new(c, CUP_BF16, 3, (int64_t[]){512, 512, 2});
    strewn = cup_permute(c, strewn, (int64_t[]){2, 0, 1}, 3);
    for (int i = 0; i < 3; i++) {
        a = cup_linear(c, a, a, NULL);
        a = cup_linear_silu(c, a, a, NULL);
        cup_linear(c, strewn, a, NULL);
        EXPECT(cup_error(c) == CUP_OK && a != NULL);
    }
    cup__memo *memo = memo_of(c, a, a);
    EXPECT(memo && memo->impl && memo->kept && memo->again);
    EXPECT_TEXT(memo->impl->name, "wgmma_best");
    memo = memo_of(c, strewn, a);
    EXPECT(memo && memo->impl && !memo->kept && !memo->again);
    cup_context_free(c);
}

static cup__memo *memo_of_norm(cup_context *c, cup_tensor *const *in, int count)
{
    cup__call call;
    EXPECT(cup__call_begin(&call, c, &cup__rows[CUP__OP_global_norm], in, count, NULL) == CUP_OK);
    EXPECT(cup__call_allocate(&call) == CUP_OK);
    return cup__memo_of(&call);
}

/* However many dimensions a tensor has; of more inputs than there is room for, nothing is kept. */
TEST(calls_are_told_apart_by_all_dimensions)
{
    cup_context *c = cup__context_dry("sm_90a");
    cup_tensor *weight = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){64, 64});
    cup_tensor *of[3], *turned[3], *many[64];
    static const int64_t last[] = {3, 5, 3};
    for (int i = 0; i < 3; i++) {
        of[i] = cup_tensor_new(c, CUP_BF16, 8, (int64_t[]){2, 1, 1, 2, 1, 1, last[i], 64});
        turned[i] = cup_permute(c, of[i], (int64_t[]){3, 1, 2, 0, 4, 5, 6, 7}, 8);
    }
    EXPECT(memo_of(c, of[0], weight) == memo_of(c, of[2], weight));
    EXPECT(memo_of(c, of[0], weight) != memo_of(c, of[1], weight));
    EXPECT(memo_of(c, turned[0], weight) == memo_of(c, turned[2], weight));
    EXPECT(memo_of(c, turned[0], weight) != memo_of(c, turned[1], weight));
    EXPECT(memo_of(c, turned[0], weight) != memo_of(c, of[0], weight));
    for (int i = 0; i < 64; i++)
        many[i] = of[i % 3];
    for (int count = 1; count <= 64; count++) {
        cup__memo *memo = memo_of_norm(c, many, count);
        EXPECT(memo == memo_of_norm(c, many, count));
        EXPECT(memo ? count < 32 : count > 8);
    }
    cup_context_free(c);
}
