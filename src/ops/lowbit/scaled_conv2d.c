/* conv2d of codes of 8 bits. It shares its kernels with conv2d, of which the element type is a
 * knob. */
#include "dispatch/attributes.h"
#include "ops/conv/conv.h"

typedef cup__scaled_conv2d_attributes attributes;

static cup_status check_codes(cup__call *call)
{
    cup_dtype x = call->in[0]->dtype, weight = call->in[1]->dtype;
    cup_dtype dtype = ((const attributes *)call->attributes)->dtype;
    bool codes = x == CUP_F8E4M3 || x == CUP_I8 || x == CUP_F64; /* the last in reference runs */
    if (!codes || x != weight)
        return cup__call_fail(call, CUP_DTYPE,
                              "x and weight must both be f8e4m3, or both i8; make them with "
                              "cup_quantize");
    if (dtype != CUP_F32 && dtype != CUP_BF16 && dtype != CUP_F16)
        return cup__call_fail(call, CUP_DTYPE, "the result must be bf16, f16 or f32, not %s",
                              cup_dtype_name(dtype));
    return CUP_OK;
}

static cup_status check_numbers(cup__call *call)
{
    static const char *const names[] = {"x_scale", "weight_scale", "bias"};
    for (int i = 2; i < 5; i++) {
        const cup_tensor *t = call->in[i];
        if (t && t->dtype != CUP_F32 && t->dtype != CUP_F64) /* the last in reference runs */
            return cup__call_fail(call, CUP_DTYPE, "%s must be f32, not %s", names[i - 2],
                                  cup_dtype_name(t->dtype));
    }
    return CUP_OK;
}

static cup_status check_scales(cup__call *call)
{
    const cup_tensor *x = call->in[2], *weight = call->in[3];
    int64_t results = call->in[1]->shape[0];
    if (x && x->count != 1)
        return cup__call_fail(call, CUP_SHAPE,
                              "x_scale must have one element, as all of x has one scale");
    if (!weight || weight->count == 1)
        return CUP_OK;
    bool fits = weight->ndim == 1 || (weight->ndim == 2 && weight->shape[1] == 1);
    if (!fits || weight->shape[0] != results)
        return cup__call_fail(call, CUP_SHAPE, "weight_scale must be one, [%lld] or [%lld,1]",
                              (long long)results, (long long)results);
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    CUP_TRY(check_codes(call));
    CUP_TRY(check_numbers(call));
    CUP_TRY(cup__conv_infer(call));
    CUP_TRY(check_scales(call));
    call->result[0].dtype = ((const attributes *)call->attributes)->dtype;
    return CUP_OK;
}

#define ONE(a) {a}, 1
#define TWO(a, b) {a, b}, 2
#define FOUR(a, b, c, d) {a, b, c, d}, 4
#define NONE {0}, 0
static const attributes plain = {CUP_BF16, NONE, NONE, false, NONE, 1, true},
                        plain_f32 = {CUP_F32, NONE, NONE, false, NONE, 1, false},
                        three = {CUP_BF16, NONE, ONE(1), false, NONE, 1, true},
                        three_f16 = {CUP_F16, NONE, ONE(1), false, NONE, 1, false},
                        three_f32 = {CUP_F32, NONE, ONE(1), false, NONE, 1, false},
                        half = {CUP_BF16, ONE(2), ONE(1), false, NONE, 1, false},
                        half_f32 = {CUP_F32, ONE(2), ONE(1), false, NONE, 1, true},
                        first = {CUP_BF16, ONE(2), ONE(3), false, NONE, 1, false},
                        odd = {CUP_F32, TWO(1, 3), FOUR(2, 0, 1, 3), false, TWO(2, 3), 1, true},
                        far = {CUP_BF16, TWO(5, 4), TWO(1, 0), false, ONE(2), 1, true},
                        wide = {CUP_BF16, NONE, TWO(3, 4), false, NONE, 1, true},
                        same = {CUP_F16, NONE, NONE, true, TWO(2, 1), 1, true},
                        two_groups = {CUP_BF16, ONE(2), ONE(1), false, NONE, 2, true},
                        four_groups = {CUP_F32, NONE, ONE(1), false, NONE, 4, false},
                        by_channel = {CUP_BF16, NONE, ONE(1), false, NONE, 6, true},
                        by_channel_half = {CUP_F32, TWO(2, 1), ONE(2), false, TWO(1, 2), 5, false};
