/* Lists of blocks of keys, held to a bias that hides with -infinity what they do not name. */
#include <math.h>

#include "../test.h"
#include "cupola/functions.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

enum { BATCH = 2, HEADS = 4, GROUPS = 2, QUERIES = 90, KEYS = 140, SIZE = 8, SPAN = 16 };
enum { ROWS = (QUERIES + SPAN - 1) / SPAN, COUNT = 3 };

static void expect_equal(cup_tensor *got, cup_tensor *want, double most)
{
    EXPECT(got && want && got->count == want->count);
    for (int64_t i = 0; got && want && i < got->count; i++)
        EXPECT_NEAR(cup__load(got, cup__offset_of(got, i)),
                    cup__load(want, cup__offset_of(want, i)), most);
}

/* Numbers that look drawn, some of them twice in a list, some -1; the lists of one block are
 * empty. */
static int number_of(int64_t row, int i)
{
    if (row % 7 == 4)
        return -1;
    return (int)((row * 5 + i * i * 3) % ((KEYS + SPAN - 1) / SPAN + 1)) - 1;
}

static cup_tensor *lists_of(cup_context *c, cup_dtype dtype, int64_t batches, int64_t heads)
{
    int64_t shape[] = {batches, heads, ROWS, COUNT};
    cup_tensor *t = cup_zeros(c, dtype, 4, shape);
    for (int64_t i = 0; i < t->count; i++)
        cup__store(t, i, number_of(i / COUNT, (int)(i % COUNT)));
    return t;
}

static cup_tensor *bias_of(cup_context *c, cup_dtype dtype, cup_tensor *lists)
{
    cup_tensor *t = cup_full(c, dtype, 4, (int64_t[]){BATCH, HEADS, QUERIES, KEYS}, -INFINITY);
    for (int64_t i = 0; i < t->count; i++) {
        int64_t key = i % KEYS, query = i / KEYS % QUERIES, head = i / KEYS / QUERIES % HEADS;
        int64_t batch = i / KEYS / QUERIES / HEADS;
        int64_t row = lists->shape[1] > 1 ? head : 0;
        row += lists->shape[0] > 1 ? batch * lists->shape[1] : 0;
        for (int n = 0; n < COUNT; n++)
            if (number_of(row * ROWS + query / SPAN, n) == key / SPAN)
                cup__store(t, i, 0);
    }
    return t;
}

static void expect_bias(cup_dtype dtype, int64_t batches, int64_t heads, bool causal, double most)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    cup_tensor *in[2][3], *o[2];
    const int64_t of_q[] = {BATCH, HEADS, QUERIES, SIZE}, of_k[] = {BATCH, GROUPS, KEYS, SIZE};
    cup_tensor *d = cup_normal(c, dtype, 4, of_q, 0, 1);
    cup_tensor *lists = lists_of(c, heads == 1 ? CUP_I64 : CUP_I32, batches, heads);
    for (int i = 0; i < 3; i++) {
        in[0][i] = cup_normal(c, dtype, 4, i ? of_k : of_q, 0, 1);
        in[1][i] = cup_copy(c, in[0][i]);
    }
    for (int k = 0; k < 2; k++) {
        cup_attention_options options = {.size = sizeof options, .causal = causal, .soft_cap = 4};
        if (k)
            options.bias = bias_of(c, dtype, lists);
        else
            options.key_blocks = lists, options.block_size = SPAN;
        for (int i = 0; i < 3; i++)
            cup_require_grad(in[k][i]);
        o[k] = cup_attention(c, in[k][0], in[k][1], in[k][2], &options);
        cup_backward(c, cup_sum(c, cup_mul(c, o[k], d), NULL, 0, false));
        EXPECT_TEXT(cup_error_text(c), "");
    }
    expect_equal(o[0], o[1], most);
    for (int i = 0; i < 3; i++)
        expect_equal(cup_grad(in[0][i]), cup_grad(in[1][i]), most);
    cup_context_free(c);
}

TEST(attention_lists_are_a_bias)
{
    expect_bias(CUP_F64, 1, 1, false, 1e-12);
    expect_bias(CUP_F64, BATCH, HEADS, true, 1e-12);
    expect_bias(CUP_F64, 1, HEADS, true, 1e-12);
    expect_bias(CUP_F32, BATCH, 1, false, 2e-5);
    expect_bias(CUP_F32, BATCH, HEADS, true, 2e-5);
}

static cup_attention_options with(cup_tensor *lists, int block_size)
{
    return (cup_attention_options){
        .size = sizeof(cup_attention_options), .key_blocks = lists, .block_size = block_size};
}

