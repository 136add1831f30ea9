/* Conditions of attention by a formula that only say how far a key may be from its query: they give
 * what the same conditions give where nothing is known of them, and are the window of the call. */
#include <math.h>

#include "base/memory.h"
#include "custom/score.h"
#include "formula.h"
#include "ops/attention/attention.h"

typedef struct condition {
    const char *text;
    double parameters[2], before, after;
} condition;

static const condition conditions[] = {
    {"key <= query && query - key < 5", {0}, 4, 0},
    {"abs(query - key) <= a", {3, 0}, 3, 3},
    {"!(abs(query - key) >= a + 0.5)", {3, 0}, 3, 3},
    {"key < query", {0}, INFINITY, -1},
    {"2 * key + 3 <= 2 * query", {0}, INFINITY, -2},
    {"query - key >= 2 && query - key < b", {0, 6}, 5, -2},
    {"!(key > query + a)", {2, 0}, INFINITY, 2},
    {"query == key + 2", {0}, 2, -2},
    {"!(query != key - 1)", {0}, -1, 1},
    {"query - key < floor(b / 2)", {0, 9}, 3, INFINITY},
    {"key > query + 3 && key < query", {0}, -4, -1},
    {"query - key < 100 && key - query < 100", {0}, 99, 99},
    {"key > query + 90", {0}, -91, INFINITY},
    {"query - key < a", {NAN, 0}, -INFINITY, INFINITY},
    {"!(query - key >= a)", {NAN, 0}, INFINITY, INFINITY},
    {"query - key < a", {-INFINITY, 0}, -INFINITY, INFINITY},
    {"query - key <= a", {INFINITY, 0}, INFINITY, INFINITY},
    {"query < key && !(query < key - 4)", {0}, -1, 4},
    /* Others stay conditions. */
    {"key < 4 || key <= query", {0}, INFINITY, INFINITY},
    {"(key < 4 || key <= query) && query - key < 7 && sin(key) < 0.9", {0}, 6, INFINITY},
    {"key + query < 9 && key <= query && a > 1", {2, 0}, INFINITY, 0},
    {"a * key < a * query", {2, 0}, INFINITY, INFINITY},
};
#define CONDITIONS (int)(sizeof conditions / sizeof *conditions)

TEST(attention_limits_are_found)
{
    cup_context *c = open_cpu();
    for (int i = 0; i < CONDITIONS; i++) {
        const condition *d = &conditions[i];
        char text[200];
        snprintf(text, sizeof text, "score * 2, %s", d->text);
        cup_expr *e = cup_expr_new(c, "score query key", "a b", text);
        CHECK(c);
        struct cup__score *s = cup__score_get(e);
        cup__key_limits limits;
        CHECK(c);
        EXPECT(cup__score_limits(s, d->parameters, &c->error, &limits) == CUP_OK);
        if (limits.before != d->before || limits.after != d->after)
            test_fail(__FILE__, __LINE__, "%s: %g before and %g after, not %g and %g", d->text,
                      limits.before, limits.after, d->before, d->after);
        cup_expr_free(e);
    }
    cup_context_free(c);
}

/* A score as it is leaves nothing to a formula, whatever limits stand beside it. */
TEST(attention_limits_leave_the_score)
{
    static const char *const texts[] = {"score", "score, query - key < 5 && key <= query",
                                        "where(key > query, -inf, score)"};
    cup_context *c = open_cpu();
    for (int i = 0; i < 3; i++) {
        cup_expr *e = cup_expr_new(c, "score query key", NULL, texts[i]);
        cup__score_formula *s = (cup__score_formula *)cup__score_get(e);
        CHECK(c);
        EXPECT(s->plain);
        cup_expr_free(e);
    }
    cup_expr *e = cup_expr_new(c, "score query key", NULL, "score, query - key < 5 && key > 3");
    EXPECT(!((cup__score_formula *)cup__score_get(e))->plain);
    cup_expr_free(e);
    cup_context_free(c);
}

typedef struct call {
    int64_t queries, keys;
    bool causal, offsets;
    int64_t left;
} call;

