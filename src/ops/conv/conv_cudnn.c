/* conv2d and its gradients by cuDNN. What it says about a convolution is remembered, so that a call
 * costs a look-up. Images lie with their channels last, or with columns last; a weight that lies
 * otherwise is copied, and its gradient back. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "cuda/gpu.h"
#include "dispatch/memo.h"
#include "ops/conv/conv_cudnn.h"
#include "ops/shape/copy.h"

#define PROBLEM_SLOTS 64
#define ALIGNMENT_MOST 16

typedef struct cudnn_state {
    cup__cuda *gpu;
    cudnnHandle_t handle;
    CUstream stream; /* that the handle was told */
    char why[160];   /* it cannot be used; empty: it can */
    cup__cudnn_problem *problems[PROBLEM_SLOTS]; /* by the hash of their key */
} cudnn_state;

/* A call as it is asked for. */
typedef struct cudnn_work {
    cup_tensor *tensor[CUP__CUDNN_ROLES];
    cup__cudnn_key key;
    bool last, copied; /* channels are neighbours; the weight lies otherwise */
} cudnn_work;

static void state_free(void *user)
{
    cudnn_state *state = user;
    bool alive = cup__cuda_enter_to_free(state->gpu);
    for (int i = 0; i < PROBLEM_SLOTS; i++)
        while (state->problems[i]) {
            cup__cudnn_problem *p = state->problems[i];
            state->problems[i] = p->next;
            if (alive)
                cup__cudnn_forget(p);
            cup__free(p);
        }
    if (state->handle && alive)
        cup__cudnn.cudnnDestroy(state->handle);
    cup__free(state);
}

/* With a handle, or the reason why there is none. NULL without memory. */
static cudnn_state *state_of(cup_context *c)
{
    cup__slot *slot = &c->slots[CUP__SLOT_CONVOLUTIONS];
    if (slot->kept)
        return slot->kept;
    cudnn_state *state = cup__calloc(1, sizeof *state);
    if (!state) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for convolutions by cuDNN");
        return NULL;
    }
    state->gpu = cup__cuda_of(c->device);
    *slot = (cup__slot){state, state_free};
    cudnnStatus_t status = CUDNN_STATUS_NOT_INITIALIZED;
    if (cup__cuda_enter(state->gpu) == CUP_OK)
        status = cup__cudnn.cudnnCreate(&state->handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        state->handle = NULL;
        cup__cudnn_failed(state->why, "it was started", status);
    }
    return state;
}

/* Whether a tensor lies without gaps in that order, and its steps then; a dimension of one element
 * may have any step. */
static bool lies(const cup_tensor *t, bool last, int64_t step[4])
{
    static const int orders[2][4] = {{0, 1, 2, 3}, {0, 2, 3, 1}};
    int64_t next = 1;
    bool so = true;
    for (int i = 3; i >= 0; i--) {
        int d = orders[last][i];
        step[d] = next;
        so = so && (t->shape[d] == 1 || t->stride[d] == next);
        next *= t->shape[d];
    }
    return so;
}

static int32_t alignment_of(const cup_tensor *t)
{
    return (int32_t)1 << __builtin_ctzll((uintptr_t)t->data | ALIGNMENT_MOST);
}

static void take_tensors(const cup__call *call, cup_tensor *out[CUP__CUDNN_ROLES])
{
    int part = cup__conv_part(call->op);
    out[CUP__CUDNN_X] = part == CUP__CONV_FORWARD ? call->in[0]
                        : part == CUP__CONV_INPUT ? call->out[0]
                                                  : call->in[1];
    out[CUP__CUDNN_W] = part == CUP__CONV_WEIGHT ? call->out[0] : call->in[1];
    out[CUP__CUDNN_Y] = part == CUP__CONV_FORWARD ? call->out[0] : call->in[0];
}

