/* Attention of codes: sentences, what scales mean, what sees nothing, and the order in which
 * tensor cores meet probabilities and values. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/ops.h"
#include "ops/lowbit/scaled_attention_call.cuh"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static cup_tensor *codes(cup_context *c, int64_t heads, int64_t positions, int64_t size)
{
    const int64_t shape[] = {2, heads, positions, size};
    return cup_cast(c, cup_normal(c, CUP_F32, 4, shape, 0, 1), CUP_F8E4M3);
}

static cup_tensor *numbers(cup_context *c, int64_t rows, int64_t columns, const float *values)
{
    return cup_tensor_from(c, CUP_F32, 2, (int64_t[]){rows, columns}, values);
}

static void expect_error(cup_context *c, const char *text)
{
    EXPECT_CONTAINS(cup_error_text(c), text);
    cup_error_clear(c);
}

TEST(scaled_attention_sentences)
{
    static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    cup_context *c = cpu();
    cup_tensor *q = codes(c, 4, 3, 8), *k = codes(c, 2, 5, 8), *odd = codes(c, 3, 5, 8);
    cup_tensor *wide = cup_cast(c, k, CUP_F32);
    EXPECT(!cup_scaled_attention(c, q, wide, k, NULL, NULL, NULL, CUP_BF16, NULL));
    expect_error(c, "q, k and v must be f8e4m3; make them with cup_quantize");
    EXPECT(!cup_scaled_attention(c, q, k, codes(c, 2, 5, 16), NULL, NULL, NULL, CUP_BF16, NULL));
    expect_error(c, "k and v must have the same shape, and q their batch and size of a head");
    EXPECT(!cup_scaled_attention(c, q, odd, odd, NULL, NULL, NULL, CUP_BF16, NULL));
    expect_error(c, "the 4 heads of q are no multiple of the 3 heads of k and v");
    EXPECT(!cup_scaled_attention(c, q, k, k, NULL, numbers(c, 2, 4, ones), NULL, CUP_BF16, NULL));
    expect_error(c, "the scales, input 5, must be [1 or 2, 1 or 2], one for each batch and head");
    EXPECT(!cup_scaled_attention(c, q, k, k, NULL, NULL, NULL, CUP_F64, NULL));
    expect_error(c, "the result must be bf16, f16 or f32, not f64");
    EXPECT(!cup_scaled_attention(c, q, k, k, NULL, NULL, NULL, CUP_F32,
                                 CUP_OPTIONS(cup_scaled_attention_options, .scale = INFINITY)));
    expect_error(c, "scale must be finite");
    cup_context_free(c);
}

/* Each scale counts for its own batch and head, and the sign of a score may be a scale's. */
TEST(scaled_attention_scales)
{
    static const float of_q[8] = {0.5f, 1, -0.25f, 2, 1, 3, 0, 0.125f}, of_k[2] = {0.5f, 2},
                       of_v[2] = {4, -1};
    static const int64_t by_q[] = {2, 4, 1, 1}, by_k[] = {1, 2, 1, 1}, by_v[] = {2, 1, 1, 1};
    cup_context *c = cpu();
    cup_tensor *q = codes(c, 4, 6, 16), *k = codes(c, 2, 9, 16), *v = codes(c, 2, 9, 16);
    cup_tensor *sq = numbers(c, 2, 4, of_q), *sk = numbers(c, 1, 2, of_k),
               *sv = numbers(c, 2, 1, of_v);
    for (int causal = 0; causal < 2; causal++) {
        cup_tensor *y = cup_scaled_attention(
            c, q, k, v, sq, sk, sv, CUP_F32,
            CUP_OPTIONS(cup_scaled_attention_options, .causal = causal));
        cup_tensor *want = cup_attention(
            c, cup_mul(c, cup_cast(c, q, CUP_F32), cup_reshape(c, sq, 4, by_q)),
            cup_mul(c, cup_cast(c, k, CUP_F32), cup_reshape(c, sk, 4, by_k)),
            cup_mul(c, cup_cast(c, v, CUP_F32), cup_reshape(c, sv, 4, by_v)),
            CUP_OPTIONS(cup_attention_options, .causal = causal));
        float got[2 * 4 * 6 * 16], expected[2 * 4 * 6 * 16];
        EXPECT(y && want);
        EXPECT(cup_tensor_read(cup_copy(c, y), got, sizeof got) == CUP_OK);
        EXPECT(cup_tensor_read(cup_copy(c, want), expected, sizeof expected) == CUP_OK);
        for (size_t i = 0; i < sizeof got / sizeof *got; i++)
            EXPECT_NEAR((double)got[i], (double)expected[i], 1e-5);
    }
    cup_context_free(c);
}

/* Queries in front of the first key see nothing. */
TEST(scaled_attention_of_nothing)
{
    cup_context *c = cpu();
    cup_tensor *q = codes(c, 1, 5, 16), *k = codes(c, 1, 2, 16);
    cup_tensor *y = cup_scaled_attention(c, q, k, k, NULL, NULL, NULL, CUP_F32,
                                         CUP_OPTIONS(cup_scaled_attention_options,
                                                     .causal = true));
    float got[2 * 5 * 16], first[16];
    EXPECT(y && cup_tensor_read(cup_copy(c, y), got, sizeof got) == CUP_OK);
    for (int i = 0; i < 3 * 16; i++)
        EXPECT(got[i] == 0 && got[5 * 16 + i] == 0);
    cup_tensor *one = cup_slice(c, cup_cast(c, k, CUP_F32), (int64_t[]){0, 0, 0, 0}, 4,
                                (int64_t[]){1, 1, 1, 16}, 4);
    EXPECT(cup_tensor_read(cup_copy(c, one), first, sizeof first) == CUP_OK);
    for (int i = 0; i < 16; i++)
        EXPECT_NEAR((double)got[3 * 16 + i], (double)first[i], 1e-6);
    cup_context_free(c);
}

/* Where a score of 32 keys is in the registers of the four threads of a row, by PTX for the D of
 * wgmma: score i of thread t, of the upper 8 rows where i & 2, is of this key. */
static int key_of_score(int thread, int i)
{
    return i / 4 * 8 + 2 * thread + i % 2;
}

/* And which k a byte of an A of 8 bits is of: words 0 and 1 are k from 0 on, 2 and 3 from 16 on,
 * words 1 and 3 of the lower 8 rows. */
static int k_of_byte(int thread, int word, int byte)
{
    return word / 2 * 16 + 4 * thread + byte;
}

/* Each probability meets the value of its own key, and all 32 do once. */
TEST(scaled_attention_order)
{
    for (int lower = 0; lower < 2; lower++) {
        bool met[32] = {false};
        for (int thread = 0; thread < 4; thread++)
            for (int half = 0; half < 2; half++)
                for (int byte = 0; byte < 4; byte++) {
                    int word = 2 * half + lower, score = HELD_SCORE(word, byte);
                    int k = k_of_byte(thread, word, byte);
                    EXPECT_INT(score >> 1 & 1, lower);
                    int key = k / 16 * 16 + TURNED_KEY(k % 16);
                    EXPECT_INT(key, key_of_score(thread, score));
                    EXPECT(!met[key]);
                    met[key] = true;
                }
    }
}
