/* Which tiles products on Hopper are cut into, by menus of tiles with their costs, and whether
 * NVIDIA's library would be faster, by models that were fitted to measurements on an H200
 * (bench/matmul_models.c). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/divide.h"
#include "ops/matmul/wgmma.h"
#include "ops/matmul/wgmma_maps.h"

#define READ_RATE 4.2e6 /* bytes of memory in a microsecond */
#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* What work in one shape of tiles costs, in microseconds. */
typedef struct rates {
    double start;  /* once */
    double k_tile; /* for each 64 of k of a tile, or 128 of codes */
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
static const entry plain_entries[] = {
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
    /* Pairs that share rows: for the tuner, as nobody has measured yet whether they cost less. */
    {C(128, 128, 6, 1, 2), {4.1, 0.341, 0.75, 1.0}},
    {T(192, 128, 5, 1, 2), {5.0, 0.508, 0.86, 1.0}},
    /* With fewer stages, where a tile of another matrix takes part of the memory. */
    {P(128, 128, 4, 1, 1), {4.4, 0.35, 0.2, 1.0}},
    {C(128, 256, 3, 1, 1), {4.5, 0.655, 1.85, 1.0}},
};

/* Tiles for 64 results. */
static const entry narrow_entries[] = {
    {P(128, 64, 8, 1, 1), {3.5, 0.25, 0.0, 1.0}},
    {P(64, 256, 4, 1, 1), {3.5, 0.36, 0.4, 1.0}},
};

static const entry narrow_code_entries[] = {{P(128, 64, 8, 1, 1), {0, 0.25, 0.1, 1}}};
static const entry narrow_promoted_entries[] = {{C(128, 64, 8, 1, 1), {0, 0.32, 0.5, 1}}};

static const entry group_entries[] = {
    {P(128, 192, 4, 1, 1), {0, 0.473, 0.74, 1}}, {C(128, 256, 4, 1, 1), {0, 0.619, 2.08, 1}},
    {P(128, 128, 6, 1, 1), {0, 0.328, 0.39, 1}}, {P(64, 256, 4, 1, 1), {0, 0.355, 0.47, 1}},
    {P(64, 128, 8, 1, 1), {0, 0.250, 0.1, 1}},
};
static const entry code_entries[] = {
    {P(128, 192, 4, 2, 1), {0, 0.53, 0.65, 1}},  {C(128, 256, 4, 2, 1), {0, 0.71, 1.84, 1}},
    {C(128, 256, 4, 1, 1), {0, 0.71, 1.84, 1}},  {P(128, 128, 6, 1, 1), {0, 0.36, 0.39, 1}},
    {P(64, 256, 4, 1, 1), {0, 0.375, 0.47, 1}},  {P(64, 128, 8, 1, 1), {0, 0.215, 0.1, 1}},
    {S(64, 64, 12, 1, 1), {0, 0.155, 0.1, 1}},
};
/* With sums that leave the tensor cores after each 128 of k. */
static const entry promoted_entries[] = {
    {T(192, 128, 5, 1, 1), {0, 0.565, 1.1, 1}},  {C(128, 192, 5, 1, 1), {0, 0.575, 1.1, 1}},
    {C(256, 128, 4, 1, 1), {0, 0.75, 2.0, 1}},   {C(128, 128, 6, 1, 1), {0, 0.40, 0.9, 1}},
    {S(64, 128, 8, 1, 1), {0, 0.32, 0.6, 1}},    {S(64, 64, 12, 1, 1), {0, 0.24, 0.4, 1}},
};

static const int whole_counts[] = {1, 0}, code_counts[] = {1, 2, 3, 4, 6, 8, 0},
                 plain_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,
                                   11, 12, 16, 22, 33, 44, 66, 132, 0};

typedef double time_function(const cup__product *p, const entry *e, const cup__wgmma_plan *one,
                             int multiprocessors);
static time_function plain_time, simple_time;

/* What products of one kind choose from. */
typedef struct menu {
    const entry *entries;
    int count;
    const int *parts; /* numbers of parts of k, up to 0 */
    bool at_a_time;   /* parts are only worth a look where all fit the card at a time */
    time_function *time;
} menu;

