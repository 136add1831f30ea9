/* How f32_split_wgmma.cu takes convolutions: the planes of an image lie behind each other as if
 * they were more images, those of the weight as one more dimension. Uses that file's knobs and
 * sizes. */
#ifndef CUP_OPS_F32_SPLIT_SPLIT_CONV_CUH
#define CUP_OPS_F32_SPLIT_SPLIT_CONV_CUH

#include "wgmma_places.cuh"

/* The channels of a chunk, of all planes of an image under a tap; `first` is where the tile's first
 * tap reads, `images` how many a plane has. Places beyond the last one of a plane are those of the
 * next one, whose sums go nowhere or are multiplied with zeros. */
template <int Bytes>
DEVICE void bring_image(const wgmma_conv &v, const tensor_map &map, uint32_t to, box first,
                        const tap_place &tap, int images, uint32_t full)
{
    first.at[0] = tap.chunk * CHUNK;
#pragma unroll
    for (int plane = 0; plane < PLANES; plane++, first.at[3] += images)
        tma_load_places(map, to + plane * Bytes, first, tap.column * v.tap_step[1],
                        tap.row * v.tap_step[0], full, TMA_EVICT_NORMAL);
}

DEVICE void bring_weight(const wgmma_conv &v, const tensor_map &map, uint32_t to, int column,
                         const tap_place &tap, uint32_t full)
{
    int matrix = v.weight + tap.row * v.weight_step[0] + tap.column * v.weight_step[1];
#pragma unroll
    for (int plane = 0; plane < PLANES; plane++, to += B_BYTES)
        if (B_ALONG == PRODUCT_ALONG_K)
            tma_load<4>(map, to, {{tap.chunk * CHUNK, column, matrix, plane}}, full,
                        TMA_EVICT_NORMAL);
        else
#pragma unroll
            for (int n = 0; n < TILE_N; n += 64)
                tma_load<4>(map, to + n / 64 * PANEL,
                            {{column + n, tap.chunk * CHUNK, matrix, plane}}, full,
                            TMA_EVICT_NORMAL);
}

/* Places as rows of a, and the weight. */
DEVICE void produce_rows(const wgmma_conv &v, const split_product &s, const tensor_map &a,
                         const tensor_map &b, const layout &at, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    for (int i = blockIdx.x; i < v.all.units; i += gridDim.x) {
        unit u = unit_at(v.all, i);
        box first = place_of(v, u.row);
        tap_place tap;
        tap.find(v, u.k);
        for (int t = 0; t < u.k_tiles; t++, place.next(), tap.next(v)) {
            pipe.claim(place, STAGE_BYTES);
            uint32_t stage = at.stages + place.stage * STAGE_BYTES, full = pipe.full(place.stage);
            bring_image<A_BYTES>(v, a, stage, first, tap, s.a_matrices, full);
            bring_weight(v, b, stage + PLANES * A_BYTES, u.column, tap, full);
        }
    }
}

/* Places as k: those of dy, and the taps of the tile's columns under them. */
DEVICE void produce_depth(const wgmma_conv &v, const split_product &s, const tensor_map &a,
                          const tensor_map &b, const layout &at, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    for (int i = blockIdx.x; i < v.all.units; i += gridDim.x) {
        unit u = unit_at(v.all, i);
        tap_place tap[TILE_N / CHUNK];
#pragma unroll
        for (int j = 0; j < TILE_N / CHUNK; j++)
            tap[j].find(v, u.column / CHUNK + j);
        for (int t = u.k; t < u.k + u.k_tiles; t++, place.next()) {
            pipe.claim(place, STAGE_BYTES);
            uint32_t stage = at.stages + place.stage * STAGE_BYTES, full = pipe.full(place.stage);
#pragma unroll
            for (int plane = 0; plane < PLANES; plane++)
                bring<PRODUCT_ALONG_MN, TILE_M>(a, stage + plane * A_BYTES, full, u.row,
                                                t * TILE_K, plane);
            box first = place_of(v, t * TILE_K);
#pragma unroll
            for (int j = 0; j < TILE_N / CHUNK; j++)
                bring_image<B_BYTES>(v, b, stage + PLANES * A_BYTES + j * PANEL, first, tap[j],
                                     s.b_matrices, full);
        }
    }
}

#endif
