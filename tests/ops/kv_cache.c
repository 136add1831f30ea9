/* Attention over a cache, held to attention over all keys and values at once. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"
#include "tensor/tensor.h"

#define SEQUENCES 3
#define HEADS 2
#define GROUP 2
#define SIZE 16
#define LENGTH 90

/* The tokens [from, to) of all sequences, or of one. */
static cup_tensor *part(cup_context *c, cup_tensor *t, int64_t sequence, int64_t from, int64_t to)
{
    int64_t start[] = {sequence < 0 ? 0 : sequence, 0, from, 0};
    int64_t size[] = {sequence < 0 ? -1 : 1, -1, to - from, -1};
    return cup_slice(c, t, start, 4, size, 4);
}

static void expect_near(cup_tensor *got, cup_tensor *want, double most)
{
    EXPECT(got && want && got->count == want->count);
    for (int64_t i = 0; got && want && i < got->count; i++)
        EXPECT_NEAR(cup__load(got, cup__offset_of(got, i)),
                    cup__load(want, cup__offset_of(want, i)), most);
}

typedef struct steps {
    cup_dtype dtype, kept;
    int64_t page, value_size, window;
    double most;
} steps;

/* Sequences of different lengths in steps of several tokens, of which not all have each. */
static void expect_steps(steps s)
{
    static const int32_t counts[][SEQUENCES] = {{40, 1, 17}, {1, 1, 1}, {0, 33, 5}, {2, 2, 2}};
    static const int64_t tokens[] = {40, 1, 33, 2};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const int64_t of_q[] = {SEQUENCES, HEADS * GROUP, LENGTH, SIZE};
    const int64_t of_k[] = {SEQUENCES, HEADS, LENGTH, SIZE};
    const int64_t of_v[] = {SEQUENCES, HEADS, LENGTH, s.value_size};
    cup_tensor *q = cup_normal(c, s.dtype, 4, of_q, 0, 1);
    cup_tensor *k = cup_normal(c, s.dtype, 4, of_k, 0, 1);
    cup_tensor *v = cup_normal(c, s.dtype, 4, of_v, 0, 1);
    cup_kv_cache *cache = cup_kv_cache_new(
        c, s.kept, SEQUENCES, LENGTH, HEADS, SIZE,
        CUP_OPTIONS(cup_kv_cache_options, .layers = 2, .page = s.page, .value_size = s.value_size));
    int64_t at[SEQUENCES] = {0};
    for (int step = 0; step < 4; step++) {
        int64_t t = tokens[step];
        cup_tensor *count = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){SEQUENCES}, counts[step]);
        cup_tensor *new_q[SEQUENCES], *new_k[SEQUENCES], *new_v[SEQUENCES];
        for (int b = 0; b < SEQUENCES; b++) {
            new_q[b] = part(c, q, b, at[b], at[b] + t);
            new_k[b] = part(c, k, b, at[b], at[b] + t);
            new_v[b] = part(c, v, b, at[b], at[b] + t);
            EXPECT(cup_kv_cache_reserve(cache, b, at[b] + counts[step][b]) == CUP_OK);
        }
        EXPECT(cup_kv_cache_append(cache, 1, cup_concat(c, new_k, SEQUENCES, 0),
                                   cup_concat(c, new_v, SEQUENCES, 0), count) == CUP_OK);
        cup_tensor *o = cup_kv_cache_attend(
            cache, 1, cup_concat(c, new_q, SEQUENCES, 0), count,
            CUP_OPTIONS(cup_kv_cache_attend_options, .window_left = s.window));
        EXPECT(cup_kv_cache_advance(cache, t, count) == CUP_OK);
        for (int b = 0; b < SEQUENCES; b++) {
            int64_t n = counts[step][b];
            cup_tensor *want = cup_attention(
                c, part(c, q, b, at[b], at[b] + n), part(c, k, b, 0, at[b] + n),
                cup_pad(c, part(c, v, b, 0, at[b] + n), (int64_t[]){0, 0, 0, 0}, 4,
                        (int64_t[]){0, 0, 0, SIZE - s.value_size}, 4, NULL),
                CUP_OPTIONS(cup_attention_options, .causal = true, .window_left = s.window));
            want = cup_slice(c, want, (int64_t[]){0, 0, 0, 0}, 4,
                             (int64_t[]){-1, -1, -1, s.value_size}, 4);
            expect_near(part(c, o, b, 0, n), want, s.most);
            cup_tensor *rest = part(c, o, b, n, t);
            for (int64_t i = 0; rest && i < (t - n) * HEADS * GROUP * s.value_size; i++)
                EXPECT(cup__load(rest, cup__offset_of(rest, i)) == 0);
            at[b] += n;
        }
    }
    EXPECT(cup_error(c) == CUP_OK);
    int32_t lengths[SEQUENCES];
    EXPECT(cup_tensor_read(cup_kv_cache_lengths(cache), lengths, sizeof lengths) == CUP_OK);
    for (int b = 0; b < SEQUENCES; b++)
        EXPECT_INT(lengths[b], at[b]);
    cup_kv_cache_free(cache);
    cup_context_free(c);
}

