/* The first k, few, of each short row in order: largest first with DESCENDING, else smallest; of
 * equal ones the one that stands first.
 *
 * A warp holds a row of up to 32 ITEMS elements. The k-th of its lanes' first keys is not before
 * the k-th key of the row; all keys up to it, hardly more than k, are sorted. Where they are more
 * than the warp has lanes, as many keys are equal or unluckily spread, the warp looks for one key
 * after the other. Grid: a block of 4 warps for 4 rows. Bytes: the rows once. */
#include "order.cuh"
#include "warp_sort.cuh"

/* A knob: ITEMS. */
#define WARPS 4
#define ALL 0xffffffffu

/* A key and its place below, in the order of `ordered`. */
typedef unsigned long long item;

DEVICE item warp_first(item v)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
        item other = shuffle_xor(v, mask);
        v = other < v ? other : v;
    }
    return v;
}

/* The lane's item of the first k, in order, from all there are. */
DEVICE item one_by_one(const uint32_t (&key)[ITEMS], int length, int k)
{
    int lane = (int)threadIdx.x % 32;
    item last = 0, own = 0;
    for (int n = 0; n < k; n++) {
        item first = ~(item)0;
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            item here = (item)key[i] << 32 | (uint32_t)(32 * i + lane);
            if (32 * i + lane < length && (n == 0 || here > last) && here < first)
                first = here;
        }
        last = warp_first(first);
        own = lane == n ? last : own;
    }
    return own;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
top_rows(const T *x, T *values, int64_t *indices, int64_t rows, int32_t length, int32_t k)
{
    __shared__ item found[WARPS][32];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t row = (int64_t)blockIdx.x * WARPS + warp;
    if (row >= rows)
        return;
    uint32_t key[ITEMS], first[1] = {ALL};
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        int place = 32 * i + lane;
        key[i] = place < length ? order_key(x[row * length + place]) : ALL;
        first[0] = key[i] < first[0] ? key[i] : first[0];
    }
    warp_sort(first);
    uint32_t bound = __shfl_sync(ALL, first[0], k - 1);
    int count = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        bool in = key[i] <= bound && 32 * i + lane < length;
        uint32_t members = __ballot_sync(ALL, in);
        int to = count + __popc(members & lanes_before());
        if (in && to < 32)
            found[warp][to] = (item)key[i] << 32 | (uint32_t)(32 * i + lane);
        count += __popc(members);
    }
    __syncwarp();
    item own[1] = {lane < count ? found[warp][lane] : ~(item)0};
    if (count > 32)
        own[0] = one_by_one(key, length, k);
    else
        warp_sort(own);
    if (lane < k) {
        values[row * k + lane] = of_order_key((order_type)(own[0] >> 32));
        indices[row * k + lane] = (int64_t)(own[0] & ALL);
    }
}
