/* The first k of each row in order: largest first with DESCENDING, else smallest; of equal ones the
 * one that stands first.
 *
 * A block for a row. With FEW, for small k, the k-th of the threads' first keys is not before the
 * k-th key of the row; all keys up to it, hardly more than k, are collected and sorted. Where they
 * have no room, or without FEW, it searches: going through the bits of the keys 8 at a time from
 * the highest, it counts digits among the keys that share the bits found so far, and so finds the
 * key of the k-th; then it collects all before that and as many equal to it as are missing, in the
 * order of the row, and sorts them in shared memory, which has room for `room` keys, a power of two
 * from k on. Bytes: the row twice, or ORDER_BITS / 8 + 1 times, mostly from the caches. */
#include "order.cuh"
#include "scan.cuh"

/* Knobs: FEW, VEC (with FEW: elements of an access). */
#define THREADS 512
#define DIGITS 256
#define UNROLL 4 /* accesses on their way */

struct search {
    order_type found; /* the bits of the k-th key so far */
    int32_t missing;  /* its number, from 1, among the keys that share them */
};

/* The next 8 bits, from `shift` on. */
DEVICE void find_digit(search *s, const T *x, int64_t length, int shift, int32_t *count)
{
    __shared__ search next;
    const order_type upper = shift + 8 >= ORDER_BITS ? 0 : ~(order_type)0 << (shift + 8);
    for (int d = (int)threadIdx.x; d < DIGITS; d += THREADS)
        count[d] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < length; i += THREADS) {
        order_type key = order_key(x[i]);
        if (((key ^ s->found) & upper) == 0)
            atomicAdd(&count[(int)(key >> shift) & (DIGITS - 1)], 1);
    }
    __syncthreads();
    int digit = (int)threadIdx.x;
    int32_t own = digit < DIGITS ? count[digit] : 0, all;
    int32_t before = block_scan<THREADS>(own, &all);
    if (digit < DIGITS && before < s->missing && s->missing <= before + own) {
        next.found = s->found | (order_type)digit << shift;
        next.missing = s->missing - before;
    }
    __syncthreads();
    *s = next;
}

/* Keys before the k-th one, and the first `missing` of those equal to it. */
DEVICE void collect(const search &s, const T *x, int64_t length, int32_t k, order_type *key,
                    int32_t *place)
{
    int32_t less = 0, equal = 0, all_less, all_equal;
    for (int64_t first = 0; first < length; first += THREADS) {
        int64_t i = first + (int)threadIdx.x;
        order_type own = i < length ? order_key(x[i]) : ~(order_type)0;
        bool is_less = i < length && own < s.found, is_equal = i < length && own == s.found;
        if (!__syncthreads_or(is_less || is_equal))
            continue;
        int32_t before = block_scan<THREADS>((int32_t)is_less, &all_less);
        int32_t behind = block_scan<THREADS>((int32_t)is_equal, &all_equal);
        int32_t to = is_less ? less + before : k - s.missing + equal + behind;
        if (is_less || (is_equal && equal + behind < s.missing)) {
            key[to] = own;
            place[to] = (int32_t)i;
        }
        less += all_less;
        equal += all_equal;
    }
}

#if FEW
/* Calls take(key, place) for each key of the row; `length` is a multiple of VEC. */
template <typename Take> DEVICE void each_key(const T *x, int32_t length, Take take)
{
    for (int32_t first = (int32_t)threadIdx.x * VEC; first < length;
         first += UNROLL * THREADS * VEC) {
        vec<T, VEC> v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS * VEC < length)
                v[u] = load<VEC>(x + first + u * THREADS * VEC);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS * VEC < length)
#pragma unroll
                for (int e = 0; e < VEC; e++)
                    take(order_key(v[u].at[e]), first + u * THREADS * VEC + e);
    }
}

/* How many keys come up to the k-th of the threads' first ones; these, where there is room. */
DEVICE int32_t collect_few(const T *x, int32_t length, int32_t k, order_type *key, int32_t *place,
                           int32_t room)
{
    __shared__ int32_t count;
    order_type first = ~(order_type)0;
    each_key(x, length, [&](order_type own, int32_t) { first = own < first ? own : first; });
    key[threadIdx.x] = first;
    place[threadIdx.x] = (int32_t)threadIdx.x;
    if (threadIdx.x == 0)
        count = 0;
    sort_runs(key, place, THREADS, THREADS);
    order_type bound = key[k - 1];
    __syncthreads();
    each_key(x, length, [&](order_type own, int32_t at) {
        if (own > bound)
            return;
        int32_t to = atomicAdd(&count, 1);
        if (to < room) {
            key[to] = own;
            place[to] = at;
        }
    });
    __syncthreads();
    return count;
}
#endif

/* Puts what was found in order, in runs of a power of two. */
DEVICE void finish(order_type *key, int32_t *place, int32_t count, int32_t padded, int32_t k,
                   T *values, int64_t *indices)
{
    for (int i = count + (int)threadIdx.x; i < padded; i += THREADS) {
        key[i] = ~(order_type)0;
        place[i] = 0x7fffffff;
    }
    sort_runs(key, place, padded, padded);
    for (int i = (int)threadIdx.x; i < k; i += THREADS) {
        values[(int64_t)blockIdx.x * k + i] = of_order_key(key[i]);
        indices[(int64_t)blockIdx.x * k + i] = place[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
top_k(const T *x, T *values, int64_t *indices, int64_t length, int32_t k, int32_t room)
{
    extern __shared__ uint64_t memory[];
    __shared__ int32_t count[DIGITS];
    order_type *key = (order_type *)memory;
    int32_t *place = (int32_t *)(key + room);
    const T *row = x + (int64_t)blockIdx.x * length;
#if FEW
    int32_t few = collect_few(row, (int32_t)length, k, key, place, room), padded = 32;
    if (few <= room) {
        while (padded < few)
            padded *= 2;
        finish(key, place, few, padded, k, values, indices);
        return;
    }
#endif
    search s = {0, k};
    for (int shift = ORDER_BITS - 8; shift >= 0; shift -= 8)
        find_digit(&s, row, length, shift, count);
    collect(s, row, length, k, key, place);
    finish(key, place, k, room, k, values, indices);
}
