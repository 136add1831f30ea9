/* Attention that gives the logarithms of its sums, and queries that stand at the first keys. */
#include <math.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

#define HEADS 2
#define SIZE 4
#define SCALE 0.5 /* 1 / sqrt(SIZE) */

static void expect_near(cup_tensor *got, cup_tensor *want, double most)
{
    EXPECT(got && want && got->count == want->count);
    for (int64_t i = 0; got && want && i < got->count; i++)
        EXPECT_NEAR(cup__load(got, cup__offset_of(got, i)),
                    cup__load(want, cup__offset_of(want, i)), most);
}

static cup_tensor *draw(cup_context *c, int64_t positions)
{
    cup_tensor *t = cup_normal(c, CUP_F64, 4, (int64_t[]){1, HEADS, positions, SIZE}, 0, 1);
    cup_require_grad(t);
    return t;
}

static cup_tensor *part(cup_context *c, cup_tensor *t, int64_t from, int64_t count)
{
    return cup_slice(c, t, (int64_t[]){0, 0, from, 0}, 4, (int64_t[]){-1, -1, count, -1}, 4);
}

/* The scores of all keys and of the sink, [1,HEADS,T,S + 1]. */
static cup_tensor *scores_of(cup_context *c, cup_tensor *q, cup_tensor *k, cup_tensor *sinks)
{
    const int64_t shape[] = {1, HEADS, q->shape[2], 1};
    cup_tensor *sink = cup_reshape(c, sinks, 4, (int64_t[]){1, HEADS, 1, 1});
    cup_tensor *s = cup_scale(c, cup_matmul(c, q, k, false, true), SCALE);
    return cup_concat(c, (cup_tensor *[]){s, cup_broadcast(c, sink, 4, shape)}, 2, 3);
}

/* The same loss by the op and by plain ones, with the gradients of all that goes in. */
TEST(attention_lse_is_the_sum_of_scores)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 2));
    cup_tensor *q = draw(c, 5), *k = draw(c, 7), *v = draw(c, 7), *o, *lse;
    cup_tensor *sinks = cup_normal(c, CUP_F64, 1, (int64_t[]){HEADS}, 0, 1);
    cup_require_grad(sinks);
    cup_tensor *u = cup_normal(c, CUP_F64, 4, (int64_t[]){1, HEADS, 5, SIZE}, 0, 1);
    cup_tensor *w = cup_normal(c, CUP_F64, 3, (int64_t[]){1, HEADS, 5}, 0, 1);
    cup_tensor *leaves[] = {q, k, v, sinks}, *got[4], *want[4];
    EXPECT(cup_attention_lse(c, q, k, v, CUP_OPTIONS(cup_attention_lse_options, .sinks = sinks),
                             &o, &lse) == CUP_OK);
    cup_tensor *loss = cup_add(c, cup_sum(c, cup_mul(c, o, u), NULL, 0, false),
                               cup_sum(c, cup_mul(c, lse, w), NULL, 0, false));
    EXPECT(cup_gradients(c, loss, leaves, 4, got) == CUP_OK);
    cup_tensor *scores = scores_of(c, q, k, sinks);
    cup_tensor *weights = part(c, cup_permute(c, cup_softmax(c, scores, 3),
                                              (int64_t[]){0, 1, 3, 2}, 4), 0, 7);
    cup_tensor *other_o = cup_matmul(c, weights, v, true, false);
    cup_tensor *other = cup_log(c, cup_sum(c, cup_exp(c, scores), (int64_t[]){3}, 1, false));
    expect_near(o, other_o, 1e-12);
    expect_near(lse, other, 1e-12);
    loss = cup_add(c, cup_sum(c, cup_mul(c, other_o, u), NULL, 0, false),
                   cup_sum(c, cup_mul(c, other, w), NULL, 0, false));
    EXPECT(cup_gradients(c, loss, leaves, 4, want) == CUP_OK);
    for (int i = 0; i < 4; i++)
        expect_near(got[i], want[i], 1e-12);
    EXPECT(cup_error(c) == CUP_OK);
    cup_context_free(c);
}

