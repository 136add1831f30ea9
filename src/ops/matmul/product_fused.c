#include "ops/matmul/product_fused.h"

#include "dispatch/attributes.h"
#include "ops/matmul/product_tuned.h"

/* Longer sums are added to y by the copies that store them, which takes a tile's place in shared
 * memory from nobody; shorter ones are read and added before the one rounding. */
#define READ_K_MOST 4096
#define ADDED_K_MOST 8192 /* another matrix: from here on a pass of its own is faster */

/* Which input is a, and which lies as y does; -1: none. */
static int a_of(const cup__call *call)
{
    return call->op->kind == CUP__MATMUL_INTO || call->op->kind == CUP__MATMUL_ADD;
}

static int other_of(const cup__call *call)
{
    return call->op->kind == CUP__LINEAR_ADD || call->op->kind >= CUP__MATMUL_GELU_GRAD ? 2 : -1;
}

static int bias_of(const cup__call *call)
{
    return call->op->kind > CUP__LINEAR_ADD ? -1 : call->op->kind == CUP__LINEAR_ADD ? 3 : 2;
}

static const void *data_of(cup_tensor *const *in, int i)
{
    return i >= 0 && in[i] ? in[i]->data : NULL;
}

/* y and the flags of transposition; the attributes of these ops begin alike. */
static void make_matmul(const cup__call *call, cup_tensor *const *in, cup__product *p)
{
    const cup__matmul_scaled_attributes *t = call->attributes;
    const cup__matmul_into_attributes *into = call->attributes;
    int a = a_of(call);
    if (a == 0) {
        cup__product_make(p, in[0], t->transpose_a, in[1], t->transpose_b, &call->result[0]);
        p->factor = t->factor;
        return;
    }
    cup__shape y = cup__shape_of(in[0]);
    cup__product_make(p, in[1], into->transpose_a, in[2], into->transpose_b, &y);
    p->y.data = in[0]->data;
    if (call->op->kind == CUP__MATMUL_ADD && (p->y_dtype == CUP_F32 || p->k > READ_K_MOST)) {
        p->adding = true;
    } else if (call->op->kind == CUP__MATMUL_ADD) {
        p->kind = CUP__ADD;
        p->other = in[0]->data;
    }
}

static void make_product(const cup__call *call, cup_tensor *const *in, cup__product *p)
{
    static const cup__activation activations[] = {
        [CUP__LINEAR_RELU] = CUP__RELU,
        [CUP__LINEAR_SILU] = CUP__SILU,
        [CUP__LINEAR_SWIGLU] = CUP__SWIGLU,
    };
    int kind = call->op->kind;
    if (kind >= CUP__MATMUL_SCALED && kind <= CUP__MATMUL_ADD) {
        make_matmul(call, in, p);
    } else {
        cup__shape y = call->result[0];
        int64_t row = y.size[y.ndim - 1];
        if (kind == CUP__MATMUL_SWIGLU_GRAD)
            y.size[y.ndim - 1] /= 2;
        cup__product_make(p, in[0], false, in[1], kind < CUP__MATMUL_GELU_GRAD, &y);
        p->y.row = p->m == 1 ? p->y.row : row;
        p->activation = kind <= CUP__LINEAR_SWIGLU ? activations[kind] : CUP__NO_ACTIVATION;
        p->bias = data_of(in, bias_of(call));
        p->other = data_of(in, other_of(call));
        p->kind = kind == CUP__LINEAR_ADD           ? CUP__ADD
                  : kind == CUP__MATMUL_GELU_GRAD   ? CUP__TIMES_GELU_SLOPE
                  : kind == CUP__MATMUL_SWIGLU_GRAD ? CUP__THROUGH_SWIGLU
                                                    : CUP__NO_OTHER;
        p->saving = call->out_count > 1;
        p->pre = call->out_count > 1 && call->out[1] ? call->out[1]->data : NULL;
    }
    if (call->out_count && call->out[0])
        p->y.data = call->out[0]->data;
}

void cup__product_fused_of(const cup__call *call, cup__product *p)
{
    make_product(call, call->in, p);
}

