#include "cuda/pool.h"

#include <string.h>

#include "base/memory.h"
#include "cuda/heap.h"

#define LARGEST ((size_t)1 << 46)

/* The table of used blocks. */

static size_t slot_of(const cup__block_table *table, uint64_t address)
{
    return (size_t)((address / CUP__UNIT * 0x9e3779b97f4a7c15u) >> 20) & (table->capacity - 1);
}

static bool table_reserve(cup__block_table *table)
{
    if (table->count * 2 < table->capacity)
        return true;
    cup__block_table larger = {.capacity = table->capacity ? table->capacity * 2 : 1024};
    larger.slots = cup__calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (size_t i = 0; i < table->capacity; i++) {
        if (!table->slots[i])
            continue;
        size_t slot = slot_of(&larger, table->slots[i]->address);
        while (larger.slots[slot])
            slot = (slot + 1) & (larger.capacity - 1);
        larger.slots[slot] = table->slots[i];
    }
    larger.count = table->count;
    cup__free(table->slots);
    *table = larger;
    return true;
}

static void table_add(cup__block_table *table, cup__block *block)
{
    size_t slot = slot_of(table, block->address);
    while (table->slots[slot])
        slot = (slot + 1) & (table->capacity - 1);
    table->slots[slot] = block;
    table->count++;
}

/* Takes the block at an address out; NULL when there is none. What follows it in its run is moved
 * up where its own slot allows, so that no marks of removed entries are needed. */
static cup__block *table_remove(cup__block_table *table, uint64_t address)
{
    size_t mask = table->capacity - 1, slot = slot_of(table, address);
    while (table->slots[slot] && table->slots[slot]->address != address)
        slot = (slot + 1) & mask;
    cup__block *found = table->slots[slot];
    if (!found)
        return NULL;
    size_t empty = slot;
    for (slot = (slot + 1) & mask; table->slots[slot]; slot = (slot + 1) & mask) {
        size_t own = slot_of(table, table->slots[slot]->address);
        if (((slot - own) & mask) >= ((slot - empty) & mask)) {
            table->slots[empty] = table->slots[slot];
            empty = slot;
        }
    }
    table->slots[empty] = NULL;
    table->count--;
    return found;
}

void cup__pool_note(cup__pool *pool, cup__pool_action action, uint64_t address, size_t bytes,
                    const char *tag)
{
    cup__pool_event *event = &pool->history[pool->events % CUP__HISTORY];
    *event = (cup__pool_event){.number = ++pool->events, .action = action, .address = address,
                               .bytes = bytes, .tag = tag, .op = pool->gpu->op};
}

bool cup__pool_history(const cup__pool *pool, uint64_t back, cup__pool_event *out)
{
    if (back >= pool->events || back >= CUP__HISTORY)
        return false;
    *out = pool->history[(pool->events - 1 - back) % CUP__HISTORY];
    return true;
}

/* Allocating and releasing. */

static size_t rounded(const cup__heap *heap, size_t bytes)
{
    return bytes ? (bytes + heap->round - 1) & ~(heap->round - 1) : heap->round;
}

/* The way past the free blocks: more memory from the driver, then again after giving back all
 * that is idle. */
static cup_status take_new(cup__heap *heap, size_t asked, const char *tag, cup__block **out)
{
    cup__pool *pool = heap->pool;
    size_t bytes = rounded(heap, asked);
    CUP_TRY(cup__cuda_enter(pool->gpu));
    bool limited;
    CUresult result = cup__heap_grow(heap, bytes, &limited);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && cup__pool_trim(pool) > 0)
        result = cup__heap_grow(heap, bytes, &limited);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return cup__pool_fail(pool, asked, tag, limited);
    if (result != CUDA_SUCCESS)
        return cup__cuda_check(pool->gpu, result, "getting device memory");
    *out = cup__heap_take(heap, bytes);
    return *out ? CUP_OK
                : cup__fail(pool->gpu->device.error, CUP_MEMORY,
                            "out of host memory for the list of device memory");
}

cup_status cup__pool_allocate(cup__pool *pool, size_t bytes, const char *tag, void **out)
{
    *out = NULL;
    if (bytes > LARGEST)
        return cup__pool_fail(pool, bytes, tag, false);
    if (!table_reserve(&pool->used))
        return cup__fail(pool->gpu->device.error, CUP_MEMORY,
                         "out of host memory for the list of device memory");
    cup__heap *heap = bytes <= CUP__SMALL_MOST ? pool->current.small : pool->current.large;
    cup__block *block = cup__heap_take(heap, rounded(heap, bytes));
    cup__memory_use *use = &pool->use;
    use->allocations++;
    if (block)
        use->cached++;
    else
        CUP_TRY(take_new(heap, bytes, tag, &block));
    block->tag = tag;
    table_add(&pool->used, block);
    use->allocated += (int64_t)block->bytes;
    if (use->allocated > use->peak_allocated)
        use->peak_allocated = use->allocated;
    cup__pool_note(pool, CUP__POOL_ALLOCATE, block->address, block->bytes, tag);
    *out = (void *)(uintptr_t)block->address;
    return CUP_OK;
}

static void hold(cup__pool_private *private, cup__block *block)
{
    block->state = CUP__BLOCK_HELD;
    block->next = private->held;
    private->held = block;
}

