#include <math.h>

#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "optim/update.h"

/* hyper: learning rate, largest norm (0: no limit), scale of the gradients.
 * state: steps taken, beta1 and beta2 to that power, steps skipped. */
enum { RATE, LIMIT, SCALE, HYPER_COUNT };
enum { STEPS, POWER1, POWER2, SKIPPED, STATE_COUNT };

static cup_status infer(cup__call *call)
{
    const cup_tensor *norm = call->in_count > 2 ? call->in[2] : NULL;
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i])
            CUP_TRY(cup__need_float(call, i));
    if (call->in[0]->count != HYPER_COUNT || call->in[1]->count != STATE_COUNT ||
        (norm && norm->count != 1))
        return cup__call_fail(call, CUP_SHAPE, "hyper must be [%d], state [%d], norm one number",
                              HYPER_COUNT, STATE_COUNT);
    call->result[0] = (cup__shape){.dtype = CUP_F32, .ndim = 1, .size = {CUP__FACTOR_COUNT}};
    return CUP_OK;
}

static void put(cup_tensor *t, int i, double value)
{
    cup__store(t, cup__offset_of(t, i), value);
}

static cup_status specification(cup__call *call)
{
    const cup__step_factors_attributes *a = call->attributes;
    cup_tensor *hyper = call->in[0], *state = call->in[1], *out = call->out[0];
    const cup_tensor *norm = call->in_count > 2 ? call->in[2] : NULL;
    double length = norm ? cup__element(norm, 0) * cup__element(hyper, SCALE) : 0;
    if (!isfinite(length)) {
        put(state, SKIPPED, cup__element(state, SKIPPED) + 1);
        for (int i = 0; i < CUP__FACTOR_COUNT; i++)
            put(out, i, 0);
        return CUP_OK;
    }
    put(state, STEPS, cup__element(state, STEPS) + 1);
    put(state, POWER1, cup__element(state, POWER1) * a->beta1);
    put(state, POWER2, cup__element(state, POWER2) * a->beta2);
    double rate = cup__element(hyper, RATE), scale = cup__element(hyper, SCALE);
    double limit = cup__element(hyper, LIMIT);
    /* The small number keeps a norm just above the limit from being scaled up. */
    if (limit > 0 && length + 1e-6 > limit)
        scale *= limit / (length + 1e-6);
    put(out, CUP__FACTOR_CORRECTED, rate / (1 - cup__element(state, POWER1)));
    put(out, CUP__FACTOR_ROOT, 1 / sqrt(1 - cup__element(state, POWER2)));
    put(out, CUP__FACTOR_GRADIENT, scale);
    put(out, CUP__FACTOR_RATE, rate);
    put(out, CUP__FACTOR_GO, 1);
    return CUP_OK;
}

static const char *refuses(const cup__call *call)
{
    bool other_norm = call->in_count > 2 && call->in[2] && call->in[2]->dtype != CUP_F32;
    return call->in[0]->dtype != CUP_F32 || call->in[1]->dtype != CUP_F64 || other_norm
               ? "hyper and norm must be f32 and state f64"
               : NULL;
}

static cup_status run_cuda(cup__call *call)
{
    const cup__step_factors_attributes *a = call->attributes;
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "step_factors.cu", "step_factors_fwd", NULL, 0);
    if (!kernel)
        return call->c->error.status;
    const void *hyper = call->in[0]->data;
    const void *norm = call->in_count > 2 && call->in[2] ? call->in[2]->data : NULL;
    void *state = call->in[1]->data, *factors = call->out[0]->data;
    return cup__launch(gpu, kernel, ((cup__grid){.x = 1, .threads = 1}), CUP__ARG(hyper),
                       CUP__ARG(state), CUP__ARG(norm), CUP__ARG(a->beta1), CUP__ARG(a->beta2),
                       CUP__ARG(factors));
}

/* On a CPU the specification is as fast as anything. */
static const cup__impl impls[] = {
    {.name = "one thread", .place = CUP__CUDA, .refuses = refuses, .run = run_cuda}, {0}};

#define BETAS(a, b)                                                                                \
    &(const cup__step_factors_attributes)                                                          \
    {                                                                                              \
        a, b                                                                                       \
    }
static const cup__sample samples[] = {
    {"3 4 ()", BETAS(0.9, 0.999)}, {"3 4", BETAS(0.9, 0.95)}, {"3 4 1", BETAS(0, 0)}, {NULL, NULL}};

const cup__op cup__op_step_factors = {
    .infer = infer,
    .specification = specification,
    .in_place = 1u << 1,
    .impls = impls,
    .samples = samples,
    .domain = {{0.1, 2}, {0.1, 0.9}, {0.1, 4}},
    .in_dtypes = {CUP__DTYPE(F32), CUP__DTYPE(F64), CUP__DTYPE(F32)},
};
