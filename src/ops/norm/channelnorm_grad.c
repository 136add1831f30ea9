#include "dispatch/attributes.h"
#include "ops/norm/channelnorm.h"

cup__channelnorm_back cup__channelnorm_back_of(const cup__call *call)
{
    const cup__channelnorm_grad_attributes *a = call->attributes;
    return (cup__channelnorm_back){
        .at = cup__channels_of(call->in[1], a->axis, a->groups),
        .dy = call->in[0],
        .x = call->in[1],
        .mean = call->in[2],
        .rstd = call->in[3],
        .gamma = call->in[4],
        .mask = call->in[5],
        .dx = call->out[0],
        .dgamma = a->want_gamma ? call->out[1] : NULL,
        .dbeta = a->want_beta ? call->out[2] : NULL,
        .dresidual = a->want_residual ? call->out[3] : NULL,
        .constant = a->constant,
    };
}

/* An internal op: its inputs come from a recorded call and fit. */
static cup_status infer(cup__call *call)
{
    const cup__channelnorm_grad_attributes *a = call->attributes;
    int axis = a->axis;
    CUP_TRY(cup__need_float(call, 1));
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    CUP_TRY(cup__need_axis(call, 1, axis, &axis));
    int64_t channels = call->in[1]->shape[axis];
    call->result[0] = cup__shape_of(call->in[1]);
    call->result[1] = (cup__shape){a->dtype, 1, {a->want_gamma ? channels : 0}};
    call->result[2] = (cup__shape){a->dtype, 1, {a->want_beta ? channels : 0}};
    call->result[3] = call->result[0];
    if (!a->want_residual)
        call->result[3] = (cup__shape){call->result[0].dtype, 1, {0}};
    return CUP_OK;
}

/* Element i, [before, each, after], of one group. */
typedef struct element {
    int64_t place, channel;
    double dy, normal;
} element;

static element element_of(const cup__channelnorm_back *b, int64_t instance, int64_t group,
                          int64_t i)
{
    const cup__channels *c = &b->at;
    int64_t inner = c->each * c->after, row = instance * c->before + i / inner;
    int64_t statistic = instance * c->groups + group;
    element e = {.channel = group * c->each + i % inner / c->after};
    e.place = (row * c->channels + e.channel) * c->after + i % c->after;
    e.dy = cup__mask_bit(b->mask, e.place) ? cup__element(b->dy, e.place) : 0;
    e.normal = (cup__element(b->x, e.place) - cup__element(b->mean, statistic)) *
               cup__element(b->rstd, statistic);
    return e;
}

static double gamma_of(const cup__channelnorm_back *b, const element *e)
{
    return b->gamma ? cup__element(b->gamma, e->channel) : 1;
}

static void specify_group(const cup__channelnorm_back *b, int64_t instance, int64_t group)
{
    double sum = 0, dot = 0, count = (double)b->at.count;
    for (int64_t i = 0; i < b->at.count && !b->constant; i++) {
        element e = element_of(b, instance, group, i);
        sum += gamma_of(b, &e) * e.dy / count;
        dot += gamma_of(b, &e) * e.dy * e.normal / count;
    }
    double rstd = cup__element(b->rstd, instance * b->at.groups + group);
    for (int64_t i = 0; i < b->at.count; i++) {
        element e = element_of(b, instance, group, i);
        cup__store(b->dx, e.place, rstd * (gamma_of(b, &e) * e.dy - sum - e.normal * dot));
    }
}

static void specify_channel(const cup__channelnorm_back *b, int64_t channel)
{
    const cup__channels *c = &b->at;
    double dgamma = 0, dbeta = 0;
    for (int64_t n = 0; n < c->instances; n++)
        for (int64_t i = 0; i < c->before * c->after; i++) {
            int64_t within = i / c->after * c->each * c->after + channel % c->each * c->after +
                             i % c->after;
            element e = element_of(b, n, channel / c->each, within);
            dgamma += e.dy * e.normal;
            dbeta += e.dy;
        }
    if (b->dgamma)
        cup__store(b->dgamma, channel, dgamma);
    if (b->dbeta)
        cup__store(b->dbeta, channel, dbeta);
}

