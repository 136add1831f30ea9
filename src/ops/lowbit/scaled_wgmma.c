/* Products of codes of 8 bits on Hopper: which tiles wgmma.cu cuts them into. */
#include <math.h>

#include "base/divide.h"
#include "dispatch/attributes.h"
#include "ops/grouped/grouped.h"
#include "ops/matmul/wgmma.h"
#include "ops/lowbit/scaled.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* Tiles and what they cost, in microseconds: for each 128 of k, and beside that. */
typedef struct entry {
    cup__wgmma_plan plan;
    double k_tile, tile;
} entry;

static const entry whole[] = {
    {{128, 192, 2, true, 4, 2, 1, 1, 0, 0, 0}, 0.53, 0.65},
    {{128, 256, 2, false, 4, 2, 1, 1, 0, 0, 0}, 0.71, 1.84},
    {{128, 256, 2, false, 4, 1, 1, 1, 0, 0, 0}, 0.71, 1.84},
    {{128, 128, 2, true, 6, 1, 1, 1, 0, 0, 0}, 0.36, 0.39},
    {{64, 256, 2, true, 4, 1, 1, 1, 0, 0, 0}, 0.375, 0.47},
    {{64, 128, 2, true, 8, 1, 1, 1, 0, 0, 0}, 0.215, 0.1},
    {{64, 64, 1, false, 12, 1, 1, 1, 0, 0, 0}, 0.155, 0.1},
};
/* With sums that leave the tensor cores after each 128 of k. */
static const entry promoted[] = {
    {{192, 128, 3, false, 5, 1, 1, 1, 0, 0, 0}, 0.565, 1.1},
    {{128, 192, 2, false, 5, 1, 1, 1, 0, 0, 0}, 0.575, 1.1},
    {{256, 128, 2, false, 4, 1, 1, 1, 0, 0, 0}, 0.75, 2.0},
    {{128, 128, 2, false, 6, 1, 1, 1, 0, 0, 0}, 0.40, 0.9},
    {{64, 128, 1, false, 8, 1, 1, 1, 0, 0, 0}, 0.32, 0.6},
    {{64, 64, 1, false, 12, 1, 1, 1, 0, 0, 0}, 0.24, 0.4},
};
static const int part_counts[] = {1, 2, 3, 4, 6, 8};

static double time_of(const cup__product *p, const entry *e, int parts, int multiprocessors)
{
    const cup__wgmma_plan *plan = &e->plan;
    int blocks = plan->cluster_m * plan->cluster_n;
    int64_t matrices = p->groups.kind ? p->batch_count : 1; /* as if all were of one size */
    int64_t tiles = matrices *
                    divide_up(divide_up(p->m, matrices), (int64_t)plan->tile_m * plan->cluster_m) *
                    divide_up(p->n, (int64_t)plan->tile_n * plan->cluster_n) * parts;
    int slots = multiprocessors / blocks;
    double rounds = (double)divide_up(tiles, slots < 1 ? 1 : slots);
    double part_cost =
        parts > 1 ? 4.5 + plan->tile_m * plan->tile_n / 32768.0 * (1 + 0.6 * parts) : 0;
    return rounds *
           ((double)divide_up(divide_up(p->k, 128), parts) * e->k_tile + e->tile + part_cost);
}

/* False when no plan fits. */
static bool choose(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan)
{
    bool sums_leave =
        p->scaling->kind == PRODUCT_SCALE_BLOCKS || (p->dtype != CUP_I8 && !p->scaling->fast);
    const entry *menu = sums_leave ? promoted : whole;
    int count = sums_leave ? COUNT(promoted) : COUNT(whole);
    double least = INFINITY;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < COUNT(part_counts); j++) {
            cup__wgmma_plan one = menu[i].plan;
            one.parts = part_counts[j];
            if ((j > 0 && divide_up(p->k, 128) < 4 * one.parts) || cup__wgmma_plan_refuses(p, &one))
                continue;
            double time = time_of(p, &menu[i], one.parts, multiprocessors);
            if (time < least) {
                least = time;
                *plan = one;
            }
        }
    return least < INFINITY;
}

