/* How wgmma.cu brings the operands of a convolution, without columns in memory: TMA walks over the
 * places of an image, and a tap is how far it reads beside them. Padding reads as zero. Uses that
 * file's knobs and sizes. */
#ifndef CUP_OPS_MATMUL_WGMMA_CONV_CUH
#define CUP_OPS_MATMUL_WGMMA_CONV_CUH

#include "wgmma_load.cuh"
#include "wgmma_places.cuh"

DEVICE void bring_places(const wgmma_conv &v, const tensor_map &map, uint32_t to, box at,
                         const tap_place &tap, uint32_t full)
{
    at.at[0] = tap.chunk * CHUNK;
    tma_load_places(map, to, at, tap.column * v.tap_step[1], tap.row * v.tap_step[0], full,
                    TMA_EVICT_NORMAL);
}

/* The one thread that orders all copies: places as rows of a, and the weight. */
DEVICE void produce_rows(const wgmma_conv &v, const tensor_map &a, const tensor_map &b,
                         const layout &at, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    for (int i = blockIdx.x / CLUSTER; i < v.all.units; i += gridDim.x / CLUSTER) {
        unit u = unit_at(v.all, i);
        box first = place_of(v, u.row);
        tap_place tap;
        tap.find(v, u.k);
        for (int t = 0; t < u.k_tiles; t++, place.next(), tap.next(v)) {
            pipe.claim(place, STAGE_BYTES);
            uint32_t stage = at.stages + place.stage * STAGE_BYTES, full = pipe.full(place.stage);
            int matrix = v.weight + tap.row * v.weight_step[0] + tap.column * v.weight_step[1];
            bring_places(v, a, stage, first, tap, full);
            bring<B_ALONG, B_LINES, CLUSTER_M, 3>(b, stage + A_BYTES, full, u.column,
                                                  tap.chunk * CHUNK, matrix, 0, TMA_EVICT_NORMAL);
        }
    }
}

/* The same with places as k: those of a, and the taps of the tile's columns under them. */
DEVICE void produce_depth(const wgmma_conv &v, const tensor_map &a, const tensor_map &b,
                          const layout &at, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    for (int i = blockIdx.x; i < v.all.units; i += gridDim.x) {
        unit u = unit_at(v.all, i);
        tap_place tap[TILE_N < CHUNK ? 1 : TILE_N / CHUNK]; /* no convolution has fewer columns */
#pragma unroll
        for (int j = 0; j < TILE_N / CHUNK; j++)
            tap[j].find(v, u.column / CHUNK + j);
        for (int t = u.k; t < u.k + u.k_tiles; t++, place.next()) {
            pipe.claim(place, STAGE_BYTES);
            uint32_t stage = at.stages + place.stage * STAGE_BYTES, full = pipe.full(place.stage);
            bring<PRODUCT_ALONG_MN, TILE_M, 1, 2>(a, stage, full, u.row, t * TILE_K, 0, 0,
                                                  TMA_EVICT_NORMAL);
            box first = place_of(v, t * TILE_K);
#pragma unroll
            for (int j = 0; j < TILE_N / CHUNK; j++)
                bring_places(v, b, stage + A_BYTES + j * PANEL, first, tap[j], full);
        }
    }
}

#endif
