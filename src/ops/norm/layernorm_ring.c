/* Gradients of layernorm and its kin on Hopper and later: knobs and launch of
 * layernorm_ring_grad.cu. The knobs are those that were best on an H200 (bench/norms_sweep.c). */
#include "dispatch/attributes.h"
#include "ops/norm/layernorm.h"
#include "dispatch/rows.h"

#define FLIGHT (64 << 10)      /* bytes of rows on the way to a multiprocessor */
#define FLIGHT_WIDE (96 << 10) /* to one with more threads */
#define STAGES_MOST 8
#define THREADS 256            /* of a block, unless a row needs more */
#define MOST 4                 /* vectors a thread holds */
#define SPARE 4096             /* shared memory for other things */

/* How rows are shared out. Empty when the kernels cannot take them. */
typedef struct ring_plan {
    int vec, group, pieces, threads, blocks, stages;
    int64_t shared;
    bool full, again; /* again: a row is worked on twice, not held in registers */
} ring_plan;

static int vectors_of(int64_t width, int vec)
{
    return (int)(width / vec);
}

/* The smallest group of up to `widest` threads that take few vectors each; of the widest they may
 * take more, and of 16-bit elements still more if they work on them twice. */
static void plan_group(ring_plan *p, int64_t width, int few, int most, int widest)
{
    int vectors = vectors_of(width, p->vec);
    for (p->group = 4; p->group < widest; p->group *= 2)
        if (vectors <= p->group * (p->group < 32 ? 2 : p->group == 32 ? 3 : few))
            break;
    p->again = p->group == widest && vectors > widest * most && p->vec == 8;
    if (p->group == widest && vectors > widest * most) {
        p->group = p->again ? THREADS : 2 * widest;
    }
    p->pieces = (vectors + p->group - 1) / p->group;
    p->full = p->group * p->pieces == vectors;
}

/* Stages for rows of `bytes` in all inputs together. */
static void plan_stages(ring_plan *p, int64_t bytes)
{
    int team = p->group < 32 ? 32 : p->group;
    int64_t stage = (int64_t)(p->threads / team) * (team / p->group) * bytes;
    int64_t stages = (p->threads > THREADS ? FLIGHT_WIDE : FLIGHT) / p->blocks / stage;
    p->stages = stages < 2 ? 2 : stages > STAGES_MOST ? STAGES_MOST : (int)stages;
    p->shared = stage * p->stages;
}

/* What the kernels ask of the card and of a row; NULL when they can take it. */
static const char *check(const cup__call *call, const cup_tensor *x, const cup_tensor *const *all,
                         int count, int64_t width, ring_plan *p)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    p->vec = 16 / (int)cup_dtype_size(x->dtype);
    if (facts->major < 9)
        return "it needs the asynchronous copies of Hopper";
    for (int i = 0; i < count; i++)
        if (cup__row_vec(all[i], width, p->vec) != p->vec)
            return "its rows are not whole 16-byte vectors";
    if (width < 4 * p->vec || width > 1 << 20)
        return "its rows are too short or too long";
    return NULL;
}

static int64_t blocks_for(const cup__cuda *gpu, const ring_plan *p, int64_t rows)
{
    int64_t most = (int64_t)p->blocks * cup__cuda_facts(gpu)->multiprocessors;
    int64_t blocks = (rows + p->threads / p->group - 1) / (p->threads / p->group);
    return blocks < most ? blocks : most;
}

static const char *plan_backward(const cup__call *call, const cup__layernorm_back *b, int parts,
                                 ring_plan *p)
{
    const cup_tensor *all[] = {b->dy, b->x, b->dsum, b->dx, b->gamma};
    int size = (int)cup_dtype_size(b->x->dtype), inputs = b->dsum ? 3 : 2;
    const char *why = check(call, b->x, all, 5, b->width, p);
    if (why)
        return why;
    /* Two sums and two values an element are held. Blocks of few threads leave registers for the
     * kernel that adds up partial sums; 16-bit elements take too much arithmetic for that. */
    bool is_short = size == 2;
    plan_group(p, b->width, is_short ? 2 : 3, is_short ? 2 : MOST, is_short ? 512 : THREADS);
    if (p->pieces > (p->again ? 2 * MOST : MOST))
        return "a row does not fit into the registers of a block";
    int threads = !is_short || p->again ? THREADS : p->group == 32 && p->pieces > 2 ? 320 : 512;
    p->threads = p->group > threads ? p->group : threads;
    p->blocks = 1;
    plan_stages(p, b->width * size * inputs);
    int64_t sums = (int64_t)(p->threads / p->group) * parts * b->width * (size == 8 ? 8 : 4);
    if (p->shared < sums)
        p->shared = sums;
    return p->shared + SPARE > cup__cuda_facts(cup__cuda_of(call->c->device))->shared_per_block
               ? "two rows do not fit into shared memory"
               : NULL;
}

static int parts_of(const cup__layernorm_back *b)
{
    return b->dbeta ? 2 : b->dgamma ? 1 : 0;
}

const char *cup__layernorm_back_ring_refuses(const cup__call *call)
{
    cup__layernorm_back b = cup__layernorm_back_of(call);
    ring_plan plan;
    return plan_backward(call, &b, parts_of(&b), &plan);
}

static cup_status launch_backward(cup__call *call, const cup__layernorm_back *b, const ring_plan *p,
                                  int64_t blocks, cup_tensor *partial)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__knob knobs[] = {{"CUP_T", b->x->dtype},
                               {"PARAM", b->gamma ? b->gamma->dtype : b->x->dtype},
                               {"CENTRED", b->mean != NULL},
                               {"DSUM", b->dsum != NULL},
                               {"PARTS", parts_of(b)},
                               {"VEC", p->vec},
                               {"GROUP", p->group},
                               {"PIECES", p->pieces},
                               {"THREADS", p->threads},
                               {"STAGES", p->stages},
                               {"FULL", p->full},
                               {"AGAIN", p->again}};
    cup__kernel *kernel =
        cup__kernel_get(gpu, "layernorm_ring_grad.cu", "layernorm_ring_bwd", knobs, 12);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = blocks, .threads = p->threads, .shared = (int)p->shared};
    int width = (int)b->width;
    void *mean = cup__data_of(b->mean), *gamma = cup__data_of(b->gamma);
    void *dsum = cup__data_of(b->dsum), *sums = cup__data_of(partial);
    return cup__launch(gpu, kernel, grid, CUP__ARG(b->dy->data), CUP__ARG(b->x->data),
                       CUP__ARG(mean), CUP__ARG(b->rstd->data), CUP__ARG(gamma), CUP__ARG(dsum),
                       CUP__ARG(b->dx->data), CUP__ARG(sums), CUP__ARG(b->rows), CUP__ARG(width));
}

cup_status cup__layernorm_back_ring(cup__call *call)
{
    cup__layernorm_back b = cup__layernorm_back_of(call);
    ring_plan p;
    plan_backward(call, &b, parts_of(&b), &p);
    int64_t blocks = blocks_for(cup__cuda_of(call->c->device), &p, b.rows);
    cup_tensor *partial = NULL;
    if (parts_of(&b)) {
        partial = cup__layernorm_partial(call->c, &b, parts_of(&b), blocks);
        if (!partial)
            return call->c->error.status;
    }
    cup_status status = launch_backward(call, &b, &p, blocks, partial);
    if (status == CUP_OK && partial)
        status = cup__layernorm_finish(call, &b, partial);
    cup_tensor_free(partial);
    return status;
}