/* False where the images lie in no order that is known. */
static bool work_of(const cup__call *call, cudnn_work *w)
{
    memset(w, 0, sizeof *w);
    cup__cudnn_key *key = &w->key;
    take_tensors(call, w->tensor);
    int64_t(*step)[4] = key->step;
    for (int last = 1; last >= 0; last--) {
        w->last = last;
        if (lies(w->tensor[CUP__CUDNN_X], last, step[CUP__CUDNN_X]) &&
            lies(w->tensor[CUP__CUDNN_Y], last, step[CUP__CUDNN_Y]))
            break;
        if (!last)
            return false;
    }
    w->copied = !lies(w->tensor[CUP__CUDNN_W], w->last, step[CUP__CUDNN_W]) || cup__conv_sum(call);
    cup__conv_numbers n = cup__conv_numbers_of(call);
    for (int i = 0; i < CUP__CUDNN_ROLES; i++) {
        memcpy(key->size[i], w->tensor[i]->shape, sizeof key->size[i]);
        bool copied = w->copied && i == CUP__CUDNN_W;
        key->alignment[i] = copied ? ALIGNMENT_MOST : alignment_of(w->tensor[i]);
    }
    for (int d = 0; d < 2; d++) {
        key->before[d] = n.padding[d][0];
        key->behind[d] = n.padding[d][1];
        key->stride[d] = n.stride[d];
        key->dilation[d] = n.dilation[d];
    }
    key->dtype = w->tensor[CUP__CUDNN_X]->dtype;
    key->part = cup__conv_part(call->op);
    return true;
}

/* The problem of a key: remembered, or described. NULL without memory. */
static cup__cudnn_problem *problem_of(cup_context *c, cudnn_state *state, const cup__cudnn_key *key)
{
    cup__cudnn_problem **slot =
        &state->problems[cup__hash_bytes(key, sizeof *key) % PROBLEM_SLOTS];
    for (cup__cudnn_problem *p = *slot; p; p = p->next)
        if (!memcmp(&p->key, key, sizeof *key))
            return p;
    cup__cudnn_problem *p = cup__calloc(1, sizeof *p);
    if (!p) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a convolution by cuDNN");
        return NULL;
    }
    memcpy(&p->key, key, sizeof *key);
    p->next = *slot;
    *slot = p;
    cup__cudnn_describe(p, state->handle);
    return p;
}

/* Of the call alone, before a library is looked for. */
static const char *never(const cup__call *call)
{
    cup_dtype dtype = call->in[0]->dtype;
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    if (cup__cuda_of(call->c->device)->dry)
        return "a GPU that is not there takes no library";
    if (dtype != CUP_BF16 && dtype != CUP_F16 && dtype != CUP_F32)
        return "it takes f32, f16 and bf16";
    if (dtype == CUP_F32 && call->c->precision == CUP__HIGHEST)
        return "it takes f32 where products may be rounded (CUP_PRECISION=high)";
    if (cup__conv_bias(call))
        return "it adds no bias";
    if (!call->out[0] || !call->out[0]->count || !call->in[0]->count || !call->in[1]->count)
        return "there is nothing to sum";
    return NULL;
}

/* Whether padding is so wide, at a stride, that some results see nothing of an image. For such a
 * gradient by an image of 3 x 91, by a kernel of 1 x 1 in f32, cuDNN 9.19 ended the process by a
 * division by 0. */
static bool pads_beyond(const cup__cudnn_key *key)
{
    for (int d = 0; d < 2; d++) {
        int64_t reach = (key->size[CUP__CUDNN_W][2 + d] - 1) * key->dilation[d];
        if (key->stride[d] > 1 && (key->before[d] > reach || key->behind[d] > reach))
            return true;
    }
    return false;
}

/* Whether it is a gradient by the weight in f32 with other padding before than behind: of 2 images
 * of 86 x 13 with 847 channels and strides of 3 or 2 cuDNN 9.19 gave other sums in tf32. */
