/* Elements as unsigned keys that are in the same order, for sorts: order_key(x) and back,
 * of_order_key(key). NaN is the largest, whatever its sign. With DESCENDING the order turns
 * around. Keys are 32 bits wide, 64 for elements of 8 bytes; the lowest ORDER_BITS count. */
#ifndef CUP_OPS_INDEX_ORDER_CUH
#define CUP_OPS_INDEX_ORDER_CUH

#include "vec.cuh"

/* A knob: DESCENDING. */
#define ORDER_BITS ((int)sizeof(T) * 8)

template <int Bytes> struct order_of { typedef uint32_t type; };
template <> struct order_of<8> { typedef uint64_t type; };
typedef order_of<sizeof(T)>::type order_type;

/* An element's bits, as one word of its size. */
template <int Bytes> struct bits_of { typedef typename word_of<Bytes>::type type; };
template <> struct bits_of<8> { typedef uint64_t type; };
union element_bits {
    T element;
    bits_of<sizeof(T)>::type bits;
    __device__ __forceinline__ element_bits() {}
};

DEVICE order_type order_key(T x)
{
    const order_type sign = (order_type)1 << (ORDER_BITS - 1), all = sign | (sign - 1);
    element_bits u;
    u.element = x;
    order_type bits = u.bits;
    if (real(0.5) == real(0)) /* integers */
        bits ^= (real)-1 < (real)0 ? sign : 0;
    else
        bits = to_real(x) != to_real(x) ? all : bits & sign ? ~bits & all : bits | sign;
    return DESCENDING ? ~bits & all : bits;
}

DEVICE T of_order_key(order_type key)
{
    const order_type sign = (order_type)1 << (ORDER_BITS - 1), all = sign | (sign - 1);
    order_type bits = DESCENDING ? ~key & all : key;
    if (real(0.5) == real(0))
        bits ^= (real)-1 < (real)0 ? sign : 0;
    else
        bits = bits & sign ? bits ^ sign : ~bits & all;
    element_bits u;
    u.bits = (bits_of<sizeof(T)>::type)bits;
    return u.element;
}

/* A key and the place it comes from, by which equal ones are told apart. */
struct ordered {
    order_type key;
    int32_t place;
};

DEVICE bool comes_before(const ordered &a, const ordered &b)
{
    return a.key < b.key || (a.key == b.key && a.place < b.place);
}

/* Sorts runs of `length` keys, a power of two, `count` in all, in shared memory. Ends with a
 * barrier. */
DEVICE void sort_runs(order_type *key, int32_t *place, int count, int length)
{
    for (int size = 2; size <= length; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int pair = (int)threadIdx.x; pair < count / 2; pair += (int)blockDim.x) {
                int i = 2 * pair - (pair & (step - 1)), j = i + step;
                ordered a = {key[i], place[i]}, b = {key[j], place[j]};
                bool up = (i & (length - 1) & size) == 0;
                if (comes_before(b, a) == up) {
                    key[i] = b.key;
                    place[i] = b.place;
                    key[j] = a.key;
                    place[j] = a.place;
                }
            }
        }
    __syncthreads();
}

#endif