static const menu plain_menu = {plain_entries, COUNT(plain_entries), plain_counts, true,
                                plain_time},
                  group_menu = {group_entries, COUNT(group_entries), whole_counts, false,
                                simple_time},
                  code_menu = {code_entries, COUNT(code_entries), code_counts, false,
                               simple_time},
                  promoted_menu = {promoted_entries, COUNT(promoted_entries), code_counts, false,
                                   simple_time};
/* What convolutions choose from beside. */
static const menu narrow_menu = {narrow_entries, COUNT(narrow_entries), plain_counts, true,
                                 plain_time},
                  narrow_code_menu = {narrow_code_entries, COUNT(narrow_code_entries), code_counts,
                                      false, simple_time},
                  narrow_promoted_menu = {narrow_promoted_entries, COUNT(narrow_promoted_entries),
                                          code_counts, false, simple_time};

static const menu *menu_of(const cup__product *p)
{
    return p->scaling       ? cup__wgmma_promotes(p) ? &promoted_menu : &code_menu
           : p->groups.kind ? &group_menu
                            : &plain_menu;
}

static const menu *narrow_menu_of(const cup__product *p)
{
    return !p->scaling              ? &narrow_menu
           : cup__wgmma_promotes(p) ? &narrow_promoted_menu
                                    : &narrow_code_menu;
}

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
#define PLANS_MOST 16 /* that are measured */
#define PARTS_MOST 132 /* of plain_counts */
#define HOT_US 300          /* from here on the card's power is what limits it, */
#define HOT_COST 1.08       /* and turns of small tiles take less of it than large ones together */
#define MARGIN 0.965        /* what the library must be below of our time, */
#define MARGIN_FEW 1.03     /* and where tiles are mostly empty, */
#define FEW 48              /* with so many rows */
#define SHORT_US 16         /* A product as short as that */
#define STARTED_US 1.5      /* begins by so much earlier, as a dependent of the one before, */
#define SHORT_ROWS 64       /* with so few rows, as when texts are written side by side */
#define JOINED_EACH_US 1.5e6 /* bytes of parts that are matrices of their own, */
#define JOINING 2.5         /* and what adding them up costs beside, */
#define STORED 0.7          /* and storing a tile of one */
#define WAVES_MOST 4
#define MATRICES_MOST 512

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

static double plan_area(const cup__wgmma_plan *plan)
{
    return plan->tile_m * plan->tile_n / PART_TILE;
}

static double plain_time(const cup__product *p, const entry *e, const cup__wgmma_plan *one,
                        int multiprocessors)
{
    int64_t tiles = tiles_of(p, one->tile_m * one->cluster_m, one->tile_n * one->cluster_n);
    int slots = multiprocessors / (one->cluster_m * one->cluster_n);
    double joining = one->cluster_k ? 1.8 : 3.34 + 0.25 * one->parts * plan_area(one);
    double time = work_time(&e->cost, p->k, tiles, one->parts, slots, joining);
    if (time > HOT_US && !one->pingpong)
        time *= HOT_COST;
    time = with_bytes(p, 6.3, time, one->parts);
    return time + epilogue_time(p, 0.1, 0.31);
}

/* As if all groups were of the same size. */
static double simple_time(const cup__product *p, const entry *e, const cup__wgmma_plan *one,
                          int multiprocessors)
{
    bool of_depth = p->groups.kind == PRODUCT_GROUPS_OF_DEPTH;
    int64_t matrices = p->groups.kind ? p->batch_count : 1;
    int64_t m = of_depth ? p->m : divide_up(p->m, matrices);
    int64_t k = of_depth ? divide_up(p->k, matrices) : p->k;
    int64_t tiles = matrices * divide_up(m, (int64_t)one->tile_m * one->cluster_m) *
                    divide_up(p->n, (int64_t)one->tile_n * one->cluster_n) * one->parts;
    int64_t slots = multiprocessors / (one->cluster_m * one->cluster_n);
    double joining = one->parts > 1 ? 4.5 + plan_area(one) * (1 + 0.6 * one->parts) : 0;
    return (double)divide_up(tiles, slots < 1 ? 1 : slots) *
           ((double)divide_up(divide_up(k, cup__wgmma_tile_k(p)), one->parts) * e->cost.k_tile +
            e->cost.tile + joining);
}

