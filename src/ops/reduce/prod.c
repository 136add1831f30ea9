#include "dispatch/attributes.h"
#include "ops/reduce/reduce.h"

static int64_t times(int64_t acc, int64_t x)
{
    return (int64_t)((uint64_t)acc * (uint64_t)x);
}

CUP__FOLD_STATE(prod, "prod_state.cuh", 1, acc * x, acc * x, acc * x, acc, .i64 = times,
                .widens = true)

/* The product of the others is all over x, where none is 0; where one is, it alone has a slope,
 * which is the product of the rest; where more are, nothing has. */
static cup_status gradient(cup__grad *g)
{
    const cup__prod_attributes *a = g->attributes;
    cup_context *c = g->c;
    cup_tensor *x = g->in[0], *zero = cup__number(c, x, 0);
    cup_tensor *is = cup_equal(c, x, zero);
    cup_tensor *others = cup_where(c, is, cup__number(c, x, 1), x);
    cup_tensor *count = cup_sum(c, is, a->axes, a->axes_count, true);
    cup_tensor *rest = cup_mul(c, cup__reduce_kept(g, g->d_out[0]),
                               cup_prod(c, others, a->axes, a->axes_count, true));
    cup_tensor *none = cup__full(c, &(cup__shape){.dtype = CUP_I64}, 0);
    cup_tensor *one = cup__full(c, &(cup__shape){.dtype = CUP_I64}, 1);
    g->d_in[0] = cup_where(c, is, cup_where(c, cup_equal(c, count, one), rest, zero),
                           cup_div(c, cup_where(c, cup_equal(c, count, none), rest, zero), others));
    return CUP_OK;
}

#define AXES(keep, ...)                                                                            \
    &(const cup__prod_attributes){{__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4, keep}
static const cup__prod_attributes all = {{0}, 0, false};
static const cup__sample samples[] = {
    {"7", &all},       {"3x5", AXES(false, 1)},         {"3x5", AXES(true, 0)},
    {"0x5", AXES(false, 0)}, {"()", &all},              {"65x1025", AXES(false, -1)},
    {"1025x65", AXES(false, 0)}, {"3x4x5x6", AXES(false, 1, 3)}, {NULL, NULL}};

const cup__op cup__op_prod = {
    .fold = &prod_fold,
    .infer = cup__reduce_infer,
    .specification = cup__reduce_specification,
    .impls = cup__reduce_impls,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = samples,
    .bench = cup__reduce_bench,
    .domain = {{0.97, 1.03}},
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INTEGER},
    .tolerance = CUP__REDUCE_TOLERANCE,
};
