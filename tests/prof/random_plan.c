/* A budget of kernels: spent over all ops and the whole check, kept, and with calls between that
 * need no more of them, the same ones whatever the threads do. */
#include <stdlib.h>
#include <string.h>

#include "../cuda/support.h"
#include "../test.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "cuda/dry.h"
#include "prof/kernels.h"
#include "prof/random_plan.h"

#define ROWS 6
#define CALLS 600
#define KERNELS 60

static const cup__row *rows[ROWS];

static cup__random_options options_of(int64_t kernels)
{
    static const char *const names[ROWS] = {"add", "layernorm", "matmul", "reshape", "sort",
                                            "adamw"};
    for (int i = 0; i < ROWS; i++)
        rows[i] = cup__row_find(names[i]);
    return (cup__random_options){.rows = rows, .row_count = ROWS, .calls = CALLS, .seed = 3,
                                 .kernels = kernels, .no_shrinking = true};
}

/* What the calls of a plan are, and what they need. */
typedef struct account {
    int drawn, kernels, late; /* late: kernels first met in the second half */
    int of_row[ROWS];
    cup__hash texts;
    int different;
} account;

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static account account_of(const cup__random_plan *plan, const cup__random_options *o,
                          const cup__gpu_facts *facts)
{
    account a = {0};
    uint64_t text[CALLS];
    cup__drawn *d = malloc(sizeof *d);
    cup_context *scratch = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_context *dry = cup__kernels_note(facts, CUP__HIGHEST);
    cup__hash_begin(&a.texts);
    for (int i = 0; i < CALLS; i++) {
        int tries, before = a.kernels;
        if (!cup__random_plan_draw(plan, o, i, scratch, d, &tries))
            continue;
        cup__text words = {0};
        cup__drawn_text(d, &words);
        text[a.drawn++] = cup__hash_bytes(cup__text_string(&words), words.length);
        cup__hash_add(&a.texts, cup__text_string(&words), words.length);
        cup__text_free(&words);
        cup__random_note(dry, d);
        cup__dry_requests(cup__cuda_of(dry->device), &a.kernels);
        a.of_row[i % ROWS] += a.kernels - before;
        a.late += i >= CALLS / 2 ? a.kernels - before : 0;
    }
    qsort(text, (size_t)a.drawn, sizeof *text, by_value);
    for (int i = 0; i < a.drawn; i++)
        a.different += !i || text[i] != text[i - 1];
    cup_context_free(dry);
    cup_context_free(scratch);
    free(d);
    return a;
}

TEST(random_plan_spends_its_budget_evenly)
{
    cup_context *model = cup__context_dry("sm_90a");
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(model->device));
    cup__random_options o = options_of(KERNELS);
    cup__random_plan *plan = cup__random_plan_new(&o, facts, CUP__HIGHEST);
    account planned = account_of(plan, &o, facts), free_of = account_of(NULL, &o, facts);
    EXPECT(free_of.kernels > 3 * KERNELS);
    EXPECT(planned.kernels <= KERNELS && planned.kernels > KERNELS * 3 / 4);
    EXPECT(cup__random_plan_kernels(plan) <= KERNELS);
    EXPECT(planned.late > KERNELS / 4);
    EXPECT_INT(planned.drawn, CALLS);
    EXPECT(planned.different > CALLS * 9 / 10);
    for (int i = 0; i < ROWS; i++)
        EXPECT(planned.of_row[i] >= (free_of.of_row[i] < 10 ? free_of.of_row[i] : 10) * 3 / 4);
    cup__random_plan_free(plan);
    o.kernels = 100000;
    plan = cup__random_plan_new(&o, facts, CUP__HIGHEST);
    account ample = account_of(plan, &o, facts);
    EXPECT_INT(ample.kernels, free_of.kernels);
    cup__random_plan_free(plan);
    cup_context_free(model);
}

TEST(random_plan_does_not_depend_on_threads)
{
    cup_context *model = cup__context_dry("sm_90a");
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(model->device));
    char text[3][CUP__HASH_TEXT];
    for (int i = 0; i < 3; i++) {
        cup__random_options o = options_of(KERNELS);
        o.seed += i == 2;
        cup__threads_set(i == 1 ? 1 : 4);
        cup__random_plan *plan = cup__random_plan_new(&o, facts, CUP__HIGHEST);
        account a = account_of(plan, &o, facts);
        cup__hash_text(&a.texts, text[i]);
        cup__random_plan_free(plan);
    }
    EXPECT_TEXT(text[1], text[0]);
    EXPECT(strcmp(text[2], text[0]) != 0);
    cup__threads_set(0);
    cup_context_free(model);
}

static void ignore(const cup_check_result *r, void *user)
{
    (void)r, (void)user;
}

/* What is asked for ahead is what the calls then need, results off from where vectors begin
 * included; a kernel that only the call itself asks for is waited for by all. */
TEST(random_plan_knows_all_kernels_of_its_calls)
{
    kernel_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    cup__random_options o = options_of(KERNELS);
    cup__random_plan *plan = cup__random_plan_new(&o, facts, c->precision);
    account planned = account_of(plan, &o, facts);
    EXPECT_INT(cup__random_check(c, &o, NULL, ignore, NULL), CUP_OK);
    EXPECT_INT(kernels_compiled(), planned.kernels);
    cup__random_plan_free(plan);
    cup_context_free(c);
}

TEST(draw_siblings_are_calls_of_their_own)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const cup__row *row = cup__row_find("layernorm");
    cup__drawn *d = malloc(2 * sizeof *d);
    int tries, same_sizes = 0, drawn = 0;
    for (int number = 0; number < 20; number++) {
        EXPECT(cup__draw(c, row, NULL, 3, number, &d[0], &tries));
        EXPECT(cup__draw_sibling(c, row, NULL, 3, number, 0, &d[1], &tries));
        EXPECT(d[1].seed == d[0].seed && !memcmp(d[1].in, d[0].in, sizeof *d->in));
        for (int sibling = 1; sibling < 20; sibling++) {
            if (!cup__draw_sibling(c, row, NULL, 3, number, sibling, &d[1], &tries))
                continue;
            drawn++;
            EXPECT(d[1].seed != d[0].seed && d[1].dtype == d[0].dtype);
            same_sizes += !memcmp(&d[1].in[0].shape, &d[0].in[0].shape, sizeof d->in[0].shape);
        }
    }
    EXPECT(drawn > 300 && same_sizes > drawn / 4 && same_sizes < drawn);
    free(d);
    cup_context_free(c);
}
