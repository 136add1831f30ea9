/* Formulas on the GPU whose results are folded. */
#include "base/divide.h"
#include "custom/work.h"

#define UNIT_BYTES 16
/* Blocks a processor from which on work is not cut into more parts, as a sweep showed. */
#define ROW_BLOCKS 24
#define COLUMN_BLOCKS 2
#define ODD_BLOCKS 4

/* Rows of an odd length are read in whole units from their first multiple of 16 bytes on, where all
 * inputs that lie side by side have that at the same place. */

/* Whether input k lies as input `first` does, as far as 16 bytes go. */
static bool lies_as(const cup__work *w, int first, int k)
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

static void find_lead(cup__work *w)
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
    if (!narrow || w->length < 4 * vec)
        return;
    w->lead = first;
    w->access.vec = vec;
    for (int k = 0; k < n->inputs; k++)
        if (w->access.kind[k] != POINTWISE_SCALAR)
            w->access.width[k] = vec;
}

/* Columns of an odd number are taken in units that are cut out of lines of 16 bytes, the last of
 * them so that it ends with the columns: what it shares with the one before is made twice. */
static void find_odd(cup__work *w)
{
    const cup__nest *n = &w->nest;
    int least = UNIT_BYTES, most = 1;
    for (int k = 0; k < n->inputs; k++) {
        int size = (int)cup_dtype_size(n->x_dtype[k]);
        if (w->access.kind[k] != POINTWISE_FLAT)
            continue;
        least = size < least ? size : least;
        most = size > most ? size : most;
    }
    int vec = UNIT_BYTES / least;
    if (w->kept.ndim != 1 || w->access.vec * least >= UNIT_BYTES || vec * most > 4 * UNIT_BYTES ||
        w->kept.count < 32 * vec)
        return;
    w->odd = true;
    w->access.vec = vec;
    for (int k = 0; k < n->inputs; k++)
        if (w->access.kind[k] == POINTWISE_FLAT)
            w->access.width[k] = cup__unit_is_lines(vec, cup_dtype_size(n->x_dtype[k])) ? 0 : 1;
}

/* Folding. How the work is cut depends on the shape and the card alone. */

static void cut_rows(cup__work *w, int64_t units, int processors)
{
    int64_t rows = w->kept.count;
    w->team = 1;
    while (w->team < POINTWISE_THREADS && w->team * 4 < units)
        w->team *= 2;
    while (w->team < POINTWISE_THREADS && w->team < units &&
           rows * w->team < (int64_t)processors * 1024)
        w->team *= 2;
    int64_t blocks = (rows * w->team + POINTWISE_THREADS - 1) / POINTWISE_THREADS;
    while (blocks * w->parts < ROW_BLOCKS * processors && units / (w->parts * 2) >= w->team * 4)
        w->parts *= 2;
    int64_t turns = units / w->parts / w->team;
    w->access.unroll = turns >= 4 && w->nest.inputs < 4 ? 4 : turns >= 2 ? 2 : 1;
}

static void cut_columns(cup__work *w, int64_t units, int processors)
{
    int64_t blocks = (units + 31) / 32, length = w->length;
    int64_t wanted = (w->odd ? ODD_BLOCKS : COLUMN_BLOCKS) * (int64_t)processors;
    while (blocks * w->parts < wanted && length / (w->parts * 2) >= 32)
        w->parts *= 2;
    w->team = 32;
    w->access.unroll = !w->odd && length / w->parts >= 32 && w->nest.inputs < 4 ? 4 : 2;
}

/* Where the partial results of parts go. */
static cup_status make_partial(const cup__work *w, int64_t parts, cup_tensor **partial)
{
    cup__shape shape = {.dtype = w->plan->wide ? CUP_F64 : CUP_F32,
                        .ndim = 2,
                        .size = {parts, w->kept.count}};
    for (int j = 0; j < w->program->results; j++) {
        partial[j] = cup__tensor_make(w->call->c, &shape, "formula");
        if (!partial[j])
            return w->call->c->error.status;
    }
    return CUP_OK;
}

