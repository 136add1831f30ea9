/* Checksums and keys: XXH3 with 128 bits. Good against accidents, not against forgery. */
#ifndef CUP_BASE_HASH_H
#define CUP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define CUP__HASH_TEXT 33

/* A hash in the making. */
typedef struct cup__hash {
    _Alignas(64) unsigned char state[576];
} cup__hash;

void cup__hash_begin(cup__hash *hash);
void cup__hash_add(cup__hash *hash, const void *bytes, size_t count);

/* The hash of what was added so far, as 32 hexadecimal digits. Returns `out`. */
const char *cup__hash_text(const cup__hash *hash, char out[CUP__HASH_TEXT]);

/* 64 bits of the hash of a block. */
uint64_t cup__hash_bytes(const void *bytes, size_t count);

#endif
