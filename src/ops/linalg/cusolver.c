/* What calls by cuSOLVER share: its handle, when it is taken, and how it is done without. */
#include "ops/linalg/cusolver.h"

#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "cuda/gpu.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/memo.h"
#include "ops/shape/copy.h"

#define LARGE 256        /* of the shorter side: below, a block of our own is fast enough */
#define FEW(k) ((k) / 64) /* matrices one after another are faster than a block each */
#define MOST_IN_TURN 16   /* of smaller ones: each takes as long, and svd waits for each */

typedef struct cusolver_state {
    cup__cuda *gpu; /* NULL on a CPU, where tests follow the calls */
    cusolverDnHandle_t handle;
    CUstream stream; /* that the handle was told */
    char why[160];   /* it cannot be used; empty: it can */
} cusolver_state;

static void state_free(void *user)
{
    cusolver_state *state = user;
    bool alive = !state->gpu || cup__cuda_enter_to_free(state->gpu);
    if (state->handle && alive)
        cup__cusolver.cusolverDnDestroy(state->handle);
    cup__free(state);
}

static void failed(cusolver_state *state, const char *doing, cusolverStatus_t status)
{
    snprintf(state->why, sizeof state->why, "cuSOLVER failed with number %d when %s", (int)status,
             doing);
    cup__log(CUP__INFO, "%s", state->why);
}

/* With a handle, or the reason why there is none. NULL without memory. */
static cusolver_state *state_of(cup_context *c)
{
    cup__slot *slot = &c->slots[CUP__SLOT_FACTORS];
    if (slot->kept)
        return slot->kept;
    cusolver_state *state = cup__calloc(1, sizeof *state);
    if (!state) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for factors by cuSOLVER");
        return NULL;
    }
    state->gpu = c->device->is_cuda ? cup__cuda_of(c->device) : NULL;
    *slot = (cup__slot){state, state_free};
    cusolverStatus_t status = CUSOLVER_STATUS_NOT_INITIALIZED;
    if (!state->gpu || cup__cuda_enter(state->gpu) == CUP_OK)
        status = cup__cusolver.cusolverDnCreate(&state->handle);
    if (status != CUSOLVER_STATUS_SUCCESS)
        state->handle = NULL;
    if (status != CUSOLVER_STATUS_SUCCESS)
        failed(state, "it was started", status);
    return state;
}

const char *cup__cusolver_refuses(const cup__call *call)
{
    cup_context *c = call->c;
    if (cup__cuda_of(c->device)->dry)
        return "a GPU that is not there takes no library";
    if (cup__cuda_of(c->device)->capturing)
        return "cuSOLVER may wait for the GPU, which cannot be captured";
    if (!cup__library_open(CUP__LIBCUSOLVER))
        return "cuSOLVER was not found, see `cupola info`";
    const cusolver_state *state = c->slots[CUP__SLOT_FACTORS].kept;
    return state && state->why[0] ? state->why : NULL;
}

/* Which library is there is asked last, as to open it takes time. */
const char *cup__cusolver_in_turn_refuses(const cup__call *call)
{
    const cup_tensor *a = call->in[0];
    int64_t m = a->shape[a->ndim - 2], n = a->shape[a->ndim - 1], k = m < n ? m : n;
    if (a->count > MOST_IN_TURN * m * n && a->count > FEW(k) * m * n)
        return "it takes matrices one after another, of which there are too many";
    return cup__cusolver_refuses(call);
}

const char *cup__cusolver_best_refuses(const cup__call *call)
{
    const cup_tensor *a = call->in[0];
    int64_t m = a->shape[a->ndim - 2], n = a->shape[a->ndim - 1], k = m < n ? m : n;
    if (k < LARGE || a->count > FEW(k) * m * n)
        return "of matrices so small, or so many, a block of the GPU each is thought to be faster";
    return cup__cusolver_refuses(call);
}

bool cup__cusolver_ready(cup__cusolver_work *w)
{
    if (w->status != CUSOLVER_STATUS_SUCCESS || w->c->error.status != CUP_OK)
        return false;
    return !w->c->device->is_cuda ||
           cup__launch_foreign(cup__cuda_of(w->c->device), "cuSOLVER") == CUP_OK;
}

void cup__cusolver_room(cup__cusolver_work *w, int size)
{
    if (w->status != CUSOLVER_STATUS_SUCCESS || (w->space && size <= w->space_size))
        return;
    w->space = cup_tensor_new(w->c, w->dtype, 1, (int64_t[]){size > 0 ? size : 1});
    w->space_size = size;
}

