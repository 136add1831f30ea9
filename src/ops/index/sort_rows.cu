/* Stable sorts of short rows, of up to 32 ITEMS elements of at most 4 bytes: a warp holds a row in
 * its registers, as keys with their places below. Grid: a block of 4 warps for 4 rows. Bytes:
 * elements read and written once, places of 8 bytes written. */
#include "order.cuh"
#include "warp_sort.cuh"

/* A knob: ITEMS. */
#define WARPS 4
#define PLACE_BITS (sizeof(T) > 2 ? 32 : 16)
#define AT(i) ((i) + (i) / 32) /* in shared memory, where lanes meet no bank twice */

template <int Bytes> struct item_of { typedef uint32_t type; };
template <> struct item_of<4> { typedef uint64_t type; };
typedef item_of<sizeof(T)>::type item;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
sort_rows(const T *x, T *values, int64_t *indices, int64_t rows, int32_t length)
{
    __shared__ uint32_t turned[WARPS][AT(32 * ITEMS)];
    int lane = (int)threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    uint32_t *own = turned[threadIdx.x / 32];
    if (row >= rows)
        return;
    item v[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        int place = 32 * i + lane;
        v[i] = ~(item)0;
        if (place < length)
            v[i] = (item)order_key(x[row * length + place]) << PLACE_BITS | (item)place;
    }
    warp_sort(v);
    /* Once where keys and places are one word, else the keys first. */
#pragma unroll
    for (int part = 0; part < (int)sizeof(item) / 4; part++) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            own[AT(lane * ITEMS + i)] = (uint32_t)(part ? v[i] : v[i] >> 8 * (sizeof(item) - 4));
        __syncwarp();
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            int place = 32 * i + lane;
            uint32_t word = own[AT(place)];
            if (place >= length)
                continue;
            if (part == 0)
                values[row * length + place] = of_order_key(sizeof(T) > 2 ? word : word >> 16);
            if (part == (int)sizeof(item) / 4 - 1)
                indices[row * length + place] = sizeof(T) > 2 ? word : word & 0xffff;
        }
    }
}