static void expect_refused(cup_context *c, cup_tensor *q, cup_attention_options options,
                           cup_status status, const char *words)
{
    EXPECT(!cup_attention(c, q, q, q, &options));
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

TEST(attention_lists_say_what_does_not_fit)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 6));
    cup_tensor *q = cup_normal(c, CUP_F32, 4, (int64_t[]){2, 2, 40, 8}, 0, 1);
    const int64_t shape[] = {1, 1, 3, 1};
    const int32_t far[] = {0, 3, 1}, below[] = {0, -2, 1};
    cup_tensor *good = cup_zeros(c, CUP_I32, 4, shape);
    expect_refused(c, q, with(good, 24), CUP_ARGUMENT, "power of two");
    expect_refused(c, q, with(good, 2048), CUP_ARGUMENT, "power of two");
    expect_refused(c, q, with(good, -16), CUP_ARGUMENT, "power of two");
    expect_refused(c, q, with(good, 32), CUP_SHAPE, "[2,2,2,N]");
    expect_refused(c, q, with(cup_zeros(c, CUP_I32, 4, (int64_t[]){3, 1, 3, 1}), 16), CUP_SHAPE,
                   "[2,2,3,N]");
    expect_refused(c, q, with(cup_zeros(c, CUP_F32, 4, shape), 16), CUP_DTYPE, "i32 or i64");
    expect_refused(c, q, with(cup_tensor_from(c, CUP_I32, 4, shape, far), 16), CUP_ARGUMENT,
                   "block 3");
    expect_refused(c, q, with(cup_tensor_from(c, CUP_I32, 4, shape, below), 16), CUP_ARGUMENT,
                   "block -2");
    cup_tensor *d;
    cup_attention_options options = with(good, 16);
    cup_require_grad(q);
    cup_tensor *loss = cup_sum(c, cup_attention(c, q, q, q, &options), NULL, 0, false);
    EXPECT(cup_gradients_recorded(c, loss, &q, 1, &d) != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(c), "with key_blocks cannot be recorded");
    cup_context_free(c);
}

/* What a helper's list says of a block: a letter for each block of keys, x where it is seen. */
static void expect_pattern(int64_t queries, int64_t keys, cup_attention_blocks_options options,
                           const char *const *want)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    options.size = sizeof options;
    options.block_size = 16;
    cup_tensor *t = cup_attention_blocks(c, queries, keys, &options);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT(t && t->ndim == 4 && t->dtype == CUP_I32 && t->shape[2] == (queries + 15) / 16);
    for (int64_t row = 0; t && row < t->shape[2]; row++) {
        char got[32] = "";
        for (int64_t i = 0; i < (keys + 15) / 16; i++)
            got[i] = '.';
        for (int64_t i = 0; i < t->shape[3]; i++) {
            int64_t block = (int64_t)cup__load(t, row * t->shape[3] + i);
            if (block >= 0)
                got[block] = 'x';
        }
        EXPECT_TEXT(got, want[row]);
    }
    cup_context_free(c);
}

TEST(attention_blocks_are_local_global_and_strided)
{
    expect_pattern(80, 80, (cup_attention_blocks_options){.local = 2},
                   (const char *const[]){"xx...", "xxx..", ".xxx.", "..xxx", "...xx"});
    expect_pattern(80, 80, (cup_attention_blocks_options){.local = 1, .global = 1},
                   (const char *const[]){"xxxxx", "xx...", "x.x..", "x..x.", "x...x"});
    expect_pattern(70, 70, (cup_attention_blocks_options){.stride = 2, .causal = true},
                   (const char *const[]){"x....", ".x...", "x.x..", ".x.x.", "x.x.x"});
    expect_pattern(80, 80,
                   (cup_attention_blocks_options){.local = 2, .global = 1, .causal = true},
                   (const char *const[]){"x....", "xx...", "xxx..", "x.xx.", "x..xx"});
    /* The last query stands at the last key; a block of queries may lie across two of keys. */
    expect_pattern(20, 72, (cup_attention_blocks_options){.local = 1},
                   (const char *const[]){"...xx", "....x"});
    expect_pattern(48, 16, (cup_attention_blocks_options){.local = 1, .global = 1},
                   (const char *const[]){"x", "x", "x"});
    expect_pattern(48, 16, (cup_attention_blocks_options){.local = 1},
                   (const char *const[]){".", ".", "x"});
}

TEST(attention_blocks_say_what_does_not_fit)
{
    static const struct {
        int64_t queries;
        cup_attention_blocks_options options;
        const char *words;
    } cases[] = {{80, {.local = 1, .block_size = 48}, "power of two"},
                 {80, {.causal = true}, "one of them must be above 0"},
                 {80, {.local = 2, .stride = -1}, "2, 0 and -1"},
                 {-1, {.local = 1}, "from 0 to 2^30"},
                 {INT64_C(1) << 30, {.local = 1, .block_size = 16}, "take larger blocks"}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (int i = 0; i < 5; i++) {
        cup_attention_blocks_options options = cases[i].options;
        options.size = sizeof options;
        EXPECT(!cup_attention_blocks(c, cases[i].queries, 100000, &options));
        EXPECT_CONTAINS(cup_error_text(c), cases[i].words);
        cup_error_clear(c);
    }
    EXPECT(!cup_attention_blocks(c, 80, 80, NULL));
    cup_error_clear(c);
    cup_tensor *none = cup_attention_blocks(
        c, 0, 0, CUP_OPTIONS(cup_attention_blocks_options, .local = 1));
    EXPECT(none && none->count == 0);
    cup_context_free(c);
}