/* o and the gradients of q, k and v. */
static void attend(cup_context *c, cup_dtype dtype, const call *k, const char *text,
                   const double *parameters, cup_tensor *out[4])
{
    const int64_t of_q[] = {1, 2, k->queries, 4}, of_k[] = {1, 1, k->keys, 4};
    cup_tensor *in[3];
    for (int n = 0; n < 3; n++) {
        const int64_t *shape = n ? of_k : of_q;
        int64_t count = shape[1] * shape[2] * shape[3];
        double *values = cup__calloc((size_t)count, sizeof *values);
        for (int64_t i = 0; i < count; i++)
            values[i] = sin(0.7 * (double)i * (double)(i % 11) + n);
        in[n] = cup_tensor_from(c, CUP_F64, 4, shape, values);
        cup__free(values);
        in[n] = cup_require_grad(cup_keep(cup_cast(c, in[n], dtype)));
    }
    cup_attention_options o = {.size = sizeof o, .causal = k->causal, .window_left = k->left};
    if (k->offsets) {
        o.query_offsets = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){2},
                                          (int64_t[]){k->queries / 3, k->queries});
        o.key_offsets =
            cup_tensor_from(c, CUP_I64, 1, (int64_t[]){2}, (int64_t[]){k->keys / 2, k->keys});
    }
    cup_expr *e = cup_expr_new(c, "score query key", "a b", text);
    CHECK(c);
    out[0] = cup_expr_attention(e, in[0], in[1], in[2], NULL, parameters, &o);
    CHECK(c);
    cup_backward(c, cup_sum(c, cup_mul(c, out[0], out[0]), NULL, 0, false));
    CHECK(c);
    for (int n = 0; n < 3; n++)
        out[1 + n] = cup_grad(in[n]);
    cup_expr_free(e);
}

/* Of a condition within another that is compared with a number nothing is known. */
static void compare(cup_dtype dtype, double most)
{
    static const call calls[] = {{9, 14, false, false, 0}, {14, 9, true, false, 0},
                                 {1, 6, false, false, 0},  {70, 131, false, false, 60},
                                 {12, 15, false, true, 0}};
    for (int i = 0; i < CONDITIONS; i++)
        for (int k = 0; k < 5; k++)
            for (int plain = 0; plain < 2; plain++) {
                cup_context *c = open_cpu();
                cup_tensor *got[4], *want[4];
                char text[200];
                const char *score = plain ? "score" : "score - 0.1 * key";
                snprintf(text, sizeof text, "%s, %s", score, conditions[i].text);
                attend(c, dtype, &calls[k], text, conditions[i].parameters, got);
                snprintf(text, sizeof text, "%s, (%s) > 0.5", score, conditions[i].text);
                attend(c, dtype, &calls[k], text, conditions[i].parameters, want);
                for (int n = 0; n < 4; n++)
                    for (int64_t j = 0; j < got[n]->count; j++)
                        if (!(fabs(at(got[n], j) - at(want[n], j)) <= most))
                            test_fail(__FILE__, __LINE__, "%s, call %d, result %d: %g, not %g",
                                      text, k, n, at(got[n], j), at(want[n], j));
                cup_context_free(c);
            }
}

TEST(attention_limits_hide_the_same_f64)
{
    compare(CUP_F64, 1e-12);
}

TEST(attention_limits_hide_the_same_f32)
{
    compare(CUP_F32, 1e-5);
}

/* What a window hides is not counted among the work of the call. */
TEST(attention_limits_are_not_computed)
{
    cup__attention_mask all = cup__attention_mask_make(false, false, 0, 0, NULL, NULL, 100, 200);
    cup__attention_mask m = all;
    cup__attention_mask_narrow(&m, 9, 0);
    EXPECT(m.window && !m.causal && m.before == 9 && m.after == 0);
    m = all;
    cup__attention_mask_narrow(&m, CUP__MASK_UNLIMITED, 0);
    EXPECT(!m.window && m.causal);
    m = all;
    cup__attention_mask_narrow(&m, 199, 99);
    EXPECT(!m.window && !m.causal);
    m = all;
    cup__attention_mask_narrow(&m, -5, 3);
    for (int query = 0; query < 100; query++)
        EXPECT(cup__attention_end(&m, 0, query) == cup__attention_first(&m, 0, query));
}
