/* Formulas on the GPU: kernels/expression.cuh with the formula's own source, and a set of knobs for
 * each way the inputs lie. */
#include <string.h>

#include "base/memory.h"
#include "cuda/cuda.h"
#include "custom/program.h"
#include "kernels/expression_call.cuh"
#include "ops/attributes.h"
#include "ops/pointwise_plan.h"

#define KNOBS (8 + CUP_EXPR_RESULTS + CUP__PROGRAM_INPUTS)
#define UNIT_BYTES 16
#define PACK_FROM 65536 /* elements from which an input that lies apart is worth a copy */

/* Kernels by the values of their knobs, whose names are the same for all of a program but for the
 * last, which not all have. */
typedef struct cup__program_kernel {
    struct cup__program_kernel *next;
    int64_t values[KNOBS];
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

static cup__kernel *get_kernel(cup_context *c, cup__program *p, const cup__knob *knobs, int count)
{
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

/* One call, or a part of it. */
typedef struct work {
    cup__call *call;
    const cup__expr_plan *plan;
    cup__program *program;
    cup__nest nest;      /* what is gone through in units; `loop` is that of the part */
    cup__loop kept, folded;
    cup__access_plan access;
    int mode, team, parts;
    int lead; /* the input that says where whole units begin, -1: they begin with the rows */
} work;

static int power_of_two(int n)
{
    int power = 1;
    while (power < n)
        power *= 2;
    return power;
}

static int make_knobs(const work *w, int ndim, int folded_ndim, cup__knob *knobs)
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
    return count;
}

static void fill_dimensions(const cup__loop *loop, int inputs, int ndim, divisor *dim,
                            int (*stride)[POINTWISE_DIMS])
{
    for (int d = 0; d < ndim; d++) {
        int at = loop->ndim - 1 - d;
        dim[d] = divisor_of(at < 0 || !loop->size[at] ? 1 : loop->size[at]);
        for (int k = 0; k < inputs; k++)
            stride[k][d] = at < 0 ? 0 : (int)loop->stride[k + 1][at];
    }
}

static void fill_call(expression_call *to, const work *w)
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

static cup_status launch_plain(const work *w)
{
    cup__cuda *gpu = cup__cuda_of(w->call->c->device);
    cup__knob knobs[KNOBS];
    int ndim = w->access.ndim, count = make_knobs(w, ndim, 1, knobs);
    cup__kernel *kernel = get_kernel(w->call->c, w->program, knobs, count);
    if (!kernel)
        return w->call->c->error.status;
    expression_call argument;
    fill_call(&argument, w);
    argument.count = (unsigned)w->nest.loop.count;
    fill_dimensions(&w->nest.loop, w->nest.inputs, ndim, argument.dim, argument.stride);
    int64_t block = (int64_t)POINTWISE_THREADS * w->access.unroll * w->access.vec;
    cup__grid grid = {.x = (w->nest.loop.count + block - 1) / block, .threads = POINTWISE_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

static work part_of(const void *user, const int64_t *offset)
{
    work w = *(const work *)user;
    for (int k = 0; k < w.nest.inputs; k++)
        w.nest.x[k] += offset[k + 1] * cup_dtype_size(w.nest.x_dtype[k]);
    for (int j = 0; j < w.nest.results; j++)
        w.nest.y[j] += offset[0] * cup_dtype_size(w.nest.y_dtype[j]);
    return w;
}

static cup_status run_plain(const cup__loop *part, const int64_t *offset, void *user)
{
    work w = part_of(user, offset);
    w.nest.loop = *part;
    w.access = cup__access_plan_make(&w.nest, NULL,
                                     cup__cuda_facts(cup__cuda_of(w.call->c->device)));
    return launch_plain(&w);
}

/* Rows of an odd length are read in whole units from their first multiple of 16 bytes on, where all
 * inputs that lie side by side have that at the same place. */

/* Whether input k lies as input `first` does, as far as 16 bytes go. */
static bool lies_as(const work *w, int first, int k)
{
    const cup__nest *n = &w->nest;
    int64_t size = cup_dtype_size(n->x_dtype[first]);
    if (cup_dtype_size(n->x_dtype[k]) != size || w->folded.stride[k + 1][0] != 1 ||
        ((uintptr_t)n->x[k] - (uintptr_t)n->x[first]) % UNIT_BYTES)
        return false;
    for (int d = 0; d < w->kept.ndim; d++)
        if ((w->kept.stride[k + 1][d] - w->kept.stride[first + 1][d]) * size % UNIT_BYTES)
            return false;
    return true;
}

static void find_lead(work *w)
{
    const cup__nest *n = &w->nest;
    int first = -1;
    bool narrow = false;
    if (w->folded.ndim != 1)
        return;
    for (int k = 0; k < n->inputs; k++) {
        int64_t size = cup_dtype_size(n->x_dtype[k]);
        if (w->access.kind[k] == POINTWISE_SCALAR)
            continue;
        first = first < 0 ? k : first;
        narrow |= w->access.width[k] * size < UNIT_BYTES;
        if (!lies_as(w, first, k))
            return;
    }
    int vec = first < 0 ? 0 : UNIT_BYTES / (int)cup_dtype_size(n->x_dtype[first]);
    if (!narrow || w->plan->length < 4 * vec)
        return;
    w->lead = first;
    w->access.vec = vec;
    for (int k = 0; k < n->inputs; k++)
        if (w->access.kind[k] != POINTWISE_SCALAR)
            w->access.width[k] = vec;
}

/* Folding. How the work is cut depends on the shape and the card alone. */

static void cut_rows(work *w, int64_t units, int processors)
{
    int64_t rows = w->kept.count;
    w->team = 1;
    while (w->team < POINTWISE_THREADS && w->team * 4 < units)
        w->team *= 2;
    while (w->team < POINTWISE_THREADS && w->team < units &&
           rows * w->team < (int64_t)processors * 1024)
        w->team *= 2;
    int64_t blocks = (rows * w->team + POINTWISE_THREADS - 1) / POINTWISE_THREADS;
    while (blocks * w->parts < 4 * processors && units / (w->parts * 2) >= w->team * 4)
        w->parts *= 2;
    int64_t turns = units / w->parts / w->team;
    w->access.unroll = turns >= 4 && w->nest.inputs < 4 ? 4 : turns >= 2 ? 2 : 1;
}

static void cut_columns(work *w, int64_t units, int processors)
{
    int64_t blocks = (units + 31) / 32, length = w->plan->length;
    while (blocks * w->parts < 4 * processors && length / (w->parts * 2) >= 32)
        w->parts *= 2;
    w->team = 32;
    w->access.unroll = length / w->parts >= 32 && w->nest.inputs < 4 ? 4 : 2;
}

/* Where the partial results of parts go. */
static cup_status make_partial(const work *w, cup_tensor **partial)
{
    cup__shape shape = {.dtype = w->plan->wide ? CUP_F64 : CUP_F32,
                        .ndim = 2,
                        .size = {w->parts, w->kept.count}};
    for (int j = 0; j < w->program->results; j++) {
        partial[j] = cup__tensor_make(w->call->c, &shape, "formula");
        if (!partial[j])
            return w->call->c->error.status;
    }
    return CUP_OK;
}

static cup_status launch_fold(const work *w)
{
    cup__cuda *gpu = cup__cuda_of(w->call->c->device);
    bool rows = w->mode == EXPRESSION_ROWS;
    int vec = w->access.vec;
    int ndim = rows ? power_of_two(w->kept.ndim) : w->access.ndim;
    int folded_ndim = rows ? w->access.ndim : power_of_two(w->folded.ndim);
    cup__knob knobs[KNOBS];
    int count = make_knobs(w, ndim, folded_ndim, knobs);
    cup__kernel *kernel = get_kernel(w->call->c, w->program, knobs, count);
    if (!kernel)
        return w->call->c->error.status;
    expression_call argument;
    expression_space kept = {0}, folded = {0};
    fill_call(&argument, w);
    argument.count = (unsigned)w->kept.count;
    argument.length = (unsigned)w->plan->length;
    int64_t units = rows ? w->plan->length / vec : w->plan->length;
    argument.part = (unsigned)((units + w->parts - 1) / w->parts * (rows ? vec : 1));
    fill_dimensions(&w->kept, w->nest.inputs, ndim, kept.dim, kept.stride);
    fill_dimensions(&w->folded, w->nest.inputs, folded_ndim, folded.dim, folded.stride);
    int64_t block = rows ? POINTWISE_THREADS / w->team : 32 * vec;
    cup__grid grid = {.x = (w->kept.count + block - 1) / block,
                      .y = w->parts,
                      .threads = POINTWISE_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument), CUP__ARG(kept), CUP__ARG(folded));
}

/* The program that folds partial results: of as many inputs, each a result. */
static cup__program *finisher(const work *w)
{
    cup__graph g;
    cup_context *c = w->call->c;
    cup__formula f = {.graph = &g,
                      .inputs = w->program->results,
                      .results = w->program->results,
                      .folded = true,
                      .axis_count = 1,
                      .derivative = true};
    cup__graph_open(&g, &c->error, CUP_EXPR_RESULTS);
    bool good = true;
    for (int j = 0; j < f.results && good; j++) {
        int fold = w->program->result[j].fold;
        f.result[j] = (cup__program_result){cup__graph_leaf(&g, CUP__INPUT, j),
                                            fold == CUP_FOLD_MEAN ? CUP_FOLD_SUM : fold,
                                            (int)w->nest.y_dtype[j]};
        good = f.result[j].node >= 0;
    }
    cup__program *p = good ? cup__program_get(c, &f) : NULL;
    cup__graph_close(&g);
    return p;
}

static cup_status finish(const work *w, cup_tensor **partial)
{
    cup__program *p = finisher(w);
    if (!p)
        return w->call->c->error.status;
    cup_tensor out[CUP_EXPR_RESULTS];
    cup__expr_attributes attributes = {.program = p};
    cup__call call = *w->call;
    call.row = &p->row;
    call.op = &p->op;
    call.attributes = &attributes;
    call.in = partial;
    call.in_count = p->inputs;
    for (int j = 0; j < p->results; j++) {
        out[j] = *w->call->out[j];
        out[j].data = w->nest.y[j];
        out[j].ndim = 1;
        out[j].shape[0] = out[j].count = w->kept.count;
        call.out[j] = &out[j];
    }
    return cup__expr_cuda(&call);
}

static cup_status run_fold(const cup__loop *part, const int64_t *offset, void *user)
{
    work w = part_of(user, offset);
    bool rows = w.mode == EXPRESSION_ROWS;
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(w.call->c->device));
    w.kept = *part;
    w.nest.loop = rows ? w.folded : w.kept;
    if (rows)
        w.nest.results = 0; /* the results are not written in units */
    w.access = cup__access_plan_make(&w.nest, rows ? &w.kept : &w.folded, facts);
    w.nest.results = w.program->results;
    w.parts = 1;
    if (rows)
        find_lead(&w);
    if (rows)
        cut_rows(&w, w.plan->length / w.access.vec, facts->multiprocessors);
    else
        cut_columns(&w, w.kept.count / w.access.vec, facts->multiprocessors);
    if (w.parts == 1)
        return launch_fold(&w);
    cup_tensor *partial[CUP_EXPR_RESULTS] = {NULL};
    work first = w;
    cup_status status = make_partial(&w, partial);
    for (int j = 0; j < w.nest.results && status == CUP_OK; j++) {
        first.nest.y[j] = partial[j]->data;
        first.nest.y_dtype[j] = partial[j]->dtype;
    }
    if (status == CUP_OK)
        status = launch_fold(&first);
    if (status == CUP_OK)
        status = finish(&w, partial);
    for (int j = 0; j < w.nest.results; j++)
        cup_tensor_free(partial[j]);
    return status;
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

static cup_status run_work(work *w)
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
    if (w->mode == EXPRESSION_PLAIN)
        return cup__loop_parts(&loops.kept, run_plain, w);
    if (!cup__loop_fits(&w->folded))
        return cup__call_fail(w->call, CUP_UNSUPPORTED,
                              "what is folded together lies more than 2^31 elements apart; fold "
                              "an unfolded formula's result with cup_sum and the like");
    return cup__loop_parts(&loops.kept, run_fold, w);
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
        work w = {.call = call, .plan = &plan,
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