static const char *refusal(const cup__call *call, bool with_other)
{
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    cup_tensor like[4], *in[4] = {NULL};
    for (int i = 0; i < call->in_count; i++)
        in[i] = call->in[i] ? cup__product_packed(call->in[i], &like[i]) : NULL;
    cup__product p;
    make_product(call, in, &p);
    if (with_other != (p.kind != CUP__NO_OTHER))
        return with_other ? "there is no other matrix" : "a pass of its own is faster";
    if (p.kind == CUP__ADD && p.k > ADDED_K_MOST)
        return "where k is so long a sum in a pass of its own is faster";
    return cup__product_wgmma_menu_refuses(call->c, &p);
}

static const char *refuses_wgmma(const cup__call *call)
{
    return refusal(call, false);
}

static const char *refuses_wgmma_other(const cup__call *call)
{
    return refusal(call, true);
}

static cup_status run_wgmma(cup__call *call)
{
    cup_tensor *in[4] = {NULL};
    cup_context *c = call->c;
    int a = a_of(call);
    for (int i = 0; i < call->in_count; i++) {
        cup_tensor *t = call->in[i];
        bool keep = !t || (i == a || i == a + 1 ? cup__product_lies_well(t) : t->contiguous);
        in[i] = keep ? t : cup_copy(c, t);
    }
    cup_status status = c->error.status;
    if (status == CUP_OK) {
        cup__product p;
        make_product(call, in, &p);
        status = cup__product_wgmma_tuned(call, &p);
    }
    for (int i = 0; i < call->in_count; i++)
        if (in[i] != call->in[i])
            cup_tensor_free(in[i]);
    return status;
}

cup_tensor *cup__half_of(cup_context *c, cup_tensor *t, int which)
{
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS];
    for (int i = 0; i < t->ndim; i++)
        sizes[i] = -1;
    int64_t n = t->shape[t->ndim - 1] / 2;
    starts[t->ndim - 1] = which * n;
    sizes[t->ndim - 1] = n;
    return cup_slice(c, t, starts, t->ndim, sizes, t->ndim);
}

/* Calls an op whose results go where they are given. */
static cup_status call_into(cup_context *c, int op, cup_tensor *const *in, int count,
                            const void *attributes, cup_tensor *y)
{
    cup_tensor *out[CUP__MAX_OUT] = {y};
    cup__op_call(c, &cup__rows[op], in, count, attributes, out);
    return c->error.status;
}

static cup_status compose_linear(cup__call *call)
{
    cup_context *c = call->c;
    int kind = call->op->kind;
    cup_tensor *bias = call->in_count > bias_of(call) ? call->in[bias_of(call)] : NULL;
    cup_tensor *linear[] = {call->in[0], call->in[1], bias};
    cup_tensor *pre = call->out_count > 1 ? call->out[1] : NULL, *mine = NULL;
    if (pre)
        CUP_TRY(call_into(c, CUP__OP_linear, linear, 3, NULL, pre));
    else
        mine = pre = cup_linear(c, call->in[0], call->in[1], bias);
    if (!pre)
        return c->error.status;
    cup_status status;
    if (kind == CUP__LINEAR_SWIGLU) {
        cup_tensor *gate = cup__half_of(c, pre, 0), *up = cup__half_of(c, pre, 1);
        status = call_into(c, CUP__OP_swiglu, (cup_tensor *[]){gate, up}, 2, NULL, call->out[0]);
        cup_tensor_free(gate);
        cup_tensor_free(up);
    } else if (kind == CUP__LINEAR_ADD) {
        status = call_into(c, CUP__OP_add, (cup_tensor *[]){pre, call->in[2]}, 2, NULL,
                           call->out[0]);
    } else {
        int op = kind == CUP__LINEAR_RELU ? CUP__OP_relu : CUP__OP_silu;
        status = call_into(c, op, &pre, 1, NULL, call->out[0]);
    }
    cup_tensor_free(mine);
    return status;
}

/* Into a y of f32 goes the product of inputs made f32. */
static cup_status compose_into(cup__call *call)
{
    cup_context *c = call->c;
    const cup__matmul_into_attributes *t = call->attributes;
    cup__matmul_attributes turned = {t->transpose_a, t->transpose_b};
    cup_tensor *y = call->in[0], *in[2] = {call->in[1], call->in[2]};
    for (int i = 0; i < 2 && y->dtype != call->in[1]->dtype; i++)
        in[i] = cup_cast(c, call->in[1 + i], y->dtype);
    cup_status status = c->error.status;
    if (status == CUP_OK)
        status = call_into(c, CUP__OP_matmul, in, 2, &turned, y);
    for (int i = 0; i < 2; i++)
        if (in[i] != call->in[1 + i])
            cup_tensor_free(in[i]);
    return status;
}