static bool sums_wrongly(const cup__cudnn_key *key)
{
    return key->part == CUP__CONV_WEIGHT && key->dtype == CUP_F32 &&
           (key->before[0] != key->behind[0] || key->before[1] != key->behind[1]);
}

static const char *rank_refuses(const cup__call *call, int rank)
{
    cudnn_work w;
    const char *why = never(call);
    if (why)
        return why;
    if (!work_of(call, &w))
        return "its images lie neither as [N,H,W,C] nor as [N,C,H,W]";
    if (w.key.part == CUP__CONV_INPUT && pads_beyond(&w.key))
        return "its padding is wider than its kernel reaches";
    if (sums_wrongly(&w.key))
        return "with other padding before than behind cuDNN's sums for it are wrong";
    if (!cup__library_open(CUP__LIBCUDNN))
        return "cuDNN was not found, see `cupola info`";
    cudnn_state *state = state_of(call->c);
    if (!state || state->why[0])
        return state ? state->why : "there is no memory for it";
    if (cup__cuda_enter(state->gpu) != CUP_OK)
        return "the GPU cannot be used";
    cup__cudnn_problem *p = problem_of(call->c, state, &w.key);
    if (!p || p->why[0])
        return p ? p->why : "there is no memory for it";
    return cup__cudnn_plan_of(p, state->handle, rank)
               ? NULL
               : "cuDNN has no more algorithms for it that add in f32 and always in one order";
}

const char *cup__conv_cudnn_refuses(const cup__call *call)
{
    return rank_refuses(call, 0);
}

static cudnnStatus_t execute(cudnn_state *state, const cup__cudnn_plan *plan,
                             cup_tensor *const tensor[CUP__CUDNN_ROLES], void *workspace)
{
    CUstream stream = cup__cuda_stream(state->gpu);
    void *data[CUP__CUDNN_ROLES];
    for (int i = 0; i < CUP__CUDNN_ROLES; i++)
        data[i] = tensor[i]->data;
    if (stream != state->stream) {
        cudnnStatus_t status = cup__cudnn.cudnnSetStream(state->handle, stream);
        if (status != CUDNN_STATUS_SUCCESS)
            return status;
        state->stream = stream;
    }
    return cup__cudnn_execute(state->handle, plan, data, workspace);
}

/* Runs on tensors that lie as they should. Where the library fails, the problem says so. */
static cup_status run_on(cup__call *call, cup__cudnn_problem *p, int rank,
                         cup_tensor *const tensor[CUP__CUDNN_ROLES])
{
    cup_context *c = call->c;
    cudnn_state *state = c->slots[CUP__SLOT_CONVOLUTIONS].kept;
    CUP_TRY(cup__launch_foreign(state->gpu, "cudnnBackendExecute"));
    const cup__cudnn_plan *plan = cup__cudnn_plan_of(p, state->handle, rank);
    if (!plan)
        return cup__call_fail(call, CUP_UNSUPPORTED, "cuDNN has no such algorithm for it");
    cup_tensor *space = NULL;
    if (plan->workspace > 0) {
        cup__shape shape = {CUP_U8, 1, {plan->workspace}};
        space = cup__tensor_make(c, &shape, "cuDNN workspace");
        if (!space)
            return c->error.status;
    }
    cudnnStatus_t status = execute(state, plan, tensor, space ? space->data : NULL);
    cup_tensor_free(space);
    if (status != CUDNN_STATUS_SUCCESS)
        cup__cudnn_failed(p->why, "it ran", status);
    return CUP_OK;
}

/* The library failed, and is done without from now on: where it was chosen for the call another one
 * does it, and where it was asked for by name this is an error. */
static cup_status do_without(cup__call *call, const cup__cudnn_problem *p)
{
    bool chosen = call->memo != NULL;
    cup__memo_forget(call->c);
    const cup__impl *other = chosen ? cup__call_choose(call) : NULL;
    if (!other)
        return cup__call_fail(call, CUP_DRIVER, "%s; CUP_LIBCUDNN=off does without it", p->why);
    return cup__call_run(call, other);
}

