#include "ops/rows_packed.h"

#include "kernels/packed_call.cuh"
#include "kernels/product_call.cuh"
#include "ops/product_state.h"

#define TILES 4
#define STAGES 3
#define ROWS (16 * TILES)
#define WARPS 8

bool cup__rows_packed_can(cup_context *c, cup_dtype dtype)
{
    return (dtype == CUP_BF16 || dtype == CUP_F16) &&
           cup__cuda_facts(cup__cuda_of(c->device))->major >= 8;
}

#define STREAM_ROW 1024 /* bytes of a row of weights in a stage */
#define SHARED_MOST 232000

cup_status cup__rows_stream(cup_context *c, cup_dtype dtype, int bits, cup_dtype scale_dtype,
                            int activation, const product_call *product, const packed_call *weights)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__product_state *state = cup__product_state_of(c);
    int tokens = product->m <= 8 ? 8 : 16, multiprocessors = cup__cuda_facts(gpu)->multiprocessors;
    int stage = 16 * (STREAM_ROW + 64) + tokens * (STREAM_ROW / bits * 16 + (bits == 16 ? 64 : 16));
    int sums = 2 * WARPS * tokens * 16 * 4, stages = (SHARED_MOST - sums) / (stage + 16);
    cup__knob knobs[] = {{"CUP_T", dtype},   {"SCALE_T", scale_dtype}, {"BITS", bits},
                         {"TOKENS", tokens}, {"STAGES", stages},       {"ACTIVATION", activation}};
    cup__kernel *kernel = cup__kernel_get(gpu, "linear_stream.cu", "linear_stream", knobs, 6);
    if (!kernel || !state)
        return c->error.status;
    int64_t line = product->k * bits / 8, tiles = (product->n + 15) / 16;
    stream_call work = {.per_tile = (line + STREAM_ROW - 1) / STREAM_ROW,
                        .partial = state->workspace,
                        .arrived = state->counters};
    work.stages = work.per_tile * tiles;
    cup__grid grid = {.x = work.stages < multiprocessors ? work.stages : multiprocessors,
                      .threads = 288,
                      .shared = stages * (stage + 16) + sums};
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
    cup__knob knobs[] = {{"CUP_T", dtype},          {"SCALE_T", scale_dtype}, {"BITS", bits},
                         {"TOKENS", tokens},        {"TILES", TILES},         {"STAGES", STAGES},
                         {"ACTIVATION", activation}};
    cup__kernel *kernel = cup__kernel_get(gpu, "linear_packed.cu", "linear_packed", knobs, 7);
    if (!kernel || !state)
        return c->error.status;
    int64_t run = 512 / bits, runs = (product->k + run - 1) / run;
    int64_t across = (product->n + ROWS - 1) / ROWS, down = (product->m + tokens - 1) / tokens;
    int64_t parts = parts_of(across * down, runs, multiprocessors, tokens * ROWS);
    int part_runs = (int)((runs + parts - 1) / parts);
    float *partial = state->workspace;
    unsigned *arrived = state->counters;
    cup__grid grid = {.x = across,
                      .y = (runs + part_runs - 1) / part_runs,
                      .z = down,
                      .threads = PRODUCT_THREADS,
                      .shared = WARPS * STAGES * 2 * TILES * 512};
    return cup__launch(gpu, kernel, grid, CUP__ARG(*product), CUP__ARG(*weights),
                       CUP__ARG(part_runs), CUP__ARG(partial), CUP__ARG(arrived));
}
