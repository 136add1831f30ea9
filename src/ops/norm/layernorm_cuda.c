/* Layernorm and its kin on the GPU: knobs and launches of layernorm.cu. */
#include <string.h>

#include "base/divide.h"
#include "dispatch/attributes.h"
#include "ops/norm/layernorm.h"
#include "dispatch/rows.h"

#define BLOCK 128     /* threads of a forward block, at least */
#define GROUP_MOST 512
#define SHIFTED_LEAST 64 /* elements of a row; of shorter ones too many vectors are cut */
#define FINISH 32     /* columns a block of layernorm_finish adds up */
#define FINISH_THREADS 256
#define SLICES_MOST 64
#define BLOCKS_EACH 16 /* of a multiprocessor, one after the other, for sums over columns */
#define KNOBS 11

static int widest(cup_dtype dtype)
{
    return 16 / (int)cup_dtype_size(dtype);
}

const char *cup__layernorm_cuda_refuses(const cup__call *call)
{
    int x = call->op == &cup__op_layernorm_grad ? 1 : 0;
    int64_t width = call->in[x]->ndim ? call->in[x]->shape[call->in[x]->ndim - 1] : 1;
    return width > INT32_MAX ? "a row has more than 2^31 - 1 elements" : NULL;
}

static cup_dtype param_dtype(const cup_tensor *gamma, const cup_tensor *beta, cup_dtype otherwise)
{
    return gamma ? gamma->dtype : beta ? beta->dtype : otherwise;
}

/* An eps in the type the kernel computes in. */
typedef union number {
    float f32;
    double f64;
} number;

static cup__argument number_of(number *n, double value, bool is_f64)
{
    if (is_f64)
        n->f64 = value;
    else
        n->f32 = (float)value;
    return (cup__argument){n, is_f64 ? sizeof n->f64 : sizeof n->f32};
}

int cup__layernorm_vec(const cup__layernorm *n, bool *shift)
{
    int most = widest(n->x->dtype), vec = most, any = most;
    const cup_tensor *all[] = {n->x, n->residual, n->y, n->sum, n->gamma, n->beta};
    for (int i = 0; i < 6; i++) {
        vec = (int)smaller(vec, cup__row_vec(all[i], n->width, most));
        any = (int)smaller(any, cup__row_vec(all[i], most, most));
    }
    *shift = vec < most && any == most && n->width >= SHIFTED_LEAST;
    return *shift ? most : vec;
}

/* Groups whose threads take up to `most` vectors of a row, or half as much again where that leaves
 * fewer of them idle; in blocks of at least BLOCK threads. */
static cup__row_plan plan_forward(const cup__layernorm *n, bool *shift)
{
    int vec = cup__layernorm_vec(n, shift), bytes = vec * (int)cup_dtype_size(n->x->dtype);
    int most = bytes == 16 ? 4 : bytes == 8 ? 6 : 12, group = 4;
    if (n->residual)
        most = most * 3 / 4;
    if (n->x->dtype == CUP_F64)
        most /= 2;
    int64_t vectors = (n->width + (*shift ? 2 : 1) * (vec - 1)) / vec;
    while (group < 32 && vectors > group)
        group *= 2;
    while (group < GROUP_MOST && vectors > (int64_t)group * most)
        group *= 2;
    int64_t pieces = (vectors + group - 1) / group, more = (vectors + group / 2 - 1) / (group / 2);
    if (group > 32 && more * 2 <= 3 * most && more < 2 * pieces) {
        group /= 2;
        pieces = more;
    }
    if (pieces > most + most / 2) {
        if (*shift)
            vec = 1;
        *shift = false;
        return (cup__row_plan){vec, GROUP_MOST, most, GROUP_MOST, false};
    }
    return (cup__row_plan){vec, group, (int)pieces, group < BLOCK ? BLOCK : group, true};
}

/* Blocks of a multiprocessor that the compiler leaves registers for, where that was faster on a
 * card than what it does by itself. */
static int blocks_of(const cup__layernorm *n, const cup__row_plan *p, bool shift)
{
    bool held = cup__layernorm_holds(n) && !n->residual && n->x->dtype != CUP_F64;
    if (!p->fits || shift || !held || p->vec * (int)cup_dtype_size(n->x->dtype) < 16)
        return 1;
    int threads = p->pieces > 4 || (p->pieces == 4 && p->group <= 128) ? 768 : 1024;
    return threads / p->threads;
}

bool cup__layernorm_holds(const cup__layernorm *n)
{
    cup_dtype param = param_dtype(n->gamma, n->beta, n->x->dtype);
    return cup_dtype_size(param) <= cup_dtype_size(n->x->dtype);
}

