/* Transforms by NVIDIA's cuFFT, of lines that do not fit into a block of our own. A plan is made
 * once for each layout and kept as long as the context, as captured graphs refer to its tables; its
 * workspace comes from our own memory with each call. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "cuda/gpu.h"
#include "dispatch/attributes.h"
#include "dispatch/memo.h"
#include "ops/fourier/fft.h"

#define PLANS_MOST 64  /* each of them holds memory of the device that is not ours */
#define PIECES_MOST 64 /* calls for lines that lie between each other in pieces */

/* Filled from zeroed memory, so that it can be compared as bytes. */
typedef struct plan_key {
    int64_t length, step, distance, lines;
    int64_t dtype;
} plan_key;

typedef struct plan {
    plan_key key;
    cufftHandle handle;
    bool made;
    size_t workspace; /* bytes */
    CUstream stream;  /* that it was told */
    char why[160];    /* it cannot be used; empty: it can */
} plan;

typedef struct cufft_state {
    cup__cuda *gpu;
    plan plans[PLANS_MOST];
    int count;
} cufft_state;

static void failed(plan *p, const char *doing, cufftResult result)
{
    snprintf(p->why, sizeof p->why, "cuFFT failed with number %d when %s", (int)result, doing);
    cup__log(CUP__INFO, "%s", p->why);
}

static void state_free(void *user)
{
    cufft_state *state = user;
    bool alive = cup__cuda_enter_to_free(state->gpu);
    for (int i = 0; i < state->count && alive; i++)
        if (state->plans[i].made)
            cup__cufft.cufftDestroy(state->plans[i].handle);
    cup__free(state);
}

/* NULL without memory. */
static cufft_state *state_of(cup_context *c)
{
    cup__slot *slot = &c->slots[CUP__SLOT_TRANSFORMS];
    if (slot->kept)
        return slot->kept;
    cufft_state *state = cup__calloc(1, sizeof *state);
    if (!state) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for transforms by cuFFT");
        return NULL;
    }
    state->gpu = cup__cuda_of(c->device);
    *slot = (cup__slot){state, state_free};
    return state;
}

static plan_key key_of(const cup__call *call)
{
    cup__fft_lines l = cup__fft_lines_of(call);
    plan_key key = {.length = l.length, .step = l.inner, .dtype = call->in[0]->dtype};
    key.distance = l.inner == 1 ? l.length : 1;
    key.lines = l.inner == 1 ? l.outer : l.inner;
    return key;
}

/* The plan of a key: remembered, or NULL. */
static plan *find(cufft_state *state, const plan_key *key)
{
    for (int i = 0; state && i < state->count; i++)
        if (!memcmp(&state->plans[i].key, key, sizeof *key))
            return &state->plans[i];
    return NULL;
}

static void make(plan *p)
{
    const plan_key *k = &p->key;
    long long n = k->length, step = k->step, distance = k->distance;
    cufftType type = k->dtype == CUP_F64 ? CUFFT_Z2Z : CUFFT_C2C;
    cufftResult result = cup__cufft.cufftCreate(&p->handle);
    p->made = result == CUFFT_SUCCESS;
    if (p->made)
        result = cup__cufft.cufftSetAutoAllocation(p->handle, 0);
    if (result == CUFFT_SUCCESS)
        result = cup__cufft.cufftMakePlanMany64(p->handle, 1, &n, &n, step, distance, &n, step,
                                                distance, type, k->lines, &p->workspace);
    if (result != CUFFT_SUCCESS)
        failed(p, "a plan was made", result);
}

const char *cup__fft_cufft_refuses(const cup__call *call)
{
    cup_context *c = call->c;
    plan_key key = key_of(call);
    cup__fft_lines l = cup__fft_lines_of(call);
    if (cup__cuda_of(c->device)->dry)
        return "a GPU that is not there takes no library";
    if (l.inner > 1 && l.outer > PIECES_MOST)
        return "it takes up to 64 pieces of lines that lie between each other";
    uintptr_t pair = 2 * (uintptr_t)cup_dtype_size(call->in[0]->dtype);
    if ((uintptr_t)call->in[0]->data % pair ||
        (call->out[0] && (uintptr_t)call->out[0]->data % pair))
        return "it reads and writes pairs that are aligned to their size";
    if (!cup__library_open(CUP__LIBCUFFT))
        return "cuFFT was not found, see `cupola info`";
    cufft_state *state = c->slots[CUP__SLOT_TRANSFORMS].kept;
    const plan *p = find(state, &key);
    if (p)
        return p->why[0] ? p->why : NULL;
    if (cup__cuda_of(c->device)->capturing)
        return "a plan of cuFFT cannot be made while a graph is captured";
    return state && state->count == PLANS_MOST ? "as many plans of cuFFT as there may be are kept"
                                               : NULL;
}

