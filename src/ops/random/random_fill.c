#include "ops/random/random_fill.h"

#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "base/philox.h"
#include "base/wide_math.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define CHUNK 1024 /* elements computed together */

cup_status cup__random_fill_infer(cup__call *call, cup_dtype dtype, const int64_t *shape, int ndim)
{
    call->result[0] = (cup__shape){.dtype = dtype, .ndim = ndim};
    memcpy(call->result[0].size, shape, sizeof *shape * (size_t)ndim);
    if (dtype == CUP_F32 || dtype == CUP_F64 || dtype == CUP_F16 || dtype == CUP_BF16)
        return CUP_OK;
    return cup__call_fail(call, CUP_DTYPE, "random numbers are f32, f64, f16 or bf16");
}

/* What to fill with: numbers in [first, first + second), or of mean `first` and deviation
 * `second`. */
typedef struct fill {
    cup_dtype dtype;
    bool normal;
    double first, second;
} fill;

static fill fill_of(const cup__call *call)
{
    const cup__uniform_attributes *u = call->attributes;
    const cup__normal_attributes *n = call->attributes;
    if (call->op->kind == CUP__FILL_NORMAL)
        return (fill){n->dtype, true, n->mean, n->deviation};
    return (fill){u->dtype, false, u->low, u->high - u->low};
}

/* The numbers in [0, 1) that element i has: 24 bits from one word, or 53 bits from two. */
static double unit(const cup__call *call, cup_dtype dtype, int64_t i)
{
    if (dtype != CUP_F64) {
        cup__philox_words w = cup__philox_block(call->random, call->sequence, (uint64_t)i / 4);
        return (double)cup__philox_uniform(w.at[i % 4]);
    }
    cup__philox_words w = cup__philox_block(call->random, call->sequence, (uint64_t)i / 2);
    const uint32_t *pair = w.at + i % 2 * 2;
    return ((double)(pair[0] >> 5) * 0x1p26 + (double)(pair[1] >> 6)) * 0x1p-53;
}

/* Box and Muller's pair of normal numbers from a pair of uniform ones. */
static double normal(const cup__call *call, cup_dtype dtype, int64_t i)
{
    double u = unit(call, dtype, i & ~INT64_C(1)), v = unit(call, dtype, i | 1);
    double radius = sqrt(-2 * log(u + (dtype == CUP_F64 ? 0x1p-53 : 0x1p-24)));
    double angle = 6.28318530717958647693 * v;
    return radius * (i % 2 ? sin(angle) : cos(angle));
}

cup_status cup__random_fill_specification(cup__call *call)
{
    fill f = fill_of(call);
    for (int64_t i = 0; i < call->out[0]->count; i++) {
        double x = f.normal ? normal(call, f.dtype, i) : unit(call, f.dtype, i);
        cup__store(call->out[0], i, f.first + f.second * x);
    }
    return CUP_OK;
}

typedef struct job {
    const cup__call *call;
    fill fill;
} job;

CUP__WIDE static void draw(uint32_t *words, uint64_t key, uint32_t sequence, uint32_t step,
                           uint64_t first, int64_t blocks)
{
    for (int64_t i = 0; i < blocks; i++) {
        uint64_t block = first + (uint64_t)i;
        cup__philox_words w =
            cup__philox(key, (uint32_t)block, (uint32_t)(block >> 32), sequence, step);
        for (int k = 0; k < 4; k++)
            words[4 * i + k] = w.at[k];
    }
}

CUP__WIDE static void uniform_f32(float *y, const uint32_t *words, int64_t count, float first,
                                  float second)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = first + second * cup__philox_uniform(words[i]);
}

CUP__WIDE static void normal_f32(float *y, const uint32_t *words, int64_t pairs, float first,
                                 float second)
{
    for (int64_t i = 0; i < pairs; i++) {
        float sine, cosine;
        float radius = __builtin_sqrtf(
            -2.0f * cup__log_f32(cup__philox_uniform(words[2 * i]) + 0x1p-24f));
        cup__sincos_turns(cup__philox_uniform(words[2 * i + 1]), &sine, &cosine);
        y[2 * i] = first + second * (radius * cosine);
        y[2 * i + 1] = first + second * (radius * sine);
    }
}

static void fill_chunks(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    cup_tensor *out = j->call->out[0];
    const uint64_t *state = j->call->random;
    float first = (float)j->fill.first, second = (float)j->fill.second;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        uint32_t words[CHUNK];
        float y[CHUNK];
        int64_t start = chunk * CHUNK;
        int64_t count = out->count - start < CHUNK ? out->count - start : CHUNK;
        draw(words, state[0], j->call->sequence, (uint32_t)state[1], (uint64_t)start / 4,
             (count + 3) / 4);
        if (j->fill.normal)
            normal_f32(y, words, (count + 1) / 2, first, second);
        else
            uniform_f32(y, words, count, first, second);
        cup__store_f32((char *)out->data + start * cup_dtype_size(out->dtype), y, out->dtype,
                       count);
    }
}

static cup_status fill_cpu(cup__call *call)
{
    job j = {call, fill_of(call)};
    if (j.fill.dtype == CUP_F64)
        return cup__random_fill_specification(call);
    cup__parallel_for((call->out[0]->count + CHUNK - 1) / CHUNK, 4, fill_chunks, &j);
    return CUP_OK;
}

static cup_status fill_cuda(cup__call *call)
{
    fill f = fill_of(call);
    cup_tensor *out = call->out[0];
    int size = (int)cup_dtype_size(out->dtype), vec = f.dtype == CUP_F64 ? 2 : 16 / size;
    bool aligned = (uintptr_t)out->data % 16 == 0;
    cup__knob knobs[] = {{"CUP_T", out->dtype}, {"NORMAL", f.normal}, {"ALIGNED", aligned}};
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "random_fill.cu", "random_fill_fwd", knobs, 3);
    if (!kernel)
        return call->c->error.status;
    int64_t block = 256 * vec;
    cup__grid grid = {.x = (out->count + block - 1) / block, .threads = 256};
    return cup__launch(gpu, kernel, grid, CUP__ARG(out->data), CUP__ARG(call->random),
                       CUP__ARG(call->sequence), CUP__ARG(out->count), CUP__ARG(f.first),
                       CUP__ARG(f.second));
}

const cup__impl cup__random_fill_impls[] = {
    {.name = "philox", .place = CUP__CUDA, CUP__THRESHOLDS(4, 1024), .run = fill_cuda},
    {.name = "philox", .place = CUP__CPU, CUP__THRESHOLDS(4, 1024), .run = fill_cpu},
    {0}};
