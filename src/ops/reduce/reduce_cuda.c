/* Reductions on the GPU: which kernel of reduce.cu, its knobs, and how results are cut up. */
#include <string.h>

#include "base/divide.h"
#include "cuda/cuda.h"
#include "ops/reduce/reduce_call.cuh"
#include "dispatch/attributes.h"
#include "ops/reduce/reduce.h"

#define VEC_MOST 8
#define UNROLL 4
#define WAVES 8          /* blocks a multiprocessor that keep the memory busy along rows */
#define COLUMN_WAVES 4   /* and across them, where a block has more on its way */
#define LEAST_PIECE 4096 /* elements that are worth a block */
#define LEAST_ROWS 16    /* rows a slot of a block should have */

_Static_assert(REDUCE_DIMS == CUP_MAX_DIMS, "a call of the kernels holds all dimensions");

typedef struct plan {
    cup__call *call;
    cup__cuda *gpu;
    cup__reduction r;
    bool columns, gather;
    int across; /* the kept dimension that columns lie along */
    int64_t across_step, tiles, units; /* units: results, or tiles of them */
    int vec, group, lanes;
    int64_t pieces, piece;
} plan;

/* Takes the widest vectors that begin at multiples of their size: all strides but that of the
 * vectors' own dimension, and its size where it is gone through in several runs, are multiples. */
static void choose_vec(plan *p, int64_t run)
{
    const cup_tensor *in = p->call->in[0];
    int size = (int)cup_dtype_size(in->dtype);
    int64_t steps = run;
    for (int i = 0; i < p->r.kept; i++)
        steps |= p->columns && i == p->across ? 0 : p->r.kept_stride[i];
    for (int i = 0; i < p->r.folded; i++)
        steps |= !p->columns && i == p->r.folded - 1 ? 0 : p->r.folded_stride[i];
    p->vec = 16 / size < VEC_MOST ? 16 / size : VEC_MOST;
    while (p->vec > 1 &&
           (steps % p->vec || (uintptr_t)in->data % (uintptr_t)(p->vec * size)))
        p->vec /= 2;
}

static void cut(plan *p, int64_t most, int64_t multiple)
{
    if (most > REDUCE_COUNTERS)
        most = REDUCE_COUNTERS;
    if (most < 2 || p->units > REDUCE_COUNTERS)
        most = 1;
    p->piece = divide_up(divide_up(p->r.length, most), multiple) * multiple;
    p->pieces = p->r.length ? divide_up(p->r.length, p->piece) : 1;
}

static void plan_columns(plan *p, int multiprocessors)
{
    int64_t width = p->r.kept_size[p->across];
    p->across_step = 1;
    for (int i = p->across + 1; i < p->r.kept; i++)
        p->across_step *= p->r.kept_size[i];
    choose_vec(p, width);
    p->lanes = 32;
    while (p->lanes > 1 && p->lanes / 2 * p->vec >= width)
        p->lanes /= 2;
    p->tiles = divide_up(width, p->lanes * p->vec);
    p->units = p->r.outputs / width * p->tiles;
    int64_t slots = REDUCE_THREADS / p->lanes;
    int64_t most = divide_up(p->r.length, slots * LEAST_ROWS);
    int64_t wanted = multiprocessors * COLUMN_WAVES / p->units;
    cut(p, most < wanted ? most : wanted, slots);
}

static void plan_rows(plan *p, int multiprocessors)
{
    int last = p->r.folded - 1;
    p->gather = last >= 0 && p->r.folded_stride[last] != 1;
    choose_vec(p, p->r.folded > 1 ? p->r.folded_size[last] : 0);
    if (p->gather)
        p->vec = 1;
    p->units = p->r.outputs;
    int64_t vectors = divide_up(p->r.length, p->vec), blocks = multiprocessors * WAVES;
    p->group = 4;
    while (p->group < 32 && p->group < vectors)
        p->group *= 2;
    bool few = p->r.outputs < blocks * (REDUCE_THREADS / 32) && vectors > 32 * UNROLL;
    if (few || vectors > REDUCE_THREADS * UNROLL)
        p->group = REDUCE_THREADS;
    int64_t most = divide_up(p->r.length, LEAST_PIECE), wanted = blocks / p->r.outputs;
    if (p->group < REDUCE_THREADS)
        wanted = 1;
    cut(p, most < wanted ? most : wanted, 16);
}

