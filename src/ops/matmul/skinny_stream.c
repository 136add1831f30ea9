/* Products of a few rows on Hopper: weights along k by weight_only_stream.cu, along n by
 * skinny_stream.cu. */
#include "base/divide.h"
#include "cuda/loader.h"
#include "dispatch/tensor_map.h"
#include "kernels/packed_call.cuh"
#include "kernels/product_call.cuh"
#include "ops/matmul/product_cuda.h"
#include "ops/lowbit/weight_only_skinny.h"

#define GRID_Y_MOST 65535
#define ROWS_MOST_N 32 /* of x, where weights lie along n */
/* Up to which it is the fastest, as measured on an H200 (bench/stream_sweep.c). */
#define BEST_WEIGHTS (1 << 25)
#define BEST_SIDE 4096
#define BEST_LINE 1024 /* of k: lines that come many at a time, whatever their number */
#define STAGE_K 64
#define PANEL 64 /* columns that are copied at a time */
#define STAGE_BYTES (2 * PANEL * STAGE_K * 2)
#define SHARED_MOST 232000
#define WARPS 8

/* How skinny_stream.cu is cut: how many blocks share k, the lines of k and the units of 16 columns
 * of each. */
typedef struct cut {
    int cluster_shift;
    int64_t part, units;
} cut;

static int tokens_of(int64_t m)
{
    return m <= 8 ? 8 : m <= 16 ? 16 : 32;
}

static int64_t beside_ring(const cup__product *p, const cut *c)
{
    int64_t tokens = tokens_of(p->m), cluster = INT64_C(1) << c->cluster_shift;
    int64_t inbox = divide_up(c->units, cluster) * cluster * p->m * 64;
    return 16 + WARPS * tokens * 68 * 4 + tokens * (2 * c->part + 16) + inbox;
}

/* The cut with the least for each multiprocessor to read; false when none fits. */
static bool choose(const cup__product *p, int multiprocessors, cut *best)
{
    int64_t least = 0, units = divide_up(p->n, 16);
    for (int shift = 0; shift < 4; shift++) {
        int64_t clusters = multiprocessors >> shift;
        if (shift > 1)
            clusters -= clusters % (8 >> shift);
        clusters = clusters < 1 ? 1 : clusters;
        int64_t each = clusters / p->batch_count;
        cut one = {shift, divide_up(divide_up(p->k, INT64_C(1) << shift), STAGE_K) * STAGE_K, 0};
        one.units = divide_up(divide_up(units, each < 1 ? 1 : each), 4) * 4;
        while (one.units > 4 && beside_ring(p, &one) + 3 * STAGE_BYTES > SHARED_MOST)
            one.units = divide_up(one.units / 2, 4) * 4;
        int64_t waves = divide_up(divide_up(units, one.units) * p->batch_count, clusters);
        int64_t cost = waves * one.units * 16 * one.part * 2 + 1024 * (1 << shift);
        if (beside_ring(p, &one) + 3 * STAGE_BYTES > SHARED_MOST || (least && cost >= least))
            continue;
        least = cost;
        *best = one;
    }
    return least != 0;
}

static const char *along_n_refuses(cup_context *c, const cup__product *p)
{
    cut one;
    if (p->m > ROWS_MOST_N)
        return "it is for a handful of rows";
    if (!cup__driver.cuTensorMapEncodeTiled || !cup__driver.cuLaunchKernelEx)
        return "the driver is too old for tensor maps";
    if (p->b.row < p->n || p->b.row % 8 || (uintptr_t)p->b.data % 16 ||
        (p->batch_ndim && (p->b.batch[0] % 8 || p->b.batch[0] <= 0)))
        return "the lines of b are not whole pieces of 16 bytes, each in its own place";
    if (!choose(p, cup__cuda_facts(cup__cuda_of(c->device))->multiprocessors, &one))
        return "the rows of a do not fit shared memory";
    return NULL;
}

