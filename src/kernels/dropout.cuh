/* Which elements dropout keeps, as ops/random/dropout.h says. */
#ifndef CUP_DROPOUT_CUH
#define CUP_DROPOUT_CUH

#include "philox.cuh"

/* Where a half of a word is zero, a bit in it, and perhaps in the other one, too. */
DEVICE uint32_t zero_halves(uint32_t x)
{
    return (x - 0x00010001u) & ~x & 0x80008000u;
}

/* Bit i is set where element i of 8 is kept, those of byte `number` of the mask. */
DEVICE unsigned dropout_kept(uint64_t seed, uint32_t step, uint32_t sequence, uint64_t number,
                             uint32_t threshold, uint32_t rest)
{
    philox_words w = philox(seed, (uint32_t)number, (uint32_t)(number >> 32), sequence, step);
    unsigned kept = 0;
    uint32_t equal = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        kept |= (unsigned)((w.at[i] & 0xffff) >= threshold) << (2 * i);
        kept |= (unsigned)(w.at[i] >> 16 >= threshold) << (2 * i + 1);
        equal |= zero_halves(w.at[i] ^ threshold * 0x10001u);
    }
    if (!rest || !equal)
        return kept;
    philox_words more =
        philox(seed, (uint32_t)number, (uint32_t)(number >> 32) | 1u << 31, sequence, step);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t shift = i % 2 * 16, half = w.at[i / 2] >> shift & 0xffff;
        if (half == threshold && (more.at[i / 2] >> shift & 0xffff) < rest)
            kept &= ~(1u << i);
    }
    return kept;
}

#endif
