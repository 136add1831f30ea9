/* Weights of 8 and 4 bits from floats, and back. */
#include "ops/lowbit/pack_weight.h"

#include <math.h>

#include "base/parallel.h"
#include "cuda/cuda.h"
#include "kernels/packed_call.cuh"
#include "dispatch/attributes.h"

static bool is_int4(const cup__call *call)
{
    return call->op->kind == CUP__INT4;
}

cup__packed cup__packed_of(const cup__call *call, int first)
{
    cup_tensor **in = call->in + first;
    cup__packed p = {.bits = is_int4(call) ? 4 : 8, .weight = in[0], .scale = in[1]};
    p.zero = is_int4(call) ? in[2] : NULL;
    p.n = in[0]->shape[0];
    p.k = in[0]->shape[1] * (8 / p.bits);
    p.groups = in[1]->shape[1];
    p.group = p.groups ? p.k / p.groups : 1;
    return p;
}

cup_status cup__packed_take(cup__call *call, int first, cup__packed *out)
{
    const cup_tensor *weight = call->in[first], *scale = call->in[first + 1];
    const cup_tensor *zero = is_int4(call) ? call->in[first + 2] : NULL;
    cup_dtype dtype = is_int4(call) ? CUP_U8 : CUP_I8;
    CUP_TRY(cup__need_ndim(call, first, 2, 2));
    CUP_TRY(cup__need_ndim(call, first + 1, 2, 2));
    CUP_TRY(cup__need_float(call, first + 1));
    if (weight->dtype != dtype)
        return cup__call_fail(call, CUP_DTYPE, "weight must be %s; make it with %s",
                              cup_dtype_name(dtype), is_int4(call) ? "pack_int4" : "pack_int8");
    *out = cup__packed_of(call, first);
    if (scale->shape[0] != out->n || (out->k && (!out->groups || out->k % out->groups)) ||
        (is_int4(call) && out->group % 2 && out->k))
        return cup__call_fail(call, CUP_SHAPE,
                              "scale must be [%lld,G], each for the same %snumber of the %lld "
                              "elements of a row",
                              (long long)out->n, is_int4(call) ? "even " : "", (long long)out->k);
    if (zero && (zero->dtype != CUP_U8 || zero->ndim != 2 || zero->shape[0] != out->n ||
                 zero->shape[1] != out->groups))
        return cup__call_fail(call, CUP_SHAPE, "zero must be u8 in the shape of scale");
    return CUP_OK;
}

static double at(const cup_tensor *t, int64_t row, int64_t column)
{
    return cup__load(t, row * t->stride[0] + column * t->stride[1]);
}

double cup__packed_element(const cup__packed *p, int64_t n, int64_t k)
{
    double scale = at(p->scale, n, k / p->group);
    if (p->bits == 8)
        return scale * at(p->weight, n, k);
    int number = (int)at(p->weight, n, k / 2) >> k % 2 * 4 & 15;
    return scale * (number - (p->zero ? at(p->zero, n, k / p->group) : 8));
}

void cup__packed_row(const cup__packed *p, int64_t n, int64_t k, int64_t count, float *to)
{
    for (int64_t i = 0; i < count;) {
        int64_t group = n * p->groups + (k + i) / p->group,
                end = ((k + i) / p->group + 1) * p->group;
        int64_t now = end - k < count ? end - k : count;
        float scale = (float)cup__load(p->scale, group);
        if (p->bits == 8) {
            const int8_t *from = (const int8_t *)p->weight->data + n * p->k + k;
            for (; i < now; i++)
                to[i] = scale * (float)from[i];
            continue;
        }
        const uint8_t *from = (const uint8_t *)p->weight->data + (n * p->k + k) / 2;
        int zero = p->zero ? ((const uint8_t *)p->zero->data)[group] : 8;
        for (; i < now; i++)
            to[i] = scale * (float)((from[i / 2] >> i % 2 * 4 & 15) - zero);
    }
}

