#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <inttypes.h>
#include <stdio.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(cup__hash), "the state of XXH3 has grown");

static XXH3_state_t *state_of(cup__hash *hash)
{
    return (XXH3_state_t *)(void *)hash->state;
}

void cup__hash_begin(cup__hash *hash)
{
    XXH3_INITSTATE(state_of(hash));
    XXH3_128bits_reset(state_of(hash));
}

void cup__hash_add(cup__hash *hash, const void *bytes, size_t count)
{
    if (count)
        XXH3_128bits_update(state_of(hash), bytes, count);
}

const char *cup__hash_text(const cup__hash *hash, char out[CUP__HASH_TEXT])
{
    XXH128_hash_t value = XXH3_128bits_digest((const XXH3_state_t *)(const void *)hash->state);
    snprintf(out, CUP__HASH_TEXT, "%016" PRIx64 "%016" PRIx64, (uint64_t)value.high64,
             (uint64_t)value.low64);
    return out;
}

uint64_t cup__hash_bytes(const void *bytes, size_t count)
{
    return XXH3_64bits(bytes, count);
}