bool cup__layernorm_fits(const cup__layernorm *n)
{
    bool shift;
    return plan_forward(n, &shift).fits;
}

cup_status cup__layernorm_cuda(cup__call *call)
{
    cup__layernorm n = cup__layernorm_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    bool shift;
    if (n.width == 0)
        return cup__layernorm_of_nothing(call, &n);
    cup__row_plan plan = plan_forward(&n, &shift);
    int64_t groups = plan.threads / plan.group;
    bool full = plan.fits && !shift && n.rows % groups == 0 &&
                (int64_t)plan.group * plan.pieces * plan.vec == n.width;
    /* What takes as long as a launch, as when texts are written, begins while the kernel in front
     * of it ends. */
    int64_t blocks = (n.rows + groups - 1) / groups;
    bool dependent = blocks <= cup__cuda_facts(gpu)->multiprocessors;
    const cup__knob knobs[] = {{"CUP_T", n.x->dtype},
                               {"PARAM", param_dtype(n.gamma, n.beta, n.x->dtype)},
                               {"CENTRED", n.centred},
                               {"ADD", n.residual != NULL},
                               {"LONG", !plan.fits},
                               {"VEC", plan.vec},
                               {"GROUP", plan.group},
                               {"PIECES", plan.pieces},
                               {"THREADS", plan.threads},
                               {"SHIFT", shift},
                               {"FULL", full},
                               {"HOLD", cup__layernorm_holds(&n)},
                               {"BLOCKS", blocks_of(&n, &plan, shift)},
                               {"DEPENDENT", dependent}};
    cup__kernel *kernel = cup__kernel_get(gpu, "layernorm.cu", "layernorm_fwd", knobs, 14);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = blocks, .threads = plan.threads, .dependent = dependent};
    int width = (int)n.width;
    number eps;
    void *x = n.x->data, *residual = cup__data_of(n.residual), *gamma = cup__data_of(n.gamma);
    void *beta = cup__data_of(n.beta), *y = n.y->data, *sum = cup__data_of(n.sum);
    void *mean = cup__data_of(n.mean), *rstd = cup__data_of(n.rstd);
    CUP_TRY(cup__launch(gpu, kernel, grid, CUP__ARG(x), CUP__ARG(residual), CUP__ARG(gamma),
                        CUP__ARG(beta), CUP__ARG(y), CUP__ARG(sum), CUP__ARG(mean),
                        CUP__ARG(rstd), CUP__ARG(n.rows), CUP__ARG(width),
                        number_of(&eps, n.eps, n.x->dtype == CUP_F64)));
    cup__launch_known(gpu);
    const cup_tensor *written[] = {n.y, n.sum, n.mean, n.rstd};
    for (int i = 0; i < 4; i++)
        if (written[i])
            cup__launch_writes(gpu, written[i]->data,
                               written[i]->count * cup_dtype_size(written[i]->dtype));
    return CUP_OK;
}

/* The launches of one backward call: what they have in common. */
typedef struct backward {
    cup__layernorm_back b;
    cup__cuda *gpu;
    cup__row_plan plan;
    cup__knob knobs[KNOBS];
    bool prefetch;
    int parts;         /* partial rows of a block: dgamma, dbeta */
    int64_t blocks;    /* that write them */
    int64_t shared;    /* bytes they need */
    cup_tensor *partial;
    int width;
    cup_dtype sums; /* of sums */
} backward;

/* How many rows and elements a thread holds, by its registers: a row of x and dy as they lie in
 * memory, the next one of each unless `prefetch` is off, and two sums an element. */
static void plan_groups(backward *w)
{
    const cup__layernorm_back *b = &w->b;
    int size = (int)cup_dtype_size(b->x->dtype), vec = 16 / size;
    const cup_tensor *all[] = {b->dy, b->x, b->dsum, b->dx, b->gamma};
    for (int i = 0; i < 5; i++)
        vec = (int)smaller(vec, cup__row_vec(all[i], b->width, vec));
    /* A 16-bit element by itself takes a whole register. */
    int held = vec * size < 4 ? 4 : size, wide = 32 / held;
    int narrow = size == 8 ? 8 : vec == 1 ? 16 : 24;
    w->plan = cup__plan_rows(b->width, vec, narrow, wide);
    w->prefetch = w->plan.group <= 512;
    if (!w->prefetch || !w->plan.fits) {
        wide = wide > 8 ? 16 : 2 * wide;
        w->plan = cup__plan_rows(b->width, vec, narrow, wide);
    }
    int threads = w->plan.group <= 32 && w->plan.pieces * vec > wide ? 256 : 512;
    if (w->plan.threads < threads)
        w->plan.threads = threads;
    w->shared = w->parts * b->width * (size == 8 ? 8 : 4);
    /* A thousand threads have too few registers each to keep the sums of their columns. */
    w->plan.fits &= w->plan.group <= 512 &&
                    w->shared <= cup__cuda_facts(w->gpu)->shared_per_block;
    int each = 32 / held;
    if (!w->plan.fits)
        w->plan = (cup__row_plan){vec, 512, each > vec ? each / vec : 1, 512, false};
}

