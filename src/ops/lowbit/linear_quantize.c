#include <math.h>

#include "dispatch/attributes.h"
#include "ops/activation/gelu.h"
#include "ops/lowbit/scaled.h"
#include "ops/matmul/epilogues.h"
#include "ops/matmul/wgmma.h"

typedef cup__linear_quantize_attributes attributes;

enum { X, WEIGHT, SCALE, BIAS, INPUTS };

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    const cup_tensor *scale = call->in[SCALE];
    cup_tensor *in[] = {call->in[X], call->in[WEIGHT], call->in[BIAS]};
    cup__call linear = *call;
    linear.in = in;
    linear.in_count = in[2] ? 3 : 2;
    CUP_TRY(cup__linear_infer(&linear, in[2]));
    if (t->dtype != CUP_F8E4M3 && t->dtype != CUP_F8E5M2)
        return cup__call_fail(call, CUP_DTYPE, "codes are f8e4m3 or f8e5m2 here, not %s",
                              cup_dtype_name(t->dtype));
    if ((scale->dtype != CUP_F32 && scale->dtype != CUP_F64) || scale->count != 1)
        return cup__call_fail(call, CUP_SHAPE, "scale must be one f32");
    call->result[0] = linear.result[0];
    call->result[0].dtype = t->dtype;
    call->result[1] = (cup__shape){.dtype = CUP_F32, .ndim = 2, .size = {1, 1}};
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const attributes *t = call->attributes;
    double scale = cup__load(call->in[SCALE], 0), end = cup__code_most(t->dtype), most = 0;
    int64_t n = call->in[WEIGHT]->shape[0];
    for (int64_t i = 0; i < call->out[0]->count; i++) {
        double v = cup__linear_element(call, call->in[BIAS], i / n, i % n);
        v = t->gelu ? cup__gelu(v) : v;
        most = fabs(v) > most || isnan(v) ? fabs(v) : most;
        v /= scale;
        cup__store(call->out[0], i, v > end ? end : v < -end ? -end : v);
    }
    cup__store(call->out[1], 0, most);
    return CUP_OK;
}

static void make_product(const cup__call *call, cup_tensor *const *in, cup__product *p)
{
    const attributes *t = call->attributes;
    cup__product_make(p, in[X], false, in[WEIGHT], true, &call->result[0]);
    p->activation = t->gelu ? PRODUCT_GELU : 0;
    p->bias = in[BIAS] ? in[BIAS]->data : NULL;
    p->y_scale = in[SCALE]->data;
    if (call->out_count && call->out[0]) {
        p->y.data = call->out[0]->data;
        p->y_most = call->out[1]->data;
    }
}

static const char *refuses(const cup__call *call)
{
    cup_tensor like[INPUTS], *in[INPUTS] = {NULL};
    for (int i = 0; i < INPUTS; i++)
        in[i] = call->in[i] ? cup__product_packed(call->in[i], &like[i]) : NULL;
    cup__product p;
    make_product(call, in, &p);
    return cup__product_wgmma_menu_refuses(call->c, &p);
}

static cup_status run(cup__call *call)
{
    cup_context *c = call->c;
    cup_tensor *in[INPUTS] = {NULL}, *most = call->out[1];
    for (int i = 0; i < INPUTS; i++) {
        cup_tensor *t = call->in[i];
        bool keep = !t || (i <= WEIGHT ? cup__product_lies_well(t) : t->contiguous);
        in[i] = keep ? t : cup_copy(c, t);
    }
    cup_status status = c->error.status;
    if (status == CUP_OK)
        status = c->device->calls->fill(c->device, most->data, 0, sizeof(float));
    if (status == CUP_OK) {
        cup__product p;
        make_product(call, in, &p);
        status = cup__product_wgmma(call, &p);
    }
    for (int i = 0; i < INPUTS; i++)
        if (in[i] != call->in[i])
            cup_tensor_free(in[i]);
    return status;
}