static int multiprocessors_of(const cup__call *call)
{
    return cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors;
}

const char *cup__scaled_wgmma_refuses(const cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__wgmma_plan plan;
    cup__scaled_product(call, &p, &s);
    const char *why = cup__product_wgmma_refuses(call->c, &p);
    if (!why && !choose(&p, multiprocessors_of(call), &plan))
        why = "no tile fits it";
    return why;
}

static cup_status run(cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__wgmma_plan plan;
    cup__scaled_product(call, &p, &s);
    choose(&p, multiprocessors_of(call), &plan);
    return cup__product_wgmma_by(call->c, &p, &plan);
}

#define MANY_ROWS 512

/* The same scales, those of neighbouring rows side by side: the kernel reads a column of them for
 * each 128 of k, in which row-major ones would cost it as much as the codes. */
static cup_tensor *by_columns(cup_context *c, cup_tensor *scale)
{
    static const int64_t turned[] = {1, 0};
    if (!scale || scale->ndim != 2 || scale->shape[0] < MANY_ROWS || scale->shape[1] < 2 ||
        scale->stride[0] == 1)
        return scale;
    cup_tensor *view = cup_permute(c, scale, turned, 2), *copy = cup_copy(c, view);
    cup_tensor *columns = cup_permute(c, copy, turned, 2);
    cup_tensor_free(view);
    cup_tensor_free(copy);
    return columns;
}

cup_status cup__scaled_wgmma(cup__call *call)
{
    cup_tensor *in[5], **given = call->in;
    cup_context *c = call->c;
    for (int i = 0; i < 5; i++)
        in[i] = i == 2 ? by_columns(c, given[i]) : i == 3 ? given[i] : cup__contiguous(c, given[i]);
    call->in = in;
    cup_status status = c->error.status == CUP_OK ? run(call) : c->error.status;
    call->in = given;
    for (int i = 0; i < 5; i++)
        if (in[i] != given[i])
            cup_tensor_free(in[i]);
    return status;
}

const char *cup__scaled_grouped_wgmma_refuses(const cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__wgmma_plan plan;
    cup__scaled_grouped_product(call, &p, &s);
    if (p.batch_count == 0 || p.m == 0 || p.n == 0)
        return "there is nothing to multiply";
    const char *why = cup__product_wgmma_refuses(call->c, &p);
    if (!why && !choose(&p, multiprocessors_of(call), &plan))
        why = "no tile fits it";
    return why;
}

/* What both kernels need beside the product itself. */
static cup_status with_table(cup__call *call, cup__product *p, const cup__wgmma_plan *plan)
{
    cup_tensor *table = cup__grouped_table(call, p, plan ? plan->tile_m : 1);
    if (!table)
        return call->c->error.status;
    p->groups.table = table->data;
    cup_status status =
        plan ? cup__product_wgmma_by(call->c, p, plan) : cup__scaled_mma_by(call, p);
    cup_tensor_free(table);
    return status;
}

/* Input 3, the scales of x, as the kernel reads them best. */
cup_status cup__scaled_grouped_wgmma(cup__call *call)
{
    cup_tensor **given = call->in, *in[5] = {given[0], given[1], given[2], NULL, given[4]};
    cup_context *c = call->c;
    cup__product p;
    cup__scaling s;
    cup__wgmma_plan plan;
    in[3] = by_columns(c, given[3]);
    cup_status status = c->error.status;
    if (status == CUP_OK) {
        call->in = in;
        cup__scaled_grouped_product(call, &p, &s);
        choose(&p, multiprocessors_of(call), &plan);
        status = with_table(call, &p, &plan);
        call->in = given;
    }
    if (in[3] != given[3])
        cup_tensor_free(in[3]);
    return status;
}

cup_status cup__scaled_grouped_mma(cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__scaled_grouped_product(call, &p, &s);
    return with_table(call, &p, NULL);
}