static cup_status specification(cup__call *call)
{
    cup__channelnorm_back b = cup__channelnorm_back_of(call);
    for (int64_t n = 0; n < b.at.instances; n++)
        for (int64_t g = 0; g < b.at.groups && b.at.count; g++)
            specify_group(&b, n, g);
    for (int64_t c = 0; c < b.at.channels; c++)
        specify_channel(&b, c);
    for (int64_t i = 0; b.dresidual && i < b.x->count; i++)
        cup__store(b.dresidual, i, cup__mask_bit(b.mask, i) ? cup__element(b.dy, i) : 0);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "channels", .place = CUP__CPU, CUP__THRESHOLDS(64, 4096),
     .refuses = cup__channelnorm_cpu_refuses,
     .run = cup__channelnorm_back_cpu},
    {.name = "cluster", .place = CUP__CUDA, CUP__THRESHOLDS(128, 256, 512, 1024, 4096),
     .refuses = cup__channelnorm_back_cluster_refuses,
     .run = cup__channelnorm_back_cluster},
    {.name = "channels", .place = CUP__CUDA, CUP__THRESHOLDS(32, 256, 1024),
     .refuses = cup__channelnorm_cuda_refuses,
     .run = cup__channelnorm_back_cuda},
    {0},
};
typedef cup__channelnorm_grad_attributes attributes;
static const attributes batch = {1, -1, false, CUP_F32, true, true, false},
                        fixed = {1, -1, true, CUP_F32, true, true, false},
                        batch_last = {-1, -1, false, CUP_F32, true, true, false},
                        fixed_last = {-1, -1, true, CUP_F32, true, false, false},
                        none = {1, -1, false, CUP_F32, false, false, false},
                        two = {1, 2, false, CUP_F32, true, true, false},
                        two_last = {-1, 2, false, CUP_F32, false, true, false},
                        each = {1, 0, false, CUP_F32, true, true, false},
                        many_last = {-1, 32, false, CUP_F32, true, true, false},
                        behind = {1, -1, false, CUP_F32, true, true, true},
                        behind_last = {-1, -1, false, CUP_F32, true, true, true},
                        behind_fixed = {-1, -1, true, CUP_F32, true, true, true};
static const cup__sample samples[] = {
    {"3x2x5 3x2x5 2 2 2", &batch},
    {"2x3x4x5 2x3x4x5 3 3 -", &fixed},
    {"2x3x4x5 2x3x4x5 3 3 3", &none},
    {"6x5x3 6x5x3 3 3 3", &fixed_last},
    {"0x3x4 0x3x4 3 3 3", &batch},
    {"2x4x3x5 2x4x3x5 2x2 2x2 4", &two},
    {"2x5x6 2x5x6 2x2 2x2 6", &two_last},
    {"3x2x5 3x2x5 3x2 3x2 -", &each},
    {"7x33x7x7 7x33x7x7 33 33 33", &batch},
    {"3x5x65x33 3x5x65x33 5 5 5", &batch},
    {"2x3x128x128 2x3x128x128 3 3 3", &batch},
    {"8x8x16x64 8x8x16x64 64 64 64", &batch_last},
    {"9x11x13x130 9x11x13x130 130 130 130", &batch_last},
    {"3x16x7x9 3x16x7x9 3x2 3x2 16", &two},
    {"2x4x64x64 2x4x64x64 2x4 2x4 4", &each},
    {"3x9x11x64 3x9x11x64 3x32 3x32 64", &many_last},
    {"2x64x16x32 2x64x16x32 64 64 64", &batch},
    {"1x270x8x64 1x270x8x64 270 270 -", &batch},
    {"3x2x5 3x2x5 2 2 2 4", &behind},
    {"7x33x7x7 7x33x7x7 33 33 33 1415", &batch},
    {"2x64x16x32 2x64x16x32 64 64 64 8192", &behind},
    {"8x8x16x64 8x8x16x64 64 64 64 8192", &behind_last},
    {"9x11x13x130 9x11x13x130 130 130 - 20914", &behind_last},
    {"6x5x24 6x5x24 24 24 24 90", &behind_fixed},
    {"0x3x4 0x3x4 3 3 3 0", &behind},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"32x64x128x128 32x64x128x128 64 64 64", &batch},
    {"32x64x32x32 32x64x32x32 64 64 64", &batch},
    {"32x128x128x64 32x128x128x64 64 64 64", &batch_last},
    {"32x128x128x64 32x128x128x64 64 64 64 4194304", &behind_last},
    {"32x64x128x128 32x64x128x128 32x2 32x2 64", &two},
    {"32x128x128x64 32x128x128x64 32x32 32x32 64", &many_last},
    {NULL, NULL}};
#define STATISTIC (CUP__DTYPE(F32) | CUP__DTYPE(F64))

const cup__op cup__op_channelnorm_grad = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-2, 2}, {-1, 3}, {0.5, 1.5}, {0.5, 1.5}, {-2, 2}, {0, 256}},
    .in_dtypes = {0, 0, STATISTIC, STATISTIC, 0, CUP__DTYPE(U8)},
    .tolerance = 16, /* sums over a group carry the rounding of their steps */
};
