/* Formulas on the GPU: kernels/expression.cuh with the formula's own source, and a set of knobs for
 * each way the inputs lie. */
#include <string.h>

#include "base/memory.h"
#include "cuda/dry.h"
#include "custom/work.h"
#include "dispatch/attributes.h"

#define PACK_FROM 65536 /* elements from which an input that lies apart is worth a copy */

/* Kernels by the values of their knobs, whose names are the same for all of a program but for the
 * last, which not all have. */
typedef struct cup__program_kernel {
    struct cup__program_kernel *next;
    int64_t values[CUP__WORK_KNOBS];
    int count;
    cup__kernel *kernel;
} cup__program_kernel;

void cup__program_kernels_free(struct cup__program_kernel *kernels)
{
    while (kernels) {
        cup__program_kernel *next = kernels->next;
        cup__free(kernels);
        kernels = next;
    }
}

static cup__kernel *compile(cup_context *c, cup__program *p, const cup__knob *knobs, int count)
{
    bool plain = !p->folded;
    if (!p->source) {
        cup__text text = {0};
        if (!cup__program_source(p, &text)) {
            cup__text_free(&text);
            cup__fail(&c->error, CUP_MEMORY, "out of host memory for the source of a formula");
            return NULL;
        }
        p->source = text.bytes;
    }
    return cup__kernel_from_text(cup__cuda_of(c->device), "formula.cu", p->source,
                                 plain ? "formula_plain" : "formula_fold", knobs, count);
}

cup__kernel *cup__work_kernel(const cup__work *w, const cup__knob *knobs, int count)
{
    cup_context *c = w->call->c;
    cup__program *p = w->program;
    if (cup__device_is_dry(c->device)) /* whose kernels the formula outlives in a rehearsal */
        return compile(c, p, knobs, count);
    for (cup__program_kernel *k = p->kernels; k; k = k->next) {
        bool same = k->count == count;
        for (int i = 0; i < count && same; i++)
            same = k->values[i] == knobs[i].value;
        if (same)
            return k->kernel;
    }
    cup__kernel *kernel = compile(c, p, knobs, count);
    cup__program_kernel *known = kernel ? cup__calloc(1, sizeof *known) : NULL;
    if (!known)
        return kernel; /* without memory to remember it, it is only looked for again */
    for (int i = 0; i < count; i++)
        known->values[i] = knobs[i].value;
    known->count = count;
    known->kernel = kernel;
    known->next = p->kernels;
    p->kernels = known;
    return kernel;
}

int cup__work_knobs(const cup__work *w, int ndim, int folded_ndim, cup__knob *knobs)
{
    static const char *const x[] = {"X0", "X1", "X2",  "X3",  "X4",  "X5",  "X6", "X7",
                                    "X8", "X9", "X10", "X11", "X12", "X13", "X14"};
    static const char *const y[] = {"Y0", "Y1", "Y2", "Y3", "Y4"};
    int count = 0;
    knobs[count++] = (cup__knob){"REAL", w->plan->wide ? CUP_F64 : CUP_F32};
    knobs[count++] = (cup__knob){"VEC", w->access.vec};
    knobs[count++] = (cup__knob){"UNROLL", w->access.unroll};
    knobs[count++] = (cup__knob){"NDIM", ndim};
    knobs[count++] = (cup__knob){"FOLDED_NDIM", folded_ndim};
    knobs[count++] = (cup__knob){"MODE", w->mode};
    knobs[count++] = (cup__knob){"TEAM", w->team ? w->team : 32};
    for (int j = 0; j < w->nest.results; j++)
        knobs[count++] = (cup__knob){y[j], w->nest.y_dtype[j]};
    for (int k = 0; k < w->nest.inputs; k++)
        knobs[count++] = (cup__knob){x[k], cup__access_knob(&w->nest, &w->access, k)};
    if (!w->nest.inputs) /* nothing is read, but the kernel has one input at least */
        knobs[count++] = (cup__knob){"X0", CUP_U8 | POINTWISE_SCALAR << 8 | 1 << 16};
    if (w->lead >= 0)
        knobs[count++] = (cup__knob){"LEAD", w->lead};
    if (w->odd)
        knobs[count++] = (cup__knob){"ODD", 1};
    return count;
}

void cup__work_dimensions(const cup__loop *loop, int inputs, int ndim, divisor *dim,
                            int (*stride)[POINTWISE_DIMS])
{
    for (int d = 0; d < ndim; d++) {
        int at = loop->ndim - 1 - d;
        dim[d] = divisor_of(at < 0 || !loop->size[at] ? 1 : loop->size[at]);
        for (int k = 0; k < inputs; k++)
            stride[k][d] = at < 0 ? 0 : (int)loop->stride[k + 1][at];
    }
}

