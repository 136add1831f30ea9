/* Matrices by their columns, each of which LANES lanes of a warp work on: a group. Group g of a
 * block begins with column g. What is computed does not depend on how many groups there are.
 *
 * Knobs: CUP_T, SHARED, LANES, THREADS. */
#ifndef CUP_COLUMNS_CUH
#define CUP_COLUMNS_CUH

#include "reduce.cuh"

#define GROUPS (THREADS / LANES)

DEVICE int group_lane() { return (int)threadIdx.x % LANES; }
DEVICE int group_number() { return (int)threadIdx.x / LANES; }

/* The lanes of the group, others of the warp may be elsewhere. */
DEVICE unsigned group_members()
{
    return LANES == 32 ? 0xffffffffu
                       : ((1u << LANES % 32) - 1) << (threadIdx.x % 32 / LANES * LANES);
}

template <typename Op> DEVICE T group_reduce(T value, Op op)
{
    unsigned members = group_members();
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2)
        value = op(value, __shfl_xor_sync(members, value, mask));
    return value;
}

DEVICE T group_sum(T value) { return group_reduce(value, sum_op()); }

DEVICE T group_product(const T *a, const T *b, int count)
{
    T sum = 0;
    for (int i = group_lane(); i < count; i += LANES)
        sum += a[i] * b[i];
    return group_sum(sum);
}

/* The place of the largest of each lane's number, of equal ones the first. */
DEVICE int group_place(T value, int at)
{
    unsigned members = group_members();
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) {
        T other = __shfl_xor_sync(members, value, mask);
        int place = __shfl_xor_sync(members, at, mask);
        if (other > value || (other == value && place < at)) {
            value = other;
            at = place;
        }
    }
    return at;
}

#endif