static plan plan_of(cup__call *call)
{
    plan p = {.call = call, .gpu = cup__cuda_of(call->c->device), .across = -1};
    cup__reduction_make(&p.r, call);
    int last = p.r.folded - 1;
    for (int i = p.r.kept; i-- > 0;)
        if (p.r.kept_stride[i] == 1)
            p.across = i;
    p.columns = p.across >= 0 && last >= 0 && p.r.folded_stride[last] != 1;
    int multiprocessors = cup__cuda_facts(p.gpu)->multiprocessors;
    if (p.columns)
        plan_columns(&p, multiprocessors);
    else
        plan_rows(&p, multiprocessors);
    return p;
}

static void fill_call(reduce_call *to, const plan *p, cup_tensor *partial)
{
    const cup__reduction *r = &p->r;
    *to = (reduce_call){
        .x = p->call->in[0]->data,
        .y = p->call->out[0]->data,
        .partial = partial ? partial->data : NULL,
        .outputs = r->outputs,
        .length = r->length,
        .pieces = p->pieces,
        .piece = p->piece,
        .across_size = p->columns ? r->kept_size[p->across] : 1,
        .across_step = p->columns ? p->across_step : 1,
        .tiles = p->columns ? p->tiles : 1,
        .kept = r->kept,
        .folded = r->folded,
        .across = p->across,
    };
    const cup__fold *fold = p->call->op->fold;
    if (fold->argument)
        to->argument = fold->argument(p->call);
    for (int i = 0; i < r->kept; i++) {
        to->kept_size[i] = r->kept_size[i];
        to->kept_stride[i] = r->kept_stride[i];
    }
    for (int i = 0; i < r->folded; i++) {
        to->folded_size[i] = r->folded_size[i];
        to->folded_stride[i] = r->folded_stride[i];
    }
}

static cup_status launch(const plan *p, cup_tensor *partial)
{
    const cup__call *call = p->call;
    cup__knob knobs[10] = {{"CUP_T", call->in[0]->dtype},
                          {"Y", call->out[0]->dtype},
                          {"VEC", p->vec},
                          {"SPLIT", p->pieces > 1},
                          {"UNROLL", UNROLL},
                          {"PLAIN", p->r.folded < 2}};
    int count = 6;
    if (p->columns) {
        knobs[count++] = (cup__knob){"COLUMNS", 1};
        knobs[count++] = (cup__knob){"LANES", p->lanes};
    } else {
        knobs[count++] = (cup__knob){"GROUP", p->group};
        knobs[count++] = (cup__knob){"GATHER", p->gather};
    }
    const cup__fold *fold = call->op->fold;
    cup__kernel *kernel =
        cup__kernel_of_text(p->gpu, fold->source, fold->text,
                            p->columns ? "reduce_columns" : "reduce_rows", knobs, count);
    if (!kernel)
        return call->c->error.status;
    reduce_call argument;
    fill_call(&argument, p, partial);
    int64_t units = p->units * p->pieces;
    int64_t groups = p->columns ? 1 : REDUCE_THREADS / p->group;
    cup__grid grid = {.x = divide_up(units, groups), .threads = REDUCE_THREADS};
    return cup__launch(p->gpu, kernel, grid, CUP__ARG(argument));
}

cup_status cup__reduce_cuda(cup__call *call)
{
    plan p = plan_of(call);
    cup_tensor *partial = NULL;
    if (p.pieces > 1) {
        /* The largest state is four numbers wide. */
        cup__shape shape = {CUP_F64, 2, {p.pieces * p.r.outputs, 4}};
        partial = cup__tensor_make(call->c, &shape, "partial results");
        if (!partial)
            return call->c->error.status;
    }
    cup_status status = launch(&p, partial);
    cup_tensor_free(partial);
    return status;
}
