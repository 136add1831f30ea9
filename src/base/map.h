/* Two hash tables that only grow: whole numbers to indices, and strings to indices. */
#ifndef CUP_BASE_MAP_H
#define CUP_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUP__NOT_THERE UINT32_MAX

/* From 64-bit keys to values below CUP__NOT_THERE. All zero is an empty one. */
typedef struct cup__map {
    struct cup__map_slot {
        uint64_t key;
        uint32_t value; /* plus 1; 0 in an empty slot */
    } * slots;
    size_t count, capacity; /* the capacity is a power of two */
} cup__map;

uint32_t cup__map_find(const cup__map *map, uint64_t key);
/* Adds a key that is not there. False when there is no memory. */
bool cup__map_add(cup__map *map, uint64_t key, uint32_t value);
void cup__map_free(cup__map *map);

/* Strings, numbered in the order in which they came. The bytes are borrowed. */
typedef struct cup__strings {
    struct cup__string {
        const char *bytes;
        uint32_t length;
        uint32_t hash;
    } * string;
    uint32_t *slots; /* an index plus 1, 0 in an empty slot */
    size_t count, capacity, slot_count;
} cup__strings;

uint32_t cup__strings_find(const cup__strings *strings, const char *bytes, size_t length);
/* The string's index, a new one when it was not there; CUP__NOT_THERE when there is no memory. */
uint32_t cup__strings_add(cup__strings *strings, const char *bytes, size_t length);
/* The same where the hash of the bytes is known, see cup__strings_hash. */
uint32_t cup__strings_add_hashed(cup__strings *strings, const char *bytes, size_t length,
                                 uint32_t hash);
uint32_t cup__strings_hash(const char *bytes, size_t length);
void cup__strings_free(cup__strings *strings);

#endif
