/* The host side of resident.cu: products of up to 64 rows whose weights all find room in half of
 * the card's shared memory. */
#include "base/divide.h"
#include "cuda/loader.h"
#include "dispatch/tensor_map.h"
#include "ops/lowbit/weight_only_skinny.h"
#include "ops/matmul/resident_call.cuh"
#include "ops/matmul/product_cuda.h"
#include "ops/matmul/wgmma_maps.h"

#define ROWS 64
#define TILE_K 64
#define TILE_N_MOST 128
#define RESERVED 1024 /* of a multiprocessor for each of its blocks */
#define WEIGHTS_LEAST (1 << 16)

/* How k and the columns are cut. */
typedef struct cut {
    int tile_n, parts, tiles; /* columns and 64s of k of a block, and blocks that share k */
    int64_t blocks;
} cut;

static int64_t inbox_bytes(const cut *by)
{
    return (int64_t)4 * ROWS * by->tile_n;
}

static int64_t shared_bytes(const cut *by)
{
    return (int64_t)by->tiles * (ROWS + by->tile_n) * 128 + inbox_bytes(by) + 8 * (by->tiles + 1);
}

/* What a multiprocessor takes in, with as many blocks as it has at most; 0 where they do not leave
 * half of it to the kernels around, which is what makes them fast. */
static int64_t cost_of(const cut *by, int multiprocessors)
{
    int64_t each = divide_up(by->blocks, multiprocessors), shared = shared_bytes(by);
    return 2 * each * (shared + RESERVED) > CUP__WGMMA_SHARED + RESERVED ? 0 : each * shared;
}

/* The cut with the least for each multiprocessor to take in; false when none fits. */
static bool choose(const cup__product *p, int multiprocessors, cut *best)
{
    int64_t least = 0, k_tiles = divide_up(p->k, TILE_K);
    for (int parts = 2; parts <= 8; parts *= 2)
        for (int tile_n = 16; tile_n <= TILE_N_MOST; tile_n += 16) {
            cut by = {tile_n, parts, (int)divide_up(k_tiles, parts),
                      divide_up(p->n, tile_n) * parts};
            int64_t cost = k_tiles > 256 ? 0 : cost_of(&by, multiprocessors);
            if (cost == 0 || (int64_t)by.tiles * (parts - 1) >= k_tiles ||
                (least && cost >= least))
                continue;
            least = cost;
            *best = by;
        }
    return least != 0;
}

static bool is_plain(const cup__product *p)
{
    return p->batch_ndim == 0 && !p->kind && !p->dropping && !p->scaling && !p->y_scale &&
           !p->summing && !p->adding && !p->groups.kind && p->factor == 1 &&
           p->activation < PRODUCT_SWIGLU && p->y_dtype == p->dtype;
}

const char *cup__product_resident_refuses(cup_context *c, const cup__product *p)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    cut by;
    if (facts->major != 9)
        return "it is for Hopper (sm_90)";
    if (!cup__driver.cuTensorMapEncodeTiled || !cup__driver.cuLaunchKernelEx)
        return "the driver is too old for tensor maps";
    if (p->dtype != CUP_BF16 && p->dtype != CUP_F16)
        return "it multiplies bf16 and f16 only";
    if (cup__product_is_empty(p))
        return "there is nothing to sum";
    if (p->m <= CUP__ROWS_STREAM_BEST || p->m > ROWS)
        return "it is for more than a handful of rows and up to 64";
    if (!is_plain(p))
        return "it has no batches, and does nothing but activations beside";
    if (p->n > INT32_MAX || p->n * p->k < WEIGHTS_LEAST || p->n % 2 || p->y.row % 2)
        return "the weights are small, or the result is not whole pairs";
    if (p->a.column != 1 || p->b.row != 1)
        return "k is not the direction in which the inputs lie in memory";
    if (cup__product_vector(p, &p->a, p->a.row, p->k, 8) < 8 ||
        cup__product_vector(p, &p->b, p->b.column, p->k, 8) < 8)
        return "the lines of an input are not whole pieces of 16 bytes";
    if (((uintptr_t)p->bias | (uintptr_t)p->y.data | (uintptr_t)p->pre) % 4)
        return "the bias or the result starts between two places for pairs";
    return choose(p, facts->multiprocessors, &by) ? NULL
                                                  : "the weights do not fit the card's shared "
                                                    "memory";
}

static cup_status make_map(cup__cuda *gpu, const cup__product *p, const cup__matrix *of,
                           int64_t lines, int64_t line, int box, CUtensorMap *map)
{
    cup__boxes boxes = {.data = of->data, .dtype = p->dtype, .ndim = 2, .size = {p->k, lines},
                        .stride = {0, line * 2}, .box = {TILE_K, box}};
    return cup__tensor_map_make(gpu, &boxes, map);
}

cup_status cup__product_resident(cup__call *call, const cup__product *p)
{
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    CUtensorMap a, b;
    cut by;
    if (!choose(p, cup__cuda_facts(gpu)->multiprocessors, &by))
        return cup__call_fail(call, CUP_UNSUPPORTED, "no cut fits this product");
    CUP_TRY(make_map(gpu, p, &p->a, p->m, p->a.row, ROWS, &a));
    CUP_TRY(make_map(gpu, p, &p->b, p->n, p->b.column, by.tile_n, &b));
    cup__knob knobs[] = {{"CUP_T", p->dtype},       {"TILE_N", by.tile_n},
                         {"PARTS", by.parts},       {"TILES", by.tiles},
                         {"HAS_BIAS", p->bias != NULL},
                         {"HAS_PRE", p->pre != NULL},
                         {"ACTIVATION", p->activation}};
    cup__kernel *kernel = cup__kernel_get(gpu, "resident.cu", "matmul_resident", knobs,
                                          sizeof knobs / sizeof *knobs);
    if (!kernel)
        return c->error.status;
    bool ahead = cup__launched_spares(gpu, p->b.data, ((p->n - 1) * p->b.column + p->k) * 2) &&
                 cup__launched_spares(gpu, p->bias, p->bias ? p->n * 2 : 0);
    resident_call work = {.bias = p->bias,
                     .y = p->y.data,
                     .pre = p->pre,
                     .y_row = p->y.row,
                     .m = (int)p->m,
                     .n = (int)p->n,
                     .k_tiles = (int)divide_up(p->k, TILE_K),
                     .ahead = ahead};
    cup__grid grid = {.x = by.blocks,
                      .threads = 128,
                      .cluster = by.parts,
                      .dependent = true,
                      .shared = (int)shared_bytes(&by)};
    CUP_TRY(cup__launch(gpu, kernel, grid, CUP__ARG(a), CUP__ARG(b), CUP__ARG(work)));
    cup__launch_known(gpu);
    cup__launch_writes(gpu, p->y.data, ((p->m - 1) * p->y.row + p->n) * 2);
    cup__launch_writes(gpu, p->pre, ((p->m - 1) * p->y.row + p->n) * 2);
    return CUP_OK;
}
