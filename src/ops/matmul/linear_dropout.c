#include "dispatch/attributes.h"
#include "ops/random/dropout.h"
#include "ops/matmul/epilogues.h"
#include "ops/matmul/wgmma.h"

typedef cup__linear_dropout_attributes attributes;

enum { X, WEIGHT, BIAS, RESIDUAL, INPUTS };

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    CUP_TRY(cup__linear_infer(call, call->in[BIAS]));
    if (!(t->p >= 0 && t->p <= 1))
        return cup__call_fail(call, CUP_ARGUMENT, "p is %g; it must be from 0 to 1", t->p);
    if (call->in[RESIDUAL]) {
        cup__shape residual = cup__shape_of(call->in[RESIDUAL]);
        if (!cup__shape_equal(&residual, &call->result[0]))
            return cup__call_fail(call, CUP_SHAPE, "residual must have the shape of the result");
    }
    int64_t count = 1;
    for (int i = 0; i < call->result[0].ndim; i++)
        count *= call->result[0].size[i];
    call->result[1] = (cup__shape){.dtype = CUP_U8, .ndim = 1, .size = {(count + 7) / 8}};
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    cup__dropout dropout = cup__dropout_of(call);
    const cup_tensor *residual = call->in[RESIDUAL];
    uint8_t *mask = call->out_count > 1 ? call->out[1]->data : NULL;
    int64_t n = call->in[WEIGHT]->shape[0];
    for (int64_t i = 0; i < call->out[0]->count; i++) {
        bool kept = cup__dropout_keeps(call, &dropout, i);
        double v = cup__linear_element(call, call->in[BIAS], i / n, i % n);
        v = kept ? v * dropout.scale : 0;
        if (residual)
            v += cup__load(residual, cup__offset_of(residual, i));
        cup__store(call->out[0], i, v);
        if (mask && i % 8 == 0)
            mask[i / 8] = 0;
        if (mask)
            mask[i / 8] |= (uint8_t)(kept << i % 8);
    }
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    const attributes *t = g->attributes;
    if (g->wanted[RESIDUAL])
        g->d_in[RESIDUAL] = g->d_out[0];
    return cup__linear_back(g, cup__dropout_grad(g->c, g->d_out[0], g->out[1], t->p), BIAS);
}

static void make_product(const cup__call *call, cup_tensor *const *in, cup__product *p,
                         cup__dropping *d)
{
    cup__dropout dropout = cup__dropout_of(call);
    *d = (cup__dropping){.threshold = dropout.threshold,
                         .rest = dropout.rest,
                         .sequence = call->sequence,
                         .kept = (float)dropout.scale,
                         .random = call->random};
    cup__product_make(p, in[X], false, in[WEIGHT], true, &call->result[0]);
    p->dropping = d;
    p->bias = in[BIAS] ? in[BIAS]->data : NULL;
    p->kind = in[RESIDUAL] ? PRODUCT_ADD : 0;
    p->other = in[RESIDUAL] ? in[RESIDUAL]->data : NULL;
    if (call->out_count && call->out[0])
        p->y.data = call->out[0]->data;
    if (call->out_count > 1 && call->out[1])
        d->mask = call->out[1]->data;
}

static const char *refuses(const cup__call *call)
{
    cup_tensor like[INPUTS], *in[INPUTS] = {NULL};
    cup__product p;
    cup__dropping d;
    for (int i = 0; i < INPUTS; i++)
        in[i] = call->in[i] ? cup__product_packed(call->in[i], &like[i]) : NULL;
    make_product(call, in, &p, &d);
    return cup__product_wgmma_menu_refuses(call->c, &p);
}

static cup_status run(cup__call *call)
{
    cup_context *c = call->c;
    cup_tensor *in[INPUTS] = {NULL};
    for (int i = 0; i < INPUTS; i++) {
        cup_tensor *t = call->in[i];
        bool keep = !t || (i <= WEIGHT ? cup__product_lies_well(t) : t->contiguous);
        in[i] = keep ? t : cup_copy(c, t);
    }
    cup_status status = c->error.status;
    if (status == CUP_OK) {
        cup__product p;
        cup__dropping d;
        make_product(call, in, &p, &d);
        status = cup__product_wgmma(call, &p);
    }
    for (int i = 0; i < INPUTS; i++)
        if (in[i] != call->in[i])
            cup_tensor_free(in[i]);
    return status;
}

/* linear, then dropout with this call's random numbers. */
static cup_status compose(cup__call *call)
{
    cup_context *c = call->c;
    cup_tensor *x = cup_linear(c, call->in[X], call->in[WEIGHT], call->in[BIAS]);
    cup_tensor *residual = call->in[RESIDUAL] ? cup__contiguous(c, call->in[RESIDUAL]) : NULL;
    cup_tensor *both[] = {residual, x};
    cup__call dropout = *call;
    dropout.row = &cup__rows[residual ? CUP__OP_dropout_add : CUP__OP_dropout];
    dropout.op = dropout.row->op;
    dropout.in = residual ? both : &both[1];
    dropout.in_count = residual ? 2 : 1;
    cup_status status = c->error.status;
    if (status == CUP_OK)
        status = cup__call_run(&dropout, cup__call_choose(&dropout));
    if (residual != call->in[RESIDUAL])
        cup_tensor_free(residual);
    cup_tensor_free(x);
    return status;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *x = call->in[X], *w = call->in[WEIGHT], *y = call->out[0];
    *flops = 2.0 * (double)y->count * (double)w->shape[1];
    *bytes = (double)((x->count + w->count + y->count * (call->in[RESIDUAL] ? 2 : 1)) *
                          cup_dtype_size(x->dtype) +
                      (call->out_count > 1 ? y->count / 8 : 0));
}

static const cup__impl impls[] = {
    {.name = "composed", .place = CUP__CPU, .strided = true, .run = compose},
    {.name = "wgmma", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 256),
     .strided = true, .refuses = refuses, .run = run},
    {.name = "composed", .place = CUP__CUDA, .strided = true, .run = compose},
    {0},
};

#define P(p) &(const attributes){p}
static const cup__sample samples[] = {{"0x5 3x5 3 0x3", P(0.5)},
                                      {"4x0 3x0 3 -", P(0.5)},
                                      {"7 5x7 5 5", P(0.3)},
                                      {"1x1 1x1 - -", P(0)},
                                      {"2x3x5 9x5 9 2x3x9", P(0.1)},
                                      {"33x64 136x64 136 -", P(0.1)},
                                      {"2x65x72 520x72 520 2x65x520", P(0.25)},
                                      {"300x200 72x200 - 300x72", P(1)},
                                      {"130x72 264x72 - 130x264", P(0.5)},
                                      {"0x3x8 16x8 16 0x3x16", P(0.5)},
                                      {"3x8 0x8 0 -", P(0.5)},
                                      {"9x8 16x8 16 9x16", P(0.5)},
                                      {"3x20x64 130x64 130 -", P(0.5)},
                                      {"1032x16 1032x16 - -", P(0.9)},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"32768x3072 768x3072 768 32768x768", P(0.1)},
                                    {"32768x768 3072x768 3072 -", P(0.1)},
                                    {NULL, NULL}};

const cup__op cup__op_linear_dropout = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(X) | CUP__SAVE_IN(WEIGHT) | CUP__SAVE_OUT(1),
    .impls = impls,
    .random = true,
    .samples = samples,
    .bench = bench,
    .tolerance = 16, /* sums of up to 200 products, and rounded before they are scaled */
    .cost = cost,
};
