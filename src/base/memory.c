#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic long countdown;
static _Atomic bool fail_all;
static _Atomic long failures;

static bool refused(void)
{
    long left = atomic_load_explicit(&countdown, memory_order_relaxed);
    if (left == 0)
        return false;
    if (left > 1) {
        atomic_fetch_sub_explicit(&countdown, 1, memory_order_relaxed);
        return false;
    }
    if (!atomic_load_explicit(&fail_all, memory_order_relaxed))
        atomic_store_explicit(&countdown, 0, memory_order_relaxed);
    return true;
}

static void *counted(void *block)
{
    if (!block)
        atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
    return block;
}

void *cup__malloc(size_t size)
{
    return counted(refused() ? NULL : malloc(size ? size : 1));
}

void *cup__calloc(size_t count, size_t size)
{
    if (count == 0 || size == 0)
        count = size = 1;
    return counted(refused() ? NULL : calloc(count, size));
}

void *cup__realloc(void *block, size_t count, size_t size)
{
    size_t bytes;
    if (!cup__multiply(count, size, &bytes))
        return NULL;
    return counted(refused() ? NULL : realloc(block, bytes ? bytes : 1));
}

void *cup__aligned(size_t alignment, size_t size)
{
    if (size > SIZE_MAX - alignment)
        return NULL;
    size_t rounded = (size + alignment - 1) / alignment * alignment;
    return counted(refused() ? NULL : aligned_alloc(alignment, rounded ? rounded : alignment));
}

char *cup__strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = cup__malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

void cup__free(void *block)
{
    free(block);
}

bool cup__grow(void *array, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity)
        return true;
    size_t wanted = *capacity ? *capacity : 8;
    while (wanted <= count)
        if (!cup__multiply(wanted, 2, &wanted))
            return false;
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = cup__realloc(old, wanted, size);
    if (!grown)
        return false;
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

bool cup__multiply(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool cup__multiply_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

long cup__memory_failures(void)
{
    return atomic_load_explicit(&failures, memory_order_relaxed);
}

void cup__memory_fail_at(long n, bool all)
{
    atomic_store(&fail_all, all);
    atomic_store(&countdown, n);
}
