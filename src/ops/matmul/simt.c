/* The host side of simt.cu, and what it shares with those of mma.cu and tf32.cu. */
#include <string.h>

#include "base/divide.h"
#include "kernels/product_call.cuh"
#include "ops/matmul/product_cuda.h"

#define GRID_Y_MOST 65535

int cup__product_vector(const cup__product *p, const cup__matrix *m, int64_t line, int64_t extent,
                        int most)
{
    int64_t steps = line | extent;
    for (int i = 0; i < p->batch_ndim; i++)
        steps |= m->batch[i];
    int size = (int)cup_dtype_size(p->dtype), vector = most;
    while (vector > 1 && (vector * size > 16 || (steps && lowest_bit(steps) < vector) ||
                          (uintptr_t)m->data % (uintptr_t)(vector * size)))
        vector /= 2;
    return vector;
}

void cup__product_fill(product_call *to, const cup__product *p)
{
    memset(to, 0, sizeof *to);
    to->a = p->a.data;
    to->b = p->b.data;
    to->bias = p->bias;
    to->y = p->y.data;
    to->pre = p->pre;
    to->m = p->m;
    to->n = p->n;
    to->k = p->k;
    to->a_mn = p->a.row;
    to->a_k = p->a.column;
    to->b_mn = p->b.column;
    to->b_k = p->b.row;
    to->y_row = p->y.row;
    to->groups = p->groups.table;
    to->batch_count = p->batch_count;
    to->batch_ndim = p->batch_ndim;
    for (int i = 0; i < p->batch_ndim; i++) {
        to->batch_size[i] = p->batch_size[i];
        to->a_batch[i] = p->a.batch[i];
        to->b_batch[i] = p->b.batch[i];
        to->y_batch[i] = p->y.batch[i];
    }
}

bool cup__product_few(cup__call *call, const cup__product *p, int64_t tile)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    return cup__product_tiles(p, tile, tile) * p->batch_count < facts->multiprocessors;
}

int cup__product_stages(const cup__gpu_facts *facts, int64_t stage)
{
    int stages = 4;
    while (stages > 2 && stages * stage > facts->shared_per_block)
        stages--;
    return stages;
}

/* How many elements of a matrix are read at once: along k, of which groups may begin anywhere, or
 * along `side`. */
static int vector_of(const cup__product *p, const cup__matrix *m, bool along_k, int64_t side,
                     int64_t step_k, int64_t step_side, int most)
{
    int64_t whole_k = p->groups.kind == PRODUCT_GROUPS_OF_DEPTH ? 1 : p->k;
    if (step_k != 1 && step_side != 1)
        return 1;
    return cup__product_vector(p, m, along_k ? step_side : step_k, along_k ? whole_k : side, most);
}

cup_status cup__product_tiled(cup__call *call, const cup__product *p, const cup__tiled *t)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    bool a_k = p->a.column == 1 || p->a.row != 1, b_k = p->b.row == 1 || p->b.column != 1;
    int64_t stage = (t->tile_m + t->tile_n) * t->stage_bytes;
    int stages = cup__product_stages(cup__cuda_facts(gpu), stage);
    cup__knob knobs[] = {
        {"CUP_T", p->dtype},
        {"TILE_M", t->tile_m},
        {"TILE_N", t->tile_n},
        {"A_ALONG", a_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"B_ALONG", b_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"A_VEC", vector_of(p, &p->a, a_k, p->m, p->a.column, p->a.row, t->vector_most)},
        {"B_VEC", vector_of(p, &p->b, b_k, p->n, p->b.row, p->b.column, t->vector_most)},
        {"ACTIVATION", p->activation},
        {"GROUPS", p->groups.kind},
        {"STAGES", stages}, /* from here on where there are any */
        {"TERMS", t->terms},
    };
    int count = !t->stage_bytes ? 9 : !t->terms ? 10 : 11;
    cup__kernel *kernel = cup__kernel_get(gpu, t->file, t->entry, knobs, count);
    if (!kernel)
        return call->c->error.status;
    product_call argument;
    cup__product_fill(&argument, p);
    cup__grid grid = {
        .x = cup__product_tiles(p, t->tile_m, t->tile_n),
        .y = p->batch_count < GRID_Y_MOST ? p->batch_count : GRID_Y_MOST,
        .threads = PRODUCT_THREADS,
        .shared = (int)(stages * stage),
    };
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

const char *cup__product_plain_refuses(cup_context *c, const cup__product *p)
{
    (void)c;
    (void)p;
    return NULL;
}

cup_status cup__product_plain(cup__call *call, const cup__product *p)
{
    int64_t tile = p->dtype == CUP_F64 || cup__product_few(call, p, 128) ? 64 : 128;
    const cup__tiled tiled = {.file = "simt.cu",
                              .entry = "matmul_plain",
                              .tile_m = tile,
                              .tile_n = tile,
                              .vector_most = tile == 64 ? 4 : 8};
    return cup__product_tiled(call, p, &tiled);
}