TEST(kv_cache_is_attention)
{
    expect_steps((steps){CUP_F32, CUP_F32, 0, SIZE, 0, 3e-6});
    expect_steps((steps){CUP_F32, CUP_F32, 7, SIZE, 20, 3e-6});
    expect_steps((steps){CUP_F64, CUP_F64, 16, 8, 0, 1e-12});
    expect_steps((steps){CUP_BF16, CUP_BF16, 16, SIZE, 0, 0.05});
}

/* A code is off by up to half of 1/127 of the largest of its head, in fp8 by 1/16 of itself. */
TEST(kv_cache_of_codes)
{
    expect_steps((steps){CUP_F32, CUP_I8, 16, SIZE, 0, 0.06});
    expect_steps((steps){CUP_F32, CUP_F8E4M3, 0, SIZE, 0, 0.25});
    expect_steps((steps){CUP_F16, CUP_I8, 5, SIZE, 9, 0.06});
}

TEST(kv_cache_shares_pages)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_kv_cache *cache =
        cup_kv_cache_new(c, CUP_F32, 2, 40, 1, 4,
                         CUP_OPTIONS(cup_kv_cache_options, .page = 8, .pages = 6));
    EXPECT(cup_kv_cache_reserve(cache, 0, 33) == CUP_OK);
    EXPECT_INT(cup_kv_cache_pages_free(cache), 1);
    EXPECT(cup_kv_cache_reserve(cache, 0, 40) == CUP_OK);
    EXPECT_INT(cup_kv_cache_pages_free(cache), 1);
    EXPECT(cup_kv_cache_reserve(cache, 1, 9) == CUP_STATE);
    cup_error_clear(c);
    EXPECT_INT(cup_kv_cache_pages_free(cache), 1);
    EXPECT(cup_kv_cache_set(cache, 0, 9) == CUP_OK);
    EXPECT_INT(cup_kv_cache_pages_free(cache), 4);
    EXPECT(cup_kv_cache_reserve(cache, 1, 32) == CUP_OK);
    EXPECT_INT(cup_kv_cache_pages_free(cache), 0);
    int32_t table[10];
    bool seen[6] = {false};
    EXPECT(cup_tensor_read(cup_kv_cache_table(cache), table, sizeof table) == CUP_OK);
    for (int i = 0; i < 10; i++) {
        if (i % 5 >= (i < 5 ? 2 : 4)) {
            EXPECT_INT(table[i], -1);
            continue;
        }
        EXPECT(table[i] >= 0 && table[i] < 6 && !seen[table[i]]);
        seen[table[i]] = true;
    }
    EXPECT(cup_kv_cache_set(cache, 2, 0) == CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT(cup_kv_cache_set(cache, 0, 41) == CUP_ARGUMENT);
    cup_error_clear(c);
    cup_kv_cache_free(cache);
    cup_context_free(c);
}

static void expect_refused(cup_context *c, cup_status got, cup_status want)
{
    EXPECT_INT(got, want);
    EXPECT(cup_error_text(c)[0] != 0);
    cup_error_clear(c);
}

