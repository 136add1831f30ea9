/* Which tiles a product on Hopper is cut into, and whether NVIDIA's library would be faster, by a
 * model of both that was fitted to measurements on an H200 (bench/matmul_models.c). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/divide.h"
#include "ops/matmul/wgmma.h"

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

#define C(m, n, s, cm, cn) {m, n, 2, false, s, cm, cn, 1, 0, 0, 0}
#define P(m, n, s, cm, cn) {m, n, 2, true, s, cm, cn, 1, 0, 0, 0}
#define S(m, n, s, cm, cn) {m, n, 1, false, s, cm, cn, 1, 0, 0, 0}
#define T(m, n, s, cm, cn) {m, n, 3, false, s, cm, cn, 1, 0, 0, 0}
/* Parts of k that meet in a cluster. */
#define SK(m, n, s, k) {m, n, 1, false, s, 1, 1, k, 0, k, 0}
static const entry menu[] = {
    {P(128, 192, 4, 2, 1), {5.5, 0.513, 0.0, 0.85}},
    {P(128, 192, 4, 1, 1), {5.2, 0.513, 0.06, 1.0}},
    {C(128, 256, 4, 2, 1), {4.4, 0.677, 1.2, 0.9}},
    {C(128, 256, 4, 1, 1), {4.0, 0.64, 1.78, 1.0}},
    {C(256, 128, 4, 1, 1), {3.6, 0.65, 1.63, 1.0}},
    {C(256, 192, 3, 1, 1), {5.6, 0.968, 2.1, 1.0}},
    {T(192, 192, 4, 1, 1), {3.8, 0.733, 1.66, 1.0}},
    {T(192, 160, 4, 1, 1), {4.0, 0.565, 1.53, 1.0}},
    {T(192, 128, 5, 1, 1), {4.6, 0.508, 0.86, 1.0}},
    {T(192, 96, 5, 2, 1), {4.2, 0.404, 1.0, 1.0}},
    {T(192, 96, 5, 1, 1), {3.8, 0.443, 0.86, 1.0}},
    {C(128, 224, 4, 1, 1), {4.2, 0.576, 1.5, 1.0}},
    {C(128, 160, 4, 1, 1), {3.9, 0.426, 1.08, 0.96}},
    {P(128, 128, 6, 1, 1), {4.2, 0.343, 0.17, 1.0}},
    {C(128, 128, 6, 1, 1), {3.7, 0.341, 0.75, 1.0}},
    {P(128, 96, 6, 1, 1), {3.5, 0.298, 0.0, 1.0}},
    {C(128, 96, 6, 1, 1), {3.6, 0.291, 0.15, 1.0}},
    {P(64, 192, 6, 1, 1), {3.5, 0.296, 0.02, 0.92}},
    {P(64, 128, 8, 1, 1), {3.7, 0.213, 0.0, 1.0}},
    {S(64, 128, 8, 1, 1), {3.8, 0.211, 0.08, 1.0}},
    {S(64, 96, 8, 1, 1), {4.2, 0.205, 0.0, 1.0}},
    {S(64, 64, 12, 1, 1), {3.3, 0.166, 0.0, 1.0}},
    {S(64, 32, 12, 1, 1), {5.0, 0.125, 0.0, 1.0}},
    {SK(64, 96, 8, 2), {4.65, 0.166, 0.3, 1.0}},
    {SK(64, 64, 12, 2), {3.85, 0.173, 0.3, 1.0}},
    {SK(64, 32, 12, 2), {3.08, 0.103, 0.3, 1.0}},
    /* With fewer stages, where a tile of another matrix takes part of the memory. */
    {P(128, 128, 4, 1, 1), {4.4, 0.35, 0.2, 1.0}},
    {C(128, 256, 3, 1, 1), {4.5, 0.655, 1.85, 1.0}},
};

/* The library's tiles as its times show them; what one of them costs beside is shared. */
typedef struct vendor_tile {
    int tile_m, tile_n;
    double k_tile;
} vendor_tile;

static const vendor_tile vendor_menu[] = {
    {128, 256, 0.622}, {256, 128, 0.622}, {128, 320, 0.801}, {320, 128, 0.801},
    {128, 192, 0.497}, {192, 128, 0.476}, {128, 160, 0.383}, {160, 128, 0.4},
    {128, 224, 0.56},  {224, 128, 0.566}, {192, 192, 0.776}, {128, 128, 0.335},
    {64, 256, 0.32},   {64, 128, 0.174},  {128, 64, 0.25},   {64, 64, 0.119},
};
static const rates vendor_rates = {3.56, 0, 1.53, 1.0};

