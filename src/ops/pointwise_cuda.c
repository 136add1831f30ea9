/* Elementwise ops on the GPU: how each input is read decides the knobs of kernels/pointwise.cuh,
 * and calls that 32 bits cannot index are cut into pieces. */
#include <string.h>

#include "cuda/cuda.h"
#include "kernels/pointwise_call.cuh"
#include "ops/attributes.h"
#include "ops/loop.h"
#include "ops/pointwise.h"

#define UNIT_MOST 64      /* bytes of one tensor in a unit */
#define BYTES_AT_ONCE 16  /* that a thread should have on their way: more was slower, see NOTES */
#define PACK_FROM 65536   /* elements from which a transposed input is worth a copy */

/* A part of the call: its nest and where its tensors begin. Tensor 0 is the result. */
typedef struct piece {
    cup__call *call;
    cup__loop loop;
    char *data[CUP__LOOP_MOST];
    char *second; /* the second result, which lies as the first one does */
    cup_dtype dtype[CUP__LOOP_MOST];
    int inputs;
} piece;

typedef struct access_plan {
    int vec, unroll, ndim;
    int kind[CUP__LOOP_MOST], width[CUP__LOOP_MOST];
} access_plan;

static int size_of(const piece *p, int k)
{
    return (int)cup_dtype_size(p->dtype[k]);
}

/* The neighbours, up to `most`, that can be read at once when accesses start at multiples of
 * `step` elements from the base. What does not allow 16 bytes is read one by one: a kernel for
 * each width between would be compiled often and gain little. */
static int width_of(const piece *p, int k, int most, int64_t step)
{
    int size = size_of(p, k), width = most;
    while (width * size > 16)
        width /= 2;
    return step % width || (uintptr_t)p->data[k] % (uintptr_t)(width * size) ? 1 : width;
}

static bool is_flat(const cup__loop *loop, int k)
{
    int64_t step = 1;
    for (int d = loop->ndim; d-- > 0; step *= loop->size[d])
        if (loop->size[d] > 1 && loop->stride[k][d] != step)
            return false;
    return true;
}

static bool is_scalar(const cup__loop *loop, int k)
{
    for (int d = 0; d < loop->ndim; d++)
        if (loop->size[d] > 1 && loop->stride[k][d])
            return false;
    return true;
}

static int64_t inner_of(const cup__loop *loop)
{
    return loop->size[loop->ndim - 1];
}

/* How input k is read in units of `vec`. */
static int kind_of(const cup__loop *loop, int k, int vec)
{
    if (is_flat(loop, k))
        return POINTWISE_FLAT;
    if (is_scalar(loop, k))
        return POINTWISE_SCALAR;
    int64_t stride = loop->stride[k][loop->ndim - 1];
    if (stride > 1 || stride < 0 || inner_of(loop) % vec)
        return POINTWISE_GATHER;
    return stride == 1 ? POINTWISE_ROW : POINTWISE_COLUMN;
}

/* Elements of a unit: 16 bytes of the narrowest tensor that is read or written side by side, as
 * far as the result's alignment allows, and fewer where that keeps units inside rows. */
static int choose_vec(const piece *p)
{
    const cup__loop *loop = &p->loop;
    int least = size_of(p, 0), most = least;
    bool rows = false;
    for (int k = 1; k <= p->inputs; k++) {
        int kind = kind_of(loop, k, 1), size = size_of(p, k);
        rows |= kind == POINTWISE_ROW || kind == POINTWISE_COLUMN;
        if (kind != POINTWISE_FLAT && kind != POINTWISE_ROW)
            continue;
        least = size < least ? size : least;
        most = size > most ? size : most;
    }
    int vec = 16 / least;
    while (vec > 1 && vec * most > UNIT_MOST)
        vec /= 2;
    uintptr_t places = (uintptr_t)p->data[0] | (uintptr_t)p->second;
    while (vec > 1 &&
           places % (uintptr_t)(vec * size_of(p, 0) > 16 ? 16 : vec * size_of(p, 0)))
        vec /= 2;
    if (rows && inner_of(loop) % vec && inner_of(loop) % (vec / 2) == 0 && vec > 2)
        vec /= 2;
    return vec;
}

