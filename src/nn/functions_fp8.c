/* Linear layers, and two of them with gelu between, whose products, forward and backward, are of
 * codes of 8 bits.
 *
 * Tensor cores take such codes along the dimension that is summed over, which is another one in
 * each product of the three: so x, weight and dy are also turned. A scale counts for 128 rows of
 * 128 columns, so that what is turned has the same codes and the same scales, turned: each number
 * is rounded once. Scales are made of the numbers they are for, and nothing is kept between
 * steps. */
#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "nn/functions.h"
#include "nn/functions_fp8.h"
#include "ops/matmul/product.h"
#include "tensor/context.h"

/* What quantize_turned gives. */
typedef struct codes {
    cup_tensor *at, *turned, *scale, *row_scale, *column_scale, *sums;
} codes;

/* A linear layer among the inputs of an op, and among its outputs what backward takes of it. */
typedef struct layer {
    int weight, bias;
    int x_turned, x_scale, weight_turned, weight_scale;
} layer;

enum { LINEAR_INPUTS = 3, LINEAR_OUTPUTS = 5 };
static const layer alone = {1, 2, 1, 2, 3, 4};

enum { MLP_PRE = 5, MLP_INPUTS = 5, MLP_OUTPUTS = 10 };
static const layer up = {1, 2, 1, 2, 3, 4}, down = {3, 4, 6, 7, 8, 9};

static cup_tensor *turned(cup_context *c, cup_tensor *t)
{
    return t ? cup_permute(c, t, (int64_t[]){1, 0}, 2) : NULL;
}

/* Of t, of gelu(t), or of t times the slope of gelu at `pre`; `sums`: of its columns too. */
static codes codes_of(cup_context *c, cup_tensor *t, cup_tensor *pre, bool gelu, bool sums)
{
    codes made = {NULL};
    cup_tensor *in[] = {cup__rows_of(c, t), pre ? cup__rows_of(c, pre) : NULL}, *out[6] = {NULL};
    const cup__quantize_turned_attributes attributes = {CUP_F8E4M3, gelu, sums};
    if (in[0] && cup__op_call(c, &cup__rows[CUP__OP_quantize_turned], in, 2, &attributes, out))
        made = (codes){out[0], out[1], out[2], out[3], out[4], out[5]};
    return made;
}

