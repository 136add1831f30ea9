/* Which tiles a product on Hopper is cut into, and whether NVIDIA's library would be faster, by a
 * model of both that was fitted to measurements on an H200 (bench/matmul_sweep.c). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/product_wgmma.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* What work in one shape of tiles costs, in microseconds. */
typedef struct rates {
    double start;  /* once */
    double k_tile; /* for each 64 of k of a tile */
    double tile;   /* for each tile beside that */
    double whole;  /* 1: a round that is not full costs as much as a full one; 0: its share */
} rates;

typedef struct entry {
    cup__wgmma_plan plan;
    rates cost;
} entry;

static const entry menu[] = {
    {{128, 192, 2, true, 4, 2, 1, 1, 0, 0, 0}, {7.0, 0.471, 0.65, 1.0}},
    {{128, 192, 2, true, 4, 1, 2, 1, 0, 0, 0}, {6.8, 0.472, 0.73, 1.0}},
    {{128, 192, 2, true, 4, 1, 1, 1, 0, 0, 0}, {5.9, 0.473, 0.74, 1.0}},
    {{128, 256, 2, false, 4, 2, 1, 1, 0, 0, 0}, {6.4, 0.616, 1.84, 1.0}},
    {{128, 256, 2, false, 4, 1, 1, 1, 0, 0, 0}, {5.1, 0.619, 2.08, 1.0}},
    {{256, 128, 2, false, 4, 1, 2, 1, 0, 0, 0}, {6.2, 0.618, 1.96, 1.0}},
    {{256, 128, 2, false, 4, 1, 1, 1, 0, 0, 0}, {5.0, 0.624, 2.08, 1.0}},
    {{128, 128, 2, true, 6, 1, 1, 1, 0, 0, 0}, {6.3, 0.328, 0.39, 0.9}},
    {{64, 256, 2, true, 4, 1, 1, 1, 0, 0, 0}, {6.7, 0.355, 0.47, 0.9}},
    {{64, 128, 2, true, 8, 1, 1, 1, 0, 0, 0}, {5.4, 0.250, 0.1, 0.3}},
    {{128, 64, 2, false, 8, 1, 1, 1, 0, 0, 0}, {4.6, 0.304, 0.1, 0.5}},
    {{64, 64, 1, false, 12, 1, 1, 1, 0, 0, 0}, {5.8, 0.165, 0.3, 0.9}},
};

/* The library's tiles as its times show them; what one of them costs is shared. */
typedef struct vendor_tile {
    int tile_m, tile_n;
    double k_tile;
} vendor_tile;

static const vendor_tile vendor_menu[] = {
    {128, 256, 0.622}, {256, 128, 0.622}, {128, 192, 0.5},  {192, 128, 0.5},   {128, 128, 0.337},
    {64, 256, 0.36},   {64, 128, 0.25},   {128, 64, 0.28},  {64, 64, 0.174},
};

#define PART_TILE 32768.0 /* elements of the tile that the costs of parts are given for */

static const int part_counts[] = {1, 2, 3, 4, 5, 6, 8, 10, 12};

static int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

/* Microseconds of `tiles`, each in `parts` along k, by `slots` at a time. */
static double time_of(const rates *cost, int64_t k, int64_t tiles, int parts, int slots,
                      double part_cost)
{
    double rounds = (double)(tiles * parts) / slots;
    double share = rounds < 1 ? 1 : rounds;
    rounds = cost->whole * ceil(rounds - 1e-9) + (1 - cost->whole) * share;
    double each = (double)divide_up(divide_up(k, 64), parts) * cost->k_tile + cost->tile;
    return cost->start + rounds * (each + (parts > 1 ? part_cost : 0));
}

static int64_t tiles_of(const cup__product *p, int tile_m, int tile_n)
{
    return divide_up(p->m, tile_m) * divide_up(p->n, tile_n) * p->batch_count;
}