void cup__work_call(const cup__work *w, expression_call *to)
{
    const cup__nest *n = &w->nest;
    memset(to, 0, sizeof *to);
    for (int j = 0; j < n->results; j++)
        to->y[j] = n->y[j];
    for (int k = 0; k < n->inputs; k++)
        to->x[k] = n->x[k];
    if (!n->inputs)
        to->x[0] = n->y[0];
    for (int i = 0; i < w->program->parameters; i++) {
        to->parameters[i] = w->plan->parameters[i];
        to->parameters_f32[i] = (float)w->plan->parameters[i];
    }
    to->share = 1 / (double)w->plan->length;
}

static cup_status launch_plain(const cup__work *w)
{
    cup__cuda *gpu = cup__cuda_of(w->call->c->device);
    cup__knob knobs[CUP__WORK_KNOBS];
    int ndim = w->access.ndim, count = cup__work_knobs(w, ndim, 1, knobs);
    cup__kernel *kernel = cup__work_kernel(w, knobs, count);
    if (!kernel)
        return w->call->c->error.status;
    expression_call argument;
    cup__work_call(w, &argument);
    argument.count = (unsigned)w->nest.loop.count;
    cup__work_dimensions(&w->nest.loop, w->nest.inputs, ndim, argument.dim, argument.stride);
    int64_t block = (int64_t)POINTWISE_THREADS * w->access.unroll * w->access.vec;
    cup__grid grid = {.x = (w->nest.loop.count + block - 1) / block, .threads = POINTWISE_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

cup__work cup__work_part(const cup__work *whole, const int64_t *offset)
{
    cup__work w = *whole;
    for (int k = 0; k < w.nest.inputs; k++)
        w.nest.x[k] += offset[k + 1] * cup_dtype_size(w.nest.x_dtype[k]);
    for (int j = 0; j < w.nest.results; j++)
        w.nest.y[j] += offset[0] * cup_dtype_size(w.nest.y_dtype[j]);
    return w;
}

static cup_status run_plain(const cup__loop *part, const int64_t *offset, void *user)
{
    cup__work w = cup__work_part(user, offset);
    w.nest.loop = *part;
    w.access = cup__access_plan_make(&w.nest, NULL,
                                     cup__cuda_facts(cup__cuda_of(w.call->c->device)));
    return launch_plain(&w);
}

/* The innermost dimension that is one decides. */
static int mode_of(const cup__expr_plan *plan)
{
    int d = plan->full.ndim - 1;
    if (!plan->program->folded)
        return EXPRESSION_PLAIN;
    while (d > 0 && plan->full.size[d] == 1)
        d--;
    return d < 0 || plan->folded >> d & 1 ? EXPRESSION_ROWS : EXPRESSION_COLUMNS;
}

static cup_status run_work(cup__work *w)
{
    cup__expr_loops loops;
    cup__expr_loops_make(w->call, w->plan, &loops);
    w->nest.inputs = w->program->used_count;
    w->nest.results = w->program->results;
    for (int k = 0; k < w->nest.inputs; k++) {
        w->nest.x[k] = w->call->in[w->program->used[k]]->data;
        w->nest.x_dtype[k] = w->call->in[w->program->used[k]]->dtype;
    }
    for (int j = 0; j < w->nest.results; j++) {
        w->nest.y[j] = w->call->out[j]->data;
        w->nest.y_dtype[j] = w->call->out[j]->dtype;
    }
    w->mode = mode_of(w->plan);
    w->folded = loops.folded;
    w->length = w->plan->length;
    if (w->mode == EXPRESSION_PLAIN)
        return cup__loop_parts(&loops.kept, run_plain, w);
    w->kept = loops.kept;
    return cup__work_fold(w);
}

/* An input whose neighbours lie far apart, where others' lie side by side. */
static bool lies_apart(const cup__expr_plan *plan, const cup_tensor *t)
{
    int64_t full = 1;
    for (int d = 0; d < plan->full.ndim; d++)
        full *= plan->full.size[d];
    return t->count >= PACK_FROM && t->count == full && t->ndim > 0 &&
           t->stride[t->ndim - 1] != 1 && t->shape[t->ndim - 1] != 1;
}

cup_status cup__expr_cuda(cup__call *call)
{
    cup__expr_plan plan;
    cup_tensor *in[CUP__PROGRAM_INPUTS], **given = call->in;
    CUP_TRY(cup__expr_plan_make(call, &plan));
    cup_status status = CUP_OK;
    for (int i = 0; i < call->in_count; i++) {
        bool pack = status == CUP_OK && lies_apart(&plan, given[i]);
        in[i] = pack ? cup_copy(call->c, given[i]) : given[i];
        status = call->c->error.status;
    }
    if (status == CUP_OK) {
        cup__work w = {.call = call, .plan = &plan,
                  .program = (cup__program *)(uintptr_t)plan.program,
                  .lead = -1};
        call->in = in;
        status = run_work(&w);
        call->in = given;
    }
    for (int i = 0; i < call->in_count; i++)
        if (in[i] != given[i])
            cup_tensor_free(in[i]);
    return status;
}
