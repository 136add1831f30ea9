/* Linear layers whose three products, forward and backward, are of codes of 8 bits.
 *
 * Tensor cores take such codes along the dimension that is summed over, which is another one in
 * each product of the three: so x, weight and dy are also turned. A scale counts for 128 rows of
 * 128 columns, so that what is turned has the same codes and the same scales, turned: each number
 * is rounded once. Scales are made of the numbers they are for, and nothing is kept between
 * steps. */
#include "cupola/grad.h"
#include "nn/functions.h"
#include "ops/matmul/product.h"
#include "tensor/context.h"

#define SIDE 128 /* rows and columns that share a scale */

enum { X, WEIGHT, BIAS, INPUTS };
enum { Y, X_TURNED, X_SCALE, WEIGHT_TURNED, WEIGHT_SCALE, OUTPUTS };

/* Codes of a matrix and their scales; turned ones are codes only. */
typedef struct codes {
    cup_tensor *at, *scale;
} codes;

static cup_tensor *turned(cup_context *c, cup_tensor *t)
{
    return t ? cup_permute(c, t, (int64_t[]){1, 0}, 2) : NULL;
}

static codes codes_of(cup_context *c, cup_tensor *t)
{
    codes made = {NULL, NULL};
    cup_quantize(c, cup__rows_of(c, t), CUP_F8E4M3,
                 CUP_OPTIONS(cup_quantize_options, .block_rows = SIDE, .block_columns = SIDE),
                 &made.at, &made.scale);
    return made;
}

/* The same scales for each of the rows, in columns: kernels on GPUs copy those of neighbouring rows
 * 16 bytes at a time, in which one for 128 rows would cost them more than its bytes. */
static cup_tensor *scales_by_row(cup_context *c, cup_tensor *scale, int64_t rows)
{
    if (!scale || !cup_device_is_cuda(c) || scale->shape[0] < 2)
        return scale;
    int64_t down = scale->shape[0], across = scale->shape[1];
    cup_tensor *columns = cup_reshape(c, turned(c, scale), 3, (int64_t[]){across, down, 1});
    cup_tensor *each = cup_broadcast(c, columns, 3, (int64_t[]){across, down, SIDE});
    cup_tensor *flat = cup_reshape(c, each, 2, (int64_t[]){across, down * SIDE});
    return flat ? turned(c, cup__part(c, flat, 1, 0, rows)) : NULL;
}

/* a b^T + bias. */
static cup_tensor *product(cup_context *c, codes a, codes b, cup_tensor *bias, cup_dtype dtype)
{
    if (!a.at || !b.at)
        return NULL;
    return cup_scaled_matmul(c, a.at, b.at, scales_by_row(c, a.scale, a.at->shape[0]), b.scale,
                             bias, dtype, false);
}

static codes turned_codes(cup_context *c, codes from)
{
    return (codes){from.at ? cup_copy(c, turned(c, from.at)) : NULL, turned(c, from.scale)};
}

static cup_tensor *with_rows_of(cup_context *c, cup_tensor *rows, const cup_tensor *like)
{
    int64_t shape[CUP_MAX_DIMS];
    if (!rows)
        return NULL;
    for (int i = 0; i < like->ndim; i++)
        shape[i] = i == like->ndim - 1 ? rows->shape[1] : like->shape[i];
    return like->ndim == 2 ? rows : cup_reshape(c, rows, like->ndim, shape);
}

/* y, and what backward takes where it will come. */
static cup_status forward(cup_context *c, cup_tensor *const *in, int count, const void *attributes,
                          cup_tensor **out)
{
    (void)count;
    bool saves = *(const bool *)attributes;
    codes x = codes_of(c, in[X]), weight = codes_of(c, in[WEIGHT]);
    out[Y] = with_rows_of(c, product(c, x, weight, in[BIAS], in[X]->dtype), in[X]);
    if (saves) {
        out[X_TURNED] = turned_codes(c, x).at;
        out[X_SCALE] = x.scale;
        out[WEIGHT_TURNED] = turned_codes(c, weight).at;
        out[WEIGHT_SCALE] = weight.scale;
    }
    return cup_error(c);
}

static cup_status backward(cup_context *c, const cup_custom_grad *g)
{
    cup_tensor *dy = cup__rows_of(c, g->d_outputs[Y]), *const *kept = g->outputs;
    if (!dy)
        return cup_error(c);
    codes d = {NULL, NULL};
    if (g->wanted[X] || g->wanted[WEIGHT])
        d = codes_of(c, dy);
    if (g->wanted[X]) {
        codes weight = {kept[WEIGHT_TURNED], turned(c, kept[WEIGHT_SCALE])};
        g->d_inputs[X] =
            with_rows_of(c, product(c, d, weight, NULL, dy->dtype), g->d_outputs[Y]);
    }
    if (g->wanted[WEIGHT]) {
        codes x = {kept[X_TURNED], turned(c, kept[X_SCALE])};
        g->d_inputs[WEIGHT] = product(c, turned_codes(c, d), x, NULL, dy->dtype);
    }
    if (g->wanted[BIAS])
        g->d_inputs[BIAS] = cup_sum(c, dy, (int64_t[]){0}, 1, false);
    return cup_error(c);
}

static bool fits(cup_context *c, const cup_tensor *x, const cup_tensor *weight,
                 const cup_tensor *bias)
{
    cup_dtype dtype = x->dtype;
    if (dtype != CUP_F32 && dtype != CUP_BF16 && dtype != CUP_F16)
        cup_fail(c, CUP_DTYPE, "linear_fp8: x is %s; it must be f32, bf16 or f16",
                 cup_dtype_name(dtype));
    else if (weight->dtype != dtype || (bias && bias->dtype != dtype))
        cup_fail(c, CUP_DTYPE, "linear_fp8: weight and bias must be %s, as x is",
                 cup_dtype_name(dtype));
    else if (x->ndim < 1 || weight->ndim != 2 || x->shape[x->ndim - 1] != weight->shape[1])
        cup_fail(c, CUP_SHAPE, "linear_fp8: x must be [..,K] and weight [N,K]");
    else if (bias && (bias->ndim != 1 || bias->shape[0] != weight->shape[0]))
        cup_fail(c, CUP_SHAPE, "linear_fp8: bias must have the shape [%lld]",
                 (long long)weight->shape[0]);
    return cup_error(c) == CUP_OK;
}

cup_tensor *cup_linear_fp8(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias)
{
    if (!cup__function_begin(c, "linear_fp8", x) || !cup__function_begin(c, "linear_fp8", weight) ||
        !fits(c, x, weight, bias))
        return NULL;
    cup_tensor *in[INPUTS] = {x, weight, bias}, *out[OUTPUTS] = {NULL};
    bool saves = c->tape_calls && c->tape_calls->wants(c, in, INPUTS);
    const uint32_t kept =
        1u << X_TURNED | 1u << X_SCALE | 1u << WEIGHT_TURNED | 1u << WEIGHT_SCALE;
    const cup_custom_op op = {.size = sizeof op,
                              .name = "linear_fp8",
                              .output_count = saves ? OUTPUTS : 1,
                              .saves_outputs = saves ? kept : 0,
                              .attributes_size = sizeof saves,
                              .forward = forward,
                              .backward = backward};
    cup_scope_open(c);
    cup_custom(c, &op, in, INPUTS, &saves, out);
    return cup_scope_return(c, out[Y]);
}