/* a b^T + bias, with scales of a for each row, which kernels copy 16 bytes at a time. */
static cup_tensor *product(cup_context *c, cup_tensor *a, cup_tensor *row_scale, cup_tensor *b,
                           cup_tensor *b_scale, cup_tensor *bias, cup_dtype dtype)
{
    return a && b ? cup_scaled_matmul(c, a, b, row_scale, b_scale, bias, dtype, false) : NULL;
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

/* The rows of a layer's result; what backward takes goes to `out` where it is asked for. */
static cup_tensor *pass(cup_context *c, const layer *l, cup_tensor *const *in, cup_tensor *x,
                        bool gelu, bool saves, cup_tensor **out)
{
    codes a = codes_of(c, x, NULL, gelu, false), w = codes_of(c, in[l->weight], NULL, false, false);
    if (saves) {
        out[l->x_turned] = a.turned;
        out[l->x_scale] = a.scale;
        out[l->weight_turned] = w.turned;
        out[l->weight_scale] = w.scale;
    }
    return product(c, a.at, a.row_scale, w.at, w.scale, in[l->bias], x->dtype);
}

static cup_tensor *column_sums(cup_context *c, cup_tensor *tiles, cup_dtype dtype)
{
    const cup__sum_as_attributes attributes = {.axes = {0}, .axes_count = 1, .dtype = dtype};
    return cup__op_call(c, &cup__rows[CUP__OP_sum_as], &tiles, 1, &attributes, NULL);
}

/* The gradients of weight and bias, and the rows of that of x, from codes of the result's. */
static cup_tensor *pass_back(cup_context *c, const layer *l, const cup_custom_grad *g, codes d,
                             bool wants_x, cup_dtype dtype)
{
    cup_tensor *const *kept = g->outputs;
    if (g->wanted[l->weight])
        g->d_inputs[l->weight] =
            product(c, d.turned, d.column_scale, kept[l->x_turned],
                    turned(c, kept[l->x_scale]), NULL, dtype);
    if (g->wanted[l->bias] && d.sums)
        g->d_inputs[l->bias] = column_sums(c, d.sums, dtype);
    if (!wants_x)
        return NULL;
    return product(c, d.at, d.row_scale, kept[l->weight_turned],
                   turned(c, kept[l->weight_scale]), NULL, dtype);
}

static cup_status linear_forward(cup_context *c, cup_tensor *const *in, int count,
                                 const void *attributes, cup_tensor **out)
{
    (void)count;
    const bool *saves = attributes;
    out[0] = with_rows_of(c, pass(c, &alone, in, in[0], false, *saves, out), in[0]);
    return cup_error(c);
}

static cup_status linear_backward(cup_context *c, const cup_custom_grad *g)
{
    cup_tensor *dy = g->d_outputs[0];
    if (!dy)
        return cup_error(c);
    codes d = codes_of(c, dy, NULL, false, g->wanted[alone.bias]);
    cup_tensor *dx = pass_back(c, &alone, g, d, g->wanted[0], dy->dtype);
    g->d_inputs[0] = with_rows_of(c, dx, dy);
    return cup_error(c);
}

static cup_status mlp_forward(cup_context *c, cup_tensor *const *in, int count,
                              const void *attributes, cup_tensor **out)
{
    (void)count;
    const bool *saves = attributes;
    cup_tensor *pre = pass(c, &up, in, in[0], false, *saves, out);
    if (pre)
        out[0] = with_rows_of(c, pass(c, &down, in, pre, true, *saves, out), in[0]);
    if (*saves)
        out[MLP_PRE] = pre;
    return cup_error(c);
}

static cup_status mlp_backward(cup_context *c, const cup_custom_grad *g)
{
    cup_tensor *dy = g->d_outputs[0];
    if (!dy)
        return cup_error(c);
    bool below = g->wanted[0] || g->wanted[up.weight] || g->wanted[up.bias];
    codes d = codes_of(c, dy, NULL, false, g->wanted[down.bias]);
    cup_tensor *dh = pass_back(c, &down, g, d, below, dy->dtype);
    if (!dh)
        return cup_error(c);
    d = codes_of(c, dh, g->outputs[MLP_PRE], true, g->wanted[up.bias]);
    cup_tensor *dx = pass_back(c, &up, g, d, g->wanted[0], dy->dtype);
    g->d_inputs[0] = with_rows_of(c, dx, dy);
    return cup_error(c);
}

static bool fits(cup_context *c, const cup_tensor *x, int64_t in, const cup_tensor *weight,
                 const cup_tensor *bias)
{
    cup_dtype dtype = x->dtype;
    if (dtype != CUP_F32 && dtype != CUP_BF16 && dtype != CUP_F16)
        cup_fail(c, CUP_DTYPE, "linear_fp8: x is %s; it must be f32, bf16 or f16",
                 cup_dtype_name(dtype));
    else if (weight->dtype != dtype || (bias && bias->dtype != dtype))
        cup_fail(c, CUP_DTYPE, "linear_fp8: weight and bias must be %s, as x is",
                 cup_dtype_name(dtype));
    else if (x->ndim < 1 || weight->ndim != 2 || in != weight->shape[1])
        cup_fail(c, CUP_SHAPE, "linear_fp8: x must be [..,K] and weight [N,K]");
    else if (bias && (bias->ndim != 1 || bias->shape[0] != weight->shape[0]))
        cup_fail(c, CUP_SHAPE, "linear_fp8: bias must have the shape [%lld]",
                 (long long)weight->shape[0]);
    return cup_error(c) == CUP_OK;
}

/* Calls the op; without a tape it has its result alone. */
static cup_tensor *call(cup_context *c, cup_custom_op op, cup_tensor *const *in, int count)
{
    cup_tensor *out[MLP_OUTPUTS] = {NULL};
    bool saves = c->tape_calls && c->tape_calls->wants(c, in, count);
    op.size = sizeof op;
    op.attributes_size = sizeof saves;
    op.saves_outputs = saves ? (1u << op.output_count) - 2 : 0;
    op.output_count = saves ? op.output_count : 1;
    cup_scope_open(c);
    cup_custom(c, &op, in, count, &saves, out);
    return cup_scope_return(c, out[0]);
}

cup_tensor *cup_linear_fp8(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias)
{
    static const cup_custom_op op = {.name = "linear_fp8",
                                     .output_count = LINEAR_OUTPUTS,
                                     .forward = linear_forward,
                                     .backward = linear_backward};
    if (!cup__function_begin(c, "linear_fp8", x) ||
        !cup__function_begin(c, "linear_fp8", weight) ||
        !fits(c, x, x->ndim ? x->shape[x->ndim - 1] : 0, weight, bias))
        return NULL;
    return call(c, op, (cup_tensor *[]){x, weight, bias}, LINEAR_INPUTS);
}

cup_tensor *cup__mlp_fp8(cup_context *c, cup_tensor *x, const cup_linear_layer *a,
                         const cup_linear_layer *b)
{
    static const cup_custom_op op = {.name = "mlp_fp8",
                                     .output_count = MLP_OUTPUTS,
                                     .forward = mlp_forward,
                                     .backward = mlp_backward};
    if (!cup__function_begin(c, "mlp_fp8", x) || !cup__function_begin(c, "mlp_fp8", a->weight) ||
        !cup__function_begin(c, "mlp_fp8", b->weight) ||
        !fits(c, x, x->ndim ? x->shape[x->ndim - 1] : 0, a->weight, a->bias) ||
        !fits(c, x, a->weight->shape[0], b->weight, b->bias))
        return NULL;
    return call(c, op, (cup_tensor *[]){x, a->weight, a->bias, b->weight, b->bias}, MLP_INPUTS);
}