/* The largest size, in f32, into `most`. */
static void note_most(cup_context *c, cup_tensor *v, cup_tensor *most)
{
    int64_t all = -1;
    cup_tensor *size = v ? cup_abs(c, v) : NULL;
    cup_tensor *flat = size ? cup_reshape(c, size, 2, (int64_t[]){1, all}) : NULL;
    cup__max_attributes last = {.axes = {1}, .axes_count = 1, .keep = true};
    if (flat)
        cup__call_into(c, CUP__OP_max, &flat, 1, &last, most);
    cup_tensor_free(flat);
    cup_tensor_free(size);
}

/* In f32, one op after the other. */
static cup_status compose(cup__call *call)
{
    const attributes *t = call->attributes;
    cup_context *c = call->c;
    cup_tensor *wide[INPUTS] = {NULL};
    if (call->out[0]->count == 0)
        return c->device->calls->fill(c->device, call->out[1]->data, 0, sizeof(float));
    for (int i = 0; i < INPUTS; i++)
        wide[i] = call->in[i] ? cup_cast(c, call->in[i], CUP_F32) : NULL;
    cup_tensor *linear = c->error.status ? NULL : cup_linear(c, wide[X], wide[WEIGHT], wide[BIAS]);
    cup_tensor *v = linear && t->gelu ? cup_gelu(c, linear) : linear;
    note_most(c, v, call->out[1]);
    double end = cup__code_most(t->dtype);
    cup_tensor *scale = v ? cup_reshape(c, wide[SCALE], 1, (int64_t[]){1}) : NULL;
    cup_tensor *over = scale ? cup_div(c, v, scale) : NULL;
    cup_tensor *inside = over ? cup_clamp(c, over, -end, end) : NULL;
    cup__cast_attributes to = {t->dtype};
    if (inside)
        cup__call_into(c, CUP__OP_cast, &inside, 1, &to, call->out[0]);
    cup_tensor *used[] = {inside, over, scale, v != linear ? v : NULL, linear,
                          wide[0], wide[1], wide[2], wide[3]};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        cup_tensor_free(used[i]);
    return c->error.status;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *x = call->in[X], *w = call->in[WEIGHT], *y = call->out[0];
    *flops = 2.0 * (double)y->count * (double)w->shape[1];
    *bytes = (double)((x->count + w->count) * cup_dtype_size(x->dtype) + y->count);
}

static const cup__impl impls[] = {
    {.name = "composed", .place = CUP__CPU, .strided = true, .run = compose, .slack = 0x1p-16},
    {.name = "wgmma",
     .place = CUP__CUDA,
     .strided = true,
     .refuses = refuses,
     .run = run,
     .slack = 0x1p-9}, /* gelu by a short tanh */
    {.name = "composed", .place = CUP__CUDA, .strided = true, .run = compose, .slack = 0x1p-16},
    {0},
};

static const attributes e4m3 = {CUP_F8E4M3, false}, e4m3_gelu = {CUP_F8E4M3, true},
                        e5m2_gelu = {CUP_F8E5M2, true};
static const cup__sample samples[] = {{"0x5 3x5 1x1 3", &e4m3},
                                      {"4x0 3x0 () 3", &e4m3},
                                      {"1x1 1x1 1 1", &e4m3_gelu},
                                      {"7 16x7 1 16", &e4m3},
                                      {"2x3x5 9x5 1 -", &e5m2_gelu},
                                      {"2x33x64 144x64 1 144", &e4m3},
                                      {"130x72 528x72 1x1 528", &e4m3_gelu},
                                      {"300x200 272x200 () -", &e5m2_gelu},
                                      {"300x136 200x136 1 200", &e4m3},
                                      {"0x3x8 16x8 1 16", &e4m3_gelu},
                                      {"3x8 0x8 1 0", &e4m3},
                                      {"9x8 16x8 1 16", &e4m3},
                                      {"60x64 130x64 1 130", &e4m3},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"32768x768 3072x768 1x1 3072", &e4m3_gelu},
                                    {"8192x4096 14336x4096 1x1 -", &e4m3},
                                    {NULL, NULL}};

const cup__op cup__op_linear_quantize = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{0}, {0}, {0.5, 2}, {0}},
    .in_dtypes = {0, 0, CUP__DTYPE(F32), 0},
    .tolerance = 1, /* of the largest size; codes are right or not */
    .codes = true,
    .cost = cost,
};