/* The product in y's dtype, and a pass that adds it. */
static cup_status compose_add(cup__call *call)
{
    cup_context *c = call->c;
    const cup__matmul_into_attributes *t = call->attributes;
    cup_tensor *y = call->in[0];
    cup__shape shape = cup__shape_of(y);
    cup_tensor *product = cup__tensor_make(c, &shape, "matmul_add");
    if (!product)
        return c->error.status;
    cup_status status = cup_matmul_into(c, product, call->in[1], call->in[2], t->transpose_a,
                                        t->transpose_b);
    if (status == CUP_OK)
        status = call_into(c, CUP__OP_add, (cup_tensor *[]){y, product}, 2, NULL, y);
    cup_tensor_free(product);
    return status;
}

static cup_status compose_swiglu_grad(cup__call *call)
{
    cup_context *c = call->c;
    cup_tensor *dh = cup_matmul(c, call->in[0], call->in[1], false, false);
    cup_tensor *gate = cup__half_of(c, call->in[2], 0), *up = cup__half_of(c, call->in[2], 1);
    cup_tensor *d[2] = {NULL};
    cup_status status = c->error.status;
    if (status == CUP_OK)
        status = cup__swiglu_grad(c, gate, up, dh, &d[0], &d[1]);
    cup__concat_attributes last = {-1};
    if (status == CUP_OK)
        status = call_into(c, CUP__OP_concat, d, 2, &last, call->out[0]);
    cup_tensor *used[] = {dh, gate, up, d[0], d[1]};
    for (int i = 0; i < 5; i++)
        cup_tensor_free(used[i]);
    return status;
}

/* The product in f32 where y is f16, whose range the product may leave before it is scaled. */
static cup_status compose_scaled(cup__call *call)
{
    cup_context *c = call->c;
    const cup__matmul_scaled_attributes *t = call->attributes;
    cup__scale_attributes scale = {t->factor};
    cup__cast_attributes narrow = {CUP_F16};
    cup_tensor *in[2] = {call->in[0], call->in[1]};
    bool wide = call->out[0]->dtype == CUP_F16;
    for (int i = 0; i < 2 && wide; i++)
        in[i] = cup_cast(c, call->in[i], CUP_F32);
    cup_tensor *product = cup_matmul(c, in[0], in[1], t->transpose_a, t->transpose_b);
    cup_tensor *scaled = NULL;
    cup_status status;
    if (wide) {
        scaled = cup_scale(c, product, t->factor);
        status = call_into(c, CUP__OP_cast, &scaled, 1, &narrow, call->out[0]);
    } else {
        status = call_into(c, CUP__OP_scale, &product, 1, &scale, call->out[0]);
    }
    for (int i = 0; i < 2 && wide; i++)
        cup_tensor_free(in[i]);
    cup_tensor_free(product);
    cup_tensor_free(scaled);
    return status;
}

static cup_status compose_gelu_grad(cup__call *call)
{
    cup_context *c = call->c;
    cup_tensor *product = cup_matmul(c, call->in[0], call->in[1], false, false);
    cup_status status = call_into(c, CUP__OP_gelu_grad, (cup_tensor *[]){call->in[2], product}, 2,
                                  NULL, call->out[0]);
    cup_tensor_free(product);
    return status;
}

static cup_status run_composed(cup__call *call)
{
    int kind = call->op->kind;
    if (kind <= CUP__LINEAR_ADD)
        return compose_linear(call);
    if (kind == CUP__MATMUL_SWIGLU_GRAD)
        return compose_swiglu_grad(call);
    return kind == CUP__MATMUL_INTO     ? compose_into(call)
           : kind == CUP__MATMUL_ADD    ? compose_add(call)
           : kind == CUP__MATMUL_SCALED ? compose_scaled(call)
                                        : compose_gelu_grad(call);
}

const cup__impl cup__product_fused_impls[] = {
    {.name = "composed", .place = CUP__CPU, .strided = true, .run = run_composed},
    {.name = "wgmma", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 256, 4096, 8192),
     .strided = true, .refuses = refuses_wgmma,
     .run = run_wgmma},
    {.name = "wgmma_other", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 256),
     .strided = true, .refuses = refuses_wgmma_other,
     .run = run_wgmma},
    {.name = "composed", .place = CUP__CUDA, .strided = true, .run = run_composed},
    {0},
};