/* Whether so many parts are worth a look: they fit the card at a time, and are long enough. */
static bool parts_fit(int64_t tiles, int64_t k_tiles, int parts, int multiprocessors, int least)
{
    return parts == 1 ||
           (tiles <= multiprocessors / parts && k_tiles >= (int64_t)least * parts);
}

/* A row of a menu with the number of parts that is best for it; 0 when it cannot be used. */
static double choose_parts(const cup__product *p, int multiprocessors, const menu *from,
                           const entry *e, cup__wgmma_plan *plan)
{
    double least = 0;
    int64_t k_tiles = divide_up(p->k, cup__wgmma_tile_k(p));
    int64_t tiles = from->at_a_time ? tiles_of(p, e->plan.tile_m, e->plan.tile_n) : 0;
    for (const int *parts = from->parts; *parts; parts++) {
        cup__wgmma_plan one = e->plan;
        one.parts = *parts;
        if ((one.cluster_k && one.parts != one.cluster_k) ||
            !parts_fit(tiles, k_tiles, one.parts, multiprocessors, 4) ||
            cup__wgmma_plan_refuses(p, &one))
            continue;
        double time = from->time(p, e, &one, multiprocessors);
        if (least == 0 || time < least) {
            least = time;
            *plan = one;
        }
    }
    return least;
}

/* The plan of a menu, where one is better than what was found before and takes `least`. */
static double choose_from(const cup__product *p, int multiprocessors, const menu *from,
                          double least, cup__wgmma_plan *plan)
{
    for (int i = 0; i < from->count; i++) {
        cup__wgmma_plan one;
        double time = choose_parts(p, multiprocessors, from, &from->entries[i], &one);
        if (time > 0 && (least == 0 || time < least)) {
            least = time;
            *plan = one;
        }
    }
    return least;
}

double cup__wgmma_choose(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan)
{
    return choose_from(p, multiprocessors, menu_of(p), 0, plan);
}

double cup__wgmma_choose_conv(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan)
{
    double least = cup__wgmma_choose(p, multiprocessors, plan);
    return choose_from(p, multiprocessors, narrow_menu_of(p), least, plan);
}

/* The best number of parts of a long k, which are matrices of their own in f32 and added later. */
static double choose_matrices(const cup__product *p, int multiprocessors, const entry *e,
                              int *parts)
{
    const cup__wgmma_plan *one = &e->plan;
    int64_t k_tiles = divide_up(p->k, 64), tiles = tiles_of(p, one->tile_m, one->tile_n);
    double least = 0, matrix = 4 * (double)p->m * (double)p->n / JOINED_EACH_US;
    for (int waves = 0; waves <= WAVES_MOST; waves++) {
        int64_t count = waves ? (int64_t)waves * multiprocessors / tiles : 1;
        if (count < 1 || count > k_tiles || count > MATRICES_MOST)
            continue;
        double rounds = (double)divide_up(tiles * count, multiprocessors);
        double each = (double)divide_up(k_tiles, count) * e->cost.k_tile + e->cost.tile + STORED;
        double time = e->cost.start + rounds * each + JOINING + (double)count * matrix;
        if (least == 0 || time < least) {
            least = time;
            *parts = (int)count;
        }
    }
    return least;
}

double cup__wgmma_choose_parts(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan)
{
    double least = 0;
    int64_t k_tiles = divide_up(p->k, 64);
    for (int i = 0; i < COUNT(plain_entries); i++) {
        const entry *e = &plain_entries[i];
        cup__wgmma_plan one = e->plan;
        if (one.cluster_m * one.cluster_n > 1 || one.cluster_k || one.tile_n % 64)
            continue;
        int64_t tiles = tiles_of(p, one.tile_m, one.tile_n);
        for (int parts = 1; parts_fit(tiles, k_tiles, parts, multiprocessors, 4);
             parts += 1 + parts / 8) {
            one.parts = parts;
            double time = plain_time(p, e, &one, multiprocessors);
            if (!cup__wgmma_plan_refuses(p, &one) && (least == 0 || time < least)) {
                least = time;
                *plan = one;
            }
        }
    }
    return least;
}

