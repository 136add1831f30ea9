/* Which products by wgmma.cu leave the moments of their columns. */
#include "tensor/moments.h"

#include "ops/matmul/wgmma.h"
#include "ops/matmul/wgmma_maps.h"

#define SUMS_MOST 256 /* of 64 rows, of which a thread has half as many */

/* Rows of y that a warpgroup has of a tile, which make one line. */
static int64_t line_of(const cup__wgmma_plan *plan)
{
    return plan->pingpong ? plan->tile_m : plan->tile_m / plan->consumers;
}

bool cup__wgmma_measures(const cup__wgmma_plan *plan)
{
    return line_of(plan) / 64 * plan->tile_n <= SUMS_MOST;
}

/* Sums that go to a matrix of 16 bits as they are. */
static bool is_plain(const cup__product *p)
{
    bool alone = !p->activation && !p->kind && !p->dropping && !p->pre && !p->adding;
    return alone && !p->batch_ndim && !p->scaling && !p->groups.kind && !p->summing &&
           cup_dtype_size(p->dtype) == 2 && p->y_dtype == p->dtype;
}

float *cup__wgmma_moments(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan)
{
    if (!c->moments.wanted || !is_plain(p) || plan->parts > 1 || plan->cluster_k)
        return NULL;
    if (!cup__wgmma_measures(plan) || p->y.row != p->n || !cup__wgmma_can_store(p))
        return NULL;
    return cup__moments_make(c, p->y.data, p->m, p->n, line_of(plan));
}
