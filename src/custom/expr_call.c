/* A call of a formula: shapes, dtypes, loops, and the specification. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "custom/program.h"


static cup_status find_folded(cup__call *call, const cup__program *p, cup__expr_plan *plan)
{
    int ndim = plan->full.ndim;
    if (!p->folded)
        return CUP_OK;
    if (p->axis_count == 0)
        plan->folded = (1u << ndim) - 1;
    for (int i = 0; i < p->axis_count; i++) {
        int axis = p->axes[i] < 0 ? p->axes[i] + ndim : p->axes[i];
        if (axis < 0 || axis >= ndim)
            return cup__call_fail(call, CUP_SHAPE, "there is no axis %d of %d dimensions to fold",
                                  p->axes[i], ndim);
        plan->folded |= 1u << axis;
    }
    for (int d = 0; d < ndim; d++)
        if (plan->folded >> d & 1)
            plan->length *= plan->full.size[d];
    for (int j = 0; j < p->results && plan->length == 0; j++)
        if (p->result[j].fold == CUP_EXPR_FOLD_MIN || p->result[j].fold == CUP_EXPR_FOLD_MAX)
            return cup__call_fail(call, CUP_SHAPE, "no elements have no smallest or largest");
    return CUP_OK;
}

static cup_dtype promote(const cup__call *call)
{
    int best = -1;
    for (int i = 0; i < call->in_count; i++) {
        cup_dtype dtype = call->in[i]->dtype;
        if (!cup__dtype_is_float(dtype) || (int)dtype == best)
            continue;
        bool wider = best < 0 || dtype == CUP_F64 ||
                     cup_dtype_size(dtype) > cup_dtype_size((cup_dtype)best);
        bool equal = best >= 0 && cup_dtype_size(dtype) == cup_dtype_size((cup_dtype)best);
        best = equal ? CUP_F32 : wider ? (int)dtype : best;
    }
    return best < 0 ? CUP_F32 : (cup_dtype)best;
}

static cup_dtype dtype_of(const cup__call *call, const cup__program *p, int j)
{
    if (p->result[j].dtype >= 0)
        return (cup_dtype)p->result[j].dtype;
    if (!p->folded && cup__is_condition(p->nodes[p->result[j].node].function))
        return CUP_BOOL;
    return promote(call);
}

static bool is_wide(cup_dtype dtype)
{
    return dtype == CUP_F64 || dtype == CUP_I32 || dtype == CUP_I64;
}

cup_status cup__expr_plan_make(cup__call *call, cup__expr_plan *plan)
{
    const cup__expr_attributes *a = call->attributes;
    *plan = (cup__expr_plan){.program = a->program, .parameters = a->parameters, .length = 1};
    if (a->full)
        plan->full = *a->full;
    else
        CUP_TRY(cup__broadcast_shape(call, 0, call->in_count, &plan->full));
    for (int i = 0; i < call->in_count; i++)
        plan->wide |= is_wide(call->in[i]->dtype);
    for (int j = 0; j < a->program->results; j++)
        plan->wide |= is_wide(dtype_of(call, a->program, j));
    return find_folded(call, a->program, plan);
}

cup_status cup__expr_infer(cup__call *call)
{
    cup__expr_plan plan;
    CUP_TRY(cup__expr_plan_make(call, &plan));
    cup__shape shape = {.ndim = 0};
    for (int d = 0; d < plan.full.ndim; d++) {
        bool folded = plan.folded >> d & 1;
        if (!folded || plan.program->keep)
            shape.size[shape.ndim++] = folded ? 1 : plan.full.size[d];
    }
    for (int j = 0; j < plan.program->results; j++) {
        call->result[j] = shape;
        call->result[j].dtype = dtype_of(call, plan.program, j);
    }
    return CUP_OK;
}

/* The tensor as if it had the dimensions of the mask only, broadcast. */
static void restrict_to(cup_tensor *view, const cup_tensor *t, const cup__shape *full,
                        uint32_t mask)
{
    *view = *t;
    view->ndim = 0;
    for (int d = 0; d < full->ndim; d++) {
        int at = d - (full->ndim - t->ndim);
        if (!(mask >> d & 1))
            continue;
        bool repeated = at < 0 || t->shape[at] == 1;
        view->shape[view->ndim] = full->size[d];
        view->stride[view->ndim++] = repeated ? 0 : t->stride[at];
    }
}

/* A tensor that is not there, of the dimensions of the mask in row-major order. */
static void make_result(cup_tensor *result, const cup__shape *full, uint32_t mask)
{
    *result = (cup_tensor){.count = 1};
    for (int d = full->ndim; d-- > 0;)
        if (mask >> d & 1) {
            result->shape[result->ndim] = full->size[d];
            result->stride[result->ndim++] = result->count;
            result->count *= full->size[d];
        }
    for (int i = 0, j = result->ndim - 1; i < j; i++, j--) {
        int64_t size = result->shape[i], stride = result->stride[i];
        result->shape[i] = result->shape[j];
        result->stride[i] = result->stride[j];
        result->shape[j] = size;
        result->stride[j] = stride;
    }
}

