/* Plans and launches of backward's one pass on Hopper: attention_wgmma_grad.cu between the two
 * kernels of attention_wgmma_ends.cu. */
#include "base/divide.h"
#include "ops/attention/attention_pass.cuh"
#include "ops/attention/attention_wgmma.h"

#define ROUND 128 /* what the queries are rounded up to in delta and lse_log2 */
#define WINDOWED_MOST (1 << 28) /* positions, so that a window's ends are numbers of 32 bits */
#define STAGES 2
#define DQ_STAGES 2
#define END_THREADS 256
#define TILES_LEAST 3 /* of keys; with fewer the two kernels are done sooner */

typedef struct pass_plan {
    pass_shape shape;
    int64_t units, blocks; /* of work; of the grid */
    int64_t size;          /* of a head, padded */
} pass_plan;

/* Tiles that wait for each other are at work at the same time, so the grid is a multiple of them:
 * where the next head's began beside them, they would wait for those that find no place. In a
 * window they wait only for tiles that were taken before. */
static pass_plan plan_of(const cup__attention *a, int64_t most)
{
    pass_plan p = {.size = a->size <= 64 ? 64 : 128};
    p.shape = (pass_shape){a->mask.causal, (int)a->queries, (int)a->keys, p.size == 64 ? 128 : 64,
                           pass_tiles((pass_shape){.keys = (int)a->keys}),
                           a->mask.window, (int)a->mask.before, (int)a->mask.after};
    int64_t together = pass_units(p.shape);
    p.units = together * a->batch * a->kv_heads;
    if (p.shape.window) {
        p.blocks = p.units < most ? p.units : most;
        return p;
    }
    if (!p.shape.causal && together > most) {
        together = divide_up(together, divide_up(together, most));
        p.shape.around = (int)together;
    }
    p.blocks = together > most ? 0 : most / together * together;
    if (p.blocks > p.units)
        p.blocks = p.units;
    return p;
}

const char *cup__hopper_pass_refuses(const cup__attention *a)
{
    const char *why = cup__hopper_grad_refuses(a);
    if (why)
        return why;
    if (a->dropout > 0)
        return "it knows of no dropout";
    if (a->mask.key_offsets)
        return "it knows of no documents";
    if (a->mask.window && (a->queries > WINDOWED_MOST || a->keys > WINDOWED_MOST))
        return "there are a window and over 2^28 positions";
    if (a->score.changed)
        return "it knows of scores that are scaled, and of nothing else";
    int64_t most = cup__cuda_facts(cup__cuda_of(a->c->device))->multiprocessors;
    pass_plan p = plan_of(a, most);
    if (pass_tiles(p.shape) < TILES_LEAST)
        return "there are too few keys to make up for a kernel more";
    if (p.blocks == 0)
        return "the tiles of a head do not all find a place on the card";
    /* Two passes make seven products of each tile, one makes five. */
    return 5 * divide_up(p.units, p.blocks) > 7 * divide_up(p.units, most)
               ? "the tiles of a head leave too much of the card idle"
               : NULL;
}

const char *cup__attention_pass_refuses(const cup__call *call)
{
    cup__attention a = cup__attention_of(call);
    return cup__hopper_pass_refuses(&a);
}

static int64_t shared_bytes(const pass_plan *p)
{
    int64_t step = p->shape.step, rows = 2 * PASS_ROWS * p->size * 2;
    int64_t queries = 2 * STAGES * step * p->size * 2, gradients = 2 * PASS_ROWS * step * 2;
    int64_t sums = DQ_STAGES * step * p->size * 4, numbers = STAGES * step * 8;
    return rows + queries + gradients + sums + numbers + 16 * (2 * STAGES + 2 + 2 * DQ_STAGES);
}

static cup__kernel *kernel_of(const cup__attention *a, const pass_plan *p, const char *file,
                              const char *entry)
{
    cup__knob knobs[CUP__ATTENTION_KNOBS] = {
        {"CUP_T", a->dtype},  {"SIZE", p->size},          {"STEP", p->shape.step},
        {"STAGES", STAGES},   {"CAUSAL", a->mask.causal}, {"DQ_STAGES", DQ_STAGES},
    };
    int count = 6;
    if (a->mask.window)
        knobs[count++] = (cup__knob){"WINDOW", 1};
    if (a->score.sinks)
        knobs[count++] = (cup__knob){"SINKS", 1};
    if (a->scales)
        knobs[count++] = (cup__knob){"ROUNDED", 1};
    return cup__kernel_get(cup__cuda_of(a->c->device), file, entry, knobs, count);
}

static cup_status run_end(const cup__attention *a, const pass_plan *p, const char *entry,
                          int64_t blocks, const attention_call *call, const attention_pass *pass)
{
    cup__kernel *kernel = kernel_of(a, p, "attention_wgmma_ends.cu", entry);
    cup__grid grid = {.x = blocks, .threads = END_THREADS};
    if (!kernel)
        return a->c->error.status;
    return cup__launch(cup__cuda_of(a->c->device), kernel, grid, cup__attention_argument(a, call),
                       CUP__ARG(*pass));
}

static cup_status run_pass(const cup__attention *a, const pass_plan *p, const attention_call *call,
                           const attention_pass *pass)
{
    CUtensorMap q, k, v, d_o;
    CUP_TRY(cup__hopper_map_queries(a, &q, &a->q, p->shape.step));
    CUP_TRY(cup__hopper_map_keys(a, &k, &a->k, 64));
    CUP_TRY(cup__hopper_map_keys(a, &v, &a->v, 64));
    CUP_TRY(cup__hopper_map_queries(a, &d_o, &a->d_o, p->shape.step));
    cup__kernel *kernel = kernel_of(a, p, "attention_wgmma_grad.cu", "attention_sm90_grad");
    cup__grid grid = {.x = p->blocks, .threads = 384, .shared = (int)shared_bytes(p),
                      .together = true};
    if (!kernel)
        return a->c->error.status;
    return cup__launch(cup__cuda_of(a->c->device), kernel, grid, CUP__ARG(q), CUP__ARG(k),
                       CUP__ARG(v), CUP__ARG(d_o), cup__attention_argument(a, call),
                       CUP__ARG(*pass));
}

static cup_status run_all(cup__attention *a)
{
    pass_plan p = plan_of(a, cup__cuda_facts(cup__cuda_of(a->c->device))->multiprocessors);
    int64_t heads = a->batch * a->heads, steps = heads * pass_steps(p.shape);
    int64_t rows = heads * cup__attention_tiles(a->queries, ROUND) * ROUND;
    int64_t sums = steps * p.shape.step * p.size;
    cup_tensor *space = cup__attention_numbers(a, CUP_F32, sums + 2 * rows + 2 * steps);
    if (!space)
        return a->c->error.status;
    attention_call call = cup__attention_call_of(a);
    attention_pass pass = {.dq = space->data, .around = p.shape.around};
    call.delta = pass.dq + sums;
    call.lse_log2 = pass.dq + sums + rows;
    pass.turns = (unsigned *)(pass.dq + sums + 2 * rows);
    cup_status status = run_end(a, &p, "attention_sm90_grad_begin",
                                rows * (p.size / 8) / END_THREADS, &call, &pass);
    if (status == CUP_OK)
        status = run_pass(a, &p, &call, &pass);
    if (status == CUP_OK)
        status = run_end(a, &p, "attention_sm90_grad_end", steps, &call, &pass);
    cup_tensor_free(space);
    return status;
}

cup_status cup__attention_pass(cup__attention *a)
{
    return cup__attention_with_copies(a, run_all);
}
