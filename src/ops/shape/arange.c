#include <math.h>

#include "base/parallel.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/shape/arange_call.cuh"

#define GRAIN 16384
#define WHOLE_MOST 9007199254740992.0 /* 2^53, up to which doubles have all whole numbers */

/* How many numbers there are; from 2^62 on more than any tensor has. */
static double steps_of(const cup__arange_attributes *a)
{
    double steps = ceil((a->stop - a->start) / a->step);
    return steps > 0 ? fmin(steps, 0x1p62) : 0;
}

static bool is_whole(double x, double most)
{
    return x == floor(x) && fabs(x) <= most;
}

static cup_status infer(cup__call *call)
{
    const cup__arange_attributes *a = call->attributes;
    bool integer = a->dtype == CUP_I32 || a->dtype == CUP_I64;
    double most = a->dtype == CUP_I32 ? INT32_MAX : WHOLE_MOST;
    if (!integer && !cup__dtype_is_float(a->dtype))
        return cup__call_fail(call, CUP_DTYPE, "its dtype may be f32, f64, f16, bf16, i32 or i64");
    if (!isfinite(a->start) || !isfinite(a->stop) || !isfinite(a->step) || a->step == 0)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "from %g to %g by steps of %g; give finite numbers and a step that "
                              "is not 0",
                              a->start, a->stop, a->step);
    double steps = steps_of(a);
    if (integer && steps > 0 &&
        (!is_whole(a->start, most) || !is_whole(a->step, 2 * most) ||
         !is_whole(a->start + (steps - 1) * a->step, most)))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "from %g to %g by steps of %g; %s takes whole numbers of sizes up "
                              "to %.0f",
                              a->start, a->stop, a->step, cup_dtype_name(a->dtype), most);
    call->result[0] = (cup__shape){.dtype = a->dtype, .ndim = 1, .size = {(int64_t)steps}};
    return CUP_OK;
}

static void set(cup_tensor *y, const cup__arange_attributes *a, int64_t i)
{
    double value = a->start + (double)i * a->step;
    if (y->dtype == CUP_I64)
        ((int64_t *)y->data)[i] = (int64_t)value;
    else
        cup__store(y, i, value);
}

static cup_status specification(cup__call *call)
{
    for (int64_t i = 0; i < call->out[0]->count; i++)
        set(call->out[0], call->attributes, i);
    return CUP_OK;
}

static void run_part(int64_t begin, int64_t end, void *user)
{
    cup__call *call = user;
    for (int64_t i = begin; i < end; i++)
        set(call->out[0], call->attributes, i);
}

static cup_status run(cup__call *call)
{
    cup__parallel_for(call->out[0]->count, GRAIN, run_part, call);
    return CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    const cup__arange_attributes *a = call->attributes;
    cup_tensor *y = call->out[0];
    int vec = 16 / (int)cup_dtype_size(y->dtype);
    if ((uintptr_t)y->data % 16)
        vec = 1;
    arange_call argument = {y->data, y->count, a->start, a->step};
    cup__knob knobs[] = {{"CUP_T", y->dtype}, {"VEC", vec}};
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "arange.cu", "arange_fwd", knobs, 2);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = y->count / vec / ARANGE_THREADS + 1, .threads = ARANGE_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

static const cup__impl impls[] = {
    {.name = "words", .place = CUP__CUDA, CUP__THRESHOLDS(2, 4, 8, 2048), .run = run_cuda},
    {.name = "loop", .place = CUP__CPU, .run = run},
    {0}};
#define FROM(...) &(const cup__arange_attributes){__VA_ARGS__}
static const cup__sample samples[] = {
    {"", FROM(CUP_F32, 0, 7, 1)},        {"", FROM(CUP_F64, -1, 1, 0.1)},
    {"", FROM(CUP_BF16, 3, -9, -0.25)},  {"", FROM(CUP_F16, 0.5, 100, 0.75)},
    {"", FROM(CUP_I32, -5, 3000, 3)},    {"", FROM(CUP_I64, 1e15, 1e15 + 4099, 2)},
    {"", FROM(CUP_I64, 5, 5, 1)},        {"", FROM(CUP_F32, 1, 0, 1)},
    {"", FROM(CUP_I32, 9, 8, -5)},       {"", FROM(CUP_F32, 0, 70001, 1)},
    {NULL, NULL}};
static const cup__sample bench[] = {{"", FROM(CUP_F32, 0, 67108864, 1)}, {NULL, NULL}};

const cup__op cup__op_arange = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
};