/* What pack makes: of each group a scale and, for 4 bits, which number stands for 0. */
static int64_t group_of(const cup__call *call)
{
    int64_t group = is_int4(call) ? ((const cup__pack_int4_attributes *)call->attributes)->group
                                  : ((const cup__pack_int8_attributes *)call->attributes)->group;
    return group ? group : call->in[0]->shape[1];
}

static bool is_symmetric(const cup__call *call)
{
    return !is_int4(call) || ((const cup__pack_int4_attributes *)call->attributes)->symmetric;
}

static cup_status infer_pack(cup__call *call)
{
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 2, 2));
    int64_t n = call->in[0]->shape[0], k = call->in[0]->shape[1], group = group_of(call);
    if (group < 0 || (k && k % group) || (is_int4(call) && group % 2))
        return cup__call_fail(
            call, CUP_SHAPE, "a row of %lld elements is not a whole number of groups of %lld%s",
            (long long)k, (long long)group, is_int4(call) ? ", an even number" : "");
    int64_t groups = k ? k / group : 0;
    call->result[0] = (cup__shape){.dtype = is_int4(call) ? CUP_U8 : CUP_I8,
                                   .ndim = 2,
                                   .size = {n, is_int4(call) ? k / 2 : k}};
    call->result[1] = (cup__shape){.dtype = CUP_F32, .ndim = 2, .size = {n, groups}};
    if (is_int4(call))
        call->result[2] = (cup__shape){.dtype = CUP_U8, .ndim = 2, .size = {n, groups}};
    return CUP_OK;
}

static int number_of(float x, float scale, int zero, int bits)
{
    if (scale == 0 || isnan(x))
        return zero;
    float y = rintf(x / scale) + (float)zero, least = bits == 8 ? -127 : 0;
    float most = bits == 8 ? 127 : 15;
    return (int)fminf(fmaxf(y, least), most);
}

/* One group, in single precision, so that every machine finds the same numbers. */
static void pack_group(const cup__call *call, int64_t row, int64_t first, int64_t index)
{
    const cup_tensor *w = call->in[0];
    int bits = is_int4(call) ? 4 : 8, zero = bits == 8 ? 0 : 8;
    int64_t group = group_of(call), k = w->shape[1];
    float least = 0, most = 0, scale;
    for (int64_t i = 0; i < group; i++) {
        float x = (float)at(w, row, first + i);
        least = fminf(least, x);
        most = fmaxf(most, x);
    }
    if (is_symmetric(call)) {
        scale = fmaxf(most, -least) / (bits == 8 ? 127.0f : 7.0f);
    } else {
        scale = (most - least) / 15.0f;
        zero = scale == 0 ? 0 : (int)fminf(rintf(-least / scale), 15);
    }
    cup__store(call->out[1], index, (double)scale);
    if (bits == 4)
        cup__store(call->out[2], index, zero);
    for (int64_t i = 0; i < group; i++) {
        int number = number_of((float)at(w, row, first + i), scale, zero, bits);
        char *to = call->out[0]->data;
        int64_t place = row * k + first + i;
        if (bits == 8)
            ((int8_t *)to)[place] = (int8_t)number;
        else if (place % 2 == 0)
            ((uint8_t *)to)[place / 2] = (uint8_t)number;
        else
            ((uint8_t *)to)[place / 2] |= (uint8_t)(number << 4);
    }
}

static void pack_groups(int64_t begin, int64_t end, void *user)
{
    const cup__call *call = user;
    int64_t groups = call->out[1]->shape[1];
    for (int64_t i = begin; i < end; i++)
        pack_group(call, i / groups, i % groups * group_of(call), i);
}

static cup_status specification_pack(cup__call *call)
{
    pack_groups(0, call->out[1]->count, call);
    return CUP_OK;
}

static cup_status pack_cpu(cup__call *call)
{
    cup__parallel_for(call->out[1]->count, 64, pack_groups, call);
    return CUP_OK;
}

static packed_call argument_of(const cup__packed *p)
{
    return (packed_call){.weight = p->weight->data,
                         .scale = p->scale->data,
                         .zero = p->zero ? p->zero->data : NULL,
                         .n = p->n,
                         .k = p->k,
                         .groups = p->groups,
                         .group = p->group};
}

