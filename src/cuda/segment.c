/* Where a heap's memory comes from: pieces mapped into reserved addresses, so that they join into
 * one range and idle ones can be given back, or plain allocations of the driver. */
#include "base/memory.h"
#include "cuda/heap.h"

/* A card's memory in at most about so many pieces. More of them would take long to map; larger
 * ones could less often be given back, since a piece with one block in use stays. */
#define PIECES_MOST 4096

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static void count_reserved(cup__pool *pool, int64_t bytes)
{
    cup__memory_use *use = &pool->use;
    use->reserved += bytes;
    if (use->reserved > use->peak_reserved)
        use->peak_reserved = use->reserved;
}

static bool over_limit(const cup__pool *pool, size_t bytes)
{
    return pool->limit && (int64_t)bytes > pool->limit - pool->use.reserved;
}

static cup__segment *segment_new(cup__heap *heap, uint64_t address, size_t bytes,
                                 cup__block_state state)
{
    cup__segment *segment = cup__calloc(1, sizeof *segment);
    cup__block *block = segment ? cup__block_new(heap->pool) : NULL;
    if (!block) {
        cup__free(segment);
        return NULL;
    }
    *block = (cup__block){.address = address, .bytes = bytes, .segment = segment, .heap = heap,
                          .state = state};
    segment->address = address;
    segment->bytes = bytes;
    segment->first = block;
    segment->next = heap->segments;
    heap->segments = segment;
    return segment;
}

static CUmemAllocationProp kind_of(const cup__pool *pool)
{
    CUmemAllocationProp kind = {0};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = pool->gpu->facts.index;
    return kind;
}

