/* Gradients of calls against double, one of them wrong on purpose. */
#include <stdio.h>
#include <string.h>

#include "../test.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "prof/check_backward.h"

static int64_t count, failed;

static void report(const cup__backward_result *r, void *user)
{
    count++;
    failed += !r->passed;
    if (!r->passed && user)
        test_fail(__FILE__, __LINE__, "%s: %s: error %g, at most %g", r->call, r->note, r->error,
                  r->tolerance);
}

static const cup__op *right;

/* Right in double, as the reference is, and off by a part in 50 in other dtypes. */
static cup_status wrong_gradient(cup__grad *g)
{
    CUP_TRY(right->gradient(g));
    if (g->d_in[0] && g->d_in[0]->dtype != CUP_F64)
        g->d_in[0] = cup_scale(g->c, g->d_in[0], 1.02);
    return CUP_OK;
}

/* Checks tanh with the wrong gradient, by `drawn` random calls beside its samples. */
static cup_context *check_wrong(int64_t drawn, cup__backward_report told)
{
    const cup__row *known = cup__row_find("tanh");
    cup__op op = *known->op;
    cup__row row = *known;
    const cup__row *rows[] = {&row};
    right = known->op;
    op.gradient = wrong_gradient;
    row.op = &op;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup__check_backward(c, rows, 1, 5, drawn, told, NULL), CUP_OK);
    return c;
}

TEST(backward_passes_what_is_right)
{
    const cup__row *rows[] = {cup__row_find("tanh"), cup__row_find("linear"),
                              cup__row_find("mul"), cup__row_find("softmax")};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup__check_backward(c, rows, 4, 5, 40, report, &count), CUP_OK);
    EXPECT(count > 60);
    cup_context_free(c);
}

TEST(backward_sees_a_wrong_gradient)
{
    cup_context *c = check_wrong(0, report);
    EXPECT(failed >= count / 4); /* f32; in 16 bits it may hide in the rounding */
    EXPECT(count > 10);
    cup_context_free(c);
}

static char smallest[400];

static void keep(const cup__backward_result *r, void *user)
{
    (void)user;
    failed += !r->passed;
    if (r->drawn && !r->passed && r->dtype == CUP_F32)
        snprintf(smallest, sizeof smallest, "%s", r->call);
}

TEST(backward_shrinks_what_fails)
{
    cup_context *c = check_wrong(8, keep);
    EXPECT(!strncmp(smallest, "tanh f32 1", 10) && strlen(smallest) < 40);
    failed = 0;
    EXPECT_INT(cup__check_backward_call(c, smallest, keep, NULL), CUP_OK);
    EXPECT_INT(failed, 0); /* by the op's own gradient */
    EXPECT_INT(cup__check_backward_call(c, "argmax f32 3", keep, NULL), CUP_ARGUMENT);
    cup_context_free(c);
}

/* Where a query sees one key, what cancels is o, which is stored rounded; where all keys are alike,
 * their slopes leave nothing; scores of 252 products
 * are rounded as often, and up to 74. */
TEST(backward_knows_what_is_rounded)
{
    static const char *const calls[] = {
        "attention bf16 1x1x6x1 1x1x1x1 1x1x1x1 dropout=0.7352870899011806 /seed=226505648301070",
        "attention f32 1x26x4x2 1x1x384x2@1,6,0,0 1x1x384x2 - - - - dropout=0.7678725820597901 "
        "/seed=83956328541765",
        "attention f32 1x1x12x252 1x1x222x252 1x1x222x252 scale=0.4598843969981876 "
        "/seed=280474521062152",
    };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    failed = count = 0;
    for (int i = 0; i < 3; i++)
        EXPECT_INT(cup__check_backward_call(c, calls[i], report, &count), CUP_OK);
    EXPECT_INT(count, 3);
    EXPECT_INT(failed, 0);
    cup_context_free(c);
}