static const cup__sample samples[] = {
    {"1x1x1x1 1x1x1x1 () () 1", &plain},
    {"2x3x5x7 4x3x3x3 () 4 4", &plain_f32},
    {"0x3x5x5 4x3x3x3 () 4 4", &three},
    {"2x0x5x5 4x0x3x3 () 4 4", &three},
    {"2x3x5x5 0x3x3x3 () - 0", &three},
    {"2x3x0x5 4x3x3x3 1x1 4x1 -", &wide},
    {"1x7x9x8 5x7x3x3 1 5x1 5", &half},
    {"1x3x21x23 8x3x7x7 () 8 8", &first},
    {"2x3x23x21 40x3x7x7 () 40 -", &first},
    {"2x3x14x15 32x3x3x3 () 32 32", &three},
    {"1x7x20x19 24x7x5x3 () () 24", &half_f32},
    {"2x3x11x13 4x3x3x2 - 4 4", &odd},
    {"1x16x19x31 136x16x3x2 () 136 136", &odd},
    {"1x32x17x19 40x32x2x3 () - 40", &far},
    {"1x3x9x10 4x3x3x4 - - -", &same},
    {"1x48x9x10 24x48x3x4 () () 24", &same},
    {"2x6x9x10 6x1x3x3 () 6 6", &by_channel},
    {"1x6x7x8 12x1x3x3 () 12 12", &by_channel},
    {"2x5x9x12 5x1x5x3 () 5 5", &by_channel_half},
    {"1x32x7x9 64x16x3x3 () 64 64", &two_groups},
    {"1x128x7x8 128x64x3x3 () 128 128", &two_groups},
    {"2x64x9x11 72x16x3x3 () () -", &four_groups},
    {"1x1000x3x3 5x1000x1x1 () 5 5", &plain},
    {"1x64x9x11 72x64x3x3 () 72 72", &three},
    {"1x32x20x18 130x32x3x3 () () 130", &half},
    {"3x16x16x24 24x16x3x3 () 24 -", &three_f32},
    {"1x128x9x8 128x128x3x3 () 128 128", &three_f16},
    {"1x256x9x7 64x256x1x1 () 64 64", &plain},
    {"1x144x13x11 96x144x2x2 () 96 -", &half_f32},
    {"4x64x7x7 96x64x3x3 () () -", &three_f32},
    {"2x80x9x12 40x80x1x1 () 40 40", &plain_f32},
    {"1x512x2x2 512x512x3x3 () 512 -", &three},
    {"2x64x9x11 3x64x3x3 () 3 3", &three},
    {"2x320x8x9 136x320x1x1 () 136 136", &plain},
    {NULL, NULL}};
static const cup__sample bench[] = {{"64x64x56x56 64x64x3x3 () 64 -", &three},
                                    {"256x64x56x56 64x64x3x3 () 64 -", &three},
                                    {"256x64x56x56 64x64x3x3 () 64 -", &three_f16},
                                    {"32x128x128x128 64x128x3x3 () 64 -", &three},
                                    {"64x128x128x128 128x128x3x3 () 128 -", &three},
                                    {"256x256x56x56 64x256x1x1 () 64 -", &plain},
                                    {"256x512x7x7 512x512x3x3 () 512 -", &three},
                                    {"256x512x7x7 512x512x3x3 () 512 -", &three_f16},
                                    {"256x3x224x224 64x3x7x7 () 64 -", &first},
                                    {NULL, NULL}};

#define CODES (CUP__DTYPE(F8E4M3) | CUP__DTYPE(I8))
const cup__op cup__op_scaled_conv2d = {
    .infer = infer,
    .specification = cup__conv_specification,
    .impls = cup__scaled_conv_impls,
    .images = true,
    .strided_out = true,
    .samples = samples,
    .bench = bench,
    .domain = {{0}, {0}, {0.5, 2}, {0.5, 2}},
    .in_dtypes = {CODES, CODES, CUP__DTYPE(F32), CUP__DTYPE(F32), CUP__DTYPE(F32)},
    .tolerance = 16, /* as conv2d */
    .cost = cup__conv_cost,
    .words = cup__conv_words,
};