double cup__wgmma_choose_deep(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan,
                              int *parts)
{
    double least = 0;
    for (int i = 0; i < COUNT(plain_entries) + COUNT(narrow_entries); i++) {
        const entry *e = i < COUNT(plain_entries) ? &plain_entries[i]
                                                  : &narrow_entries[i - COUNT(plain_entries)];
        int count = 1;
        if (e->plan.cluster_m * e->plan.cluster_n > 1 || e->plan.cluster_k || e->plan.tile_n % 64)
            continue;
        double time = choose_matrices(p, multiprocessors, e, &count);
        if (time > 0 && !cup__wgmma_plan_refuses(p, &e->plan) && (least == 0 || time < least)) {
            least = time;
            *plan = e->plan;
            *parts = count;
        }
    }
    return least;
}

const cup__wgmma_plan *cup__wgmma_choose_list(const cup__product *p, int count,
                                              int multiprocessors)
{
    double least = INFINITY;
    const cup__wgmma_plan *best = NULL;
    for (int i = 0; i < group_menu.count; i++) {
        const entry *e = &group_menu.entries[i];
        double sum = 0, longest = 0;
        for (int j = 0; j < count; j++) {
            double one = (double)divide_up(p[j].k, 64) * e->cost.k_tile + e->cost.tile;
            sum += one * (double)divide_up(p[j].m, e->plan.tile_m) *
                   (double)divide_up(p[j].n, e->plan.tile_n);
            longest = fmax(longest, one);
        }
        double time = fmax(longest, sum / multiprocessors + longest / 2);
        if (time < least) {
            least = time;
            best = &e->plan;
        }
    }
    return best;
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
            if (!parts_fit(tiles, divide_up(p->k, 64), parts, multiprocessors, 8) ||
                (parts > 1 && wide))
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
    double others = cup__cublaslt_time(p, multiprocessors);
    if (p->measuring && plan->parts == 1) /* y is not read for its moments */
        ours -= (double)(p->m * p->n * cup_dtype_size(p->y_dtype)) / READ_RATE;
    if (p->m <= SHORT_ROWS && ours < SHORT_US && others + STARTED_US >= ours)
        return true;
    return others >= (p->m <= FEW ? MARGIN_FEW : MARGIN) * ours;
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
    candidate all[COUNT(plain_entries)];
    int count = 0;
    for (int i = 0; i < COUNT(plain_entries); i++) {
        all[count].time = choose_parts(p, multiprocessors, &plain_menu, &plain_entries[i],
                                       &all[count].plan);
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
    for (int i = 0; i < COUNT(plain_entries); i++) {
        cup__wgmma_plan one = plain_entries[i].plan;
        one.parts = plan->parts;
        if (!memcmp(&one, plan, sizeof one))
            return plan->parts >= 1 && plan->parts <= PARTS_MOST;
    }
    return false;
}

const char *const cup__wgmma_plan_names[] = {"tile_m",    "tile_n",    "consumers", "stages",
                                             "cluster_m", "cluster_n", "parts",     "pingpong",
                                             "cluster_k", NULL};

int cup__wgmma_plans(cup_context *c, const cup__product *p, cup__plan *out, int most)
{
    cup__wgmma_plan plans[PLANS_MOST];
    int multiprocessors = cup__cuda_facts(cup__cuda_of(c->device))->multiprocessors;
    int count = cup__wgmma_candidates(p, multiprocessors, plans,
                                      most < PLANS_MOST ? most : PLANS_MOST);
    for (int i = 0; i < count; i++) {
        const cup__wgmma_plan *one = &plans[i];
        out[i] = (cup__plan){{one->tile_m, one->tile_n, one->consumers, one->stages,
                              one->cluster_m, one->cluster_n, one->parts, one->pingpong,
                              one->cluster_k}};
    }
    return count;
}

bool cup__wgmma_plan_of(const cup__plan *numbers, cup__wgmma_plan *plan)
{
    const int *n = numbers->number;
    memset(plan, 0, sizeof *plan);
    plan->tile_m = n[0];
    plan->tile_n = n[1];
    plan->consumers = n[2];
    plan->stages = n[3];
    plan->cluster_m = n[4];
    plan->cluster_n = n[5];
    plan->parts = n[6];
    plan->pingpong = n[7];
    plan->cluster_k = n[8];
    return cup__wgmma_is_on_menu(plan);
}