static void plan_backward(backward *w, const cup__call *call)
{
    const cup__layernorm_back *b = &w->b;
    const cup__layernorm_grad_attributes *a = call->attributes;
    w->width = (int)b->width;
    w->sums = b->x->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    w->parts = b->dbeta ? 2 : b->dgamma ? 1 : 0;
    plan_groups(w);
    const cup__knob knobs[KNOBS] = {{"CUP_T", b->x->dtype},
                                    {"PARAM", param_dtype(b->gamma, NULL, a->dtype)},
                                    {"CENTRED", b->mean != NULL},
                                    {"DSUM", b->dsum != NULL},
                                    {"PARTS", w->parts},
                                    {"VEC", w->plan.vec},
                                    {"GROUP", w->plan.group},
                                    {"PIECES", w->plan.pieces},
                                    {"THREADS", w->plan.threads},
                                    {"LONG", !w->plan.fits},
                                    {"PREFETCH", w->prefetch}};
    memcpy(w->knobs, knobs, sizeof knobs);
    int64_t groups = w->plan.threads / w->plan.group;
    int64_t most = cup__cuda_facts(w->gpu)->multiprocessors;
    w->blocks = (b->rows + groups - 1) / groups;
    if (!w->plan.fits) {
        int64_t tiles = (b->width + 32 * w->plan.vec - 1) / (32 * w->plan.vec);
        most = BLOCKS_EACH * most / tiles + 1;
        most = most < SLICES_MOST ? most : SLICES_MOST;
    }
    if (w->blocks > most)
        w->blocks = most;
}

static cup__kernel *kernel_of(backward *w, const char *entry)
{
    return cup__kernel_get(w->gpu, "layernorm_grad.cu", entry, w->knobs, KNOBS);
}

static cup_status launch_whole(backward *w)
{
    const cup__layernorm_back *b = &w->b;
    cup__kernel *kernel = kernel_of(w, "layernorm_bwd");
    if (!kernel)
        return b->x->context->error.status;
    cup__grid grid = {.x = w->blocks, .threads = w->plan.threads, .shared = (int)w->shared};
    void *mean = cup__data_of(b->mean), *gamma = cup__data_of(b->gamma);
    void *dsum = cup__data_of(b->dsum), *partial = cup__data_of(w->partial);
    return cup__launch(w->gpu, kernel, grid, CUP__ARG(b->dy->data), CUP__ARG(b->x->data),
                       CUP__ARG(mean), CUP__ARG(b->rstd->data), CUP__ARG(gamma), CUP__ARG(dsum),
                       CUP__ARG(b->dx->data), CUP__ARG(partial), CUP__ARG(b->rows),
                       CUP__ARG(w->width));
}

/* Long rows: their sums in parts, so that all multiprocessors have work, then dx and the sums over
 * columns in slices of rows. */
static cup_status launch_dots(backward *w, int parts, int step, void *dots, void *of_rows)
{
    const cup__layernorm_back *b = &w->b;
    cup__kernel *kernel = kernel_of(w, "layernorm_bwd_dots");
    cup__kernel *join = kernel ? kernel_of(w, "layernorm_bwd_means") : NULL;
    if (!join)
        return b->x->context->error.status;
    cup__grid grid = {.x = b->rows * parts, .threads = w->plan.threads};
    void *mean = cup__data_of(b->mean), *gamma = cup__data_of(b->gamma);
    CUP_TRY(cup__launch(w->gpu, kernel, grid, CUP__ARG(b->dy->data), CUP__ARG(b->x->data),
                        CUP__ARG(mean), CUP__ARG(b->rstd->data), CUP__ARG(gamma), CUP__ARG(dots),
                        CUP__ARG(w->width), CUP__ARG(step), CUP__ARG(parts)));
    grid = (cup__grid){.x = (b->rows + 7) / 8, .threads = 256};
    return cup__launch(w->gpu, join, grid, CUP__ARG(dots), CUP__ARG(of_rows), CUP__ARG(b->rows),
                       CUP__ARG(w->width), CUP__ARG(parts));
}