static access_plan make_plan(const piece *p, const cup__gpu_facts *facts)
{
    const cup__loop *loop = &p->loop;
    access_plan plan = {.vec = choose_vec(p), .ndim = 1};
    int bytes = 0;
    for (int k = 1; k <= p->inputs; k++) {
        int kind = plan.kind[k] = kind_of(loop, k, plan.vec);
        plan.width[k] = 1;
        while (kind != POINTWISE_FLAT && kind != POINTWISE_SCALAR && plan.ndim < loop->ndim)
            plan.ndim *= 2; /* dimensions of size 1 fill up */
        int64_t step = plan.vec;
        for (int d = 0; kind == POINTWISE_ROW && d < loop->ndim - 1; d++)
            step |= loop->stride[k][d]; /* the lowest bit of any decides */
        if (kind == POINTWISE_FLAT || kind == POINTWISE_ROW) {
            plan.width[k] = width_of(p, k, plan.vec, step);
            bytes += plan.vec * size_of(p, k);
        }
    }
    plan.unroll = bytes ? BYTES_AT_ONCE / bytes : 1;
    plan.unroll = plan.unroll < 1 ? 1 : plan.unroll > 4 ? 4 : plan.unroll;
    int64_t blocks = loop->count / plan.vec / POINTWISE_THREADS;
    if (blocks < 8 * facts->multiprocessors)
        plan.unroll = 1;
    return plan;
}

static void fill_call(pointwise_call *to, const piece *p, const access_plan *plan)
{
    const cup__loop *loop = &p->loop;
    memset(to, 0, sizeof *to);
    to->y = p->data[0];
    to->second = p->second;
    to->count = (unsigned)loop->count;
    for (int k = 0; k < p->inputs; k++)
        to->x[k] = p->data[k + 1];
    for (int d = 0; d < plan->ndim; d++) {
        int at = loop->ndim - 1 - d;
        to->dim[d] = divisor_of(at < 0 ? 1 : loop->size[at]);
        for (int k = 0; k < p->inputs; k++)
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
    access_plan plan = make_plan(p, cup__cuda_facts(gpu));
    cup__knob knobs[6 + CUP__POINTWISE_MOST] = {{"REAL", real_dtype(p->call)},
                                                {"Y", p->dtype[0]},
                                                {"VEC", plan.vec},
                                                {"UNROLL", plan.unroll},
                                                {"NDIM", plan.ndim}};
    int count = 5;
    for (int k = 1; k <= p->inputs; k++)
        knobs[count++] = (cup__knob){
            names[k - 1], p->dtype[k] | plan.kind[k] << 8 | plan.width[k] << 16};
    if (kind->knob)
        knobs[count++] = (cup__knob){kind->knob, 1};
    cup__kernel *kernel = cup__kernel_get(gpu, kind->source, kind->entry, knobs, count);
    if (!kernel)
        return p->call->c->error.status;
    pointwise_call argument;
    fill_call(&argument, p, &plan);
    int64_t block = (int64_t)POINTWISE_THREADS * plan.unroll * plan.vec;
    cup__grid grid = {.x = (p->loop.count + block - 1) / block, .threads = POINTWISE_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

static cup_status run_part(const cup__loop *part, const int64_t *offset, void *user)
{
    piece p = *(const piece *)user;
    p.loop = *part;
    for (int k = 0; k <= p.inputs; k++)
        p.data[k] += offset[k] * size_of(&p, k);
    if (p.second)
        p.second += offset[0] * size_of(&p, 0);
    return launch_piece(&p);
}

/* Whether reading the input where it lies would touch far more memory than it holds: it is as
 * large as the result and its neighbours are not the result's. */
static bool is_transposed(const cup__loop *loop, int k, const cup_tensor *in)
{
    int64_t stride = loop->stride[k][loop->ndim - 1];
    return in->count >= PACK_FROM && in->count == loop->count && stride != 1;
}

cup_status cup__pointwise_cuda(cup__call *call)
{
    piece p = {.call = call, .inputs = call->in_count};
    cup_tensor *in[CUP__POINTWISE_MOST];
    cup_status status = CUP_OK;
    memcpy(in, call->in, sizeof *in * (size_t)call->in_count);
    cup__loop_make(&p.loop, call->out[0], in, call->in_count);
    for (int k = 0; k < call->in_count && status == CUP_OK; k++)
        if (is_transposed(&p.loop, k + 1, in[k])) {
            in[k] = cup_copy(call->c, in[k]);
            status = call->c->error.status;
        }
    if (status == CUP_OK) {
        cup__loop_make(&p.loop, call->out[0], in, call->in_count);
        p.data[0] = call->out[0]->data;
        p.dtype[0] = call->out[0]->dtype;
        p.second = call->op->pointwise->f64_second ? call->out[1]->data : NULL;
        for (int k = 0; k < call->in_count; k++) {
            p.data[k + 1] = in[k]->data;
            p.dtype[k + 1] = in[k]->dtype;
        }
        status = cup__loop_parts(&p.loop, run_part, &p);
    }
    for (int k = 0; k < call->in_count; k++)
        if (in[k] != call->in[k])
            cup_tensor_free(in[k]);
    return status;
}