cup_tensor *cup__cusolver_new(cup__cusolver_work *w, cup_dtype dtype, int64_t rows, int64_t columns)
{
    return cup_tensor_new(w->c, dtype, 3, (int64_t[]){w->count, rows, columns});
}

void *cup__cusolver_at(const cup_tensor *t, int64_t i, int64_t size)
{
    return t ? (char *)t->data + i * size * cup_dtype_size(t->dtype) : NULL;
}

cup_tensor *cup__cusolver_flat(cup__cusolver_work *w, cup_tensor *t)
{
    if (!t)
        return NULL;
    int64_t rows = t->shape[t->ndim - 2], columns = t->shape[t->ndim - 1];
    return cup_reshape(w->c, t, 3, (int64_t[]){w->count, rows, columns});
}

void cup__cusolver_give(cup__cusolver_work *w, int out, cup_tensor *t)
{
    cup_tensor *to = w->call->out[out];
    if (t && w->status == CUSOLVER_STATUS_SUCCESS)
        t = cup_reshape(w->c, t, to->ndim, to->shape);
    if (t && w->status == CUSOLVER_STATUS_SUCCESS)
        cup__copy_to(w->c, to, t);
}

/* Whether all inputs are finite and the library was content with all matrices. */
static bool is_sound(cup__cusolver_work *w)
{
    cup_context *c = w->c;
    cup_tensor *a = w->call->in[0];
    cup_tensor *sum = cup_sum(c, cup_cast(c, w->info, w->dtype), NULL, 0, false);
    double number = 0;
    sum = cup_add(c, sum, cup_sum(c, cup_sub(c, a, a), NULL, 0, false));
    if (!sum || cup_tensor_read(cup_cast(c, sum, CUP_F64), &number, sizeof number) != CUP_OK)
        return true; /* and the context says why not */
    return number == 0;
}

/* False where its results are of no use. */
static bool run_in_scope(cup__cusolver_work *w, void (*body)(cup__cusolver_work *w))
{
    cup_context *c = w->c;
    bool sound = true;
    cup_scope_open(c);
    bool was = cup_grad_recording(c, false);
    w->info = cup_zeros(c, CUP_I32, 1, &w->count);
    if (w->info)
        body(w);
    if (w->info && w->status == CUSOLVER_STATUS_SUCCESS)
        sound = is_sound(w);
    cup_grad_recording(c, was);
    cup_scope_return(c, NULL);
    return sound;
}

/* The handle works on the stream that the GPU's next work goes to. */
static cup_status aim(cusolver_state *state)
{
    if (!state->gpu)
        return CUP_OK;
    CUP_TRY(cup__launch_foreign(state->gpu, "cuSOLVER"));
    CUstream stream = cup__cuda_stream(state->gpu);
    if (stream == state->stream)
        return CUP_OK;
    cusolverStatus_t status = cup__cusolver.cusolverDnSetStream(state->handle, stream);
    if (status != CUSOLVER_STATUS_SUCCESS)
        failed(state, "its stream was set", status);
    else
        state->stream = stream;
    return CUP_OK;
}

/* Where it was asked for by name its failure is an error. */
static cup_status do_without(cup__call *call, const cusolver_state *state,
                             cup_status (*own)(cup__call *call))
{
    if (call->memo)
        return own(call);
    return cup__call_fail(call, CUP_DRIVER, "%s; CUP_LIBCUSOLVER=off does without it", state->why);
}

cup_status cup__cusolver_run(cup__call *call, void (*body)(cup__cusolver_work *w),
                             cup_status (*own)(cup__call *call))
{
    cup_context *c = call->c;
    const cup_tensor *a = call->in[0];
    if (c->device->is_cuda && cup__cuda_of(c->device)->capturing)
        return own(call);
    cusolver_state *state = state_of(c);
    if (!state)
        return c->error.status;
    if (!state->why[0])
        CUP_TRY(aim(state));
    if (state->why[0])
        return do_without(call, state, own);
    cup__cusolver_work w = {.c = c, .call = call, .handle = state->handle,
                            .dtype = a->dtype, .m = (int)a->shape[a->ndim - 2],
                            .n = (int)a->shape[a->ndim - 1]};
    w.k = w.m < w.n ? w.m : w.n;
    w.count = a->count / w.m / w.n;
    bool sound = run_in_scope(&w, body);
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!sound)
        return state->gpu ? own(call) : call->op->specification(call);
    if (w.status == CUSOLVER_STATUS_SUCCESS)
        return CUP_OK;
    failed(state, "it ran", w.status);
    return do_without(call, state, own);
}