static cup_status pack_cuda(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup_tensor *w = call->in[0];
    cup__packed p = {.weight = call->out[0],
                     .scale = call->out[1],
                     .zero = is_int4(call) ? call->out[2] : NULL,
                     .n = w->shape[0],
                     .k = w->shape[1],
                     .groups = call->out[1]->shape[1],
                     .group = group_of(call)};
    cup__knob knobs[] = {
        {"CUP_T", w->dtype}, {"BITS", is_int4(call) ? 4 : 8}, {"SYMMETRIC", is_symmetric(call)}};
    cup__kernel *kernel = cup__kernel_get(gpu, "pack_weight.cu", "pack_fwd", knobs, 3);
    packed_call argument = argument_of(&p);
    const void *from = w->data;
    cup__grid grid = {.x = (p.n * p.groups + 7) / 8, .threads = 256};
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(argument), CUP__ARG(from))
                  : call->c->error.status;
}

static cup_status infer_unpack(cup__call *call)
{
    const cup__unpack_int8_attributes *a = call->attributes;
    cup__packed p;
    CUP_TRY(cup__packed_take(call, 0, &p));
    if (!cup__dtype_is_float(a->dtype) || cup_dtype_size(a->dtype) < 2)
        return cup__call_fail(call, CUP_DTYPE, "dtype must be f32, f64, f16 or bf16");
    call->result[0] = (cup__shape){.dtype = a->dtype, .ndim = 2, .size = {p.n, p.k}};
    return CUP_OK;
}

static void unpack_elements(int64_t begin, int64_t end, void *user)
{
    const cup__call *call = user;
    cup__packed p = cup__packed_of(call, 0);
    for (int64_t i = begin; i < end; i++)
        cup__store(call->out[0], i, cup__packed_element(&p, i / p.k, i % p.k));
}

static cup_status specification_unpack(cup__call *call)
{
    unpack_elements(0, call->out[0]->count, call);
    return CUP_OK;
}

static cup_status unpack_cpu(cup__call *call)
{
    cup__parallel_for(call->out[0]->count, 4096, unpack_elements, call);
    return CUP_OK;
}

static cup_status unpack_cuda(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__packed p = cup__packed_of(call, 0);
    cup_tensor *w = call->out[0];
    bool aligned = (uintptr_t)p.weight->data % 8 == 0 && (uintptr_t)w->data % 16 == 0;
    uintptr_t pair = 2 * (uintptr_t)cup_dtype_size(w->dtype);
    bool paired = p.bits == 4 && (uintptr_t)w->data % pair == 0;
    int vector = p.group % 8 == 0 && aligned ? 8 : paired ? 2 : 1;
    cup__knob knobs[] = {
        {"CUP_T", w->dtype}, {"SCALE_T", p.scale->dtype}, {"BITS", p.bits}, {"VEC", vector}};
    cup__kernel *kernel = cup__kernel_get(gpu, "pack_weight.cu", "unpack_fwd", knobs, 4);
    packed_call argument = argument_of(&p);
    void *to = w->data;
    cup__grid grid = {.x = (w->count / vector + 255) / 256, .threads = 256};
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(argument), CUP__ARG(to))
                  : call->c->error.status;
}

static const cup__impl pack_impls[] = {{.name = "groups", .place = CUP__CPU,
     CUP__THRESHOLDS(32, 128), .run = pack_cpu},
                                       {.name = "groups", .place = CUP__CUDA,
     CUP__THRESHOLDS(32, 128), .run = pack_cuda},
                                       {0}};
static const cup__impl unpack_impls[] = {{.name = "loop", .place = CUP__CPU,
     CUP__THRESHOLDS(8, 256), .run = unpack_cpu},
                                         {.name = "loop", .place = CUP__CUDA,
     CUP__THRESHOLDS(8, 256), .run = unpack_cuda},
                                         {0}};
#define INT8(group)                                                                                \
    &(const cup__pack_int8_attributes)                                                             \
    {                                                                                              \
        group                                                                                      \
    }
