/* The check itself: implementations that are wrong in ways it must see. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "base/memory.h"
#include "dispatch/attributes.h"
#include "prof/check.h"

static bool failed;
static char note[4000];

static void report(const cup_check_result *r, void *user)
{
    int *calls = user;
    (*calls)++;
    if (!r->passed && strlen(note) + strlen(r->note) + 1 < sizeof note)
        strcat(note, r->note);
    failed |= !r->passed;
}

static cup_status right(cup__call *call)
{
    return call->op->specification(call);
}

static cup_status changes_its_input(cup__call *call)
{
    CUP_TRY(right(call));
    if (call->in[0]->dtype == CUP_F32 && call->in[0]->count > 3)
        ((float *)call->in[0]->data)[3] = 17;
    return CUP_OK;
}

static cup_status writes_behind(cup__call *call)
{
    CUP_TRY(right(call));
    ((char *)call->out[0]->data)[call->out[0]->count * cup_dtype_size(call->out[0]->dtype)] = 1;
    return CUP_OK;
}

static cup_status gives_other_bits(cup__call *call)
{
    static float drift;
    CUP_TRY(right(call));
    if (call->out[0]->dtype == CUP_F32)
        ((float *)call->out[0]->data)[0] *= 1 + (drift = 1e-6f - drift) / 10;
    return CUP_OK;
}

static cup_status leaves_an_element(cup__call *call)
{
    CUP_TRY(right(call));
    if (call->out[0]->count > 5)
        memset((char *)call->out[0]->data + 5 * cup_dtype_size(call->out[0]->dtype), 0xff,
               (size_t)cup_dtype_size(call->out[0]->dtype));
    return CUP_OK;
}

static cup_status fails(cup__call *call)
{
    return cup__call_fail(call, CUP_INTERNAL, "on purpose");
}

/* Checks tanh with this implementation in place of its own, which ends so; returns the calls. */
static int check_to(cup_status (*run)(cup__call *call), cup_status end)
{
    cup__impl impls[2] = {{.name = "own", .place = CUP__CPU, .strided = true, .run = run}};
    const cup__row *known = cup__row_find("tanh");
    cup__op op = *known->op;
    cup__row row = *known;
    const cup__row *rows[] = {&row};
    int calls = 0;
    op.impls = impls;
    row.op = &op;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup__checking *k = cup__checking_new(c, rows, 1);
    EXPECT(k);
    EXPECT_INT(cup__checking_row(k, &row, report, &calls), end);
    EXPECT_CONTAINS(cup_error_text(c), end == CUP_MEMORY ? "no memory" : "");
    cup__checking_free(k);
    cup_context_free(c);
    return calls;
}

static void check(cup_status (*run)(cup__call *call))
{
    EXPECT(check_to(run, CUP_OK) > 30);
}

TEST(check_passes_what_is_right)
{
    check(right);
    EXPECT(!failed);
}

TEST(check_sees_an_input_that_was_changed)
{
    check(changes_its_input);
    EXPECT_CONTAINS(note, "input 1 was changed: element 3 is 17");
}

TEST(check_sees_a_write_behind_the_result)
{
    check(writes_behind);
    EXPECT_CONTAINS(note, "result 1: it wrote outside its bounds");
}

TEST(check_sees_other_bits_in_a_second_run)
{
    check(gives_other_bits);
    EXPECT_CONTAINS(note, "a second run gave other bits");
}

TEST(check_sees_what_was_not_written)
{
    check(leaves_an_element);
    EXPECT_CONTAINS(note, "element 5 is");
}

static cup_status has_no_memory(cup__call *call)
{
    return cup__call_fail(call, CUP_MEMORY, "on purpose, no memory");
}

/* Want of memory says nothing of an implementation: no call is reported as wrong. */
TEST(check_that_has_no_memory_says_so)
{
    check_to(has_no_memory, CUP_MEMORY);
    EXPECT(!failed);
}

/* Every allocation that fails in turn: the check ends with that error or finds nothing wrong. */
TEST_LIMITED(check_that_runs_out_of_memory_finds_nothing_wrong, 120)
{
    bool ran_out = false, ended = false;
    for (long n = 1; !ended; n += 1 + n / 8) {
        int calls = 0;
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        long before = cup__memory_failures();
        cup__memory_fail_at(n, true);
        cup_status status = cup_check(c, "maximum", report, &calls);
        cup__memory_fail_at(0, false);
        ended = cup__memory_failures() == before;
        if (failed)
            test_fail(__FILE__, __LINE__, "allocation %ld on: %s", n, note);
        EXPECT_INT(status, ended ? CUP_OK : CUP_MEMORY);
        ran_out |= calls > 0 && status == CUP_MEMORY;
        cup_context_free(c);
    }
    EXPECT(ran_out);
}

TEST(check_says_why_a_call_failed)
{
    check(fails);
    EXPECT_CONTAINS(note, "on purpose");
}

TEST(check_reports_ops_in_the_order_they_were_given)
{
    const cup__row *rows[] = {cup__row_find("exp"), cup__row_find("sum"), cup__row_find("relu")};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup__checking *k = cup__checking_new(c, rows, 3);
    int calls = 0;
    EXPECT_INT(cup__checking_row(k, rows[0], report, &calls), CUP_OK);
    EXPECT(calls > 0);
    calls = 0;
    EXPECT_INT(cup__checking_row(k, rows[2], report, &calls), CUP_OK); /* one is left out */
    EXPECT(calls > 0);
    EXPECT(cup__checking_waited(k) >= 0);
    cup__checking_free(k);
    EXPECT(!failed);
    cup_context_free(c);
}
