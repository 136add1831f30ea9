/* Where the places of an image and their taps are, for wgmma.cu and f32_split_wgmma.cu. Uses their
 * sizes. */
#ifndef CUP_OPS_MATMUL_WGMMA_PLACES_CUH
#define CUP_OPS_MATMUL_WGMMA_PLACES_CUH

#include "tma.cuh"
#include "wgmma_call.cuh"

#define CHUNK TILE_K /* channels of a line */

/* Place number `index` of all images, and what its first tap reads; beyond the last one an image
 * that is not there. */
DEVICE box place_of(const wgmma_conv &v, int index)
{
    unsigned rest = (unsigned)index;
    int column = (int)split(&rest, v.places[1]), row = (int)split(&rest, v.places[0]);
    return {{0, v.from[1] + column * v.step[1], v.from[0] + row * v.step[0], (int)rest}};
}

/* A tap and a chunk of channels. */
struct tap_place {
    int row, column, chunk;

    __device__ __forceinline__ void find(const wgmma_conv &v, int index)
    {
        int tap = index / v.chunks;
        chunk = index - tap * v.chunks;
        tap = tap < v.taps ? tap : 0; /* beyond all columns of y */
        row = tap / v.taps_wide;
        column = tap - row * v.taps_wide;
    }
    __device__ __forceinline__ void next(const wgmma_conv &v)
    {
        if (++chunk < v.chunks)
            return;
        chunk = 0;
        if (++column < v.taps_wide)
            return;
        column = 0;
        row++;
    }
};

#endif