static cup_tensor *attend(cup_context *c, cup_tensor *q, cup_tensor *k, cup_tensor *v, bool causal,
                          bool top_left, int64_t left)
{
    return cup_attention(c, q, k, v, CUP_OPTIONS(cup_attention_options, .causal = causal,
                                                 .top_left = top_left, .window_left = left));
}

TEST(attention_from_the_top_left)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 2));
    cup_tensor *q = draw(c, 90), *k = draw(c, 90), *v = draw(c, 90);
    cup_tensor *few_q = part(c, q, 0, 40), *few_k = part(c, k, 0, 40), *few_v = part(c, v, 0, 40);
    for (int64_t left = 0; left < 20; left += 9) {
        cup_tensor *square = attend(c, few_q, few_k, few_v, true, false, left);
        expect_near(attend(c, few_q, k, v, true, true, left), square, 1e-12);
        cup_tensor *tall = attend(c, q, few_k, few_v, true, true, left);
        expect_near(part(c, tall, 0, 40), square, 1e-12);
        if (left)
            for (int64_t i = 0; i < SIZE; i++)
                EXPECT(cup__load(tall, cup__offset_of(tall, 89 * SIZE + i)) == 0);
        else
            expect_near(part(c, tall, 40, 50),
                        attend(c, part(c, q, 40, 50), few_k, few_v, false, false, 0), 1e-12);
        expect_near(attend(c, q, k, v, true, true, left), attend(c, q, k, v, true, false, left),
                    0);
    }
    cup_tensor *slopes = cup_full(c, CUP_F64, 1, (int64_t[]){HEADS}, 0.5);
    EXPECT(!cup_attention(c, q, few_k, few_v,
                          CUP_OPTIONS(cup_attention_options, .causal = true, .top_left = true,
                                      .slopes = slopes)));
    EXPECT_INT(cup_error(c), CUP_ARGUMENT);
    cup_context_free(c);
}

/* Values of another size than keys, larger and smaller, with all gradients. */
TEST(attention_to_values_of_another_size)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 4));
    for (int64_t size = 3; size < 8; size += 3) {
        cup_tensor *q = draw(c, 5), *k = draw(c, 7), *got[3], *want[3];
        cup_tensor *v = cup_normal(c, CUP_F64, 4, (int64_t[]){1, HEADS, 7, size}, 0, 1);
        cup_tensor *u = cup_normal(c, CUP_F64, 4, (int64_t[]){1, HEADS, 5, size}, 0, 1);
        cup_tensor *leaves[] = {q, k, cup_require_grad(v)};
        cup_tensor *o = cup_attention(c, q, k, v, NULL);
        cup_tensor *loss = cup_sum(c, cup_mul(c, o, u), NULL, 0, false);
        EXPECT(cup_gradients(c, loss, leaves, 3, got) == CUP_OK);
        cup_tensor *scores = cup_scale(c, cup_matmul(c, q, k, false, true), SCALE);
        cup_tensor *other = cup_matmul(c, cup_softmax(c, scores, 3), v, false, false);
        expect_near(o, other, 1e-12);
        loss = cup_sum(c, cup_mul(c, other, u), NULL, 0, false);
        EXPECT(cup_gradients(c, loss, leaves, 3, want) == CUP_OK);
        for (int i = 0; i < 3; i++)
            expect_near(got[i], want[i], 1e-12);
        /* In f32, by the blocks of the CPU. */
        cup_tensor *narrow[] = {cup_cast(c, q, CUP_F32), cup_cast(c, k, CUP_F32),
                                cup_cast(c, v, CUP_F32)};
        expect_near(cup_attention(c, narrow[0], narrow[1], narrow[2], NULL), other, 2e-6);
    }
    EXPECT(cup_error(c) == CUP_OK);
    cup_context_free(c);
}
