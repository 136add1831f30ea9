/* Groups in wgmma.cu, whose sizes only the device knows: of rows of a, each with its own
 * matrix b, or of k, each with its own y. Uses that file's knobs and sizes. */
#ifndef CUP_OPS_MATMUL_WGMMA_GROUPS_CUH
#define CUP_OPS_MATMUL_WGMMA_GROUPS_CUH

#include "product_call.cuh"
#include "wgmma_finish.cuh"

/* The units of work there are. */
DEVICE int units_of(const wgmma_call &c)
{
    if (GROUPS == PRODUCT_GROUPS_OF_ROWS)
        return c.groups[c.group_count * 2 + 1] * c.tiles_n;
    return c.units;
}

/* Which group has unit `index`, where groups have different numbers of tiles along m. Makes the
 * index one within the group, and `tiles_m` the group's. */
DEVICE int group_of(const wgmma_call &c, int &index, int &tiles_m, unit &u)
{
    const int *first = c.groups + c.group_count + 1;
    int low = 0, high = c.group_count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (first[middle] * c.tiles_n <= index)
            low = middle;
        else
            high = middle;
    }
    index -= first[low] * c.tiles_n;
    tiles_m = first[low + 1] - first[low];
    u.row = c.groups[low];
    u.row_end = c.groups[low + 1];
    return low;
}

/* The part of k that group `g` has, from element u.k_first on. An empty one has a tile of which
 * nothing is left. */
DEVICE void take_depth(const wgmma_call &c, int g, unit &u)
{
    int begin = c.groups[g], depth = c.groups[g + 1] - begin;
    u.k_first = begin;
    u.k_tiles = max(1, (depth + TILE_K - 1) / TILE_K);
    u.depth = depth - (u.k_tiles - 1) * TILE_K;
}

/* Clears lines of k from `depth` on in panels of 64 lines of 128 bytes: they are the next group's.
 * Both operands must be cleared, as either may hold infinities. */
template <int Count> DEVICE void clear_lines(uint32_t panels, int depth, int thread)
{
    uint32_t at = panels + depth * 128 + thread * 16;
#pragma unroll 1
    for (; at < panels + PANEL; at += 128 * 16)
#pragma unroll
        for (int i = 0; i < Count; i++)
            store_shared16(at + i * PANEL, make_uint4(0, 0, 0, 0));
}

/* For one stage, by each warpgroup for what it multiplies. */
DEVICE void clear_tail(uint32_t a, uint32_t b, int depth, const crew &w)
{
    clear_lines<BLOCKS_M>(a, depth, w.thread);
    clear_lines<TILE_N / 64>(b, depth, w.thread);
    publish_shared();
    meet(1 + w.group, 128);
}

#endif