/* Right in double, and dq half as large again in other dtypes. */
static cup_status wrong_queries(cup__grad *g)
{
    CUP_TRY(right->gradient(g));
    if (g->d_in[0] && g->d_in[0]->dtype != CUP_F64)
        g->d_in[0] = cup_scale(g->c, g->d_in[0], 1.5);
    return CUP_OK;
}

static int64_t narrow[2]; /* calls of 16 bits, and those that were found wrong */

static void count_narrow(const cup__backward_result *r, void *user)
{
    (void)user;
    narrow[0] += r->dtype != CUP_F32 && strstr(r->call, "dropout");
    narrow[1] += r->dtype != CUP_F32 && strstr(r->call, "dropout") && !r->passed;
}

/* In 16 bits, what a call may be wrong by for its sums in f32 is nothing. */
TEST(backward_holds_attention_in_16_bits)
{
    const cup__row *known = cup__row_find("attention");
    cup__op op = *known->op;
    cup__row row = *known;
    const cup__row *rows[] = {&row};
    static const cup__attention_attributes some = {.dropout = 0.3}, few = {.dropout = 0.1};
    static const cup__sample samples[] = {
        {"1x2x40x64 1x2x40x64 1x2x40x64", &some},
        {"2x4x33x20 2x2x50x20 2x2x50x20", &few},
        {NULL, NULL}};
    right = known->op;
    op.gradient = wrong_queries;
    op.samples = samples;
    row.op = &op;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup__check_backward(c, rows, 1, 5, 1, count_narrow, NULL), CUP_OK);
    EXPECT(narrow[0] >= 4);
    EXPECT(narrow[1] >= 4);
    op.gradient = right->gradient;
    narrow[0] = narrow[1] = 0;
    EXPECT_INT(cup__check_backward(c, rows, 1, 5, 1, count_narrow, NULL), CUP_OK);
    EXPECT_INT(narrow[1], 0);
    cup_context_free(c);
}

/* Right in double, and off by a part in 2000 in other dtypes. */
static cup_status slightly_wrong(cup__grad *g)
{
    CUP_TRY(right->gradient(g));
    for (int i = 0; i < 3 && i < g->in_count; i++)
        if (g->d_in[i] && g->d_in[i]->dtype != CUP_F64)
            g->d_in[i] = cup_scale(g->c, g->d_in[i], 1.0005);
    return CUP_OK;
}

static void count_f32(const cup__backward_result *r, void *user)
{
    (void)user;
    narrow[0] += r->dtype == CUP_F32;
    narrow[1] += r->dtype == CUP_F32 && !r->passed;
}

/* Scores are large sums whose rounding all probabilities have, and where rows repeat one number so
 * do all their products. That is as much as is forgiven. */
TEST(backward_knows_what_scores_are_off_by)
{
    static const char *const calls[] = {
        "qkv_attention f32 1x51x240@1,1,0 - - - - - heads=2 /seed=59648356120689",
        "qkv_attention f32 1x6x880@1,2,0 - - - - - heads=18 kv_heads=2 /seed=21948165914570",
        "qkv_attention f32 1x4x3072@4,1,0 - - - - - heads=16 kv_heads=4 /seed=215858354214852"};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    failed = count = 0;
    for (int i = 0; i < 3; i++)
        EXPECT_INT(cup__check_backward_call(c, calls[i], report, &count), CUP_OK);
    static const cup__qkv_attention_attributes heads = {.heads = 4, .kv_heads = 2};
    static const cup__attention_attributes plain = {0};
    static const cup__sample samples[2][2] = {{{"2x40x256", &heads}},
                                              {{"2x4x33x40 2x2x50x40 2x2x50x40", &plain}}};
    for (int i = 0; i < 2; i++) {
        const cup__row *known = cup__row_find(i ? "attention" : "qkv_attention");
        cup__op op = *known->op;
        cup__row row = *known;
        const cup__row *rows[] = {&row};
        right = known->op;
        op.samples = samples[i];
        row.op = &op;
        narrow[0] = narrow[1] = 0;
        EXPECT_INT(cup__check_backward_samples(c, rows, 1, count_f32, NULL), CUP_OK);
        EXPECT_INT(narrow[1], 0);
        op.gradient = slightly_wrong;
        EXPECT_INT(cup__check_backward_samples(c, rows, 1, count_f32, NULL), CUP_OK);
        EXPECT_INT(narrow[0], 2);
        EXPECT_INT(narrow[1], 1);
    }
    cup_context_free(c);
}

