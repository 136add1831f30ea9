/* Elementwise ops on the GPU. Calls that 32 bits cannot index are cut into pieces. */
#include <string.h>

#include "cuda/cuda.h"
#include "kernels/pointwise_call.cuh"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "ops/elementwise/pointwise_plan.h"

/* A part of the call. */
typedef struct piece {
    cup__call *call;
    cup__nest nest;
} piece;

static void fill_call(pointwise_call *to, const piece *p, const cup__access_plan *plan)
{
    const cup__nest *n = &p->nest;
    const cup__loop *loop = &n->loop;
    memset(to, 0, sizeof *to);
    to->y = n->y[0];
    to->second = n->y[1];
    to->count = (unsigned)loop->count;
    for (int k = 0; k < n->inputs; k++)
        to->x[k] = n->x[k];
    for (int d = 0; d < plan->ndim; d++) {
        int at = loop->ndim - 1 - d;
        to->dim[d] = divisor_of(at < 0 ? 1 : loop->size[at]);
        for (int k = 0; k < n->inputs; k++)
            to->stride[k][d] = at < 0 ? 0 : (int)loop->stride[k + 1][at];
    }
    const cup__row *row = p->call->row;
    const double *a = p->call->attributes;
    for (int i = 0; row->attributes && row->attributes[i].name; i++) {
        if (row->attributes[i].kind != CUP__KIND_FLOAT || i == POINTWISE_ATTRIBUTES)
            return;
        to->attributes[i] = a[i];
        to->attributes_f32[i] = (float)a[i];
    }
}

static cup_dtype real_dtype(const cup__call *call)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_F64, CUP_I64};
    return dtypes[cup__pointwise_real(call)];
}

static cup_status launch_piece(const piece *p)
{
    static const char *const names[] = {"X0", "X1", "X2", "X3", "X4", "X5", "X6", "X7"};
    cup__cuda *gpu = cup__cuda_of(p->call->c->device);
    const cup__pointwise *kind = p->call->op->pointwise;
    const cup__nest *n = &p->nest;
    cup__access_plan plan = cup__access_plan_make(n, NULL, cup__cuda_facts(gpu));
    cup__knob knobs[6 + CUP__POINTWISE_MOST] = {{"REAL", real_dtype(p->call)},
                                                {"Y", n->y_dtype[0]},
                                                {"VEC", plan.vec},
                                                {"UNROLL", plan.unroll},
                                                {"NDIM", plan.ndim}};
    int count = 5;
    for (int k = 0; k < n->inputs; k++)
        knobs[count++] = (cup__knob){names[k], cup__access_knob(n, &plan, k)};
    if (kind->knob)
        knobs[count++] = (cup__knob){kind->knob, 1};
    cup__kernel *kernel =
        cup__kernel_of_text(gpu, kind->source, kind->text, kind->entry, knobs, count);
    if (!kernel)
        return p->call->c->error.status;
    pointwise_call argument;
    fill_call(&argument, p, &plan);
    int64_t block = (int64_t)POINTWISE_THREADS * plan.unroll * plan.vec;
    cup__grid grid = {.x = (n->loop.count + block - 1) / block, .threads = POINTWISE_THREADS,
                      .dependent = true};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

static cup_status run_part(const cup__loop *part, const int64_t *offset, void *user)
{
    piece p = *(const piece *)user;
    p.nest.loop = *part;
    for (int k = 0; k < p.nest.inputs; k++)
        p.nest.x[k] += offset[k + 1] * cup_dtype_size(p.nest.x_dtype[k]);
    for (int j = 0; j < p.nest.results; j++)
        p.nest.y[j] += offset[0] * cup_dtype_size(p.nest.y_dtype[j]);
    return launch_piece(&p);
}

cup_status cup__pointwise_cuda(cup__call *call)
{
    piece p = {.call = call, .nest = {.inputs = call->in_count, .results = call->out_count}};
    cup__nest *n = &p.nest;
    cup_tensor *in[CUP__POINTWISE_MOST];
    cup_status status = CUP_OK;
    memcpy(in, call->in, sizeof *in * (size_t)call->in_count);
    cup__loop_make(&n->loop, call->out[0], in, call->in_count);
    for (int k = 0; k < call->in_count && status == CUP_OK; k++)
        if (cup__is_transposed(&n->loop, k + 1, in[k])) {
            in[k] = cup_copy(call->c, in[k]);
            status = call->c->error.status;
        }
    if (status == CUP_OK) {
        cup__loop_make(&n->loop, call->out[0], in, call->in_count);
        for (int j = 0; j < n->results; j++) {
            n->y[j] = call->out[j]->data;
            n->y_dtype[j] = call->out[j]->dtype;
        }
        for (int k = 0; k < n->inputs; k++) {
            n->x[k] = in[k]->data;
            n->x_dtype[k] = in[k]->dtype;
        }
        status = cup__loop_parts(&n->loop, run_part, &p);
    }
    for (int k = 0; k < call->in_count; k++)
        if (in[k] != call->in[k])
            cup_tensor_free(in[k]);
    return status;
}
