/* Sorts in the registers of a warp. Of 32 Count items, lane i has those with the numbers Count i
 * and on, in ascending order afterwards.
 *
 * Runs of `size` are merged by first exchanging each item with its mirror image in the run, then
 * with those half a run away, a quarter, ...: every exchange puts the smaller item first, so none
 * needs to know a direction. */
#ifndef CUP_OPS_INDEX_WARP_SORT_CUH
#define CUP_OPS_INDEX_WARP_SORT_CUH

#include "scan.cuh"

template <typename Item> DEVICE void exchange(Item &a, Item &b)
{
    bool less = a < b;
    Item low = less ? a : b, high = less ? b : a;
    a = low;
    b = high;
}

/* Item x of this lane meets y of another. */
template <typename Item> DEVICE Item keep(const Item &x, const Item &y, bool low)
{
    return (x < y) == low ? x : y;
}

/* Exchanges at `from`, half of it, ... 1 within a lane. */
template <int Count, int From, typename Item> DEVICE void merge_lane(Item (&v)[Count])
{
#pragma unroll
    for (int step = From; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < Count; i++)
            if ((i & step) == 0)
                exchange(v[i], v[i | step]);
}

template <int Count, typename Item> DEVICE void sort_lane(Item (&v)[Count])
{
#pragma unroll
    for (int size = 2; size <= Count; size *= 2) {
#pragma unroll
        for (int i = 0; i < Count; i++)
            if ((i & (size / 2)) == 0)
                exchange(v[i], v[i ^ (size - 1)]);
#pragma unroll
        for (int step = size / 4; step > 0; step /= 2)
#pragma unroll
            for (int i = 0; i < Count; i++)
                if ((i & step) == 0)
                    exchange(v[i], v[i | step]);
    }
}

template <int Count, typename Item> DEVICE void warp_sort(Item (&v)[Count])
{
    int lane = (int)threadIdx.x % 32;
    sort_lane(v);
#pragma unroll 1
    for (int lanes = 2; lanes <= 32; lanes *= 2) {
        bool low = (lane & (lanes / 2)) == 0;
#pragma unroll
        for (int i = 0; i < (Count + 1) / 2; i++) {
            Item a = shuffle_xor(v[Count - 1 - i], lanes - 1);
            if (i != Count - 1 - i)
                v[Count - 1 - i] = keep(v[Count - 1 - i], shuffle_xor(v[i], lanes - 1), low);
            v[i] = keep(v[i], a, low);
        }
#pragma unroll 1
        for (int step = lanes / 4; step > 0; step /= 2) {
            low = (lane & step) == 0;
#pragma unroll
            for (int i = 0; i < Count; i++)
                v[i] = keep(v[i], shuffle_xor(v[i], step), low);
        }
        merge_lane<Count, Count / 2>(v);
    }
}

#endif
