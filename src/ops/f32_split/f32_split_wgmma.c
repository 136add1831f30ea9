/* The host side of f32_split_wgmma.cu: which tiles, tensor maps, the launch. */
#include <math.h>
#include <string.h>

#include "base/divide.h"
#include "dispatch/tensor_map.h"
#include "kernels/product_call.cuh"
#include "ops/f32_split/split_call.cuh"
#include "kernels/wgmma_call.cuh"
#include "ops/f32_split/f32_split.h"
#include "ops/matmul/product_state.h"
#include "ops/matmul/wgmma_maps.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
#define TILE_M 128
#define STAGING (2 * 4 * 2 * 2048)
#define STAGES_MOST 8

/* Microseconds of a stage of 64 of k: one product of tiles, fitted to an H200. */
static const struct {
    int tile_n;
    double stage, tile;
} menu[] = {{128, 0.328, 1.5}, {64, 0.185, 0.9}, {256, 0.620, 2.5}};
static const int part_counts[] = {1, 2, 3, 4, 6, 8};

static int64_t tiles_of(const cup__product *p, int tile_n)
{
    return divide_up(p->m, TILE_M) * divide_up(p->n, tile_n) * p->batch_count;
}

/* Of k in a stage: 128 bytes. */
static int tile_k(cup_dtype dtype)
{
    return dtype == CUP_F32 ? 32 : 64;
}

static bool parts_fit(const cup__product *p, int tile_n, int parts)
{
    int64_t tiles = tiles_of(p, tile_n);
    return parts == 1 || (tiles * parts * TILE_M * tile_n * 4 <= (int64_t)CUP__WORKSPACE_BYTES &&
                          tiles * 2 <= CUP__COUNTERS && divide_up(p->k, 64) >= 4 * parts);
}

/* Microseconds to make the planes. */
static double cut_time(const cup__product *p, int planes)
{
    double elements = (double)(p->m + p->n) * (double)p->k * (double)p->batch_count;
    double passes = (p->a.column == 1 ? 1.0 : 1.5) + (p->b.row == 1 ? 1.0 : 1.5) - 1;
    return 5.0 * passes + elements * (4 * passes + 2 * planes) / 3.0e6 + (planes > 1 ? 5 : 0);
}

/* Microseconds to turn the matrices that do not lie along k. */
static double turn_time(const cup__product *p)
{
    double turned = (p->a.column == 1 ? 0 : (double)p->m) + (p->b.row == 1 ? 0 : (double)p->n);
    return turned > 0 ? 4 + turned * (double)p->k * (double)p->batch_count * 8 / 2.8e6 : 0;
}

double cup__split_unit_time(int tile_n, int64_t k_tiles, int planes)
{
    int products = planes == 2 ? 3 : planes == 3 ? 6 : 1, i = 0;
    while (menu[i].tile_n != tile_n)
        i++;
    return (double)k_tiles * products * menu[i].stage + menu[i].tile;
}

double cup__split_tiles(const cup__product *p, int multiprocessors, cup_dtype dtype, int planes,
                        cup__split_plan *plan)
{
    double least = 0;
    for (int i = 0; i < COUNT(menu); i++)
        for (int j = 0; j < COUNT(part_counts); j++) {
            int tile_n = menu[i].tile_n, parts = part_counts[j];
            if ((tile_n == 256 && planes > 1) || !parts_fit(p, tile_n, parts))
                continue;
            double rounds = ceil((double)(tiles_of(p, tile_n) * parts) / multiprocessors);
            int64_t k_tiles = divide_up(divide_up(p->k, tile_k(dtype)), parts);
            double joining = parts > 1 ? 4.5 + tile_n / 256.0 * (1 + 0.6 * parts) : 0;
            double each = cup__split_unit_time(tile_n, k_tiles, planes) + joining;
            double time = 5 + rounds * each;
            if (least == 0 || time < least) {
                least = time;
                *plan = (cup__split_plan){dtype, planes, tile_n, parts};
            }
        }
    return least;
}

