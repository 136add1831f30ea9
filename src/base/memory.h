/* Host memory. Every allocation of the library goes through here, so that sizes are checked for
 * overflow in one place and tests can fail the n-th one. */
#ifndef CUP_BASE_MEMORY_H
#define CUP_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each returns NULL when there is no memory or count * size overflows; a size of 0 gives a valid
 * pointer. cup__calloc clears; cup__realloc leaves the old block alone when it fails. */
void *cup__malloc(size_t size);
void *cup__calloc(size_t count, size_t size);
void *cup__realloc(void *block, size_t count, size_t size);
void *cup__aligned(size_t alignment, size_t size);
char *cup__strdup(const char *text);
void cup__free(void *block);

/* Makes room for one more element of an array that grows by doubling. */
bool cup__grow(void *array, size_t *capacity, size_t count, size_t size);

/* Multiplies and adds with overflow in mind; false means it does not fit and *out is unset. */
bool cup__multiply(size_t a, size_t b, size_t *out);
bool cup__multiply_i64(int64_t a, int64_t b, int64_t *out);

/* How many allocations have failed so far for want of memory, in all threads: what was computed
 * meanwhile may be wrong for that alone. */
long cup__memory_failures(void);

/* Tests: the n-th allocation from now on fails, and all after it when `all`; 0 turns it off. */
void cup__memory_fail_at(long n, bool all);

#endif
