/* Bins: finding, splitting and merging blocks. */
#include "cuda/heap.h"

#include "base/memory.h"

#define LOOKS 16 /* blocks of one bin that are compared for the best fit */
#define SLAB 128 /* structs got at once */

static int bin_of(size_t bytes)
{
    uint64_t units = bytes / CUP__UNIT;
    if (units < 16)
        return (int)units;
    int power = 63 - __builtin_clzll(units);
    int bin = (power - 3) * 16 + (int)(units >> (power - 4) & 15);
    return bin < CUP__BINS ? bin : CUP__BINS - 1;
}

cup__block *cup__block_new(cup__pool *pool)
{
    if (!pool->spare) {
        if (!cup__grow(&pool->slabs, &pool->slab_capacity, pool->slab_count, sizeof *pool->slabs))
            return NULL;
        cup__block *slab = cup__calloc(SLAB, sizeof *slab);
        if (!slab)
            return NULL;
        pool->slabs[pool->slab_count++] = slab;
        for (int i = 0; i < SLAB; i++)
            cup__block_free(pool, &slab[i]);
    }
    cup__block *block = pool->spare;
    pool->spare = block->next;
    return block;
}

void cup__block_free(cup__pool *pool, cup__block *block)
{
    block->next = pool->spare;
    pool->spare = block;
}

void cup__block_insert(cup__block *block, cup__block *made)
{
    made->segment = block->segment;
    made->heap = block->heap;
    made->before = block;
    made->after = block->after;
    if (block->after)
        block->after->before = made;
    block->after = made;
}

static void remove_neighbour(cup__block *block)
{
    cup__block *before = block->before;
    before->after = block->after;
    if (block->after)
        block->after->before = before;
    cup__block_free(block->heap->pool, block);
}

void cup__heap_shelve(cup__block *block)
{
    cup__heap *heap = block->heap;
    int bin = bin_of(block->bytes);
    block->state = CUP__BLOCK_FREE;
    block->previous = NULL;
    block->next = heap->bins[bin];
    if (block->next)
        block->next->previous = block;
    heap->bins[bin] = block;
    heap->filled[bin / 64] |= (uint64_t)1 << (bin % 64);
}

void cup__heap_unshelve(cup__block *block)
{
    cup__heap *heap = block->heap;
    if (block->next)
        block->next->previous = block->previous;
    if (block->previous) {
        block->previous->next = block->next;
        return;
    }
    int bin = bin_of(block->bytes);
    heap->bins[bin] = block->next;
    if (!block->next)
        heap->filled[bin / 64] &= ~((uint64_t)1 << (bin % 64));
}

cup__block *cup__heap_merge(cup__block *block)
{
    cup__block *after = block->after, *before = block->before;
    if (after && after->state == CUP__BLOCK_FREE) {
        cup__heap_unshelve(after);
        block->bytes += after->bytes;
        remove_neighbour(after);
    }
    if (before && before->state == CUP__BLOCK_FREE) {
        cup__heap_unshelve(before);
        before->bytes += block->bytes;
        remove_neighbour(block);
        block = before;
    }
    return block;
}

/* The tightest of the first blocks of a bin that hold `bytes`. */
static cup__block *best_of(cup__block *block, size_t bytes)
{
    cup__block *best = NULL;
    for (int i = 0; block && i < LOOKS; i++, block = block->next) {
        if (block->bytes == bytes)
            return block;
        if (block->bytes > bytes && (!best || block->bytes < best->bytes))
            best = block;
    }
    return best;
}

/* The first bin from `bin` on that is not empty, or -1. */
static int next_filled(const cup__heap *heap, int bin)
{
    int word = bin / 64;
    if (word >= CUP__BINS / 64)
        return -1;
    uint64_t bits = heap->filled[word] & ~(uint64_t)0 << (bin % 64);
    while (!bits) {
        if (++word == CUP__BINS / 64)
            return -1;
        bits = heap->filled[word];
    }
    return word * 64 + __builtin_ctzll(bits);
}

static cup__block *find(const cup__heap *heap, size_t bytes)
{
    int bin = bin_of(bytes);
    cup__block *block = best_of(heap->bins[bin], bytes);
    if (block)
        return block;
    bin = next_filled(heap, bin + 1);
    return bin < 0 ? NULL : best_of(heap->bins[bin], bytes);
}

cup__block *cup__heap_take(cup__heap *heap, size_t bytes)
{
    cup__block *block = find(heap, bytes);
    if (!block)
        return NULL;
    cup__heap_unshelve(block);
    size_t rest = block->bytes - bytes;
    cup__block *behind = rest >= heap->round ? cup__block_new(heap->pool) : NULL;
    if (behind) {
        behind->address = block->address + bytes;
        behind->bytes = rest;
        block->bytes = bytes;
        cup__block_insert(block, behind);
        cup__heap_shelve(behind);
    }
    block->state = CUP__BLOCK_USED;
    heap->used_blocks++;
    return block;
}

void cup__heap_give(cup__block *block)
{
    block->heap->used_blocks--;
    cup__heap_shelve(cup__heap_merge(block));
}

size_t cup__heap_largest(const cup__heap *heap)
{
    size_t largest = 0;
    for (int bin = CUP__BINS - 1; bin >= 0 && !largest; bin--)
        for (const cup__block *block = heap->bins[bin]; block; block = block->next)
            if (block->bytes > largest)
                largest = block->bytes;
    return largest;
}

int64_t cup__heap_free_bytes(const cup__heap *heap)
{
    int64_t bytes = 0;
    for (int bin = 0; bin < CUP__BINS; bin++)
        for (const cup__block *block = heap->bins[bin]; block; block = block->next)
            bytes += (int64_t)block->bytes;
    return bytes;
}
