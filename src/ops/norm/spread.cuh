/* What blocks that share a row tell each other through global memory: the moments of their parts,
 * each number with a mark beside it, in one access, so that no fence is needed. The notes must be
 * zero before. */
#ifndef CUP_OPS_NORM_SPREAD_CUH
#define CUP_OPS_NORM_SPREAD_CUH

#include "layernorm_row.cuh"

struct found {
    real n, mean, squares;
};

struct join_found {
    __device__ __forceinline__ found operator()(const found &a, const found &b) const
    {
        real n = a.n + b.n, share = n > 0 ? b.n / n : 0, d = b.mean - a.mean;
        return {n, a.mean + d * share, a.squares + b.squares + d * d * a.n * share};
    }
};

DEVICE void tell_number(uint64_t *to, float value)
{
    uint64_t word = (uint64_t)1 << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

/* Both numbers of a note, when they are there. */
DEVICE void hear(const uint64_t *note, real &mean, real &squares)
{
    uint64_t a, b;
    do
        asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                     : "=l"(a), "=l"(b)
                     : "l"(note)
                     : "memory");
    while (!(a >> 32) || !(b >> 32));
    mean = __uint_as_float((uint32_t)a);
    squares = __uint_as_float((uint32_t)b);
}

DEVICE void tell(uint64_t *notes, int64_t task, real mean, real squares)
{
    tell_number(notes + 2 * task, mean);
    tell_number(notes + 2 * task + 1, squares > 0 || squares != squares ? squares : 0);
}

/* What the `parts` of a row, of SPAN elements, say; by one warp, in a fixed order. */
DEVICE found hear_all(const uint64_t *notes, int parts, extent row)
{
    found all = {0, 0, 0};
    for (int i = (int)threadIdx.x % 32; i < parts; i += 32) {
        extent part = {row.begin - i * SPAN, row.end - i * SPAN};
        real mean, squares;
        hear(notes + 2 * i, mean, squares);
        all = join_found()(all, {(real)part.count(), mean, squares});
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        all = join_found()(all, shuffle_xor(all, mask));
    return all;
}

#endif
