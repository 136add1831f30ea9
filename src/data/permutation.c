#include "data/permutation.h"

#include "base/philox.h"

/* A round of a Feistel network: a half of the number is mixed into the other. */
static uint32_t mix(uint32_t key, uint64_t seed, uint64_t epoch, uint32_t round, uint32_t half)
{
    return cup__philox(seed, half, (uint32_t)epoch, key, round ^ (uint32_t)(epoch >> 32)).at[0];
}

/* Numbers of twice `bits` bits are exchanged, and those beyond the count go on until they come
 * back. */
int64_t cup__permuted(uint32_t key, uint64_t seed, uint64_t epoch, int64_t at, int64_t count)
{
    int bits = 1;
    while (bits < 31 && (int64_t)1 << (2 * bits) < count)
        bits++;
    uint32_t mask = (1u << bits) - 1;
    uint64_t now = (uint64_t)at;
    do {
        uint32_t left = (uint32_t)(now >> bits) & mask, right = (uint32_t)now & mask;
        for (uint32_t round = 0; round < 4; round++) {
            uint32_t kept = right;
            right = (left ^ mix(key, seed, epoch, round, right)) & mask;
            left = kept;
        }
        now = (uint64_t)left << bits | right;
    } while (now >= (uint64_t)count);
    return (int64_t)now;
}