/* What GELU and the value before it add, for each million elements of y. */
static double epilogue_time(const cup__product *p, double gelu, double saved)
{
    double millions = 1e-6 * (double)p->m * (double)p->n * (double)p->batch_count;
    return millions * ((p->activation ? gelu : 0) + (p->saving ? saved : 0));
}

static double plan_time(const cup__product *p, const entry *e, const cup__wgmma_plan *one,
                        int multiprocessors)
{
    int64_t tiles = tiles_of(p, one->tile_m * one->cluster_m, one->tile_n * one->cluster_n);
    int slots = multiprocessors / (one->cluster_m * one->cluster_n);
    double part_cost = 4.5 + one->tile_m * one->tile_n / PART_TILE * (1.0 + 0.6 * one->parts);
    double time = time_of(&e->cost, p->k, tiles, one->parts, slots, part_cost);
    return time + epilogue_time(p, 0.1, 0.31);
}

/* A row of the menu with the number of parts that is best for it; 0 when it cannot be used. */
static double choose_parts(const cup__product *p, int multiprocessors, const entry *e,
                           cup__wgmma_plan *plan)
{
    double least = 0;
    for (int j = 0; j < COUNT(part_counts); j++) {
        cup__wgmma_plan one = e->plan;
        one.parts = part_counts[j];
        if ((j > 0 && divide_up(p->k, 64) < 4 * one.parts) || cup__wgmma_plan_refuses(p, &one))
            continue;
        double time = plan_time(p, e, &one, multiprocessors);
        if (least == 0 || time < least) {
            least = time;
            *plan = one;
        }
    }
    return least;
}

double cup__wgmma_choose(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan)
{
    double least = 0;
    for (int i = 0; i < COUNT(menu); i++) {
        cup__wgmma_plan one;
        double time = choose_parts(p, multiprocessors, &menu[i], &one);
        if (time > 0 && (least == 0 || time < least)) {
            least = time;
            *plan = one;
        }
    }
    return least;
}

double cup__cublaslt_time(const cup__product *p, int multiprocessors)
{
    double least = 0;
    for (int i = 0; i < COUNT(vendor_menu); i++)
        for (int j = 0; j < COUNT(part_counts); j++) {
            const vendor_tile *tile = &vendor_menu[i];
            const rates cost = {4.2, 1.011 * tile->k_tile, 1.67, 0.85};
            if (j > 0 && divide_up(p->k, 64) < 8 * part_counts[j])
                continue;
            double part_cost = 6.0 * tile->tile_m * tile->tile_n / PART_TILE;
            double time = time_of(&cost, p->k, tiles_of(p, tile->tile_m, tile->tile_n),
                                  part_counts[j], multiprocessors, part_cost);
            if (least == 0 || time < least)
                least = time;
        }
    return least + epilogue_time(p, 0.39, 0.31);
}

typedef struct candidate {
    cup__wgmma_plan plan;
    double time;
} candidate;

static int by_time(const void *left, const void *right)
{
    double a = ((const candidate *)left)->time, b = ((const candidate *)right)->time;
    return (a > b) - (a < b);
}

int cup__wgmma_candidates(const cup__product *p, int multiprocessors, cup__wgmma_plan *plans,
                          int most)
{
    candidate all[COUNT(menu)];
    int count = 0;
    for (int i = 0; i < COUNT(menu); i++) {
        all[count].time = choose_parts(p, multiprocessors, &menu[i], &all[count].plan);
        count += all[count].time > 0;
    }
    qsort(all, (size_t)count, sizeof *all, by_time);
    count = count < most ? count : most;
    for (int i = 0; i < count; i++)
        plans[i] = all[i].plan;
    return count;
}

bool cup__wgmma_is_on_menu(const cup__wgmma_plan *plan)
{
    for (int i = 0; i < COUNT(menu); i++) {
        cup__wgmma_plan one = menu[i].plan;
        one.parts = plan->parts;
        if (!memcmp(&one, plan, sizeof one))
            return plan->parts >= 1 && plan->parts <= part_counts[COUNT(part_counts) - 1];
    }
    return false;
}