/* An inverse is divided before, in place of the result, which is then transformed where it is. */
static cup_status divide(cup__call *call, cup_tensor **from)
{
    cup__fft_lines l = cup__fft_lines_of(call);
    const cup__scale_attributes by = {1 / (double)l.length};
    *from = call->in[0];
    if (!l.inverse || l.length == 1)
        return CUP_OK;
    *from = call->out[0];
    cup__op_call(call->c, &cup__rows[CUP__OP_scale], call->in, 1, &by, &call->out[0]);
    return call->c->error.status;
}

static cufftResult execute(plan *p, CUstream stream, const cup__fft_lines *l, void *x, void *y,
                           void *workspace)
{
    cufftResult result = CUFFT_SUCCESS;
    int direction = l->inverse ? CUFFT_INVERSE : CUFFT_FORWARD;
    bool wide = p->key.dtype == CUP_F64;
    int64_t pieces = l->inner == 1 ? 1 : l->outer, size = l->length * l->inner * (wide ? 16 : 8);
    if (p->stream != stream)
        result = cup__cufft.cufftSetStream(p->handle, stream);
    if (result == CUFFT_SUCCESS)
        p->stream = stream;
    if (result == CUFFT_SUCCESS)
        result = cup__cufft.cufftSetWorkArea(p->handle, workspace);
    for (int64_t i = 0; i < pieces && result == CUFFT_SUCCESS; i++) {
        void *from = (char *)x + i * size, *to = (char *)y + i * size;
        result = wide ? cup__cufft.cufftExecZ2Z(p->handle, from, to, direction)
                      : cup__cufft.cufftExecC2C(p->handle, from, to, direction);
    }
    return result;
}

static cup_status run_on(cup__call *call, plan *p)
{
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__fft_lines l = cup__fft_lines_of(call);
    cup_tensor *from, *space = NULL;
    CUP_TRY(divide(call, &from));
    if (p->workspace) {
        cup__shape shape = {CUP_U8, 1, {(int64_t)p->workspace}};
        space = cup__tensor_make(c, &shape, "cuFFT workspace");
        if (!space)
            return c->error.status;
    }
    cup_status status = cup__launch_foreign(gpu, "cufftExec");
    if (status == CUP_OK) {
        cufftResult result = execute(p, cup__cuda_stream(gpu), &l, from->data, call->out[0]->data,
                                     space ? space->data : NULL);
        if (result != CUFFT_SUCCESS)
            failed(p, "it ran", result);
    }
    cup_tensor_free(space);
    return status;
}

/* The library failed: where it was chosen for the call another one does it, and where it was asked
 * for by name this is an error. */
static cup_status do_without(cup__call *call, const char *why)
{
    bool chosen = call->memo != NULL;
    cup__memo_forget(call->c);
    const cup__impl *other = chosen ? cup__call_choose(call) : NULL;
    if (!other)
        return cup__call_fail(call, CUP_DRIVER, "%s; CUP_LIBCUFFT=off does without it", why);
    return cup__call_run(call, other);
}

cup_status cup__fft_cufft(cup__call *call)
{
    plan_key key = key_of(call);
    cufft_state *state = state_of(call->c);
    if (!state)
        return call->c->error.status;
    plan *p = find(state, &key);
    if (!p) {
        const char *why = cup__fft_cufft_refuses(call);
        if (why)
            return do_without(call, why);
        CUP_TRY(cup__cuda_enter(state->gpu));
        p = &state->plans[state->count++];
        p->key = key;
        make(p);
    }
    if (!p->why[0])
        CUP_TRY(run_on(call, p));
    return p->why[0] ? do_without(call, p->why) : CUP_OK;
}
