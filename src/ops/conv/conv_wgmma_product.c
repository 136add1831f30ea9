/* Convolutions with windows of one place by the kernels of products: places by results. */
#include "kernels/product_call.cuh"
#include "ops/conv/conv_cuda.h"
#include "ops/matmul/product_cuda.h"
#include "ops/matmul/wgmma.h"
#include "tensor/context.h"

#define F32_DEEP 512 /* channels from which on lines are cut faster than whole tensors */
#define F32_LEAST 16 /* channels and results, below which most of a tile would be empty */
#define F32_PIECE 4  /* of 16 bytes */

bool cup__conv_is_product(const conv_call *c)
{
    bool is = c->groups == 1;
    for (int d = 0; d < 2; d++) {
        const conv_side *s = &c->side[d];
        is = is && s->taps == 1 && s->stride == 1 && s->before == 0 && s->out == s->in;
    }
    return is;
}

/* As it is where all lies evenly. */
static cup__product product_of(const cup__conv *v)
{
    const conv_call *c = &v->call;
    return (cup__product){.dtype = v->dtype,
                          .y_dtype = v->y_dtype,
                          .m = (int64_t)c->images * c->side[0].in * c->side[1].in,
                          .n = c->results,
                          .k = c->channels,
                          .batch_count = 1,
                          .factor = 1,
                          .a = {NULL, c->channels, 1, {0}},
                          .b = {NULL, 1, c->channels, {0}},
                          .y = {NULL, c->results, 1, {0}},
                          .bias = c->bias,
                          .activation = v->activation,
                          .kind = v->residual ? PRODUCT_ADD_FIRST : 0,
                          .other = v->residual};
}

const char *cup__conv_wgmma_product_refuses(const cup__call *call)
{
    const char *why = cup__conv_wgmma_refuses(call);
    if (why)
        return why;
    const cup__conv v = cup__conv_of(call);
    if (!cup__conv_is_product(&v.call))
        return "its windows have more than one place, or gaps between them";
    cup__product p = product_of(&v);
    static const _Alignas(16) char well[16]; /* as copies lie */
    p.bias = p.bias ? well : NULL;
    p.other = p.other ? well : NULL;
    return cup__product_wgmma_menu_refuses(call->c, &p);
}

static cup_status run_product(cup__call *call)
{
    const cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    const int64_t *r = v.residual_step;
    const long long residual[4] = {r[0], r[1], r[2], r[3]};
    cup__product p = product_of(&v);
    p.a = (cup__matrix){(char *)(uintptr_t)c->x, cup__conv_place_step(c, c->x_step), 1, {0}};
    p.b = (cup__matrix){(char *)(uintptr_t)c->w, 1, c->w_step[0], {0}};
    p.y = (cup__matrix){c->y, cup__conv_place_step(c, c->y_step), 1, {0}};
    bool alike = !v.residual || cup__conv_place_step(c, residual) == p.y.row;
    return p.a.row && p.y.row && alike ? cup__product_wgmma(call, &p) : cup__conv_wgmma(call);
}

cup_status cup__conv_wgmma_product(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, true, run_product) : CUP_OK;
}

/* Places by channels, by the weight as it lies: also the gradient of the image, whose results are
 * the channels that the weight has. */
static cup__product f32_product_of(const cup__conv *v)
{
    const conv_call *c = &v->call;
    cup__product p = product_of(v);
    p.a = (cup__matrix){(char *)(uintptr_t)c->x, cup__conv_place_step(c, c->x_step), 1, {0}};
    p.b = (cup__matrix){(char *)(uintptr_t)c->w, c->w_step[1], c->w_step[0], {0}};
    p.y = (cup__matrix){c->y, cup__conv_place_step(c, c->y_step), 1, {0}};
    return p;
}

const char *cup__conv_f32_product_refuses(const cup__call *call)
{
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    const cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    if (v.dtype != CUP_F32)
        return "it is for f32";
    if (!cup__conv_is_product(c))
        return "its windows have more than one place, or gaps between them";
    if (c->channels % F32_PIECE || c->results % F32_PIECE || c->channels < F32_LEAST ||
        c->results < F32_LEAST)
        return "its channels or results are few, or no multiple of 4";
    bool exact = call->c->precision == CUP__HIGHEST;
    if (exact && c->channels < F32_DEEP)
        return "lines of so few channels each would be looked at for their largest element";
    const cup__product p = f32_product_of(&v);
    if (c->x_step[1] != 1 || c->y_step[1] != 1 || p.a.row < p.k || p.y.row < p.n ||
        p.a.row % F32_PIECE || (uintptr_t)c->x % 16)
        return "the channels of places are no neighbours in memory, or places lie apart";
    if (c->bias && c->bias_step != 1)
        return "the elements of the bias are no neighbours in memory";
    return exact ? cup__product_split_best_refuses(call->c, &p)
                 : cup__product_split_refuses(call->c, &p);
}

cup_status cup__conv_f32_product(cup__call *call)
{
    const cup__conv v = cup__conv_of(call);
    const cup__product p = f32_product_of(&v);
    return call->out[0]->count ? cup__product_split(call, &p) : CUP_OK;
}