static double bias_off_by; /* epsilons of f32 */
static int bias_at;         /* of the inputs */

/* Right in double; that of the bias is off by a rounding of the sums that it is a difference of. */
static cup_status off_by_a_sum(cup__grad *g)
{
    CUP_TRY(right->gradient(g));
    cup_tensor *d = g->d_in[bias_at];
    if (d && d->dtype != CUP_F64)
        g->d_in[bias_at] =
            cup_add(g->c, d, cup_full(g->c, d->dtype, 0, NULL, bias_off_by * 0x1p-23));
    return g->c->error.status;
}

static void count_f16(const cup__backward_result *r, void *user)
{
    (void)user;
    narrow[0] += r->dtype == CUP_F16;
    narrow[1] += r->dtype == CUP_F16 && !r->passed;
}

/* With one key the slope of its score is nothing, the difference of two sums of as many products as
 * a value has elements, each rounded in f32: f16 has numbers as small as that. */
TEST(backward_knows_what_one_key_leaves_of_a_bias)
{
    static const cup__attention_attributes plain = {0};
    static const cup__qkv_attention_attributes heads = {.heads = 1, .kv_heads = 1};
    static const cup__sample samples[2][2] = {
        {{"1x1x1x72 1x1x1x72 1x1x1x72 - - - - 1x1x1x1 -", &plain}},
        {{"1x1x216 - - - - 1x1x1x1", &heads}}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (int i = 0; i < 2; i++) {
        const cup__row *known = cup__row_find(i ? "qkv_attention" : "attention");
        cup__op op = *known->op;
        cup__row row = *known;
        const cup__row *rows[] = {&row};
        right = known->op;
        bias_at = i ? 5 : 7;
        op.samples = samples[i];
        op.gradient = off_by_a_sum;
        row.op = &op;
        for (int wrong = 0; wrong < 2; wrong++) {
            narrow[0] = narrow[1] = 0;
            bias_off_by = wrong ? 1000 : 20;
            EXPECT_INT(cup__check_backward(c, rows, 1, 0, 1, count_f16, NULL), CUP_OK);
            EXPECT_INT(narrow[0], 1);
            EXPECT_INT(narrow[1], wrong);
        }
    }
    cup_context_free(c);
}

static double off_by; /* epsilons of f32 */

/* Right in double, and off by that of a probability in a single row. */
static cup_status off_by_a_probability(cup__grad *g)
{
    CUP_TRY(right->gradient(g));
    if (g->d_in[0] && g->d_in[0]->dtype != CUP_F64)
        g->d_in[0] = cup_add(g->c, g->d_in[0], cup_scale(g->c, g->d_out[0], off_by * 0x1p-23));
    return g->c->error.status;
}

/* A class that is certain has a probability of 1, which its gradient is the rounding of. */
TEST(backward_knows_what_a_certain_class_leaves)
{
    static const cup__cross_entropy_attributes plain = {.ignore_index = -1};
    static const cup__linear_cross_entropy_attributes linear = {.ignore_index = -1};
    static const cup__sample samples[2][2] = {{{"1x1 1", &plain}}, {{"1x4 1x4 1", &linear}}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (int i = 0; i < 2; i++) {
        const cup__row *known = cup__row_find(i ? "linear_cross_entropy" : "cross_entropy");
        cup__op op = *known->op;
        cup__row row = *known;
        const cup__row *rows[] = {&row};
        right = known->op;
        op.samples = samples[i];
        op.gradient = off_by_a_probability;
        row.op = &op;
        for (off_by = 0.25; off_by < 100; off_by *= 100) {
            narrow[0] = narrow[1] = 0;
            EXPECT_INT(cup__check_backward_samples(c, rows, 1, count_f32, NULL), CUP_OK);
            EXPECT_INT(narrow[0], 1);
            EXPECT_INT(narrow[1], off_by > 1);
        }
    }
    cup_context_free(c);
}

/* Right in double, and off by four epsilons of the terms that a norm's gradient is the sum of. */
static cup_status wrong_by_terms(cup__grad *g)
{
    cup_context *c = g->c;
    int64_t axis = -1;
    CUP_TRY(right->gradient(g));
    if (!g->d_in[0] || g->d_in[0]->dtype == CUP_F64)
        return CUP_OK;
    cup_tensor *h = cup_abs(c, g->in[1] ? cup_mul(c, g->d_out[0], g->in[1]) : g->d_out[0]);
    cup_tensor *rate = cup_mean(c, cup_square(c, g->in[0]), &axis, 1, true);
    rate = cup_reciprocal(c, cup_sqrt(c, rate));
    cup_tensor *normed = cup_abs(c, cup_mul(c, g->in[0], rate));
    cup_tensor *weighed = cup_mean(c, cup_mul(c, h, normed), &axis, 1, true);
    cup_tensor *terms = cup_mul(c, rate, cup_add(c, h, cup_mul(c, normed, weighed)));
    g->d_in[0] = cup_add(c, g->d_in[0], cup_scale(c, terms, 4 * 0x1p-23));
    return c->error.status;
}

static void list_failed(const cup__backward_result *r, void *user)
{
    (void)user;
    count++;
    failed += !r->passed;
    if (!r->passed)
        snprintf(smallest, sizeof smallest, "%s", r->call);
}

/* One value that is nearly all of its row: its gradient is little beside its terms, by whose
 * rounding it may be wrong, and by no more. */
TEST(backward_knows_what_cancels)
{
    const cup__row *known = cup__row_find("rmsnorm");
    cup__op op = *known->op;
    cup__row row = *known;
    const cup__row *rows[] = {&row};
    right = known->op;
    op.gradient = wrong_by_terms;
    row.op = &op;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    static const char *const calls[] = {
        "rmsnorm f32 1x4x2 - eps=1e-05 /seed=37957897110389",
        "layernorm f32 1x10x2 - - /seed=261334194824125", /* two values, far from 0 */
        "add_layernorm f32 49x2 49x2 - - /seed=20796652449793"};
    for (int i = 0; i < 3; i++)
        EXPECT_INT(cup__check_backward_call(c, calls[i], report, &count), CUP_OK);
    EXPECT_INT(failed, 0);
    EXPECT_INT(cup__check_backward_samples(c, rows, 1, list_failed, NULL), CUP_OK);
    EXPECT_INT(failed, 1);
    EXPECT(!strncmp(smallest, "rmsnorm f32 2x1 1", 17));
    cup_context_free(c);
}

/* Ops of which nothing, or nothing narrow, was held: those that round on the way are in no dtype
 * but their own otherwise, and narrow norms leave rounding alone in x, but not in gamma. */
TEST(backward_holds_norms_of_any_width)
{
    static const char *const calls[] = {
        "layernorm f32 5x1 1 1",         "layernorm bf16 7x2 2 2",
        "rmsnorm f32 5x1 1",             "rmsnorm f32 9x2 2",
        "add_rmsnorm f32 3x8 3x8",       "add_layernorm bf16 3x8 3x8 8 8",
        "add_layernorm f32 4x2 4x2 2 2", "norm f32 5x2 axes=1",
        "groupnorm f32 3x4x1 4 4 groups=4 axis=1",
        "cross_entropy f32 5x1 5:i64<1 ignore_index=-100",
    };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        count = 0;
        EXPECT_INT(cup__check_backward_call(c, calls[i], report, &count), CUP_OK);
        if (count != 1)
            test_fail(__FILE__, __LINE__, "%s was not held", calls[i]);
    }
    cup_context_free(c);
}