const char *cup__product_stream_refuses(cup_context *c, const cup__product *p)
{
    if (cup__cuda_facts(cup__cuda_of(c->device))->major != 9)
        return "it is for Hopper (sm_90)";
    if (p->dtype != CUP_BF16 && p->dtype != CUP_F16)
        return "it multiplies bf16 and f16 only";
    if (cup__product_is_empty(p))
        return "there is nothing to sum";
    if (p->m > CUP__ROWS_STREAM_MOST)
        return "it is for a handful of rows";
    if (p->batch_ndim > 1 || p->batch_count > GRID_Y_MOST)
        return "it is for one dimension of batches, of up to 65535";
    if (p->n > CUP__ROWS_STREAM_SIDE || p->k > CUP__ROWS_STREAM_SIDE)
        return "the weights are too large";
    if (p->a.column != 1 || (p->b.row != 1 && p->b.column != 1))
        return "a does not lie along k, or b along neither side";
    if (cup__product_vector(p, &p->a, p->m > 1 ? p->a.row : 0, p->k, 8) < 8)
        return "the rows of a are not whole pieces of 16 bytes";
    if (p->b.row != 1)
        return along_n_refuses(c, p);
    if (cup__product_vector(p, &p->b, p->b.column, p->k, 8) < 8)
        return "the lines of b are not whole pieces of 16 bytes";
    return NULL;
}

const char *cup__product_stream_best_refuses(cup_context *c, const cup__product *p)
{
    const char *why = cup__product_stream_refuses(c, p);
    if (why)
        return why;
    if (p->m > CUP__ROWS_STREAM_BEST || p->batch_count > 1)
        return "other kernels are as fast with so many rows, or with batches";
    bool whole = p->k <= BEST_LINE && p->b.column == p->k;
    if (p->b.row == 1 ? (p->n * p->k > BEST_WEIGHTS && !whole) || (p->m > 8 && p->k > BEST_SIDE)
                      : p->n > BEST_SIDE)
        return "other kernels are as fast with such large weights";
    return NULL;
}

static cup_status run_along_n(cup_context *c, const cup__product *p)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    cut by;
    CUtensorMap map;
    if (p->m == 0 || p->n == 0 || !choose(p, cup__cuda_facts(gpu)->multiprocessors, &by))
        return c->error.status;
    int64_t row = p->b.row * 2, matrix = p->batch_ndim ? p->b.batch[0] * 2 : row * p->k;
    cup__boxes panels = {.data = p->b.data, .dtype = p->dtype, .ndim = 3,
                         .size = {p->n, p->k, p->batch_count}, .stride = {0, row, matrix},
                         .box = {PANEL, STAGE_K}};
    CUP_TRY(cup__tensor_map_make(gpu, &panels, &map));
    int64_t beside = beside_ring(p, &by), stages = (SHARED_MOST - beside) / (STAGE_BYTES + 16);
    int64_t steps = divide_up(by.units, 8) * (by.part / STAGE_K);
    stages = stages < steps ? stages : steps;
    cup__knob knobs[] = {{"CUP_T", p->dtype},
                         {"OCTETS", tokens_of(p->m) / 8},
                         {"STAGES", stages},
                         {"ACTIVATION", (int64_t)p->activation}};
    cup__kernel *kernel = cup__kernel_get(gpu, "skinny_stream.cu", "matmul_stream", knobs, 4);
    if (!kernel)
        return c->error.status;
    stream_call work = {.x = p->a.data,
                        .n = (int)p->n,
                        .line = (int)p->k,
                        .part = (int)by.part,
                        .units = (int)by.units,
                        .m = (int)p->m,
                        .cluster_shift = by.cluster_shift,
                        .x_row = p->a.row,
                        .y_row = p->y.row,
                        .y = p->y.data,
                        .pre = p->pre,
                        .bias = p->bias};
    if (p->batch_ndim) {
        work.x_batch = p->a.batch[0];
        work.y_batch = p->y.batch[0];
    }
    cup__grid grid = {.x = divide_up(divide_up(p->n, 16), by.units) << by.cluster_shift,
                      .y = p->batch_count,
                      .threads = 32 * WARPS + 32,
                      .cluster = 1 << by.cluster_shift,
                      .dependent = true,
                      .shared = (int)(stages * (STAGE_BYTES + 16) + beside)};
    return cup__launch(gpu, kernel, grid, CUP__ARG(map), CUP__ARG(work));
}

cup_status cup__product_stream(cup__call *call, const cup__product *p)
{
    cup_context *c = call->c;
    product_call product;
    packed_call weights = {0};
    cup__stream_plan plan;
    if (p->b.row != 1)
        return run_along_n(c, p);
    cup__product_fill(&product, p);
    product.b_mn *= 2;
    cup__stream_choose(&product, 16, cup__cuda_facts(cup__cuda_of(c->device))->multiprocessors,
                       &plan);
    return cup__rows_stream(c, p->dtype, 16, p->dtype, (int)p->activation, &product, &weights,
                            &plan);
}