void cup__pool_release(cup__pool *pool, void *memory)
{
    uint64_t address = (uint64_t)(uintptr_t)memory;
    cup__block *block = pool->used.count ? table_remove(&pool->used, address) : NULL;
    if (!block) {
        if (memory)
            cup__fail(pool->gpu->device.error, CUP_INTERNAL,
                      "device memory %p was released that is not allocated", memory);
        return;
    }
    pool->use.allocated -= (int64_t)block->bytes;
    cup__pool_note(pool, CUP__POOL_RELEASE, address, block->bytes, block->tag);
    if (pool->capturing && !block->heap->private)
        hold(pool->capturing, block);
    else
        cup__heap_give(block);
}

void cup__pool_limit(cup__pool *pool, int64_t bytes)
{
    pool->limit = bytes;
}

int64_t cup__pool_trim(cup__pool *pool)
{
    /* While a graph is captured nothing runs, and waiting is not allowed. */
    cup__cuda *gpu = pool->gpu;
    if (cup__cuda_enter(gpu) != CUP_OK)
        return 0;
    if (!pool->capturing && cup__driver.cuStreamSynchronize(gpu->stream) != CUDA_SUCCESS)
        return 0;
    int64_t bytes = 0;
    for (cup__heap *heap = pool->heaps, *next; heap; heap = next) {
        next = heap->next;
        if (heap->private)
            continue;
        bytes += cup__heap_trim(heap);
        /* The heap of a graph that was freed, once its last block is released. */
        bool ours = heap == pool->main.small || heap == pool->main.large;
        if (!ours && !heap->used_blocks)
            cup__heap_free(heap, true);
    }
    return bytes;
}

void cup__pool_use(cup__pool *pool, cup__memory_use *use)
{
    *use = pool->use;
    use->limit = pool->limit;
    for (const cup__heap *heap = pool->heaps; heap; heap = heap->next) {
        int64_t largest = heap->private ? 0 : (int64_t)cup__heap_largest(heap);
        if (largest > use->largest_free)
            use->largest_free = largest;
    }
    size_t free = 0, total = 0;
    cup__cuda *gpu = pool->gpu;
    cup__error *error = gpu->device.error, ignored = {0};
    gpu->device.error = &ignored;
    if (cup__cuda_enter(gpu) == CUP_OK)
        cup__driver.cuMemGetInfo(&free, &total);
    gpu->device.error = error;
    use->free = (int64_t)free;
    use->total = total ? (int64_t)total : gpu->facts.memory_bytes;
}

/* Graphs. */

cup_status cup__pool_private_begin(cup__pool *pool, cup__pool_private **out)
{
    cup__pool_private *private = *out;
    if (private) {
        private->graphs++;
        pool->current = private->heaps;
        pool->capturing = private;
        return CUP_OK;
    }
    private = cup__calloc(1, sizeof *private);
    if (private) {
        private->graphs = 1;
        private->heaps.small = cup__heap_new(pool, true, true);
        private->heaps.large = cup__heap_new(pool, false, true);
    }
    if (!private || !private->heaps.small || !private->heaps.large) {
        cup__pool_private_free(private);
        return cup__fail(pool->gpu->device.error, CUP_MEMORY,
                         "out of host memory for the memory of a graph");
    }
    pool->current = private->heaps;
    pool->capturing = private;
    *out = private;
    return CUP_OK;
}

void cup__pool_private_end(cup__pool *pool)
{
    pool->current = pool->main;
    pool->capturing = NULL;
}

/* A heap with blocks in use lives on as one from which nothing more is taken. */
static void retire(cup__heap *heap)
{
    if (!heap)
        return;
    heap->private = false;
    if (!heap->used_blocks) {
        cup__heap_trim(heap);
        cup__heap_free(heap, true);
    }
}

void cup__pool_private_free(cup__pool_private *private)
{
    if (!private || --private->graphs > 0)
        return;
    while (private->held) {
        cup__block *block = private->held;
        private->held = block->next;
        cup__heap_give(block);
    }
    retire(private->heaps.small);
    retire(private->heaps.large);
    cup__free(private);
}

/* Opening and closing. */

static cup_status find_granularity(cup__pool *pool)
{
    cup__cuda *gpu = pool->gpu;
    pool->granularity = (size_t)2 << 20;
    if (!gpu->virtual_memory || !cup__driver.cuMemGetAllocationGranularity)
        return CUP_OK;
    CUmemAllocationProp kind = {0};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = gpu->facts.index;
    size_t bytes = 0;
    CUP_TRY(cup__cuda_check(gpu,
                            cup__driver.cuMemGetAllocationGranularity(
                                &bytes, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                            "asking for the size of memory pages"));
    if (bytes > pool->granularity)
        pool->granularity = bytes;
    return CUP_OK;
}

cup_status cup__pool_open(cup__cuda *gpu, int64_t limit, cup__pool **out)
{
    cup__pool *pool = cup__calloc(1, sizeof *pool);
    if (pool) {
        pool->gpu = gpu;
        pool->limit = limit;
        pool->main.small = cup__heap_new(pool, true, false);
        pool->main.large = cup__heap_new(pool, false, false);
        pool->current = pool->main;
    }
    *out = pool;
    if (!pool || !pool->main.small || !pool->main.large)
        return cup__fail(gpu->device.error, CUP_MEMORY, "out of host memory while opening cuda:%d",
                         gpu->facts.index);
    return find_granularity(pool);
}

void cup__pool_close(cup__pool *pool, bool driver)
{
    while (pool->heaps)
        cup__heap_free(pool->heaps, driver);
    for (size_t i = 0; i < pool->slab_count; i++)
        cup__free(pool->slabs[i]);
    cup__free(pool->slabs);
    cup__free(pool->used.slots);
    cup__free(pool);
}
