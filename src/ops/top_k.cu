/* The first k of each row in order: largest first with DESCENDING, else smallest; of equal ones the
 * one that stands first.
 *
 * A block for a row. Going through the bits of the keys 8 at a time from the highest, it counts
 * digits among the keys that share the bits found so far, and so finds the key of the k-th; then
 * it collects all before that and as many equal to it as are missing, in the order of the row, and
 * sorts them in shared memory, which has room for `room` keys, a power of two from k on. Bytes:
 * the row ORDER_BITS / 8 + 1 times, mostly from the caches. */
#include "order.cuh"
#include "scan.cuh"

#define THREADS 512
#define DIGITS 256

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

extern "C" __global__ void __launch_bounds__(THREADS)
top_k(const T *x, T *values, int64_t *indices, int64_t length, int32_t k, int32_t room)
{
    extern __shared__ uint64_t memory[];
    __shared__ int32_t count[DIGITS];
    order_type *key = (order_type *)memory;
    int32_t *place = (int32_t *)(key + room);
    const T *row = x + (int64_t)blockIdx.x * length;
    search s = {0, k};
    for (int shift = ORDER_BITS - 8; shift >= 0; shift -= 8)
        find_digit(&s, row, length, shift, count);
    for (int i = k + (int)threadIdx.x; i < room; i += THREADS) {
        key[i] = ~(order_type)0;
        place[i] = 0x7fffffff;
    }
    collect(s, row, length, k, key, place);
    sort_runs(key, place, room, room);
    for (int i = (int)threadIdx.x; i < k; i += THREADS) {
        values[(int64_t)blockIdx.x * k + i] = of_order_key(key[i]);
        indices[(int64_t)blockIdx.x * k + i] = place[i];
    }
}