static cup_status launch_fold(const cup__work *w)
{
    cup__cuda *gpu = cup__cuda_of(w->call->c->device);
    bool rows = w->mode == EXPRESSION_ROWS;
    int vec = w->access.vec;
    int ndim = rows ? (int)power_from(w->kept.ndim) : w->access.ndim;
    int folded_ndim = rows ? w->access.ndim : (int)power_from(w->folded.ndim);
    cup__knob knobs[CUP__WORK_KNOBS];
    int count = cup__work_knobs(w, ndim, folded_ndim, knobs);
    cup__kernel *kernel = cup__work_kernel(w, knobs, count);
    if (!kernel)
        return w->call->c->error.status;
    expression_call argument;
    expression_space kept = {0}, folded = {0};
    cup__work_call(w, &argument);
    argument.count = (unsigned)w->kept.count;
    argument.length = (unsigned)w->length;
    int64_t units = rows ? w->length / vec : w->length;
    argument.part = (unsigned)((units + w->parts - 1) / w->parts * (rows ? vec : 1));
    cup__work_dimensions(&w->kept, w->nest.inputs, ndim, kept.dim, kept.stride);
    cup__work_dimensions(&w->folded, w->nest.inputs, folded_ndim, folded.dim, folded.stride);
    int64_t block = rows ? POINTWISE_THREADS / w->team : 32 * vec;
    cup__grid grid = {.x = (w->kept.count + block - 1) / block,
                      .y = w->parts,
                      .threads = POINTWISE_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument), CUP__ARG(kept), CUP__ARG(folded));
}

/* The program that folds partial results: of as many inputs, each a result. */
static cup__program *finisher(const cup__work *w)
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
                                            fold == CUP_EXPR_FOLD_MEAN ? CUP_EXPR_FOLD_SUM : fold,
                                            (int)w->nest.y_dtype[j]};
        good = f.result[j].node >= 0;
    }
    cup__program *p = good ? cup__program_get(c, &f) : NULL;
    cup__graph_close(&g);
    return p;
}

static cup_status finish(const cup__work *w, cup_tensor **partial)
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
        out[j].dtype = w->nest.y_dtype[j];
        out[j].ndim = 1;
        out[j].shape[0] = out[j].count = w->kept.count;
        call.out[j] = &out[j];
    }
    return cup__expr_cuda(&call);
}

static cup_status run_fold(const cup__loop *part, const int64_t *offset, void *user)
{
    cup__work w = cup__work_part(user, offset);
    bool rows = w.mode == EXPRESSION_ROWS;
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(w.call->c->device));
    w.kept = *part;
    w.nest.loop = rows ? w.folded : w.kept;
    if (rows)
        w.nest.results = 0; /* the results are not written in units */
    w.access = cup__access_plan_make(&w.nest, rows ? &w.kept : &w.folded, facts);
    w.nest.results = w.program->results;
    w.parts = 1;
    if (rows) {
        find_lead(&w);
        cut_rows(&w, w.length / w.access.vec, facts->multiprocessors);
    } else {
        find_odd(&w);
        cut_columns(&w, (w.kept.count + w.access.vec - 1) / w.access.vec, facts->multiprocessors);
    }
    if (w.parts == 1)
        return launch_fold(&w);
    cup_tensor *partial[CUP_EXPR_RESULTS] = {NULL};
    cup__work first = w;
    cup_status status = make_partial(&w, w.parts, partial);
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

/* What lies further apart than 32 bits reach is folded in parts, whose results are folded. */

typedef struct far {
    const cup__work *work;
    cup_tensor **partial; /* NULL: the parts are only counted */
    int64_t parts;
} far;

static cup_status run_far_part(const cup__loop *part, const int64_t *offset, void *user)
{
    far *f = user;
    int64_t at = f->parts++;
    if (!f->partial)
        return CUP_OK;
    cup__work w = cup__work_part(f->work, offset);
    for (int j = 0; j < w.nest.results; j++) {
        w.nest.y_dtype[j] = f->partial[j]->dtype;
        w.nest.y[j] = (char *)f->partial[j]->data +
                      at * w.kept.count * cup_dtype_size(w.nest.y_dtype[j]);
    }
    w.folded = *part;
    w.length = part->count;
    const int64_t here[CUP__LOOP_MOST] = {0};
    return run_fold(&w.kept, here, &w);
}

static cup_status run_far(const cup__loop *part, const int64_t *offset, void *user)
{
    cup__work w = cup__work_part(user, offset);
    cup_tensor *partial[CUP_EXPR_RESULTS] = {NULL};
    far f = {.work = &w};
    w.kept = *part;
    cup_status status = cup__loop_parts(&w.folded, run_far_part, &f);
    if (status == CUP_OK)
        status = make_partial(&w, f.parts, partial);
    f.partial = partial;
    f.parts = 0;
    if (status == CUP_OK)
        status = cup__loop_parts(&w.folded, run_far_part, &f);
    if (status == CUP_OK)
        status = finish(&w, partial);
    for (int j = 0; j < w.nest.results; j++)
        cup_tensor_free(partial[j]);
    return status;
}

cup_status cup__work_fold(cup__work *w)
{
    cup__loop kept = w->kept;
    return cup__loop_parts(&kept, cup__loop_fits(&w->folded) ? run_fold : run_far, w);
}
