/* Philox4x32-10, the counter-based random numbers of Salmon et al. (2011): a pure function of a
 * key, the seed, and a counter. kernels/philox.cuh is its twin on the device and gives the same
 * numbers.
 *
 * Element i of the call with number `sequence` in its step takes word i % 4 of block i / 4. */
#ifndef CUP_BASE_PHILOX_H
#define CUP_BASE_PHILOX_H

#include <stdint.h>

typedef struct cup__philox_words {
    uint32_t at[4];
} cup__philox_words;

static inline cup__philox_words cup__philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                            uint32_t c3)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (cup__philox_words){{c0, c1, c2, c3}};
}

/* The four words of a block; `state` holds seed and step. Steps count modulo 2^32. */
static inline cup__philox_words cup__philox_block(const uint64_t *state, uint32_t sequence,
                                                  uint64_t block)
{
    return cup__philox(state[0], (uint32_t)block, (uint32_t)(block >> 32), sequence,
                       (uint32_t)state[1]);
}

/* A word as a number in [0, 1): a multiple of 2^-24, never 1. */
static inline float cup__philox_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

#endif