static void make_loop(const cup__call *call, const cup__expr_plan *plan, uint32_t mask,
                      cup__loop *loop)
{
    cup_tensor result, views[CUP__PROGRAM_INPUTS], *in[CUP__PROGRAM_INPUTS];
    make_result(&result, &plan->full, mask);
    for (int k = 0; k < plan->program->used_count; k++) {
        in[k] = &views[k];
        restrict_to(in[k], call->in[plan->program->used[k]], &plan->full, mask);
    }
    cup__loop_make(loop, &result, in, plan->program->used_count);
}

void cup__expr_loops_make(const cup__call *call, const cup__expr_plan *plan,
                          cup__expr_loops *loops)
{
    uint32_t all = (1u << plan->full.ndim) - 1;
    make_loop(call, plan, all & ~plan->folded, &loops->kept);
    make_loop(call, plan, plan->folded, &loops->folded);
}

/* The specification: one element after another, in double. */

typedef struct element_job {
    cup__call *call;
    const cup__expr_plan *plan;
    const cup__expr_loops *loops;
    _Atomic bool failed; /* for want of memory */
} element_job;

static int64_t offset_of(const cup__loop *loop, int k, int64_t index)
{
    int64_t inner = loop->size[loop->ndim - 1];
    return cup__loop_offset(loop, k, index / inner) +
           index % inner * loop->stride[k][loop->ndim - 1];
}

static void evaluate(const element_job *job, int64_t kept, int64_t folded, double *value)
{
    const cup__program *p = job->plan->program;
    for (int node = 0, k = 0; node < p->count; node++) {
        const cup__expr_node *n = &p->nodes[node];
        if (n->function == CUP__NUMBER) {
            value[node] = n->value;
        } else if (n->function == CUP__PARAMETER) {
            value[node] = job->plan->parameters[n->in[0]];
        } else if (n->function == CUP__INPUT) {
            int64_t at = offset_of(&job->loops->kept, k + 1, kept) +
                         offset_of(&job->loops->folded, k + 1, folded);
            value[node] = cup__load(job->call->in[n->in[0]], at);
            k++;
        } else {
            double x[3] = {0};
            for (int i = 0; i < cup__functions[n->function].arity; i++)
                x[i] = value[n->in[i]];
            value[node] = cup__function_f64((cup__function)n->function, x[0], x[1], x[2]);
        }
    }
}

static double fold(int how, double sum, double value)
{
    switch (how) {
    case CUP_EXPR_FOLD_SUM:
    case CUP_EXPR_FOLD_MEAN:
        return sum + value;
    case CUP_EXPR_FOLD_MIN:
        return cup__function_f64(CUP__MIN, sum, value, 0);
    case CUP_EXPR_FOLD_MAX:
        return cup__function_f64(CUP__MAX, sum, value, 0);
    default:
        return value;
    }
}

static void run_elements(int64_t begin, int64_t end, void *user)
{
    element_job *job = user;
    const cup__program *p = job->plan->program;
    double *value = cup__calloc((size_t)p->count, sizeof *value);
    if (!value) {
        job->failed = true;
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        double sum[CUP_EXPR_RESULTS] = {0};
        for (int64_t f = 0; f < job->plan->length; f++) {
            evaluate(job, i, f, value);
            for (int j = 0; j < p->results; j++) {
                double x = value[p->result[j].node];
                bool first = f == 0 && p->result[j].fold >= CUP_EXPR_FOLD_MIN;
                sum[j] = first ? x : fold(p->result[j].fold, sum[j], x);
            }
        }
        for (int j = 0; j < p->results; j++) {
            if (p->result[j].fold == CUP_EXPR_FOLD_MEAN)
                sum[j] /= (double)job->plan->length;
            cup__store(job->call->out[j], i, sum[j]);
        }
    }
    cup__free(value);
}

cup_status cup__expr_specification(cup__call *call)
{
    cup__expr_plan plan;
    cup__expr_loops loops;
    CUP_TRY(cup__expr_plan_make(call, &plan));
    cup__expr_loops_make(call, &plan, &loops);
    element_job job = {call, &plan, &loops, false};
    int64_t grain = 4096 / (plan.length < 4096 ? plan.length + !plan.length : 4096);
    cup__parallel_for(call->out[0]->count, grain, run_elements, &job);
    return job.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

const cup__impl cup__expr_impls[] = {
    {.name = "fused", .place = CUP__CUDA, .strided = true, .run = cup__expr_cuda},
    {.name = "fused", .place = CUP__CPU, .strided = true, .run = cup__expr_cpu},
    {0},
};
