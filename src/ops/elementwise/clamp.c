#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(clamp, x[0] < a[0] ? a[0] : x[0] > a[1] ? a[1] : x[0])
CUP__FLOATS_1(clamp_f32, p < (float)a[0] ? (float)a[0] : p > (float)a[1] ? (float)a[1] : p)

CUP__ELEMENT(slope, x[0] >= a[0] && x[0] <= a[1] ? x[1] : 0)
CUP__FLOATS_2(slope_f32, p >= (float)a[0] && p <= (float)a[1] ? q : 0.0f)

static cup_status infer(cup__call *call)
{
    const cup__clamp_attributes *a = call->attributes;
    if (!(a->low <= a->high))
        return cup__call_fail(call, CUP_ARGUMENT, "low is %g and high %g; low must not be above",
                              a->low, a->high);
    return cup__pointwise_infer(call);
}

static cup_status gradient(cup__grad *g)
{
    const cup__clamp_attributes *a = g->attributes;
    g->d_in[0] = cup__clamp_grad(g->c, g->in[0], g->d_out[0], a->low, a->high);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "clamp.cu", .f64 = clamp, .f32 = clamp_f32,
                                    .entry = "clamp_fwd"};
static const cup__pointwise slope_kind = {.source = "clamp.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "clamp_bwd"};
static const cup__clamp_attributes first = {-0.5, 1}, second = {0, 0};
static const cup__sample samples[] = {{"0x5", &first},      {"()", &second},     {"7", &first},
                                      {"2x3x1025", &second}, {"33x1000", &first}, {NULL, NULL}};
static const cup__sample bench[] = {{"32768x3072", &first}, {NULL, NULL}};
static const cup__clamp_grad_attributes slope_first = {-0.5, 1}, slope_second = {0, 0};
static const cup__sample grad_samples[] = {
    {"7 7", &slope_first}, {"2x1025 2x1025", &slope_second}, {NULL, NULL}};

static const cup__sample grad_bench[] = {{"32768x3072 32768x3072", &slope_first}, {NULL, NULL}};

const cup__op cup__op_clamp = {
    .pointwise = &kind,
    .infer = infer,
    .specification = cup__pointwise_specification,
    .impls = cup__pointwise_impls,
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = samples,
    .bench = bench,
};

const cup__op cup__op_clamp_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = grad_samples,
    .bench = grad_bench,
};
