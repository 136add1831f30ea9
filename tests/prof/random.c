/* Random calls find an implementation that is wrong at one width, make the call smaller, and say
 * how to make it again. */
#include <stdio.h>
#include <string.h>

#include "../cuda/support.h"
#include "../test.h"
#include "cuda/cuda.h"
#include "cuda/dry.h"
#include "prof/kernels.h"
#include "prof/random.h"

#define WRONG_FROM 70 /* elements of the last dimension */

typedef struct seen {
    int64_t results, failed, texts; /* texts: which calls, in no order */
    char repeat[400], note[400];
} seen;

static void report(const cup_check_result *r, void *user)
{
    seen *s = user;
    s->results++;
    int32_t text = 0;
    for (const char *at = r->repeat; *at; at++)
        text = (text * 31 + *at) % 1000003;
    s->texts += text;
    s->failed += !r->passed;
    if (!r->passed && !s->repeat[0])
        snprintf(s->repeat, sizeof s->repeat, "%s", r->repeat);
    if (!r->passed && !s->note[0])
        snprintf(s->note, sizeof s->note, "%s", r->note);
}

/* A vector's rest that is forgotten where rows are long. */
static cup_status wrong_when_wide(cup__call *call)
{
    cup_tensor *out = call->out[0];
    CUP_TRY(call->op->specification(call));
    int64_t width = out->ndim ? out->shape[out->ndim - 1] : 1;
    if (width > WRONG_FROM && out->count)
        cup__store(out, width - 1, 77);
    return CUP_OK;
}

static const int64_t thresholds[] = {WRONG_FROM, 0};
static const cup__impl impls[] = {{.name = "wrong", .place = CUP__CPU, .strided = true,
                                   .run = wrong_when_wide, .thresholds = thresholds},
                                  {.name = NULL}};

TEST(random_calls_find_what_is_wrong_and_make_it_small)
{
    const cup__row *known = cup__row_find("tanh");
    cup__op op = *known->op;
    cup__row row = *known;
    const cup__row *rows[] = {&row};
    op.impls = impls;
    row.op = &op;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    seen all = {0}, again = {0};
    cup__random_options options = {.rows = rows, .row_count = 1, .calls = 300, .seed = 4};
    EXPECT_INT(cup__random_check(c, &options, NULL, report, &all), CUP_OK);
    EXPECT(all.failed > 10 && all.failed < all.results / 2);
    char shape[32];
    snprintf(shape, sizeof shape, "x%d /seed", WRONG_FROM + 1);
    EXPECT_CONTAINS(all.repeat, shape);
    EXPECT_INT(cup__random_repeat(c, all.repeat, &options, report, &again), CUP_OK);
    EXPECT_INT(again.failed, 1);
    cup_context_free(c);
}

TEST(random_calls_are_drawn_at_thresholds)
{
    const cup__row *known = cup__row_find("tanh");
    static const int64_t odd[] = {7919, 0};
    static const cup__impl own[] = {{.name = "own", .place = CUP__CPU, .thresholds = odd},
                                    {.name = NULL}};
    cup__op op = *known->op;
    cup__row row = *known;
    op.impls = own;
    row.op = &op;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    bool below = false, at = false, above = false;
    for (int number = 0; number < 3000; number++) {
        static cup__drawn d;
        int tries;
        if (!cup__draw(c, &row, NULL, 1, number, &d, &tries))
            continue;
        for (int i = 0; i < d.in[0].shape.ndim; i++) {
            below |= d.in[0].shape.size[i] == 7918;
            at |= d.in[0].shape.size[i] == 7919;
            above |= d.in[0].shape.size[i] == 7920;
        }
    }
    EXPECT(below && at && above);
    cup_context_free(c);
}

TEST(random_calls_of_every_op_can_be_made)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (const cup__row *row = cup__rows; row->name; row++) {
        cup__random_count count = {0};
        seen all = {0};
        cup__random_options options = {
            .rows = &row, .row_count = 1, .calls = 6, .seed = 1, .no_shrinking = true};
        EXPECT_INT(cup__random_check(c, &options, &count, report, &all), CUP_OK);
        if (!count.drawn || !all.results)
            test_fail(__FILE__, __LINE__, "%s: no call was made", row->name);
    }
    cup_context_free(c);
}

/* Three keys for 280 queries leave 277 rows of zeros, which say nothing of what the others may be
 * off by where scores reach 20. */