#define INT4(group, symmetric)                                                                     \
    &(const cup__pack_int4_attributes)                                                             \
    {                                                                                              \
        group, symmetric                                                                           \
    }
#define TO8(name)                                                                                  \
    &(const cup__unpack_int8_attributes)                                                           \
    {                                                                                              \
        CUP_##name                                                                                 \
    }
#define TO4(name)                                                                                  \
    &(const cup__unpack_int4_attributes)                                                           \
    {                                                                                              \
        CUP_##name                                                                                 \
    }
static const cup__sample pack_int8_samples[] = {
    {"0x8", INT8(0)},   {"3x0", INT8(0)},     {"1x1", INT8(0)},        {"3x5", INT8(0)},
    {"7x96", INT8(32)}, {"33x256", INT8(64)}, {"129x1024", INT8(128)}, {NULL, NULL}};
static const cup__sample pack_int4_samples[] = {{"0x8", INT4(0, true)},
                                                {"1x2", INT4(0, false)},
                                                {"3x6", INT4(0, true)},
                                                {"7x96", INT4(32, false)},
                                                {"33x256", INT4(64, true)},
                                                {"129x1024", INT4(128, false)},
                                                {NULL, NULL}};
static const cup__sample pack_bench[] = {{"4096x4096", INT8(128)}, {NULL, NULL}};
static const cup__sample pack_int4_bench[] = {{"4096x4096", INT4(128, false)}, {NULL, NULL}};
static const cup__sample unpack_int8_samples[] = {{"0x8 0x1", TO8(F32)},
                                                  {"3x5 3x1", TO8(F32)},
                                                  {"7x96 7x3", TO8(BF16)},
                                                  {"33x256 33x4", TO8(F16)},
                                                  {"129x1024 129x8", TO8(F32)},
                                                  {"3x8 3x8", TO8(F64)},
                                                  {NULL, NULL}};
static const cup__sample unpack_int4_samples[] = {{"0x8 0x1", TO4(F32)},
                                                  {"3x3 3x1 3x1", TO4(F32)},
                                                  {"7x48 7x3 7x3", TO4(BF16)},
                                                  {"33x128 33x4 -", TO4(F16)},
                                                  {"129x512 129x8 129x8", TO4(F32)},
                                                  {"3x8 3x8", TO4(F64)},
                                                  {NULL, NULL}};
static const cup__sample unpack_int8_bench[] = {{"4096x4096 4096x32", TO8(BF16)}, {NULL, NULL}};
static const cup__sample unpack_int4_bench[] = {{"4096x2048 4096x32 4096x32", TO4(BF16)},
                                                {NULL, NULL}};

#define SCALES (CUP__DTYPE(F32) | CUP__DTYPE(F64) | CUP__DTYPE(F16) | CUP__DTYPE(BF16))

const cup__op cup__op_pack_int8 = {
    .kind = CUP__INT8,
    .infer = infer_pack,
    .specification = specification_pack,
    .impls = pack_impls,
    .samples = pack_int8_samples,
    .bench = pack_bench,
};
const cup__op cup__op_pack_int4 = {
    .kind = CUP__INT4,
    .infer = infer_pack,
    .specification = specification_pack,
    .impls = pack_impls,
    .samples = pack_int4_samples,
    .bench = pack_int4_bench,
};
const cup__op cup__op_unpack_int8 = {
    .kind = CUP__INT8,
    .infer = infer_unpack,
    .specification = specification_unpack,
    .impls = unpack_impls,
    .samples = unpack_int8_samples,
    .bench = unpack_int8_bench,
    .domain = {{-128, 128}},
    .in_dtypes = {CUP__DTYPE(I8), SCALES},
};
const cup__op cup__op_unpack_int4 = {
    .kind = CUP__INT4,
    .infer = infer_unpack,
    .specification = specification_unpack,
    .impls = unpack_impls,
    .samples = unpack_int4_samples,
    .bench = unpack_int4_bench,
    .domain = {{0, 256}, {0}, {0, 16}},
    .in_dtypes = {CUP__DTYPE(U8), SCALES, CUP__DTYPE(U8)},
};
