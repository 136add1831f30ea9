/* Philox4x32-10, the counter-based random numbers of Salmon et al. (2011): a pure function of a
 * key, the seed, and a counter, so that no number depends on the grid. base/philox.h is its twin
 * on the host and gives the same numbers.
 *
 * Element i of the call with number `sequence` in its step takes word i % 4 of block i / 4. */
#ifndef CUP_PHILOX_CUH
#define CUP_PHILOX_CUH

#include "dtype.cuh"

struct philox_words {
    uint32_t at[4];
};

/* In C the compiler leaves an addition of 0 behind each product. */
DEVICE uint64_t wide_product(uint32_t a, uint32_t b)
{
#ifdef __CUDA_ARCH__
    uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return (uint64_t)a * b;
#endif
}

DEVICE struct philox_words philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = wide_product(0xd2511f53u, c0), p1 = wide_product(0xcd9e8d57u, c2);
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    struct philox_words words = {{c0, c1, c2, c3}};
    return words;
}

/* The four words of a block. `state` is the context's: seed and step in device memory. */
DEVICE struct philox_words philox_block(const uint64_t *state, uint32_t sequence, uint64_t block)
{
    return philox(state[0], (uint32_t)block, (uint32_t)(block >> 32), sequence,
                  (uint32_t)state[1]);
}

/* A word as a number in [0, 1): a multiple of 2^-24, never 1. */
DEVICE float philox_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

#endif
