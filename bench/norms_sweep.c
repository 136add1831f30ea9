/* Times many knobs of layernorm's kernels on this card, on random data with the L2 cache
 * flushed, and holds their results against those of the op as it is. `norms_sweep time` does that;
 * `norms_sweep warm I N` only compiles every N-th kernel, so that several processes can fill the
 * kernel cache together. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"
#include "tensor/context.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
#define FLUSH ((size_t)256 << 20)
#define ROUNDS 15
#define SHARED_MOST (227 * 1024)
#define PLANS_MOST 600
#define COMPARED ((int64_t)1 << 20)

typedef struct job {
    int64_t rows;
    int width;
    cup_dtype dtype;
    bool centred, back;
} job;

typedef struct plan {
    int group, pieces, threads, blocks, stages, full;
    double us, error;
} plan;

typedef struct rig {
    cup_context *c;
    cup__cuda *gpu;
    cup__timer *timer;
    void *flush;
    cup_tensor *x, *dy, *gamma, *beta, *mean, *rstd, *y, *want, *partial, *dgamma, *dbeta;
    int warm, warm_of, kernels;
} rig;

static void fail(rig *r, const char *what)
{
    printf("FAILED %s: %s\n", what, cup_error_text(r->c));
    fflush(stdout);
    exit(1);
}

static cup__kernel *kernel_of(rig *r, const job *j, const plan *p)
{
    int vec = 16 / (int)cup_dtype_size(j->dtype);
    const cup__knob knobs[] = {{"CUP_T", j->dtype},     {"PARAM", j->dtype},
                               {"CENTRED", j->centred}, {"VEC", vec},
                               {"GROUP", p->group},     {"PIECES", p->pieces},
                               {"THREADS", p->threads}, {"BLOCKS", p->blocks},
                               {"STAGES", p->stages},   {"PARTS", j->centred + 1},
                               {"FULL", p->full}};
    return cup__kernel_get(r->gpu, j->back ? "layernorm_ring_grad.cu" : "layernorm.cu",
                           j->back ? "layernorm_ring_bwd" : "layernorm_fwd", knobs, COUNT(knobs));
}

static int64_t shared_of(const job *j, const plan *p)
{
    int team = p->group < 32 ? 32 : p->group;
    int64_t row = j->width * cup_dtype_size(j->dtype) * (1 + j->back);
    int64_t places = (int64_t)(p->threads / team) * (team / p->group) * p->stages * row;
    int64_t sums = j->back ? (int64_t)(p->threads / p->group) * (j->centred + 1) * j->width * 4 : 0;
    return places > sums ? places : sums;
}

static cup_status finish(rig *r, const job *j, int count)
{
    const cup__knob knobs[] = {{"CUP_T", j->dtype}};
    cup__kernel *kernel =
        cup__kernel_get(r->gpu, "layernorm_finish.cu", "layernorm_finish", knobs, 1);
    int columns = (j->centred + 1) * j->width;
    cup__grid grid = {.x = (columns + 31) / 32, .threads = 512, .dependent = true};
    void *dbeta = j->centred ? r->dbeta->data : NULL;
    return cup__launch(r->gpu, kernel, grid, CUP__ARG(r->partial->data), CUP__ARG(r->dgamma->data),
                       CUP__ARG(dbeta), CUP__ARG(count), CUP__ARG(j->width), CUP__ARG(columns));
}

static cup_status launch(rig *r, const job *j, const plan *p)
{
    cup__kernel *kernel = kernel_of(r, j, p);
    if (!kernel)
        fail(r, "a kernel");
    if (r->warm_of)
        return CUP_OK;
    int64_t groups = p->threads / p->group;
    int64_t most = (int64_t)p->blocks * cup__cuda_facts(r->gpu)->multiprocessors;
    cup__grid grid = {.x = (j->rows + groups - 1) / groups, .threads = p->threads};
    void *mean = j->centred ? r->mean->data : NULL, *beta = j->centred ? r->beta->data : NULL;
    void *none = NULL;
    float eps = 1e-5f;
    if (!j->back)
        return cup__launch(r->gpu, kernel, grid, CUP__ARG(r->x->data), CUP__ARG(none),
                           CUP__ARG(r->gamma->data), CUP__ARG(beta), CUP__ARG(r->y->data),
                           CUP__ARG(none), CUP__ARG(none), CUP__ARG(none), CUP__ARG(j->rows),
                           CUP__ARG(j->width), CUP__ARG(eps));
    grid.shared = (int)shared_of(j, p);
    if (grid.x > most)
        grid.x = most;
    CUP_TRY(cup__launch(r->gpu, kernel, grid, CUP__ARG(r->dy->data), CUP__ARG(r->x->data),
                        CUP__ARG(mean), CUP__ARG(r->rstd->data), CUP__ARG(r->gamma->data),
                        CUP__ARG(none), CUP__ARG(r->y->data), CUP__ARG(r->partial->data),
                        CUP__ARG(j->rows), CUP__ARG(j->width)));
    return finish(r, j, (int)grid.x);
}

/* The op itself, forward for its statistics and, for a job backward, backward. */
static void reference(rig *r, const job *j)
{
    cup_tensor *in[] = {r->x, r->gamma, r->beta};
    cup__layernorm_attributes eps = {1e-5f};
    cup__call call;
    const cup__row *row = &cup__rows[j->centred ? CUP__OP_layernorm : CUP__OP_rmsnorm];
    if (cup__call_begin(&call, r->c, row, in, j->centred ? 3 : 2, &eps) != CUP_OK)
        fail(r, "the op");
    call.saving = true;
    call.out_count = row->results_count;
    call.out[0] = r->want;
    call.out[1] = j->centred ? r->mean : r->rstd;
    call.out[2] = j->centred ? r->rstd : NULL;
    if (cup__call_run(&call, cup__call_choose(&call)) != CUP_OK)
        fail(r, "the op");
    cup_tensor *dgamma, *dbeta;
    if (!j->back)
        return;
    cup__layernorm_grad(r->c, r->dy, r->x, r->rstd, j->centred ? r->mean : NULL, r->gamma, NULL,
                        j->dtype, true, j->centred, &r->want, &dgamma, &dbeta);
    if (cup_error(r->c) != CUP_OK)
        fail(r, "the gradient");
}

