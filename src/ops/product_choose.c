/* Which tiles a product on Hopper is cut into, by a model of what a tile costs. */
#include "ops/product_wgmma.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* Built tiles, with how close to the peak their main loop comes and the cycles a tile costs beside
 * it, as measured on an H200. */
typedef struct entry {
    cup__wgmma_plan plan;
    double rate;
    int overhead;
} entry;

static const entry menu[] = {
    {{128, 256, 2, false, 4, 2, 1, 1, 0, 0}, 0.86, 2600},
    {{256, 128, 2, false, 4, 1, 2, 1, 0, 0}, 0.86, 2600},
    {{128, 192, 2, true, 4, 2, 1, 1, 0, 0}, 0.84, 400},
    {{128, 128, 2, true, 6, 2, 1, 1, 0, 0}, 0.80, 400},
    {{64, 256, 2, true, 4, 1, 1, 1, 0, 0}, 0.70, 400},
    {{128, 64, 2, false, 8, 1, 1, 1, 0, 0}, 0.60, 1400},
    {{64, 128, 1, false, 8, 1, 1, 1, 0, 0}, 0.50, 1400},
    {{64, 64, 1, false, 8, 1, 1, 1, 0, 0}, 0.35, 1200},
};

static int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

/* Cycles of the busiest multiprocessor. */
static double cost_of(const cup__product *p, const entry *e, const cup__wgmma_plan *plan,
                      int multiprocessors)
{
    int64_t blocks = (int64_t)plan->cluster_m * plan->cluster_n;
    int64_t tiles = divide_up(p->m, (int64_t)plan->tile_m * plan->cluster_m) *
                    divide_up(p->n, (int64_t)plan->tile_n * plan->cluster_n) * p->batch_count;
    int64_t rounds = divide_up(tiles * plan->parts, multiprocessors / blocks);
    int64_t k_tiles = divide_up(divide_up(p->k, 64), plan->parts);
    double tile = (double)plan->tile_m * plan->tile_n;
    double cycles = tile * 64 * 2 / 4096 / e->rate * (double)k_tiles + e->overhead;
    if (plan->parts > 1)
        cycles += tile * 4 * (2 + plan->parts) / 32;
    return (double)rounds * cycles;
}

void cup__wgmma_choose(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan)
{
    static const int parts[] = {1, 2, 3, 4, 6, 8};
    double least = 0;
    for (int i = 0; i < COUNT(menu); i++)
        for (int j = 0; j < COUNT(parts); j++) {
            cup__wgmma_plan one = menu[i].plan;
            one.parts = parts[j];
            if ((j > 0 && divide_up(p->k, 64) < 2 * parts[j]) || cup__wgmma_plan_refuses(p, &one))
                continue;
            double cost = cost_of(p, &menu[i], &one, multiprocessors);
            if (least == 0 || cost < least) {
                least = cost;
                *plan = one;
            }
        }
}
