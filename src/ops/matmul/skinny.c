/* The host side of skinny.cu. */
#include "kernels/product_call.cuh"
#include "ops/matmul/product_cuda.h"
#include "ops/matmul/product_state.h"

#define ROWS_MOST 16       /* of y, for 16-bit types */
#define ROWS_MOST_HOPPER 8 /* beyond, its own tensor cores are faster */
#define ROWS_MOST_PLAIN 8
#define TILE_ROWS 16       /* of the weights; a block takes one tile or two */
#define RUN 128            /* of k that a warp takes at a time */
#define WARPS 8

static bool by_tensor_cores(const cup__gpu_facts *facts, const cup__product *p)
{
    int capability = facts->major * 10 + facts->minor;
    return (p->dtype == CUP_BF16 && capability >= 80) || (p->dtype == CUP_F16 && capability >= 75);
}

const char *cup__product_rows_refuses(cup_context *c, const cup__product *p)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    int vector = 16 / (int)cup_dtype_size(p->dtype);
    int most = !by_tensor_cores(facts, p) ? ROWS_MOST_PLAIN
               : facts->major == 9        ? ROWS_MOST_HOPPER
                                          : ROWS_MOST;
    if (p->m > most)
        return "it is for a handful of rows";
    if (p->batch_ndim > 0)
        return "it is for one matrix";
    if (p->b.row != 1 || p->a.column != 1)
        return "k is not the direction in which the inputs lie in memory";
    if (cup__product_vector(p, &p->a, p->m > 1 ? p->a.row : 0, p->k, vector) < vector ||
        cup__product_vector(p, &p->b, p->b.column, p->k, vector) < vector)
        return "the lines of an input are not whole pieces of 16 bytes";
    return NULL;
}

static cup_status run_plain(cup_context *c, cup__cuda *gpu, const cup__product *p)
{
    int tokens = p->m <= 1 ? 1 : p->m <= 2 ? 2 : p->m <= 4 ? 4 : 8;
    cup__knob knobs[] = {
        {"CUP_T", p->dtype}, {"TOKENS", tokens}, {"ACTIVATION", p->activation}};
    cup__kernel *kernel = cup__kernel_get(gpu, "skinny.cu", "matmul_rows_plain", knobs, 3);
    if (!kernel)
        return c->error.status;
    product_call argument;
    cup__product_fill(&argument, p);
    cup__grid grid = {.x = (p->n + WARPS - 1) / WARPS, .threads = PRODUCT_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

cup_status cup__product_rows(cup__call *call, const cup__product *p)
{
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    if (!by_tensor_cores(facts, p))
        return run_plain(c, gpu, p);
    cup__product_state *state = cup__product_state_of(c);
    /* With more than 8 rows two tiles share what is read of them, one block a multiprocessor. */
    int tiles = p->m <= 8 ? 1 : 2;
    cup__knob knobs[] = {{"CUP_T", p->dtype},
                         {"TOKENS", 8 * tiles},
                         {"TILES", tiles},
                         {"ACTIVATION", p->activation}};
    cup__kernel *kernel = cup__kernel_get(gpu, "skinny.cu", "matmul_rows", knobs, 4);
    if (!kernel || !state)
        return c->error.status;
    product_call argument;
    cup__product_fill(&argument, p);
    int64_t rows = TILE_ROWS * tiles, blocks = (p->n + rows - 1) / rows;
    int64_t runs = (p->k + RUN - 1) / RUN;
    int64_t parts = (int64_t)facts->multiprocessors * (tiles == 1 ? 2 : 1) / blocks;
    if (parts > runs / WARPS)
        parts = runs / WARPS;
    if (parts < 1 || blocks > CUP__COUNTERS)
        parts = 1;
    int part_runs = (int)((runs + parts - 1) / parts);
    float *partial = state->workspace;
    unsigned *arrived = state->counters;
    cup__grid grid = {.x = blocks,
                      .y = runs ? (runs + part_runs - 1) / part_runs : 1,
                      .threads = PRODUCT_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument), CUP__ARG(part_runs),
                       CUP__ARG(partial), CUP__ARG(arrived));
}