static cup_status launch_columns(backward *w, void *of_rows)
{
    const cup__layernorm_back *b = &w->b;
    cup__kernel *kernel = kernel_of(w, "layernorm_bwd_columns");
    if (!kernel)
        return b->x->context->error.status;
    int64_t slice = (b->rows + w->blocks - 1) / w->blocks, tile = 32 * w->plan.vec;
    cup__grid grid = {.x = (b->width + tile - 1) / tile, .y = w->blocks, .threads = 256};
    void *mean = cup__data_of(b->mean), *gamma = cup__data_of(b->gamma);
    void *dsum = cup__data_of(b->dsum), *partial = cup__data_of(w->partial);
    return cup__launch(w->gpu, kernel, grid, CUP__ARG(b->dy->data), CUP__ARG(b->x->data),
                       CUP__ARG(mean), CUP__ARG(b->rstd->data), CUP__ARG(gamma), CUP__ARG(dsum),
                       CUP__ARG(of_rows), CUP__ARG(b->dx->data), CUP__ARG(partial),
                       CUP__ARG(b->rows), CUP__ARG(slice), CUP__ARG(w->width));
}

static cup_status launch_long(backward *w)
{
    const cup__layernorm_back *b = &w->b;
    int64_t span = (int64_t)w->plan.threads * w->plan.pieces * w->plan.vec;
    int64_t wanted = 8 * (int64_t)cup__cuda_facts(w->gpu)->multiprocessors / b->rows + 1;
    int64_t spans = (b->width + span - 1) / span, step = (spans + wanted - 1) / wanted * span;
    int64_t parts = (b->width + step - 1) / step;
    cup__shape shape = {w->sums, 2, {b->rows * (parts + 1), 2}};
    cup_tensor *dots = cup__tensor_make(b->x->context, &shape, "sums of rows");
    if (!dots)
        return b->x->context->error.status;
    void *of_rows = (char *)dots->data + b->rows * parts * 2 * cup_dtype_size(w->sums);
    cup_status status = launch_dots(w, (int)parts, (int)step, dots->data, of_rows);
    if (status == CUP_OK)
        status = launch_columns(w, of_rows);
    cup_tensor_free(dots);
    return status;
}

cup_tensor *cup__layernorm_partial(cup_context *c, const cup__layernorm_back *b, int parts,
                                   int64_t blocks)
{
    cup__shape shape = {
        b->x->dtype == CUP_F64 ? CUP_F64 : CUP_F32, 3, {blocks, parts, b->width}};
    return cup__tensor_make(c, &shape, "partial sums");
}

cup_status cup__layernorm_finish(cup__call *call, const cup__layernorm_back *b, cup_tensor *partial)
{
    const cup__layernorm_grad_attributes *a = call->attributes;
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__knob knobs[] = {{"CUP_T", b->x->dtype}, {"RESULT", a->dtype}};
    cup__kernel *kernel = cup__kernel_get(gpu, "layernorm_finish.cu", "layernorm_finish", knobs, 2);
    if (!kernel)
        return call->c->error.status;
    int width = (int)b->width, count = (int)partial->shape[0];
    int columns = (int)partial->shape[1] * width;
    cup__grid grid = {.x = (columns + FINISH - 1) / FINISH, .threads = FINISH_THREADS,
                      .dependent = true};
    void *dgamma = cup__data_of(b->dgamma), *dbeta = cup__data_of(b->dbeta);
    return cup__launch(gpu, kernel, grid, CUP__ARG(partial->data), CUP__ARG(dgamma),
                       CUP__ARG(dbeta), CUP__ARG(count), CUP__ARG(width), CUP__ARG(columns));
}

cup_status cup__layernorm_back_cuda(cup__call *call)
{
    backward w = {.b = cup__layernorm_back_of(call), .gpu = cup__cuda_of(call->c->device)};
    plan_backward(&w, call);
    if (w.parts) {
        w.partial = cup__layernorm_partial(call->c, &w.b, w.parts, w.blocks);
        if (!w.partial)
            return call->c->error.status;
    }
    cup_status status = w.b.rows == 0 ? CUP_OK
                        : w.plan.fits ? launch_whole(&w)
                                      : launch_long(&w);
    if (status == CUP_OK && w.parts)
        status = cup__layernorm_finish(call, &w.b, w.partial);
    cup_tensor_free(w.partial);
    return status;
}
