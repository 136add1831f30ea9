/* The benchmark's error, of an implementation that is wrong in its last element alone. */
#include <math.h>

#include "../test.h"
#include "prof/accuracy.h"

static const cup__impl *right;

static cup_status wrong_at_the_end(cup__call *call)
{
    CUP_TRY(right->run(call));
    cup_tensor *out = call->out[0];
    cup__store(out, out->count - 1, cup__load(out, out->count - 1) + 5);
    return CUP_OK;
}

static void expect_seen(const char *op, const char *shapes)
{
    cup_dtype dtype = CUP_F32;
    const cup__row *row = cup__row_find(op);
    cup__sample sample = {shapes, row->op->samples->attributes};
    cup_tensor *in[8];
    cup__call call;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int count = cup__sample_inputs(c, row, &sample, dtype, dtype, CUP__ROW_MAJOR, 5, in, 8);
    EXPECT(count >= 0);
    EXPECT_INT(cup__call_begin(&call, c, row, in, count, sample.attributes), CUP_OK);
    EXPECT_INT(cup__call_allocate(&call), CUP_OK);
    right = cup__call_choose(&call);
    cup__impl wrong = *right;
    wrong.run = wrong_at_the_end;
    cup__accuracy *a = cup__accuracy_new(&call, &sample, dtype);
    EXPECT(a);
    EXPECT_INT(cup_error(c), CUP_OK);
    EXPECT_TEXT(cup__accuracy_shapes(a), shapes);
    double good = cup__accuracy_of(a, c, right), bad = cup__accuracy_of(a, c, &wrong);
    if (!(good < 40 && bad > 1000 * good))
        test_fail(__FILE__, __LINE__, "%s \"%s\": error %g, and %g of a wrong result", op, shapes,
                  good, bad);
    cup__accuracy_free(a);
    cup_context_free(c);
}

TEST(accuracy_by_the_specification)
{
    expect_seen("linear", "30x60 70x60 70");
}

TEST(accuracy_at_the_timed_shape_in_double)
{
    expect_seen("linear", "2000x300 401x300 401");
    expect_seen("softmax", "2000x7001");
}

/* As wrong in double as in f32, so that both agree; the specification does not. */
TEST(accuracy_sees_what_double_has_wrong_too)
{
    const cup__row *known = cup__row_find("linear");
    cup__sample sample = {"2000x300 401x300 401", NULL};
    cup__impl impls[] = {{0}, {0}};
    cup__op op = *known->op;
    cup__row row = *known;
    cup_tensor *in[8];
    cup__call call;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int count = cup__sample_inputs(c, known, &sample, CUP_F32, CUP_F32, CUP__ROW_MAJOR, 5, in, 8);
    EXPECT_INT(cup__call_begin(&call, c, known, in, count, NULL), CUP_OK);
    right = cup__call_choose(&call);
    impls[0] = *right;
    impls[0].run = wrong_at_the_end;
    op.impls = impls;
    row.op = &op;
    EXPECT_INT(cup__call_begin(&call, c, &row, in, count, NULL), CUP_OK);
    EXPECT_INT(cup__call_allocate(&call), CUP_OK);
    cup__accuracy *a = cup__accuracy_new(&call, &sample, CUP_F32);
    EXPECT(a && isinf(cup__accuracy_of(a, c, &impls[0])));
    cup__accuracy_free(a);
    cup_context_free(c);
}
