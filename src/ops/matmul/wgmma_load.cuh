/* How wgmma.cu walks over its work, and the copies that bring it. Uses that file's knobs and
 * sizes. */
#ifndef CUP_OPS_MATMUL_WGMMA_LOAD_CUH
#define CUP_OPS_MATMUL_WGMMA_LOAD_CUH

#include "pipe.cuh"
#include "tma.cuh"
#include "wgmma_groups.cuh"
#include "wgmma_other.cuh"

#if LIST

/* Which item of the list has unit `index`; makes that one within the item. */
DEVICE const wgmma_item &item_of(const wgmma_call &c, int &index, unit &u)
{
    const wgmma_list &l = (const wgmma_list &)c;
    int low = 0, high = l.count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (l.item[middle].first <= index)
            low = middle;
        else
            high = middle;
    }
    index -= l.item[low].first;
    u.item = low;
    return l.item[low];
}

#endif

/* Which tile, in groups of rows of tiles that are walked column by column, so that what runs at
 * the same time shares rows of a and columns of b in the L2 cache. */
DEVICE unit unit_at(const wgmma_call &c, int index)
{
    unit u;
    u.part = 0;
    u.k = 0;
    u.k_tiles = c.k_tiles;
    u.item = 0;
    int tiles_m = c.tiles_m, tiles_n = c.tiles_n;
#if LIST
    const wgmma_item &item = item_of(c, index, u);
    u.k_tiles = item.k_tiles;
    tiles_m = item.tiles_m;
    tiles_n = item.tiles_n;
#endif
    if (PARTS) {
        u.part = index % c.parts;
        index /= c.parts;
        u.k = u.part * c.part_tiles;
        u.k_tiles = min(c.part_tiles, c.k_tiles - u.k);
    }
    u.tile = index * CLUSTER + (CLUSTER > 1 ? (int)cluster_rank() : 0);
    int matrix = 0, row = 0;
    if (GROUPS == PRODUCT_GROUPS_OF_ROWS) {
        matrix = group_of(c, index, tiles_m, u);
        row = u.row;
    } else if (BATCH) {
        matrix = index / (c.tiles_m * c.tiles_n);
        index %= c.tiles_m * c.tiles_n;
    }
    u.batch[0] = BATCH > 1 ? matrix % c.batch_inner : matrix;
    u.batch[1] = BATCH > 1 ? matrix / c.batch_inner : 0;
    if (GROUPS == PRODUCT_GROUPS_OF_DEPTH)
        take_depth(c, matrix, u);
    if (CONV && BATCH) { /* whose matrices are the parts of k */
        u.k = matrix * c.part_tiles;
        u.k_tiles = min(c.part_tiles, c.k_tiles - u.k);
    }
    int strip = c.group * tiles_n, first = index / strip * c.group, inside = index % strip;
    int height = min(tiles_m - first, c.group);
    int tile_m = first + inside % height, tile_n = inside / height;
    u.row = row + (tile_m * CLUSTER_M + (CLUSTER_M > 1 ? (int)cluster_rank() : 0)) * TILE_M;
    u.column = (tile_n * CLUSTER_N + (CLUSTER_N > 1 ? (int)cluster_rank() : 0)) * COLUMNS;
    return u;
}

/* Copies one operand's part of a stage. `Shared` blocks of the cluster need the same: each brings
 * its share to all. */
template <int Along, int Lines, int Shared, int Rank = 2 + BATCH>
DEVICE void bring(const tensor_map &map, uint32_t to, uint32_t full, int mn, int k, int batch0,
                  int batch1, uint64_t hint)
{
    int rank = Shared > 1 ? (int)cluster_rank() : 0;
    if (Along == PRODUCT_ALONG_K) {
        const int lines = Lines / Shared;
        box b = {{k, mn + rank * lines, batch0, batch1}};
        to += rank * lines * 128;
        if (Shared > 1)
            tma_load_shared<Rank>(map, to, b, full, (1 << Shared) - 1, hint);
        else
            tma_load<Rank>(map, to, b, full, hint);
        return;
    }
    const int depth = TILE_K / Shared;
#pragma unroll
    for (int i = 0; i < Lines / 64; i++) {
        box b = {{mn + 64 * i, k + rank * depth, batch0, batch1}};
        uint32_t there = to + i * PANEL + rank * depth * 128;
        if (Shared > 1)
            tma_load_shared<Rank>(map, there, b, full, (1 << Shared) - 1, hint);
        else
            tma_load<Rank>(map, there, b, full, hint);
    }
}

/* The one thread that orders all copies of the block. The maps are those of the first item of a
 * list, behind which the others are. */
DEVICE void produce(const wgmma_call &c, const tensor_map &first_a, const tensor_map &first_b,
                    const layout &at, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    for (int i = blockIdx.x / CLUSTER; i < units_of(c); i += gridDim.x / CLUSTER) {
        unit u = unit_at(c, i);
        const tensor_map &a = (&first_a)[u.item], &b = (&first_b)[u.item];
        for (int t = u.k; t < u.k + u.k_tiles; t++, place.next()) {
            pipe.claim(place, STAGE_BYTES);
            uint32_t stage = at.stages + place.stage * STAGE_BYTES, full = pipe.full(place.stage);
            int k = t * TILE_K + (GROUPS == PRODUCT_GROUPS_OF_DEPTH ? u.k_first : 0);
            int a_first = u.batch[0] * c.a_batch[0];
            int b_first = u.batch[0] * c.b_batch[0];
            bring<A_ALONG, TILE_M, CLUSTER_N>(a, stage, full, u.row, k, a_first,
                                              u.batch[1] * c.a_batch[1], TMA_EVICT_NORMAL);
#pragma unroll
            for (int half = 0; half <= SWIGLU; half++) {
                uint32_t to = stage + A_BYTES + half * (B_BYTES / 2);
                bring<B_ALONG, SWIGLU ? COLUMNS : B_LINES, CLUSTER_M>(
                    b, to, full, u.column + half * c.n, k, b_first, u.batch[1] * c.b_batch[1],
                    TMA_EVICT_NORMAL);
            }
        }
    }
}

/* A thread of its own orders the copies of the other matrix, so that none waits for the rest. */
DEVICE void produce_other(const wgmma_call &c, const tensor_map &other, const layout &at)
{
    int number = 0;
    for (int i = blockIdx.x / CLUSTER; i < units_of(c); i += gridDim.x / CLUSTER, number++) {
        unit u = unit_at(c, i);
        uint32_t full = other_full(at, number);
        barrier_wait(other_empty(at, number), ~(number / OTHER_BUFFERS) & 1);
        barrier_expect(full, OTHER_BYTES);
#pragma unroll
        for (int to = 0; to < OTHER_BYTES; to += OTHER_PANEL) {
            int half = to / OTHER_HALF, column = to % OTHER_HALF / OTHER_PANEL * STAGE_COLUMNS;
            if (OTHER == PRODUCT_SWIGLU_GRAD) {
                box b = {{u.column + column, u.row, half, 0}};
                tma_load<3>(other, other_at(at, number) + to, b, full, TMA_EVICT_NORMAL);
            } else {
                box b = {{u.column + column, u.row, u.batch[0], u.batch[1]}};
                tma_load<2 + BATCH>(other, other_at(at, number) + to, b, full, TMA_EVICT_NORMAL);
            }
        }
    }
}

#endif
