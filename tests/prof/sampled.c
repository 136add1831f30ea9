/* Some elements of large products, held to the specification. */
#include "../test.h"
#include "dispatch/attributes.h"
#include "prof/check.h"
#include "prof/sampled.h"

/* Both ways of an op: as its implementation says, and wrong in the last element of each matrix. */
static void expect_held(const char *op, const char *shapes, const void *attributes, bool saving,
                        int64_t elements)
{
    const cup__row *row = cup__row_find(op);
    cup__sample sample = {shapes, attributes};
    cup_tensor *in[8];
    cup__call call;
    char note[200] = "";
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int count = cup__sample_inputs(c, row, &sample, CUP_F64, CUP_F64, CUP__ROW_MAJOR, 5, in, 8);
    EXPECT(count >= 0);
    EXPECT_INT(cup__call_begin(&call, c, row, in, count, attributes), CUP_OK);
    call.saving = saving;
    call.out_count = saving ? row->results_count : call.out_count;
    EXPECT_INT(cup__call_allocate(&call), CUP_OK);
    EXPECT_INT(cup__call_run(&call, cup__call_choose(&call)), CUP_OK);
    int64_t held = cup__sampled_hold(&call, note, sizeof note);
    if (held != elements)
        test_fail(__FILE__, __LINE__, "%s \"%s\": %lld elements held: %s", op, shapes,
                  (long long)held, note);
    for (int i = 0; i < call.out_count && elements; i++) {
        cup_tensor *out = call.out[i];
        int64_t matrix = out->ndim > 2 ? out->shape[out->ndim - 1] * out->shape[out->ndim - 2] : 0;
        matrix = matrix ? matrix : out->count;
        for (int64_t k = matrix - 1; k < out->count; k += matrix)
            cup__store(out, k, cup__load(out, k) + 1e-6);
        if (cup__sampled_hold(&call, note, sizeof note) != -1)
            test_fail(__FILE__, __LINE__, "%s \"%s\": result %d is wrong, unseen", op, shapes, i);
        EXPECT_CONTAINS(note, "element");
    }
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(sampled_products)
{
    static const cup__matmul_attributes plain = {false, false}, first = {true, false},
                                        both = {true, true};
    expect_held("matmul", "70x40 40x90", &plain, false, 576);
    expect_held("matmul", "3x40x70 3x40x90", &first, false, 576);
    expect_held("matmul", "2x3x40x5 3x70x40", &both, false, 576);
    expect_held("linear", "2x30x60 70x60 70", NULL, false, 576);
    expect_held("linear", "60 70x60 -", NULL, false, 576);
    expect_held("linear_gelu", "50x60 70x60 70", NULL, true, 1152);
    expect_held("linear_swiglu", "2x30x60 80x60 80", NULL, true, 1728);
    expect_held("linear_add", "50x60 70x60 50x70 -", NULL, false, 576);
    expect_held("matmul_swiglu_grad", "50x60 60x40 50x80", NULL, false, 1152);
}

TEST(sampled_holds_no_others)
{
    expect_held("tanh", "50x60", NULL, false, 0);
}