double cup__split_choose(const cup_context *c, const cup__product *p, int multiprocessors,
                         cup__split_plan *plan)
{
    if (c->precision == CUP__HIGHEST)
        return cup__split_tiles(p, multiprocessors, CUP_F16, 2, plan) + cut_time(p, 2);
    cup__split_plan whole;
    double cut = cup__split_tiles(p, multiprocessors, CUP_F16, 1, plan) + cut_time(p, 1);
    if (c->precision == CUP__MEDIUM)
        plan->dtype = CUP_BF16;
    double direct = cup__split_tiles(p, multiprocessors, CUP_F32, 1, &whole) + turn_time(p);
    if (direct >= cut)
        return cut;
    *plan = whole;
    return direct;
}

double cup__split_vendor_time(const cup_context *c, const cup__product *p)
{
    double operations = 2.0 * (double)p->m * (double)p->n * (double)p->k * (double)p->batch_count;
    if (c->precision == CUP__HIGHEST)
        return 12 + operations / 50e6;
    bool both_turned = p->a.column != 1 && p->b.column == 1;
    return 9 + operations / (both_turned ? 260e6 : 400e6);
}

static int bias_bytes(const cup__product *p, const cup__split_plan *plan)
{
    return p->bias ? 2 * 2 * plan->tile_n * 4 : 0;
}

int cup__split_stages(const cup__product *p, const cup__split_plan *plan)
{
    int stage = plan->planes * (TILE_M + plan->tile_n) * 128 + 16;
    int stages = (CUP__WGMMA_SHARED - STAGING - 32 - bias_bytes(p, plan)) / stage;
    return stages < STAGES_MOST ? stages : STAGES_MOST;
}

int cup__split_shared(const cup__product *p, const cup__split_plan *plan)
{
    return cup__split_stages(p, plan) * (plan->planes * (TILE_M + plan->tile_n) * 128 + 16) +
           STAGING + bias_bytes(p, plan) + 16;
}

static cup__boxes planes_of(const cup__split_plan *plan, const cup__split_planes *from, int i,
                            int tile)
{
    bool along_k = from->along[i] == PRODUCT_ALONG_K;
    return (cup__boxes){
        .data = from->data[i],
        .dtype = plan->dtype,
        .as_tf32 = plan->dtype == CUP_F32,
        .ndim = 3,
        .size = {from->length[i], from->lines[i], from->batch[i] * plan->planes},
        .stride = {0, from->line_bytes[i], from->matrix_bytes[i]},
        .box = {along_k ? tile_k(plan->dtype) : 64, along_k ? tile : 64}};
}

/* Whether TMA can write y: it writes whole pieces of 16 bytes. */
static bool can_store(const cup__product *p)
{
    return p->n % 4 == 0 && (p->y.row % 4 == 0 || p->m == 1) && (uintptr_t)p->y.data % 16 == 0 &&
           (uintptr_t)p->pre % 16 == 0 && (!p->batch_ndim || p->y.batch[0] % 4 == 0);
}

static cup__boxes results_of(const cup__product *p, void *data)
{
    int64_t row = p->m == 1 ? p->n : p->y.row, batch = p->batch_ndim ? p->batch_count : 1;
    return (cup__boxes){.data = data,
                        .dtype = CUP_F32,
                        .ndim = 2 + p->batch_ndim,
                        .size = {p->n, p->m, batch},
                        .stride = {0, row * 4, (batch > 1 ? p->y.batch[0] : row * p->m) * 4},
                        .box = {32, 16}};
}

