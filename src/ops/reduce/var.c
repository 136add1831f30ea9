#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "ops/reduce/reduce.h"

_Static_assert(offsetof(cup__var_attributes, keep) == offsetof(cup__sum_attributes, keep),
               "the attributes of a reduction begin with axes and keep");

static double correction(const cup__call *call)
{
    return ((const cup__var_attributes *)call->attributes)->correction;
}

static double share(const cup__call *call, double n, double squares)
{
    double degrees = n - correction(call);
    return degrees > 0 ? squares / degrees : NAN;
}

/* How far the mean is from the first element. Equal elements have a variance of exactly 0 then,
 * which a mean that is rounded as a whole would miss. */
CUP__FOLD(apart, 0, acc + (x - shift), acc + x, shift + acc / n)
CUP__FOLD_STATE(var, "var_state.cuh", 0, acc + (x - shift) * (x - shift),
                acc + (x - shift) * (x - shift), acc + x, share(call, n, acc),
                .first = &apart_fold, .from_first = true, .argument = correction)

/* (x, mean, dy): `a` is twice the share of one element. */
CUP__FORMULA(3, var_bwd, a[0] * (x[0] - x[1]) * x[2], (float)a[0] * (p - q) * r,
             a[0] * (x[0] - x[1]) * x[2])

static cup_status gradient(cup__grad *g)
{
    const cup__var_attributes *a = g->attributes;
    int64_t degrees = cup__reduce_length(g) - a->correction;
    cup_tensor *mean = cup_mean(g->c, g->in[0], a->axes, a->axes_count, true);
    g->d_in[0] = cup__var_grad(g->c, g->in[0], mean, cup__reduce_kept(g, g->d_out[0]),
                               2 / (double)degrees);
    return CUP_OK;
}

static cup_status composed(cup__grad *g)
{
    const cup__var_attributes *a = g->attributes;
    cup_context *c = g->c;
    cup_tensor *x = cup__widen(c, g->in[0]);
    cup_tensor *apart = cup_sub(c, x, cup_mean(c, x, a->axes, a->axes_count, true));
    cup_tensor *dy = cup__widen(c, cup__reduce_kept(g, g->d_out[0]));
    int64_t degrees = cup__reduce_length(g) - a->correction;
    g->d_in[0] = cup_cast(c, cup_scale(c, cup_mul(c, apart, dy), 2 / (double)degrees),
                          g->in_shape[0].dtype);
    return CUP_OK;
}

#define AXES(correction, keep, ...)                                                                \
    &(const cup__var_attributes){{__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4, keep, correction}
static const cup__var_attributes all = {{0}, 0, false, 0};
static const cup__sample samples[] = {
    {"7", &all},
    {"3x5", AXES(1, false, 1)},
    {"3x5", AXES(1, true, 0)},
    {"2x3x4", AXES(0, false, 0, 2)},
    {"65x1025", AXES(1, false, -1)},
    {"1025x65", AXES(0, false, 0)},
    {"4x33x17", AXES(0, true, 1)},
    {"200003", &all},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"16384x16384", AXES(1, false, 0)}, {"16384x16384", AXES(1, false, 1)}, {NULL, NULL}};
static const cup__var_grad_attributes half = {0.5};
static const cup__sample grad_samples[] = {{"7 7 7", &half},
                                           {"3x5 3x1 3x1", &half},
                                           {"2x1025 2x1 2x1", &half},
                                           {NULL, NULL}};

const cup__op cup__op_var = {
    .fold = &var_fold,
    .infer = cup__reduce_infer,
    .specification = cup__reduce_specification,
    .gradient = gradient,
    .composed = composed,
    .saves = CUP__SAVE_IN(0),
    .impls = cup__reduce_impls,
    .samples = samples,
    .bench = bench,
    .tolerance = CUP__REDUCE_TOLERANCE,
};

const cup__op cup__op_var_grad = {
    CUP__POINTWISE(&var_bwd_kind),
    .samples = grad_samples,
};