static CUresult map_memory(const cup__pool *pool, uint64_t address, size_t bytes)
{
    CUmemAllocationProp kind = kind_of(pool);
    CUmemGenericAllocationHandle handle;
    CUresult result = cup__driver.cuMemCreate(&handle, bytes, &kind, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = cup__driver.cuMemMap(address, bytes, 0, handle, 0);
    /* The mapping holds the memory from now on. */
    cup__driver.cuMemRelease(handle);
    if (result != CUDA_SUCCESS)
        return result;
    CUmemAccessDesc access = {kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = cup__driver.cuMemSetAccess(address, bytes, &access, 1);
    if (result != CUDA_SUCCESS)
        cup__driver.cuMemUnmap(address, bytes);
    return result;
}

static size_t mapping_after(const cup__segment *segment, uint64_t address)
{
    size_t low = 0, high = segment->mapping_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (segment->mappings[middle].address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void add_mapping(cup__segment *segment, uint64_t address, size_t bytes)
{
    size_t at = mapping_after(segment, address);
    for (size_t i = segment->mapping_count; i > at; i--)
        segment->mappings[i] = segment->mappings[i - 1];
    segment->mappings[at] = (struct cup__mapping){address, bytes};
    segment->mapping_count++;
}

/* Maps `bytes` at the start of a hole, in one piece, and makes them a free block. */
static CUresult map_piece(cup__block **hole, size_t bytes)
{
    cup__block *block = *hole;
    cup__segment *segment = block->segment;
    cup__pool *pool = block->heap->pool;
    cup__block *rest = bytes < block->bytes ? cup__block_new(pool) : NULL;
    if ((bytes < block->bytes && !rest) ||
        !cup__grow(&segment->mappings, &segment->mapping_capacity, segment->mapping_count,
                   sizeof *segment->mappings)) {
        if (rest)
            cup__block_free(pool, rest);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    CUresult result = map_memory(pool, block->address, bytes);
    if (result != CUDA_SUCCESS) {
        if (rest)
            cup__block_free(pool, rest);
        return result;
    }
    add_mapping(segment, block->address, bytes);
    count_reserved(pool, (int64_t)bytes);
    cup__pool_note(pool, CUP__POOL_GROW, block->address, bytes, NULL);
    if (rest) {
        *rest = (cup__block){.address = block->address + bytes, .bytes = block->bytes - bytes,
                             .state = CUP__BLOCK_HOLE};
        block->bytes = bytes;
        cup__block_insert(block, rest);
    }
    cup__heap_shelve(cup__heap_merge(block));
    *hole = rest;
    return CUDA_SUCCESS;
}

/* Maps `bytes` of a hole in pieces; what was mapped before a failure stays as free memory. */
static CUresult map_pieces(cup__block *hole, size_t bytes)
{
    const cup__pool *pool = hole->heap->pool;
    size_t most = round_up((size_t)pool->gpu->facts.memory_bytes / PIECES_MOST + 1,
                           pool->granularity);
    while (bytes) {
        size_t piece = bytes < most ? bytes : most;
        CUresult result = map_piece(&hole, piece);
        if (result != CUDA_SUCCESS)
            return result;
        bytes -= piece;
    }
    return CUDA_SUCCESS;
}

static size_t free_bytes(const cup__block *block)
{
    return block && block->state == CUP__BLOCK_FREE ? block->bytes : 0;
}

/* A hole that, with the free blocks beside it, can hold `bytes`; *need is what must be mapped. */
static cup__block *find_hole(const cup__heap *heap, size_t bytes, size_t *need)
{
    size_t unit = heap->pool->granularity;
    for (const cup__segment *segment = heap->segments; segment; segment = segment->next)
        for (cup__block *block = segment->first; block; block = block->after) {
            if (block->state != CUP__BLOCK_HOLE)
                continue;
            size_t before = free_bytes(block->before), after = free_bytes(block->after);
            *need = before < bytes ? round_up(bytes - before, unit) : 0;
            if (*need <= block->bytes)
                return block;
            *need = block->bytes;
            if (before + block->bytes + after >= bytes)
                return block;
        }
    return NULL;
}

/* Reserves addresses for twice the card's memory, or for as much as the system grants. */
static CUresult reserve(cup__heap *heap, size_t bytes)
{
    cup__pool *pool = heap->pool;
    size_t least = round_up(bytes, pool->granularity);
    size_t whole = round_up((size_t)pool->gpu->facts.memory_bytes * 2, pool->granularity);
    CUdeviceptr address;
    CUresult result;
    if (whole < least)
        whole = least;
    while ((result = cup__driver.cuMemAddressReserve(&address, whole, 0, 0, 0)) != CUDA_SUCCESS &&
           whole > least)
        whole = whole / 2 < least ? least : round_up(whole / 2, pool->granularity);
    if (result != CUDA_SUCCESS)
        return result;
    cup__segment *segment = segment_new(heap, address, whole, CUP__BLOCK_HOLE);
    if (!segment) {
        cup__driver.cuMemAddressFree(address, whole);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    segment->reserved = true;
    return CUDA_SUCCESS;
}

/* The hole to map, in newly reserved addresses if need be. Where none can be had, for example under
 * a limit on virtual memory, the pool goes on with plain allocations. */
static CUresult get_hole(cup__heap *heap, size_t bytes, cup__block **hole, size_t *need)
{
    *hole = find_hole(heap, bytes, need);
    if (*hole)
        return CUDA_SUCCESS;
    CUresult result = reserve(heap, bytes);
    if (result == CUDA_SUCCESS)
        *hole = find_hole(heap, bytes, need);
    else if (result != CUDA_ERROR_OPERATING_SYSTEM)
        heap->pool->gpu->virtual_memory = false;
    return result;
}

static CUresult grow_mapped(cup__heap *heap, size_t bytes, bool *limited)
{
    cup__pool *pool = heap->pool;
    size_t need, wish = round_up(heap->piece, pool->granularity);
    cup__block *hole;
    CUresult result = get_hole(heap, bytes, &hole, &need);
    if (result != CUDA_SUCCESS)
        return result;
    *limited = over_limit(pool, need);
    if (*limited)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (need < wish && wish <= hole->bytes && !over_limit(pool, wish)) {
        if (map_pieces(hole, wish) == CUDA_SUCCESS)
            return CUDA_SUCCESS;
        /* A part of the wish may have come true, and may be enough. */
        result = get_hole(heap, bytes, &hole, &need);
        if (result != CUDA_SUCCESS)
            return result;
        if (over_limit(pool, need))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return map_pieces(hole, need);
}

static CUresult allocate_segment(cup__heap *heap, size_t bytes)
{
    CUdeviceptr address;
    CUresult result = cup__driver.cuMemAlloc(&address, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    cup__segment *segment = segment_new(heap, address, bytes, CUP__BLOCK_FREE);
    if (!segment) {
        cup__driver.cuMemFree(address);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    count_reserved(heap->pool, (int64_t)bytes);
    cup__pool_note(heap->pool, CUP__POOL_GROW, address, bytes, NULL);
    cup__heap_shelve(segment->first);
    return CUDA_SUCCESS;
}

CUresult cup__heap_grow(cup__heap *heap, size_t bytes, bool *limited)
{
    *limited = false;
    if (heap->pool->gpu->virtual_memory) {
        CUresult result = grow_mapped(heap, bytes, limited);
        if (heap->pool->gpu->virtual_memory)
            return result;
    }
    size_t need = round_up(bytes, CUP__SMALL_MOST * 2);
    *limited = over_limit(heap->pool, bytes);
    if (*limited)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (need < heap->piece)
        need = heap->piece;
    if (!over_limit(heap->pool, need) && allocate_segment(heap, need) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    return allocate_segment(heap, bytes);
}

/* Cuts a free block, in no bin, at an address inside it, and gives the second part, in no bin. */
static cup__block *cut(cup__block *block, uint64_t address)
{
    cup__block *behind = cup__block_new(block->heap->pool);
    if (!behind)
        return NULL;
    *behind = (cup__block){.address = address,
                           .bytes = (size_t)(block->address + block->bytes - address)};
    block->bytes -= behind->bytes;
    cup__block_insert(block, behind);
    return behind;
}

static void join_holes(cup__block *first)
{
    cup__block *second = first->after;
    if (!second || first->state != CUP__BLOCK_HOLE || second->state != CUP__BLOCK_HOLE)
        return;
    first->bytes += second->bytes;
    first->after = second->after;
    if (second->after)
        second->after->before = first;
    cup__block_free(first->heap->pool, second);
}

/* Unmaps the mappings that lie whole inside a free block; gives the bytes. */
static int64_t unmap_inside(cup__block *block)
{
    cup__segment *segment = block->segment;
    cup__pool *pool = block->heap->pool;
    uint64_t end = block->address + block->bytes;
    size_t from = mapping_after(segment, block->address), to = from;
    while (to < segment->mapping_count &&
           segment->mappings[to].address + segment->mappings[to].bytes <= end)
        to++;
    if (from == to)
        return 0;
    uint64_t low = segment->mappings[from].address;
    uint64_t high = segment->mappings[to - 1].address + segment->mappings[to - 1].bytes;
    cup__heap_unshelve(block);
    cup__block *hole = low > block->address ? cut(block, low) : block;
    cup__block *behind = hole && high < end ? cut(hole, high) : NULL;
    if (!hole || (high < end && !behind)) {
        /* No host memory for the parts: leave it as it was. */
        cup__heap_shelve(block);
        if (hole && hole != block)
            cup__heap_shelve(cup__heap_merge(hole));
        return 0;
    }
    if (behind)
        cup__heap_shelve(behind);
    if (hole != block)
        cup__heap_shelve(block);
    for (size_t i = from; i < to; i++)
        cup__driver.cuMemUnmap(segment->mappings[i].address, segment->mappings[i].bytes);
    for (size_t i = to; i < segment->mapping_count; i++)
        segment->mappings[from + i - to] = segment->mappings[i];
    segment->mapping_count -= to - from;
    hole->state = CUP__BLOCK_HOLE;
    cup__pool_note(pool, CUP__POOL_SHRINK, low, (size_t)(high - low), NULL);
    count_reserved(pool, -(int64_t)(high - low));
    cup__block *before = hole->before;
    join_holes(hole);
    if (before)
        join_holes(before);
    return (int64_t)(high - low);
}

static int64_t trim_mapped(cup__segment *segment)
{
    int64_t bytes = 0;
    cup__block *block = segment->first;
    while (block) {
        /* Unmapping joins neighbours: go on from the one before. */
        cup__block *before = block->before;
        int64_t given = block->state == CUP__BLOCK_FREE ? unmap_inside(block) : 0;
        bytes += given;
        if (given)
            block = before ? before : segment->first;
        block = block->after;
    }
    return bytes;
}

static void segment_free(cup__heap *heap, cup__segment **link, bool driver)
{
    cup__segment *segment = *link;
    *link = segment->next;
    if (driver && segment->reserved) {
        for (size_t i = 0; i < segment->mapping_count; i++)
            cup__driver.cuMemUnmap(segment->mappings[i].address, segment->mappings[i].bytes);
        cup__driver.cuMemAddressFree(segment->address, segment->bytes);
    } else if (driver) {
        cup__driver.cuMemFree(segment->address);
    }
    for (cup__block *block = segment->first, *after; block; block = after) {
        after = block->after;
        if (block->state == CUP__BLOCK_FREE)
            cup__heap_unshelve(block);
        cup__block_free(heap->pool, block);
    }
    cup__free(segment->mappings);
    cup__free(segment);
}

int64_t cup__heap_trim(cup__heap *heap)
{
    int64_t bytes = 0;
    cup__segment **link = &heap->segments;
    while (*link) {
        cup__segment *segment = *link;
        bool idle = segment->first->state == CUP__BLOCK_FREE && !segment->first->after;
        if (segment->reserved) {
            bytes += trim_mapped(segment);
        } else if (idle) {
            bytes += (int64_t)segment->bytes;
            cup__pool_note(heap->pool, CUP__POOL_SHRINK, segment->address, segment->bytes, NULL);
            count_reserved(heap->pool, -(int64_t)segment->bytes);
            segment_free(heap, link, true);
            continue;
        }
        link = &segment->next;
    }
    return bytes;
}

cup__heap *cup__heap_new(cup__pool *pool, bool small, bool private)
{
    cup__heap *heap = cup__calloc(1, sizeof *heap);
    if (!heap)
        return NULL;
    heap->pool = pool;
    heap->private = private;
    heap->round = small ? CUP__UNIT : (size_t)64 << 10;
    heap->piece = small ? (size_t)2 << 20 : (size_t)32 << 20;
    heap->next = pool->heaps;
    pool->heaps = heap;
    return heap;
}

void cup__heap_free(cup__heap *heap, bool driver)
{
    cup__pool *pool = heap->pool;
    for (cup__heap **link = &pool->heaps; *link; link = &(*link)->next)
        if (*link == heap) {
            *link = heap->next;
            break;
        }
    while (heap->segments)
        segment_free(heap, &heap->segments, driver);
    cup__free(heap);
}
