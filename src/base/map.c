#include "base/map.h"

#include <string.h>

#include "base/hash.h"
#include "base/memory.h"

/* Tables are at most two thirds full. */
static bool is_full(size_t count, size_t capacity)
{
    return count + 1 > capacity / 3 * 2;
}

static size_t place_of(uint64_t key, size_t capacity)
{
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15u;
    return (size_t)(key >> 32 ^ key) & (capacity - 1);
}

/* The slot that holds the key, or the empty one where it would go. */
static struct cup__map_slot *slot_of(const cup__map *map, uint64_t key)
{
    size_t at = place_of(key, map->capacity);
    while (map->slots[at].value && map->slots[at].key != key)
        at = (at + 1) & (map->capacity - 1);
    return &map->slots[at];
}

uint32_t cup__map_find(const cup__map *map, uint64_t key)
{
    return map->capacity ? slot_of(map, key)->value - 1 : CUP__NOT_THERE;
}

static bool grow_map(cup__map *map)
{
    cup__map larger = {.count = map->count, .capacity = map->capacity ? map->capacity * 2 : 64};
    larger.slots = cup__calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].value)
            *slot_of(&larger, map->slots[i].key) = map->slots[i];
    cup__free(map->slots);
    *map = larger;
    return true;
}

bool cup__map_add(cup__map *map, uint64_t key, uint32_t value)
{
    if (is_full(map->count, map->capacity) && !grow_map(map))
        return false;
    *slot_of(map, key) = (struct cup__map_slot){key, value + 1};
    map->count++;
    return true;
}

void cup__map_free(cup__map *map)
{
    cup__free(map->slots);
    *map = (cup__map){0};
}

static uint32_t *string_slot(const cup__strings *strings, const char *bytes, size_t length,
                             uint32_t hash)
{
    size_t at = hash & (strings->slot_count - 1);
    for (;; at = (at + 1) & (strings->slot_count - 1)) {
        uint32_t *slot = &strings->slots[at];
        if (!*slot)
            return slot;
        const struct cup__string *s = &strings->string[*slot - 1];
        if (s->hash == hash && s->length == length && memcmp(s->bytes, bytes, length) == 0)
            return slot;
    }
}

uint32_t cup__strings_hash(const char *bytes, size_t length)
{
    return (uint32_t)cup__hash_bytes(bytes, length);
}

uint32_t cup__strings_find(const cup__strings *strings, const char *bytes, size_t length)
{
    if (!strings->slot_count)
        return CUP__NOT_THERE;
    return *string_slot(strings, bytes, length, cup__strings_hash(bytes, length)) - 1;
}

static bool grow_slots(cup__strings *strings)
{
    size_t count = strings->slot_count ? strings->slot_count * 2 : 64;
    uint32_t *slots = cup__calloc(count, sizeof *slots);
    if (!slots)
        return false;
    for (size_t i = 0; i < strings->count; i++) {
        size_t at = strings->string[i].hash & (count - 1);
        while (slots[at])
            at = (at + 1) & (count - 1);
        slots[at] = (uint32_t)i + 1;
    }
    cup__free(strings->slots);
    strings->slots = slots;
    strings->slot_count = count;
    return true;
}

uint32_t cup__strings_add(cup__strings *strings, const char *bytes, size_t length)
{
    return cup__strings_add_hashed(strings, bytes, length, cup__strings_hash(bytes, length));
}

uint32_t cup__strings_add_hashed(cup__strings *strings, const char *bytes, size_t length,
                                 uint32_t hash)
{
    if (length > UINT32_MAX || strings->count >= CUP__NOT_THERE - 1)
        return CUP__NOT_THERE;
    if (is_full(strings->count, strings->slot_count) && !grow_slots(strings))
        return CUP__NOT_THERE;
    uint32_t *slot = string_slot(strings, bytes, length, hash);
    if (*slot)
        return *slot - 1;
    if (!cup__grow(&strings->string, &strings->capacity, strings->count, sizeof *strings->string))
        return CUP__NOT_THERE;
    strings->string[strings->count] = (struct cup__string){bytes, (uint32_t)length, hash};
    *slot = (uint32_t)++strings->count;
    return *slot - 1;
}

void cup__strings_free(cup__strings *strings)
{
    cup__free(strings->string);
    cup__free(strings->slots);
    *strings = (cup__strings){0};
}