static void fill(wgmma_call *to, split_product *extra, const cup__product *p,
                 const cup__split_plan *plan, const cup__split_planes *from, int multiprocessors)
{
    int64_t k_tiles = divide_up(p->k, tile_k(plan->dtype)), part = divide_up(k_tiles, plan->parts);
    int batch = p->batch_ndim;
    double rows = sqrt((double)multiprocessors * plan->tile_n / TILE_M) + 0.5;
    memset(to, 0, sizeof *to);
    to->bias = p->bias;
    to->y = p->y.data;
    to->pre = p->pre;
    to->y_row = p->y.row;
    to->y_batch[0] = batch ? p->y.batch[0] : 0;
    to->m = (int)p->m;
    to->n = (int)p->n;
    to->k_tiles = (int)k_tiles;
    to->tiles_m = (int)divide_up(p->m, TILE_M);
    to->tiles_n = (int)divide_up(p->n, plan->tile_n);
    to->parts = (int)divide_up(k_tiles, part);
    to->part_tiles = (int)part;
    to->units = (int)(tiles_of(p, plan->tile_n) * to->parts);
    to->group = (int)rows;
    to->a_batch[0] = from->batch[0] > 1;
    to->b_batch[0] = from->batch[1] > 1;
    *extra = (split_product){
        .a = (const float *)(const void *)p->a.data,
        .b = (const float *)(const void *)p->b.data,
        .a_row = p->a.row,
        .a_k = p->a.column,
        .a_batch = batch ? p->a.batch[0] : 0,
        .b_column = p->b.column,
        .b_k = p->b.row,
        .b_batch = batch ? p->b.batch[0] : 0,
        .k = p->k,
        .a_exponents = from->exponents[0],
        .b_exponents = from->exponents[1],
        .a_matrices = (int)from->batch[0],
        .b_matrices = (int)from->batch[1],
        .words = from->words,
    };
}

static cup__kernel *kernel_of(cup__cuda *gpu, const cup__product *p, const cup__split_plan *plan,
                              const cup__split_planes *from, bool store, bool parts)
{
    cup__knob knobs[] = {
        {"CUP_T", plan->dtype},
        {"PLANES", plan->planes},
        {"TILE_N", plan->tile_n},
        {"STAGES", cup__split_stages(p, plan)},
        {"A_ALONG", from->along[0]},
        {"B_ALONG", from->along[1]},
        {"BATCH", p->batch_ndim},
        {"HAS_BIAS", p->bias != NULL},
        {"HAS_PRE", p->pre != NULL},
        {"ACTIVATION", p->activation},
        {"PARTS", parts},
        {"Y_DIRECT", !store},
    };
    return cup__kernel_get(gpu, "f32_split_wgmma.cu", "matmul_split_sm90", knobs, COUNT(knobs));
}

cup_status cup__split_multiply(cup_context *c, const cup__product *p, const cup__split_plan *plan,
                               const cup__split_planes *from)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    int multiprocessors = cup__cuda_facts(gpu)->multiprocessors;
    CUtensorMap a, b, y, pre;
    cup__boxes of_a = planes_of(plan, from, 0, TILE_M), of_y = results_of(p, p->y.data);
    cup__boxes of_b = planes_of(plan, from, 1, plan->tile_n), of_pre = results_of(p, p->pre);
    CUP_TRY(cup__tensor_map_make(gpu, &of_a, &a));
    CUP_TRY(cup__tensor_map_make(gpu, &of_b, &b));
    bool store = can_store(p);
    y = pre = a;
    if (store)
        CUP_TRY(cup__tensor_map_make(gpu, &of_y, &y));
    if (store && p->pre)
        CUP_TRY(cup__tensor_map_make(gpu, &of_pre, &pre));
    wgmma_call argument;
    split_product extra;
    fill(&argument, &extra, p, plan, from, multiprocessors);
    if (argument.parts > 1) {
        cup__product_state *state = cup__product_state_of(c);
        if (!state)
            return c->error.status;
        argument.partial = state->workspace;
        argument.arrived = state->counters;
    }
    cup__kernel *kernel = kernel_of(gpu, p, plan, from, store, argument.parts > 1);
    if (!kernel)
        return c->error.status;
    cup__grid grid = {
        .x = argument.units < multiprocessors ? argument.units : multiprocessors,
        .threads = 128 * 3,
        .shared = cup__split_shared(p, plan),
        .dependent = true,
        .waits = argument.parts > 1,
    };
    return cup__launch(gpu, kernel, grid, CUP__ARG(a), CUP__ARG(b), CUP__ARG(y), CUP__ARG(pre),
                       CUP__ARG(argument), CUP__ARG(extra));
}
