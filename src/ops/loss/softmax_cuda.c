/* Softmax and its gradient on the GPU: knobs and launches of softmax.cu. */
#include "dispatch/attributes.h"
#include "dispatch/row_ring.h"
#include "dispatch/rows.h"
#include "ops/loss/softmax.h"

#define BLOCK 128 /* threads of a block whose rows take a warp or less */

const char *cup__softmax_cuda_refuses(const cup__call *call)
{
    return cup__lines_of(call).length > INT32_MAX ? "a line has more than 2^31 - 1 elements" : NULL;
}

static cup__row_plan plan_of(const cup__call *call, const cup__lines *l, bool is_grad)
{
    int size = (int)cup_dtype_size(call->in[0]->dtype), vec = 16 / size;
    const cup_tensor *all[] = {call->in[0], call->out[0], is_grad ? call->in[1] : NULL};
    for (int i = 0; i < 3; i++) {
        int own = cup__row_vec(all[i], l->length, vec);
        vec = own < vec ? own : vec;
    }
    /* Elements a thread holds in groups larger than a warp, as they were fastest on a card. */
    int narrow = size == 8 ? 4 : vec == 1 ? 8 : 16, wide = narrow;
    if (vec * size == 16)
        wide = size == 2 ? is_grad ? 24 : 32 : size == 4 && !is_grad ? 20 : wide;
    int each = !is_grad ? 2 * narrow : wide;
    cup__row_plan plan = cup__plan_rows(l->length, vec, each, wide);
    if (plan.threads < BLOCK)
        plan.threads = BLOCK;
    return plan;
}

static cup_status launch_columns(cup__call *call, const cup__lines *l, bool is_grad)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__knob knobs[] = {{"CUP_T", call->in[0]->dtype},
                               {"LOG", call->op->kind == CUP__SOFTMAX_LOG},
                               {"COLUMNS", 1}};
    cup__kernel *kernel = cup__kernel_get(
        gpu, "softmax.cu", is_grad ? "softmax_columns_bwd" : "softmax_columns_fwd", knobs, 3);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = l->outer * ((l->inner + 31) / 32), .threads = 256};
    void *first = call->in[0]->data, *out = call->out[0]->data;
    if (!is_grad)
        return cup__launch(gpu, kernel, grid, CUP__ARG(first), CUP__ARG(out), CUP__ARG(l->length),
                           CUP__ARG(l->inner));
    return cup__launch(gpu, kernel, grid, CUP__ARG(first), CUP__ARG(call->in[1]->data),
                       CUP__ARG(out), CUP__ARG(l->length), CUP__ARG(l->inner));
}

static cup_status launch_rows(cup__call *call, const cup__lines *l, bool is_grad)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__row_plan plan = plan_of(call, l, is_grad);
    const cup__knob knobs[] = {{"CUP_T", call->in[0]->dtype},
                               {"LOG", call->op->kind == CUP__SOFTMAX_LOG},
                               {"LONG", !plan.fits},
                               {"VEC", plan.vec},
                               {"GROUP", plan.group},
                               {"PIECES", plan.pieces},
                               {"THREADS", plan.threads},
                               {"GRAD", 1}};
    const char *entry = is_grad ? "softmax_bwd" : "softmax_fwd";
    cup__kernel *kernel = cup__kernel_get(gpu, "softmax.cu", entry, knobs, is_grad ? 8 : 7);
    if (!kernel)
        return call->c->error.status;
    int64_t groups = plan.threads / plan.group;
    cup__grid grid = {.x = (l->outer + groups - 1) / groups, .threads = plan.threads};
    int width = (int)l->length;
    void *first = call->in[0]->data, *out = call->out[0]->data;
    if (!is_grad)
        return cup__launch(gpu, kernel, grid, CUP__ARG(first), CUP__ARG(out), CUP__ARG(l->outer),
                           CUP__ARG(width));
    return cup__launch(gpu, kernel, grid, CUP__ARG(first), CUP__ARG(call->in[1]->data),
                       CUP__ARG(out), CUP__ARG(l->outer), CUP__ARG(width));
}

static cup_status run(cup__call *call, bool is_grad)
{
    cup__lines l = cup__lines_of(call);
    return l.inner == 1 ? launch_rows(call, &l, is_grad) : launch_columns(call, &l, is_grad);
}

cup_status cup__softmax_cuda(cup__call *call)
{
    return run(call, false);
}

cup_status cup__softmax_grad_cuda(cup__call *call)
{
    return run(call, true);
}

const char *cup__softmax_ring_refuses(const cup__call *call)
{
    cup__lines l = cup__lines_of(call);
    if (l.inner != 1)
        return "its lines are not rows";
    if (plan_of(call, &l, false).fits)
        return "a row fits the registers of a block";
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    return cup__row_ring_refuses(call->in[0], l.length, 0, facts);
}

cup_status cup__softmax_ring(cup__call *call)
{
    if ((uintptr_t)call->out[0]->data % 16)
        return cup__softmax_cuda(call);
    cup__lines l = cup__lines_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    int64_t bytes = l.length * (int64_t)cup_dtype_size(call->in[0]->dtype);
    cup__row_ring plan = cup__row_ring_plan(l.outer, bytes, 1, 0, 0, cup__cuda_facts(gpu));
    cup__knob knobs[2 + CUP__ROW_RING_KNOBS] = {{"CUP_T", call->in[0]->dtype},
                                                {"LOG", call->op->kind == CUP__SOFTMAX_LOG}};
    cup__row_ring_knobs(&plan, knobs + 2);
    cup__kernel *kernel =
        cup__kernel_get(gpu, "softmax_ring.cu", "softmax_sm90", knobs, 2 + CUP__ROW_RING_KNOBS);
    int width = (int)l.length;
    return cup__launch(gpu, kernel, plan.grid, CUP__ARG(call->in[0]->data),
                       CUP__ARG(call->out[0]->data), CUP__ARG(l.outer), CUP__ARG(width));
}