TEST(random_bound_is_not_of_empty_rows)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    seen all = {0};
    const cup__random_options options = {.seed = 1};
    EXPECT_INT(cup__random_repeat(c,
                                  "attention f32 1x1x280x96 1x1x3x96 1x1x3x96 causal=1 "
                                  "/seed=267444869280535",
                                  &options, report, &all),
               CUP_OK);
    EXPECT(all.results > 0);
    EXPECT_INT(all.failed, 0);
    cup_context_free(c);
}

/* Keys 704 places away with a slope of 1: f32 has few digits left for the scores' differences. */
TEST(random_bound_knows_how_large_scores_are)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    seen all = {0};
    const cup__random_options options = {.seed = 1};
    EXPECT_INT(cup__random_repeat(c,
                                  "attention f32 1x1x706x1 1x1x2x1 1x1x2x1 1 - "
                                  "/seed=208265521918664",
                                  &options, report, &all),
               CUP_OK);
    EXPECT(all.results > 0);
    EXPECT_INT(all.failed, 0);
    cup_context_free(c);
}

TEST(random_command_repeats_a_call)
{
    char out[4000];
    EXPECT_INT(test_command(out, sizeof out,
                            "%s/cupola check --device cpu --repeat 'add bf16 3x5+3 5 /seed=7'",
                            test_build()),
               0);
    EXPECT_CONTAINS(out, "add vector");
    EXPECT_INT(test_command(out, sizeof out, "%s/cupola check --repeat 'add bf17 3 3'",
                            test_build()),
               2);
    EXPECT_INT(test_command(out, sizeof out,
                            "%s/cupola check --device cpu --random 40 --seed 9 --op add exp",
                            test_build()),
               0);
    EXPECT_CONTAINS(out, "seed 9: 40 random calls");
}

/* Working ahead asks a GPU that is not there, which no values are made for. */
TEST(random_calls_ask_for_their_kernels_ahead)
{
    cup_context *scratch = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_context *model = cup__context_dry("sm_90a");
    const cup__row *row = cup__row_find("layernorm");
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(model->device));
    int tries, count;
    cup__drawn d;
    EXPECT(cup__draw(scratch, row, NULL, 3, 0, &d, &tries));
    cup_context *c = cup__kernels_note(facts, CUP__HIGHEST);
    EXPECT(c && cup__device_is_dry(c->device) && !cup__device_is_dry(scratch->device));
    cup_tensor *in[8];
    int in_count = cup__drawn_inputs(&d, c, d.dtype, in, 8);
    cup__kernels_run_all(c, row, in, in_count, d.attributes, d.out_offset);
    EXPECT(cup__dry_requests(cup__cuda_of(c->device), &count) && count > 0);
    cup_context_free(c);
    cup_context_free(model);
    cup_context_free(scratch);
}

/* A check that begins later makes the same calls from there. */
TEST(random_calls_go_on_where_they_are_told)
{
    const cup__row *rows[] = {cup__row_find("tanh"), cup__row_find("add")};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup__random_options options = {.rows = rows, .row_count = 2, .calls = 12, .seed = 4};
    seen all = {0}, before = {0}, behind = {0};
    EXPECT_INT(cup__random_check(c, &options, NULL, report, &all), CUP_OK);
    options.calls = 7;
    EXPECT_INT(cup__random_check(c, &options, NULL, report, &before), CUP_OK);
    options.calls = 12;
    options.first = 7;
    EXPECT_INT(cup__random_check(c, &options, NULL, report, &behind), CUP_OK);
    EXPECT(before.results > 0 && behind.results > 0);
    EXPECT_INT(before.results + behind.results, all.results);
    EXPECT_INT(before.texts + behind.texts, all.texts);
    options.first = 12;
    EXPECT_INT(cup__random_check(c, &options, NULL, report, &behind), CUP_OK);
    cup_context_free(c);
}

/* A kernel that goes wrong takes the GPU from the process: the call that it was is the one failure,
 * as it was drawn, and what cannot run behind it is none. */
TEST(random_calls_end_with_a_gpu_that_is_lost)
{
    fake_begin();
    const cup__row *rows[] = {cup__row_find("tanh"), cup__row_find("add")};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    EXPECT_TEXT(cup_error_text(c), "");
    seen all = {0};
    cup__random_options options = {.rows = rows, .row_count = 2, .calls = 40, .seed = 4};
    fake_fail("cuStreamSynchronize", 1, CUDA_ERROR_MISALIGNED_ADDRESS);
    EXPECT_INT(cup__random_check(c, &options, NULL, report, &all), CUP_OK);
    EXPECT_INT(all.results, 1);
    EXPECT_INT(all.failed, 1);
    EXPECT_CONTAINS(all.note, "This process cannot use the GPU any more");
    EXPECT_CONTAINS(all.repeat, "/seed=");
    cup_context_free(c);
}
