#include "ops/rows_packed.h"

#include "kernels/packed_call.cuh"
#include "kernels/product_call.cuh"
#include "ops/product_state.h"

#define STAGES 2
#define STEPS 4
#define WARPS 8

bool cup__rows_packed_can(cup_context *c, cup_dtype dtype)
{
    return (dtype == CUP_BF16 || dtype == CUP_F16) &&
           cup__cuda_facts(cup__cuda_of(c->device))->major >= 8;
}

#define STREAM_STAGES 12
#define STREAM_STAGE_BYTES (16 * (1024 + 64))
#define STREAM_MOST 16         /* rows of x */
#define STREAM_LEAST (1 << 18) /* bytes of weights */

bool cup__rows_stream_is_better(cup_context *c, int64_t rows, int64_t bytes)
{
    return cup__cuda_facts(cup__cuda_of(c->device))->major == 9 && rows <= STREAM_MOST &&
           bytes >= STREAM_LEAST;
}

cup_status cup__rows_stream(cup_context *c, cup_dtype dtype, int bits, cup_dtype scale_dtype,
                            int activation, const product_call *product, const packed_call *weights)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__product_state *state = cup__product_state_of(c);
    int tokens = product->m <= 8 ? 8 : 16, multiprocessors = cup__cuda_facts(gpu)->multiprocessors;
    cup__knob knobs[] = {{"CUP_T", dtype},   {"SCALE_T", scale_dtype},  {"BITS", bits},
                         {"TOKENS", tokens}, {"STAGES", STREAM_STAGES}, {"ACTIVATION", activation}};
    cup__kernel *kernel = cup__kernel_get(gpu, "linear_stream.cu", "linear_stream", knobs, 6);
    if (!kernel || !state)
        return c->error.status;
    int64_t line = product->k * bits / 8, tiles = (product->n + 15) / 16;
    stream_call work = {
        .per_tile = (line + 1023) / 1024, .partial = state->workspace, .arrived = state->counters};
    work.stages = work.per_tile * tiles;
    cup__grid grid = {.x = work.stages < multiprocessors ? work.stages : multiprocessors,
                      .threads = 288,
                      .shared =
                          STREAM_STAGES * (STREAM_STAGE_BYTES + 16) + 2 * 8 * tokens * 16 * 4};
    return cup__launch(gpu, kernel, grid, CUP__ARG(*product), CUP__ARG(*weights), CUP__ARG(work));
}

/* Into how many parts k is cut, so that two blocks find work on every multiprocessor. */
static int64_t parts_of(int64_t blocks, int64_t runs, int multiprocessors, int64_t elements)
{
    int64_t parts = 2 * multiprocessors / blocks, most = runs / WARPS;
    if (parts > most)
        parts = most;
    int64_t bytes = blocks * elements * (int64_t)sizeof(float);
    if (parts < 2 || blocks > CUP__COUNTERS || bytes * parts > (int64_t)CUP__WORKSPACE_BYTES)
        return 1;
    return parts;
}

cup_status cup__rows_packed(cup_context *c, cup_dtype dtype, int bits, cup_dtype scale_dtype,
                            int activation, const product_call *product, const packed_call *weights)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__product_state *state = cup__product_state_of(c);
    int multiprocessors = cup__cuda_facts(gpu)->multiprocessors;
    int tokens = product->m <= 8 ? 8 : 16;
    if (cup__rows_stream_is_better(c, product->m, product->n * product->k * bits / 8) &&
        product->n <= 16 * CUP__COUNTERS)
        return cup__rows_stream(c, dtype, bits, scale_dtype, activation, product, weights);
    /* Two tiles share what is read of x, when that leaves enough blocks. */
    int tiles = product->m > 8 && product->n >= 64 * multiprocessors ? 2 : 1;
    cup__knob knobs[] = {{"CUP_T", dtype},          {"SCALE_T", scale_dtype}, {"BITS", bits},
                         {"TOKENS", tokens},        {"TILES", tiles},         {"STAGES", STAGES},
                         {"ACTIVATION", activation}};
    cup__kernel *kernel = cup__kernel_get(gpu, "linear_packed.cu", "linear_packed", knobs, 7);
    if (!kernel || !state)
        return c->error.status;
    int64_t run = 512 * STEPS / bits, runs = (product->k + run - 1) / run, rows = 16 * tiles;
    int64_t across = (product->n + rows - 1) / rows, down = (product->m + tokens - 1) / tokens;
    int64_t parts = parts_of(across * down, runs, multiprocessors, tokens * rows);
    int part_runs = (int)((runs + parts - 1) / parts);
    float *partial = state->workspace;
    unsigned *arrived = state->counters;
    cup__grid grid = {.x = across,
                      .y = (runs + part_runs - 1) / part_runs,
                      .z = down,
                      .threads = PRODUCT_THREADS,
                      .shared = WARPS * STAGES * STEPS * 2 * tiles * 512};
    return cup__launch(gpu, kernel, grid, CUP__ARG(*product), CUP__ARG(*weights),
                       CUP__ARG(part_runs), CUP__ARG(partial), CUP__ARG(arrived));
}