#define PART_TILE 32768.0   /* elements of the tile that the costs of parts are given for */
#define BYTES_EACH_US 3.7e6 /* from memory */
#define PARTS_MOST 12
#define HOT_US 300          /* from here on the card's power is what limits it, */
#define HOT_COST 1.08       /* and turns of small tiles take less of it than large ones together */
#define MARGIN 0.965        /* what the library must be below of our time, */
#define MARGIN_FEW 1.03     /* and where tiles are mostly empty, */
#define FEW 48              /* with so many rows */

/* Microseconds of `tiles`, each in `parts` along k, by `slots` at a time. */
static double work_time(const rates *cost, int64_t k, int64_t tiles, int parts, int slots,
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
    int64_t columns = p->activation == PRODUCT_SWIGLU ? 2 * p->n : p->n;
    return divide_up(p->m, tile_m) * divide_up(columns, tile_n) * p->batch_count;
}

/* What the bytes need at least, beside what goes on at the same time. */
static double with_bytes(const cup__product *p, double start, double time, int parts)
{
    double elements = (double)p->m * (double)p->k + (double)p->n * (double)p->k +
                      (double)p->m * (double)p->n;
    double bytes =
        start + (parts > 1 ? 4 : 0) + 2 * elements * (double)p->batch_count / BYTES_EACH_US;
    double a = time * time, b = bytes * bytes;
    return sqrt(sqrt(a * a + b * b));
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
    double area = one->tile_m * one->tile_n / PART_TILE;
    double joining = one->cluster_k ? 1.8 : 3.34 + 0.25 * one->parts * area;
    double time = work_time(&e->cost, p->k, tiles, one->parts, slots, joining);
    if (time > HOT_US && !one->pingpong)
        time *= HOT_COST;
    time = with_bytes(p, 6.3, time, one->parts);
    return time + epilogue_time(p, 0.1, 0.31);
}

/* Whether so many parts are worth a look: they fit the card at a time, and are long enough. */
static bool parts_fit(int64_t tiles, int64_t k, int parts, int multiprocessors, int k_tiles_least)
{
    return parts == 1 || (tiles <= multiprocessors / parts &&
                          divide_up(k, 64) >= (int64_t)k_tiles_least * parts);
}

/* A row of the menu with the number of parts that is best for it; 0 when it cannot be used. */
static double choose_parts(const cup__product *p, int multiprocessors, const entry *e,
                           cup__wgmma_plan *plan)
{
    double least = 0;
    int meeting = e->plan.cluster_k;
    for (int parts = meeting ? meeting : 1; parts <= (meeting ? meeting : PARTS_MOST); parts++) {
        cup__wgmma_plan one = e->plan;
        one.parts = parts;
        if (!parts_fit(tiles_of(p, one.tile_m, one.tile_n), p->k, parts, multiprocessors, 4))
            break;
        if (cup__wgmma_plan_refuses(p, &one))
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
        for (int parts = 1; parts <= 8; parts++) {
            const vendor_tile *tile = &vendor_menu[i];
            rates cost = vendor_rates;
            cost.k_tile = tile->k_tile;
            int64_t tiles = tiles_of(p, tile->tile_m, tile->tile_n);
            bool wide = tile->tile_m > 256 || tile->tile_n > 256;
            if (!parts_fit(tiles, p->k, parts, multiprocessors, 8) || (parts > 1 && wide))
                break;
            double part_cost = 3 + 6.0 * tile->tile_m * tile->tile_n / PART_TILE;
            double time = work_time(&cost, p->k, tiles, parts, multiprocessors, part_cost);
            time = with_bytes(p, 5.04, time, parts);
            if (least == 0 || time < least)
                least = time;
        }
    return least + epilogue_time(p, 0.39, 0.31);
}

bool cup__product_choice(cup_context *c, const cup__product *p, cup__wgmma_plan *plan)
{
    int multiprocessors = cup__cuda_facts(cup__cuda_of(c->device))->multiprocessors;
    memset(plan, 0, sizeof *plan);
    double ours = cup__wgmma_choose(p, multiprocessors, plan);
    return cup__cublaslt_time(p, multiprocessors) >= (p->m <= FEW ? MARGIN_FEW : MARGIN) * ours;
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
            return plan->parts >= 1 && plan->parts <= PARTS_MOST;
    }
    return false;
}