/* The largest difference at the end of two results, against their size. */
static double difference(rig *r, const job *j)
{
    int64_t all = j->rows * j->width, count = all < COMPARED ? all : COMPARED;
    size_t size = (size_t)cup_dtype_size(j->dtype), bytes = (size_t)count * size;
    size_t offset = (size_t)(all - count) * size;
    char *host = malloc(bytes);
    float *a = malloc((size_t)count * 4), *b = malloc((size_t)count * 4);
    cup__device *d = r->c->device;
    double worst = 0, squares = 0;
    if (d->calls->read(d, host, (char *)r->want->data + offset, bytes))
        fail(r, "reading");
    cup__load_f32(a, host, j->dtype, count);
    if (d->calls->read(d, host, (char *)r->y->data + offset, bytes))
        fail(r, "reading");
    cup__load_f32(b, host, j->dtype, count);
    for (int64_t i = 0; i < count; i++) {
        double e = fabs((double)a[i] - (double)b[i]);
        squares += (double)a[i] * (double)a[i];
        if (!(e <= worst))
            worst = isnan(e) ? INFINITY : e;
    }
    free(host);
    free(a);
    free(b);
    return worst / sqrt(squares / (double)count + 1e-30);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_us(const void *a, const void *b)
{
    return by_value(&((const plan *)a)->us, &((const plan *)b)->us);
}

static double time_plan(rig *r, const job *j, const plan *p)
{
    double us[ROUNDS];
    for (int i = -2; i < ROUNDS; i++) {
        double ms = 0;
        r->c->device->calls->fill(r->c->device, r->flush, 0x33, FLUSH);
        cup__timer_start(r->timer);
        cup_status status =
            p ? launch(r, j, p)
              : r->c->device->calls->copy(r->c->device, r->y->data, r->x->data,
                                          (size_t)(r->x->count * cup_dtype_size(j->dtype)));
        if (status != CUP_OK || cup__timer_stop(r->timer, &ms) != CUP_OK)
            fail(r, "timing");
        if (i >= 0)
            us[i] = ms * 1e3;
    }
    qsort(us, ROUNDS, sizeof *us, by_value);
    return us[ROUNDS / 2];
}

/* Adds backward plans for one group and block size that may fit registers and shared memory. */
static void add_backward(const job *j, plan p, plan *to, int *count)
{
    int held = p.pieces * 16 / (int)cup_dtype_size(j->dtype);
    for (p.blocks = 1; p.blocks <= 8; p.blocks++) {
        int all = p.threads * p.blocks;
        if (all < 256 || all > 768 || 65536 / all < 40 + held * 5)
            continue;
        for (p.stages = 2; p.stages <= 4; p.stages++) {
            int64_t shared = shared_of(j, &p) + 2048;
            if (shared * p.blocks <= SHARED_MOST && shared * p.blocks >= 40 << 10 &&
                *count < PLANS_MOST)
                to[(*count)++] = p;
        }
    }
}

static int plans_of(const job *j, plan *to)
{
    static const int threads[] = {64, 128, 192, 256, 320, 512, 1024};
    int vectors = j->width * (int)cup_dtype_size(j->dtype) / 16, count = 0;
    for (int group = 4; group <= 1024; group *= 2) {
        int pieces = (vectors + group - 1) / group;
        if (pieces > (j->back ? 4 : 8) || (group > 4 && pieces == 1 && vectors <= group / 2))
            continue;
        for (int t = 0; t < COUNT(threads); t++) {
            plan p = {.group = group, .pieces = pieces, .threads = threads[t]};
            if (p.threads % group || p.threads / group > (group > 32 ? 15 : 32))
                continue;
            int exact = p.full = group * pieces == vectors && j->rows % (p.threads / group) == 0;
            if (j->back)
                add_backward(j, p, to, &count);
            else if (p.threads <= 256 || p.threads == group)
                for (p.blocks = 1; p.blocks * p.threads <= 1536; p.blocks++)
                    if ((p.blocks == 1 || p.blocks * p.threads == 768 ||
                         p.blocks * p.threads == 1024 || p.blocks * p.threads == 1280) &&
                        count < PLANS_MOST)
                        for (p.full = 0; p.full <= exact; p.full++)
                            to[count++] = p;
        }
    }
    return count;
}

static cup_tensor *make(rig *r, cup_dtype dtype, int64_t rows, int64_t width)
{
    cup__shape shape = {dtype, 2, {rows, width}};
    if (rows == 0)
        shape = (cup__shape){dtype, 1, {width}};
    cup__normal_attributes a = {.dtype = dtype, .mean = 1, .deviation = 1,
                                .shape_count = shape.ndim};
    memcpy(a.shape, shape.size, sizeof a.shape);
    cup_tensor *t = cup__op_call(r->c, &cup__rows[CUP__OP_normal], NULL, 0, &a, NULL);
    if (!t)
        fail(r, "allocating");
    return t;
}

static void make_tensors(rig *r, const job *j)
{
    cup_tensor **large[] = {&r->x, &r->dy, &r->y, &r->want}, **small[] = {&r->gamma, &r->beta};
    for (int i = 0; i < COUNT(large); i++)
        *large[i] = make(r, j->dtype, j->rows, j->width);
    for (int i = 0; i < COUNT(small); i++)
        *small[i] = make(r, j->dtype, 0, j->width);
    r->dgamma = make(r, j->dtype, 0, j->width);
    r->dbeta = make(r, j->dtype, 0, j->width);
    r->mean = make(r, CUP_F32, 0, j->rows);
    r->rstd = make(r, CUP_F32, 0, j->rows);
    r->partial = make(r, CUP_F32, 2048, 2 * (int64_t)j->width);
}

static void run_job(rig *r, const job *j)
{
    static plan plans[PLANS_MOST];
    int count = plans_of(j, plans);
    cup_scope_open(r->c);
    if (!r->warm_of) {
        make_tensors(r, j);
        reference(r, j);
        printf("%s%s %lldx%d %s, copying x takes %.2f us\n", j->centred ? "layernorm" : "rmsnorm",
               j->back ? " backward" : "", (long long)j->rows, j->width, cup_dtype_name(j->dtype),
               time_plan(r, j, NULL));
    }
    for (int i = 0; i < count; i++) {
        if (r->warm_of && r->kernels++ % r->warm_of != r->warm)
            continue;
        if (launch(r, j, &plans[i]) != CUP_OK)
            fail(r, "launching");
        if (r->warm_of)
            continue;
        plans[i].error = difference(r, j);
        plans[i].us = time_plan(r, j, &plans[i]);
    }
    qsort(plans, (size_t)count, sizeof *plans, by_us);
    for (int i = 0; i < count && !r->warm_of; i++)
        if (i < 12 || plans[i].error > 0.05)
            printf("  %8.2f us  group %4d x %d  threads %4d  blocks %d  stages %d  full %d  "
                   "error %.2g\n",
                   plans[i].us, plans[i].group, plans[i].pieces, plans[i].threads, plans[i].blocks,
                   plans[i].stages, plans[i].full, plans[i].error);
    fflush(stdout);
    cup__scope_pop(r->c);
}

static const job jobs[] = {
    {1024, 768, CUP_F32, true, false},   {32768, 768, CUP_BF16, true, false},
    {8192, 4096, CUP_BF16, true, false}, {8192, 8192, CUP_BF16, true, false},
    {8192, 8192, CUP_BF16, false, false}, {8192, 4096, CUP_F32, true, false},
    {4096, 16384, CUP_BF16, true, false}, {8192, 8192, CUP_F32, true, false},
    {32768, 768, CUP_F32, true, false}, {8192, 5120, CUP_BF16, true, false},
    {32768, 768, CUP_BF16, false, false}, {1024, 768, CUP_F32, true, true},
    {32768, 768, CUP_BF16, true, true},  {8192, 4096, CUP_BF16, true, true},
    {8192, 8192, CUP_BF16, true, true},
};

int main(int count, char **words)
{
    rig r = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"))};
    if (cup_error(r.c) != CUP_OK)
        fail(&r, "opening the GPU");
    r.gpu = cup__cuda_of(r.c->device);
    if (count > 3) {
        r.warm = atoi(words[2]);
        r.warm_of = atoi(words[3]);
    } else if (r.c->device->calls->allocate(r.c->device, FLUSH, "flush", &r.flush) != CUP_OK ||
               cup__timer_new(r.gpu, &r.timer) != CUP_OK) {
        fail(&r, "a timer");
    }
    for (int i = 0; i < COUNT(jobs); i++)
        run_job(&r, &jobs[i]);
    cup__timer_free(r.timer);
    cup_context_free(r.c);
    return 0;
}