TEST(kv_cache_refuses)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_kv_cache *cache =
        cup_kv_cache_new(c, CUP_F32, 2, 10, 2, 4, CUP_OPTIONS(cup_kv_cache_options, .page = 4));
    cup_tensor *k = cup_zeros(c, CUP_F32, 4, (int64_t[]){2, 2, 3, 4});
    cup_tensor *half = cup_cast(c, k, CUP_F16), *odd = cup_zeros(c, CUP_F32, 4,
                                                                 (int64_t[]){2, 3, 3, 4});
    cup_tensor *many = cup_zeros(c, CUP_F32, 4, (int64_t[]){2, 2, 13, 4});
    expect_refused(c, cup_kv_cache_append(cache, 0, k, k, NULL), CUP_ARGUMENT); /* no page yet */
    for (int b = 0; b < 2; b++)
        EXPECT(cup_kv_cache_reserve(cache, b, 10) == CUP_OK);
    EXPECT(cup_kv_cache_append(cache, 0, k, k, NULL) == CUP_OK);
    expect_refused(c, cup_kv_cache_append(cache, 1, k, k, NULL), CUP_ARGUMENT);
    expect_refused(c, cup_kv_cache_append(cache, 0, half, half, NULL), CUP_DTYPE);
    expect_refused(c, cup_kv_cache_append(cache, 0, odd, odd, NULL), CUP_SHAPE);
    expect_refused(c, cup_kv_cache_append(cache, 0, many, many, NULL), CUP_ARGUMENT);
    expect_refused(c, cup_kv_cache_append(cache, 0, k, k, k), CUP_DTYPE);
    EXPECT(!cup_kv_cache_attend(cache, 0, odd, NULL, NULL));
    expect_refused(c, cup_error(c), CUP_SHAPE);
    expect_refused(c, cup_kv_cache_advance(cache, 11, NULL), CUP_ARGUMENT);
    expect_refused(c, cup_kv_cache_reserve(cache, 0, 11), CUP_ARGUMENT);
    EXPECT(!cup_kv_cache_new(c, CUP_BOOL, 1, 1, 1, 1, NULL));
    expect_refused(c, cup_error(c), CUP_DTYPE);
    EXPECT(!cup_kv_cache_new(c, CUP_F32, 1, 0, 1, 1, NULL));
    expect_refused(c, cup_error(c), CUP_ARGUMENT);
    EXPECT(!cup_kv_cache_new(c, CUP_F32, 1, 1, 1, 1,
                             CUP_OPTIONS(cup_kv_cache_options, .pages = 2)));
    expect_refused(c, cup_error(c), CUP_ARGUMENT);
    cup_kv_cache_free(cache);
    cup_context_free(c);
}

static void expect_lengths(cup_kv_cache *cache, int32_t first, int32_t second)
{
    int32_t lengths[2];
    EXPECT(cup_tensor_read(cup_kv_cache_lengths(cache), lengths, sizeof lengths) == CUP_OK);
    EXPECT_INT(lengths[0], first);
    EXPECT_INT(lengths[1], second);
}

/* Where one count of several is wrong no sequence changes. */
TEST(kv_cache_advances_within_its_room)
{
    static const int32_t wrong[][2] = {{1, -4}, {-6, 0}, {0, 8}, {6, 1}, {1, INT32_MAX},
                                       {INT32_MIN, 1}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_kv_cache *cache = cup_kv_cache_new(c, CUP_F32, 2, 10, 1, 4, NULL);
    const int32_t first[] = {5, 3}, back[] = {-5, 7};
    cup_tensor *counts = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){2}, first);
    EXPECT(cup_kv_cache_advance(cache, 5, counts) == CUP_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        counts = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){2}, wrong[i]);
        EXPECT_INT(cup_kv_cache_advance(cache, 0, counts), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), "cup_kv_cache_set");
        cup_error_clear(c);
        expect_lengths(cache, 5, 3);
    }
    expect_refused(c, cup_kv_cache_advance(cache, 6, NULL), CUP_ARGUMENT);
    expect_refused(c, cup_kv_cache_advance(cache, 0, cup_cast(c, counts, CUP_I64)), CUP_DTYPE);
    expect_refused(c, cup_kv_cache_advance(cache, 0, cup_zeros(c, CUP_I32, 1, (int64_t[]){3})),
                   CUP_SHAPE);
    expect_lengths(cache, 5, 3);
    counts = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){2}, back);
    EXPECT(cup_kv_cache_advance(cache, 0, counts) == CUP_OK);
    expect_lengths(cache, 0, 10);
    cup_kv_cache_free(cache);
    cup_context_free(c);
}
