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
    cup_tensor *in[16];
    cup__call call;
    char note[200] = "";
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int count = cup__sample_inputs(c, row, &sample, CUP_F64, CUP_F64, CUP__ROW_MAJOR, 5, in, 16);
    EXPECT(count >= 0);
    EXPECT_INT(cup__call_begin(&call, c, row, in, count, attributes), CUP_OK);
    call.saving = saving;
    call.out_count = saving ? row->results_count : call.out_count;
    EXPECT_INT(cup__call_allocate(&call), CUP_OK);
    cup_tensor *before = in[0];
    if (call.out_count == 0)
        before = cup_scale(c, in[0], 1);
    EXPECT_INT(cup__call_run(&call, cup__call_choose(&call)), CUP_OK);
    int64_t held = cup__sampled_hold(&call, before, note, sizeof note);
    if (held != elements)
        test_fail(__FILE__, __LINE__, "%s \"%s\": %lld elements held: %s", op, shapes,
                  (long long)held, note);
    int results = call.out_count ? call.out_count : 1;
    for (int i = 0; i < results && elements; i++) {
        cup_tensor *out = call.out_count ? call.out[i] : call.in[0];
        int64_t matrix = out->ndim > 2 ? out->shape[out->ndim - 1] * out->shape[out->ndim - 2] : 0;
        matrix = matrix ? matrix : out->count;
        for (int64_t k = matrix - 1; k < out->count; k += matrix)
            cup__store(out, cup__offset_of(out, k), cup__element(out, k) + 1e-6);
        if (cup__sampled_hold(&call, before, note, sizeof note) != -1)
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

TEST(sampled_products_in_place)
{
    static const cup__matmul_into_attributes into = {true, false};
    static const cup__matmul_add_attributes add = {false, true};
    expect_held("matmul_into", "70x90 40x70 40x90", &into, false, 576);
    expect_held("matmul_add", "3x70x90 3x70x40 3x90x40", &add, false, 576);
}

TEST(sampled_attention)
{
    static const cup__attention_attributes plain = {0}, causal = {.causal = true},
                                           window = {.causal = true, .window_left = 5},
                                           other = {.window_left = 5},
                                           top = {.causal = true, .top_left = true};
    expect_held("attention", "2x4x30x8 2x2x40x8 2x2x40x8 - - - - -", &plain, false, 48);
    expect_held("attention", "2x4x30x8 2x2x40x8 2x2x40x8 - - - - -", &causal, false, 48);
    expect_held("attention", "1x4x40x8 1x4x40x8 1x4x40x8 - - - - -", &window, false, 48);
    expect_held("attention", "1x4x40x8 1x4x40x8 1x4x40x8 - - - - -", &other, false, 0);
    expect_held("attention", "2x4x30x8 2x2x20x8 2x2x20x8 - - - - -", &plain, false, 48);
    expect_held("attention", "2x4x30x8 2x2x40x8 2x2x40x8 - - - - -", &top, false, 48);
    expect_held("attention", "2x4x30x8 2x2x20x8 2x2x20x8 - - - - -", &top, false, 48);
}

TEST(sampled_convolutions)
{
    static const cup__conv2d_attributes plain = {.padding = {1}, .padding_count = 1, .groups = 1},
                                        half = {.stride = {2, 3}, .stride_count = 2, .groups = 2,
                                                .padding = {2, 1, 0, 3}, .padding_count = 4,
                                                .dilation = {2, 1}, .dilation_count = 2},
                                        same = {.same = true, .groups = 1};
    expect_held("conv2d", "3x8x9x10 12x8x3x3 12", &plain, false, 3 * 6 * 10);
    expect_held("conv2d", "3x8x19x20 6x4x3x2 -", &half, false, 3 * 3 * 8);
    expect_held("conv2d", "3x8x9x10 12x8x4x5 12", &same, false, 3 * 6 * 10);
    static const cup__conv2d_input_grad_attributes input = {
        .padding = {1}, .padding_count = 1, .groups = 1, .height = 9, .width = 10},
        input_half = {.stride = {2, 3}, .stride_count = 2, .groups = 2, .padding = {2, 1, 0, 3},
                      .padding_count = 4, .dilation = {2, 1}, .dilation_count = 2, .height = 19,
                      .width = 20};
    expect_held("conv2d_input_grad", "3x12x9x10 12x8x3x3", &input, false, 3 * 6 * 10);
    expect_held("conv2d_input_grad", "3x6x9x8 6x4x3x2", &input_half, false, 3 * 4 * 20);
    static const cup__conv2d_weight_grad_attributes weight = {
        .padding = {1}, .padding_count = 1, .groups = 1, .kernel = {3}, .kernel_count = 1};
    expect_held("conv2d_weight_grad", "3x2x9x10 3x2x9x10", &weight, false, 2 * 2 * 9);
    expect_held("conv2d_weight_grad", "3x2x9x10 3x2x9x10 2x2x3x3", &weight, false, 2 * 2 * 9);
}

TEST(sampled_holds_no_others)
{
    expect_held("tanh", "50x60", NULL, false, 0);
}
