/* What the kernels of backward's one pass on Hopper share: the order of the pass, and the blocks
 * that dq is summed in. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_WGMMA_GRAD_CUH
#define CUP_OPS_ATTENTION_ATTENTION_WGMMA_GRAD_CUH

/* Knobs: STEP and those of attention_wgmma.cuh. */
#define WARPGROUPS 2
#include "attention_wgmma.cuh"
#include "attention_pass.cuh"

#if CUP_HAS_WGMMA

/* Each of the two warpgroups has 64 queries of a step and so many features of its dq. */
#define BLOCK_COLUMNS (STEP / 64 * SIZE / 2)
#define BLOCK_NUMBERS (64 * BLOCK_COLUMNS)
#define BLOCK_BYTES (4 * BLOCK_NUMBERS)
static_assert(BLOCK_COLUMNS == 64 || BLOCK_COLUMNS == 32, "no such share of dq");

DEVICE int block_query(int group)
{
    return STEP == 128 ? 64 * group : 0;
}

DEVICE int block_column(int group)
{
    return STEP == 128 ? 0 : BLOCK_COLUMNS * group;
}

DEVICE pass_shape shape_of(const attention_call &c, const attention_pass &p)
{
    pass_shape s = {CAUSAL, c.queries, c.keys, STEP, p.around, WINDOW, c.mask.before, c.mask.after};
    return s;
}

#endif
#endif
