/* Attention over documents that lie one behind the other, held to attention over each alone. */
#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

#define HEADS 2
#define SIZE 8

/* The positions [from, to) of all heads. */
static cup_tensor *part(cup_context *c, cup_tensor *t, int64_t batch, int64_t from, int64_t to)
{
    const int64_t start[] = {batch, 0, from, 0}, size[] = {1, HEADS, to - from, SIZE};
    return cup_slice(c, t, start, 4, size, 4);
}

static void expect_equal(cup_tensor *got, cup_tensor *want, double most)
{
    EXPECT(got && want && got->count == want->count);
    for (int64_t i = 0; got && want && i < got->count; i++)
        EXPECT_NEAR(cup__load(got, cup__offset_of(got, i)),
                    cup__load(want, cup__offset_of(want, i)), most);
}

typedef struct packed {
    cup_tensor *q, *k, *v, *slopes, *sinks;
} packed;

static cup_attention_options with(const packed *p, int64_t left)
{
    return (cup_attention_options){.size = sizeof(cup_attention_options),
                                   .causal = true,
                                   .window_left = left,
                                   .soft_cap = 3,
                                   .slopes = p->slopes,
                                   .sinks = p->sinks};
}

static packed pack(cup_context *c, cup_dtype dtype, int64_t batch, int64_t queries, int64_t keys)
{
    const int64_t of_q[] = {batch, HEADS, queries, SIZE}, of_k[] = {batch, HEADS, keys, SIZE};
    cup_dtype numbers = dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    return (packed){cup_normal(c, dtype, 4, of_q, 0, 1), cup_normal(c, dtype, 4, of_k, 0, 1),
                    cup_normal(c, dtype, 4, of_k, 0, 1),
                    cup_full(c, numbers, 1, (int64_t[]){HEADS}, 0.125),
                    cup_full(c, numbers, 1, (int64_t[]){HEADS}, 0.5)};
}

/* Documents of queries and keys, of which one has no queries, one no keys, and one more queries
 * than keys; behind the last stand some that belong to none. */
static void expect_documents(cup_dtype dtype, int64_t left, double most)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
    const int64_t queries[] = {0, 7, 7, 90, 93, 160}, keys[] = {0, 12, 40, 110, 110, 170};
    packed p = pack(c, dtype, 1, 165, 180);
    cup_tensor *in[] = {p.q, p.k, p.v};
    for (int i = 0; i < 3; i++)
        cup_require_grad(in[i]);
    cup_tensor *d = cup_normal(c, dtype, 4, (int64_t[]){1, HEADS, 165, SIZE}, 0, 1);
    cup_attention_options options = with(&p, left);
    options.query_offsets = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){5}, queries + 1);
    options.key_offsets = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){5}, keys + 1);
    cup_tensor *o = cup_attention(c, p.q, p.k, p.v, &options);
    cup_backward(c, cup_sum(c, cup_mul(c, o, d), NULL, 0, false));
    EXPECT_TEXT(cup_error_text(c), "");
    for (int i = 0; i < 5; i++) {
        cup_tensor *given[3];
        const int64_t *of[] = {queries, keys, keys};
        for (int k = 0; k < 3; k++) {
            given[k] = cup_copy(c, part(c, cup_detach(in[k]), 0, of[k][i], of[k][i + 1]));
            cup_require_grad(given[k]);
        }
        cup_attention_options each = with(&p, left);
        cup_tensor *want = cup_attention(c, given[0], given[1], given[2], &each);
        expect_equal(part(c, o, 0, queries[i], queries[i + 1]), want, most);
        cup_backward(c, cup_sum(c, cup_mul(c, want, part(c, d, 0, queries[i], queries[i + 1])),
                                NULL, 0, false));
        for (int k = 0; k < 3; k++)
            if (of[k][i] < of[k][i + 1] && cup_grad(given[k]))
                expect_equal(part(c, cup_grad(in[k]), 0, of[k][i], of[k][i + 1]),
                             cup_grad(given[k]), most);
    }
    cup_tensor *rest = part(c, o, 0, 160, 165);
    for (int64_t i = 0; rest && i < rest->count; i++)
        EXPECT(cup__load(rest, cup__offset_of(rest, i)) == 0);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

TEST(attention_of_documents_is_that_of_each)
{
    expect_documents(CUP_F64, 0, 1e-12);
    expect_documents(CUP_F64, 9, 1e-12);
    expect_documents(CUP_F32, 0, 2e-5);
    expect_documents(CUP_F32, 9, 2e-5);
}

/* Lengths of keys alone: the last query stands at the last key that counts. */
TEST(attention_of_lengths_is_that_of_shorter_keys)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 4));
    const int64_t lengths[] = {70, 5, 0}, shape[] = {3, 1};
    packed p = pack(c, CUP_F32, 3, 6, 70);
    cup_attention_options options = with(&p, 0), each = with(&p, 0);
    options.key_offsets = cup_tensor_from(c, CUP_I64, 2, shape, lengths);
    cup_tensor *o = cup_attention(c, p.q, p.k, p.v, &options);
    for (int b = 0; b < 3; b++)
        expect_equal(part(c, o, b, 0, 6),
                     cup_attention(c, part(c, p.q, b, 0, 6), part(c, p.k, b, 0, lengths[b]),
                                   part(c, p.v, b, 0, lengths[b]), &each),
                     2e-6);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

static void expect_refused(int queries, const int32_t *q, int keys, const int32_t *k,
                           cup_status status, const char *words)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    packed p = pack(c, CUP_F32, 2, 10, 12);
    cup_attention_options options = with(&p, 0);
    if (q)
        options.query_offsets = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){queries}, q);
    if (k)
        options.key_offsets = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){keys}, k);
    EXPECT(!cup_attention(c, p.q, p.k, p.v, &options));
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_context_free(c);
}

TEST(attention_offsets_say_what_does_not_fit)
{
    const int32_t good[] = {4, 10}, down[] = {6, 4}, far[] = {4, 13}, below[] = {-1, 3};
    expect_refused(2, good, 1, good, CUP_SHAPE, "2 documents of queries and 1 of keys");
    expect_refused(0, NULL, 2, good, CUP_SHAPE, "the length of the keys");
    expect_refused(2, good, 2, down, CUP_ARGUMENT, "from 6 to 12");
    expect_refused(2, good, 2, far, CUP_ARGUMENT, "number of keys");
    expect_refused(2, below, 2, good, CUP_ARGUMENT, "number of queries");
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    packed p = pack(c, CUP_F32, 2, 10, 12);
    cup_attention_options options = with(&p, 0);
    options.query_offsets = cup_ones(c, CUP_F32, 1, (int64_t[]){2});
    EXPECT(!cup_attention(c, p.q, p.k, p.v, &options));
    EXPECT_INT(cup_error(c), CUP_DTYPE);
    cup_error_clear(c);
    options.query_offsets = cup_ones(c, CUP_I32, 2, (int64_t[]){3, 1});
    EXPECT(!cup_attention(c, p.q, p.k, p.v, &options));
    EXPECT_CONTAINS(cup_error_text(c), "each of the 2 batches");
    cup_context_free(c);
}
