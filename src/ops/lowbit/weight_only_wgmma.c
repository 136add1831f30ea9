/* The host side of weight_only_wgmma.cu: weights of 8 or 4 bits times many rows, on Hopper. */
#include "base/divide.h"
#include "cuda/loader.h"
#include "dispatch/tensor_map.h"
#include "kernels/packed_call.cuh"
#include "ops/lowbit/weight_only_wgmma.h"
#include "ops/lowbit/weight_only_skinny.h"

#define TILE_ROWS 128
#define STAGE_K 64
#define SHARED_MOST 232000
#define TURN_BYTES 16384
#define SIDE_MOST (INT64_C(1) << 31)

static int64_t rows_of(const cup__call *call)
{
    const cup_tensor *x = call->in[0];
    int64_t k = x->shape[x->ndim - 1];
    return k ? x->count / k : 0;
}

const char *cup__linear_codes_refuses(const cup__call *call)
{
    const cup_tensor *x = call->in[0];
    cup__packed w = cup__packed_of(call, 1);
    if (cup__cuda_facts(cup__cuda_of(call->c->device))->major != 9)
        return "it is for Hopper (sm_90)";
    if (x->dtype != CUP_BF16 && x->dtype != CUP_F16)
        return "it multiplies bf16 and f16 only";
    if (!cup__driver.cuTensorMapEncodeTiled || !cup__driver.cuLaunchKernelEx)
        return "the driver is too old for tensor maps";
    if (w.n == 0 || w.k == 0 || rows_of(call) == 0)
        return "there is nothing to multiply";
    if (w.n >= SIDE_MOST || w.k >= SIDE_MOST || rows_of(call) >= SIDE_MOST)
        return "a side is 2^31 or longer";
    if (w.k * w.bits % 128)
        return "rows of weight are not whole pieces of 16 bytes";
    if (w.groups > 1 && w.group % STAGE_K)
        return "its groups are not multiples of 64";
    if ((uintptr_t)x->data % 16 || (uintptr_t)w.weight->data % 16)
        return "an input does not start at a multiple of 16 bytes";
    if (call->out[0] && (uintptr_t)call->out[0]->data % 16)
        return "the result does not start at a multiple of 16 bytes";
    return NULL;
}

/* What 64 of k and a tile beside them cost, in microseconds, by rows of x in a tile. */
static const struct {
    int tokens;
    double stage, tile;
} menu[] = {{64, 0.335, 0.8}, {128, 0.44, 1.8}, {192, 0.58, 2.5}, {256, 0.64, 3.4}};
#define PARTS_COST 4.6 /* of sums that meet, each round; clusters of four wait for places */
#define PARTS_MOST 2

typedef struct cut {
    int tokens, parts;
} cut;

static cut choose(int64_t m, const cup__packed *w, int multiprocessors)
{
    cut best = {64, 1};
    double least = 0;
    int64_t stages = divide_up(w->k, STAGE_K);
    for (int i = 0; i < (int)(sizeof menu / sizeof *menu); i++)
        for (int parts = 1; parts <= PARTS_MOST; parts *= 2) {
            int64_t tiles = divide_up(w->n, TILE_ROWS) * divide_up(m, menu[i].tokens);
            int64_t each = divide_up(stages, parts), slots = multiprocessors / parts;
            if (parts > 1 && (menu[i].tokens > 128 || each * (parts - 1) >= stages))
                break;
            double time = (double)divide_up(tiles, slots > 0 ? slots : 1) *
                          ((double)each * menu[i].stage + menu[i].tile +
                           (parts > 1 ? PARTS_COST : 0));
            if (least == 0 || time < least) {
                least = time;
                best = (cut){menu[i].tokens, parts};
            }
        }
    return best;
}

cup_status cup__linear_codes_by(cup__call *call, int tokens, int parts)
{
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    const cup_tensor *x = call->in[0], *bias = call->in[call->in_count - 1];
    cup__packed w = cup__packed_of(call, 1);
    int64_t m = rows_of(call), line = w.k * w.bits / 8;
    int64_t stage = tokens * STAGE_K * 2 + TILE_ROWS * STAGE_K * w.bits / 8;
    int64_t stages = (SHARED_MOST - TURN_BYTES - 16) / (stage + 16), all = divide_up(w.k, STAGE_K);
    codes_call work = {.y = call->out[0]->data,
                       .bias = bias ? bias->data : NULL,
                       .scale = w.scale->data,
                       .zero = w.zero ? w.zero->data : NULL,
                       .m = m,
                       .n = w.n,
                       .tiles_m = divide_up(m, tokens),
                       .tiles_n = divide_up(w.n, TILE_ROWS),
                       .groups = (int)w.groups,
                       .group_stages = (int)divide_up(w.group, STAGE_K),
                       .stages = (int)all,
                       .part_stages = (int)divide_up(all, parts)};
    work.tiles = work.tiles_m * work.tiles_n;
    CUtensorMap x_map, w_map;
    cup__boxes rows = {.data = x->data, .dtype = x->dtype, .ndim = 2, .size = {w.k, m},
                       .stride = {0, 2 * w.k}, .box = {STAGE_K, tokens}};
    cup__boxes codes = {.data = w.weight->data, .dtype = CUP_U8, .ndim = 2, .size = {line, w.n},
                        .stride = {0, line}, .box = {STAGE_K * w.bits / 8, TILE_ROWS}};
    CUP_TRY(cup__tensor_map_make(gpu, &rows, &x_map));
    CUP_TRY(cup__tensor_map_make(gpu, &codes, &w_map));
    cup__knob knobs[] = {{"CUP_T", x->dtype}, {"SCALE_T", w.scale->dtype}, {"BITS", w.bits},
                         {"TOKENS", tokens},  {"STAGES", stages},          {"PARTS", parts}};
    cup__kernel *kernel = cup__kernel_get(gpu, "weight_only_wgmma.cu", "linear_codes", knobs, 6);
    if (!kernel)
        return c->error.status;
    int multiprocessors = cup__cuda_facts(gpu)->multiprocessors;
    cup__grid grid = {.x = parts > 1 ? work.tiles * parts
                           : work.tiles < multiprocessors ? work.tiles : multiprocessors,
                      .threads = 384,
                      .cluster = parts,
                      .shared = (int)(stages * (stage + 16) + TURN_BYTES + 16)};
    return cup__launch(gpu, kernel, grid, CUP__ARG(x_map), CUP__ARG(w_map), CUP__ARG(work));
}

cup_status cup__linear_codes_cuda(cup__call *call)
{
    cup__packed w = cup__packed_of(call, 1);
    cut by = choose(rows_of(call), &w,
                    cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors);
    return cup__linear_codes_by(call, by.tokens, by.parts);
}