static const char owner; /* of what is kept here */

typedef struct kept {
    cup__cudnn_problem *problem;
    int rank;
} kept;

static cup_status again(cup__call *call, cup__memo *memo)
{
    const kept k = *(const kept *)memo->kept;
    cup_tensor *tensor[CUP__CUDNN_ROLES];
    take_tensors(call, tensor);
    CUP_TRY(run_on(call, k.problem, k.rank, tensor));
    return k.problem->why[0] ? do_without(call, k.problem) : CUP_OK;
}

/* With the weight in memory of its own, which lies as the images do, as does a gradient that is
 * added to another. */
static cup_status run_copied(cup__call *call, cudnn_work *w, cup__cudnn_problem *p, int rank)
{
    cup_context *c = call->c;
    cup_tensor *weight = w->tensor[CUP__CUDNN_W];
    cup__shape shape = cup__shape_of(weight);
    cup_tensor *own = cup__tensor_make(c, &shape, "weight for cuDNN");
    if (!own)
        return c->error.status;
    cup__tensor_order(own, w->last ? "0231" : "0123");
    bool made = w->key.part == CUP__CONV_WEIGHT;
    cup_status status = made ? CUP_OK : cup__copy_to(c, own, weight);
    w->tensor[CUP__CUDNN_W] = own;
    if (status == CUP_OK)
        status = run_on(call, p, rank, w->tensor);
    if (status == CUP_OK && made && !p->why[0])
        status = cup__conv_hand_over(call, own);
    cup_tensor_free(own);
    return status;
}

static cup_status run_rank(cup__call *call, int rank)
{
    cudnn_work w;
    cudnn_state *state = state_of(call->c);
    if (!state)
        return call->c->error.status;
    if (state->why[0] || !work_of(call, &w))
        return cup__call_fail(call, CUP_DRIVER, "%s; CUP_LIBCUDNN=off does without it", state->why);
    CUP_TRY(cup__cuda_enter(state->gpu));
    cup__cudnn_problem *p = problem_of(call->c, state, &w.key);
    if (!p)
        return CUP_MEMORY;
    kept k = {p, rank};
    if (!p->why[0] && w.copied)
        CUP_TRY(run_copied(call, &w, p, rank));
    else if (!p->why[0])
        CUP_TRY(run_on(call, p, rank, w.tensor));
    if (p->why[0])
        return do_without(call, p);
    if (!w.copied && call->memo && cup__memo_keep(call->memo, &owner, &k, sizeof k))
        call->memo->again = again;
    return CUP_OK;
}

cup_status cup__conv_cudnn(cup__call *call)
{
    return run_rank(call, 0);
}

/* The algorithms that it proposes, best guess first. Another version of it proposes others, so a
 * record says of which it is. */
static const char *const plan_names[] = {"rank", "version", NULL};

static int version_of_library(void)
{
    return cup__library_open(CUP__LIBCUDNN) ? (int)cup__cudnn.cudnnGetVersion() : 0;
}

static int list_plans(const cup__call *call, cup__plan *out, int most)
{
    int count = most < CUP__CUDNN_RANKS ? most : CUP__CUDNN_RANKS;
    int version = never(call) ? 0 : version_of_library();
    for (int i = 0; i < count; i++)
        out[i] = (cup__plan){{i, version}};
    return count;
}

static const char *refuses_plan(const cup__call *call, const cup__plan *plan)
{
    if (plan->number[0] >= CUP__CUDNN_RANKS)
        return "so many algorithms are not asked for";
    const char *why = rank_refuses(call, plan->number[0]);
    return why || plan->number[1] == version_of_library()
               ? why
               : "another version of cuDNN was measured; cupola tune measures this one";
}

static cup_status run_plan(cup__call *call, const cup__plan *plan)
{
    return run_rank(call, plan->number[0]);
}

const cup__planning cup__conv_cudnn_planning = {plan_names, list_plans, refuses_plan, run_plan};
