/* Products with more before they are stored, composed of the plain ops. */
#include "dispatch/attributes.h"
#include "ops/matmul/epilogues.h"

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

cup_status cup__call_into(cup_context *c, int op, cup_tensor *const *in, int count,
                          const void *attributes, cup_tensor *y)
{
    cup_tensor *out[CUP__MAX_OUT] = {y};
    cup__op_call(c, &cup__rows[op], in, count, attributes, out);
    return c->error.status;
}

/* The op of a row, of what a linear layer gave, into y where there is one. */
static cup_tensor *apply(cup_context *c, const cup__epilogue *e, cup_tensor *pre, cup_tensor *other,
                         cup_tensor *y)
{
    cup_tensor *in[2] = {pre, other}, *out[CUP__MAX_OUT] = {y};
    for (int i = 0; i < 2 && e->gated; i++)
        in[i] = cup__half_of(c, pre, i);
    y = cup__op_call(c, &cup__rows[e->op], in, in[1] ? 2 : 1, NULL, out);
    for (int i = 0; i < 2 && e->gated; i++)
        cup_tensor_free(in[i]);
    return y;
}

cup_tensor *cup__activation_again(const cup__grad *g)
{
    return apply(g->c, g->row->op->epilogue, g->out[1], NULL, NULL);
}

cup_status cup__compose_linear(cup__call *call)
{
    cup_context *c = call->c;
    const cup__epilogue *e = call->op->epilogue;
    cup_tensor *linear[] = {call->in[0], call->in[1], call->in[e->bias]};
    cup_tensor *pre = call->out_count > 1 ? call->out[1] : NULL, *mine = NULL;
    if (pre)
        CUP_TRY(cup__call_into(c, CUP__OP_linear, linear, 3, NULL, pre));
    else
        mine = pre = cup_linear(c, linear[0], linear[1], linear[2]);
    if (pre)
        apply(c, e, pre, e->other ? call->in[e->other] : NULL, call->out[0]);
    cup_status status = c->error.status;
    cup_tensor_free(mine);
    return status;
}

cup_status cup__compose_back(cup__call *call)
{
    cup_context *c = call->c;
    const cup__epilogue *e = call->op->epilogue;
    cup_tensor *dh = cup_matmul(c, call->in[0], call->in[1], false, false);
    if (dh)
        cup__epilogue_back(c, e, call->in[e->other], dh, call->out[0]);
    cup_tensor_free(dh);
    return c->error.status;
}

/* Into a y of f32 goes the product of inputs made f32. */
cup_status cup__compose_into(cup__call *call)
{
    cup_context *c = call->c;
    const cup__matmul_into_attributes *t = call->attributes;
    cup__matmul_attributes turned = {t->transpose_a, t->transpose_b};
    cup_tensor *y = call->in[0], *in[2] = {call->in[1], call->in[2]};
    for (int i = 0; i < 2 && y->dtype != call->in[1]->dtype; i++)
        in[i] = cup_cast(c, call->in[1 + i], y->dtype);
    cup_status status = c->error.status;
    if (status == CUP_OK)
        status = cup__call_into(c, CUP__OP_matmul, in, 2, &turned, y);
    for (int i = 0; i < 2; i++)
        if (in[i] != call->in[1 + i])
            cup_tensor_free(in[i]);
    return status;
}

/* The product in y's dtype, and a pass that adds it. */
cup_status cup__compose_add(cup__call *call)
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
        status = cup__call_into(c, CUP__OP_add, (cup_tensor *[]){y, product}, 2, NULL, y);
    cup_tensor_free(product);
    return status;
}

/* The product in f32 where y is f16, whose range the product may leave before it is scaled. */
cup_status cup__compose_scaled(cup__call *call)
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
        status = cup__call_into(c, CUP__OP_cast, &scaled, 1, &narrow, call->out[0]);
    } else {
        status = cup__call_into(c, CUP__OP_scale, &product, 1, &scale, call->out[0]);
    }
    for (int i = 0; i < 2 && wide; i++)
        cup_tensor_free(in[i]);
    cup_tensor_free(product);
    cup_tensor_free(scaled);
    return status;
}
