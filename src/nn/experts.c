#include "nn/experts.h"

#include "cupola/expr.h"
#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "nn/functions.h"

#define EXACT ((int64_t)1 << 24) /* whole numbers that f32 has all of */
#define KEYS_OF_A_BYTE 255

cup_tensor *cup__formula(cup_context *c, const char *inputs, const char *parameters,
                         const char *text, cup_tensor *const *in, const double *numbers)
{
    cup_expr *e = cup_expr_new(c, inputs, parameters, text);
    cup_tensor *y = e ? cup_expr_call(e, in, numbers, NULL) : NULL;
    cup_expr_free(e);
    return y;
}

/* Sorting bytes takes a quarter of what i32 does. */
static cup_tensor *small_keys(cup_context *c, cup_tensor *keys, int64_t groups)
{
    return cup_cast(c, keys, groups <= KEYS_OF_A_BYTE ? CUP_U8 : CUP_I32);
}

/* Before which place each group ends, and how many rows it has, from one reading of the keys. */
static cup_status count_groups(cup_context *c, cup_tensor *keys, int64_t groups,
                               cup__grouping *out)
{
    cup_tensor *numbers = cup_arange(c, CUP_F64, 0, (double)groups, NULL), *found[2] = {NULL};
    cup_tensor *in[] = {cup_reshape(c, keys, 2, (int64_t[]){1, keys->count}),
                        cup_reshape(c, numbers, 2, (int64_t[]){groups, 1})};
    cup_expr *e = cup_expr_new(c, "key group", NULL,
                               "sum[1](key <= group), sum[1](key == group)");
    if (e)
        cup_expr_call(e, in, NULL, found);
    cup_expr_free(e);
    out->ends = cup_cast(c, found[0], CUP_I64);
    out->counts = found[1];
    out->begins = cup_sub(c, found[0], found[1]);
    return cup_error(c);
}

cup_status cup__group_rows(cup_context *c, cup_tensor *keys, int64_t groups, cup__grouping *out)
{
    cup_tensor *sorted;
    *out = (cup__grouping){0};
    keys = small_keys(c, keys, groups);
    if (!keys || cup_sort(c, keys, 0, false, &sorted, &out->order) != CUP_OK)
        return cup_error(c);
    int64_t rows = keys->count;
    cup_tensor *places =
        cup_arange(c, rows < EXACT ? CUP_F32 : CUP_F64, 0, (double)rows, NULL);
    out->place = cup_cast(c, cup__unsort(c, places, out->order, 0, rows), CUP_I64);
    return count_groups(c, keys, groups, out);
}

static cup_status taken_forward(cup_context *c, cup_tensor *const *in, int count,
                                const void *attributes, cup_tensor **out)
{
    (void)count, (void)attributes;
    out[0] = cup_index_select(c, in[0], in[1], 0);
    return cup_error(c);
}

/* rows [A,K,W] times `keep`, if there is one, and summed over K. */
static cup_tensor *sum_kept(cup_context *c, cup_tensor *rows, cup_tensor *keep)
{
    static const int axes[] = {1};
    const cup_expr_end end = {.size = sizeof end, .fold = CUP_EXPR_FOLD_SUM, .axes = axes,
                              .axis_count = 1, .typed = true,
                              .dtype = rows ? rows->dtype : CUP_F32};
    cup_expr *e = rows ? cup_expr_new(c, keep ? "row keep" : "row", NULL, NULL) : NULL;
    cup_tensor *y = NULL;
    if (e && cup_expr_result(e, cup_expr_text(e, keep ? "row * keep" : "row"), &end) == CUP_OK)
        y = cup_expr_call(e, (cup_tensor *[]){rows, keep}, NULL, NULL);
    cup_expr_free(e);
    return y;
}

static cup_status taken_backward(cup_context *c, const cup_custom_grad *g)
{
    cup_tensor *dy = g->d_outputs[0], *back = g->inputs[2], *keep = g->inputs[3];
    if (!g->wanted[0] || !dy)
        return CUP_OK;
    int64_t rows = back->shape[0], each = back->ndim > 1 ? back->shape[1] : 1, width = dy->shape[1];
    cup_tensor *flat = cup_reshape(c, back, 1, &back->count);
    cup_tensor *d = cup_index_select(c, dy, flat, 0);
    if (each > 1 || keep) {
        if (keep)
            keep = cup_reshape(c, keep, 3, (int64_t[]){rows, each, 1});
        d = sum_kept(c, cup_reshape(c, d, 3, (int64_t[]){rows, each, width}), keep);
    }
    g->d_inputs[0] = d;
    return cup_error(c);
}

static const cup_custom_op taken = {.size = sizeof taken,
                                    .name = "rows of experts",
                                    .output_count = 1,
                                    .saves_inputs = 1u << 1 | 1u << 2 | 1u << 3,
                                    .forward = taken_forward,
                                    .backward = taken_backward,
                                    .second_derivatives = true};

cup_tensor *cup__rows_taken(cup_context *c, cup_tensor *x, cup_tensor *ids, cup_tensor *back,
                            cup_tensor *keep)
{
    cup_tensor *y = NULL;
    if (!x || !ids || !back)
        return NULL;
    cup_custom(c, &taken, (cup_tensor *[]){x, ids, back, keep}, 4, NULL, &y);
    return y;
}

cup_tensor *cup__rows_weighed(cup_context *c, cup_tensor *rows, cup_tensor *weight)
{
    if (!rows || !weight)
        return NULL;
    int64_t n = weight->shape[0], each = weight->shape[1];
    return sum_kept(c, cup_reshape(c, rows, 3, (int64_t[]){n, each, rows->shape[1]}),
                    cup_reshape(c, weight, 3, (int64_t[]){n, each, 1}));
}
