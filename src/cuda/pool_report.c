/* What a pool can say about itself: its users, the out-of-memory sentence, its soundness. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cuda/heap.h"

static void count_user(cup__pool_user *users, int *count, int most, const cup__block *block)
{
    const char *tag = block->tag ? block->tag : "untagged";
    for (int i = 0; i < *count; i++)
        if (users[i].tag == tag || !strcmp(users[i].tag, tag)) {
            users[i].bytes += (int64_t)block->bytes;
            users[i].blocks++;
            return;
        }
    if (*count < most)
        users[(*count)++] = (cup__pool_user){tag, (int64_t)block->bytes, 1};
}

static int by_bytes(const void *a, const void *b)
{
    const cup__pool_user *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : strcmp(x->tag, y->tag);
}

#define MOST_TAGS 256

int cup__pool_users(cup__pool *pool, cup__pool_user *users, int most)
{
    cup__pool_user all[MOST_TAGS] = {0};
    int count = 0;
    for (size_t i = 0; i < pool->used.capacity; i++)
        if (pool->used.slots[i])
            count_user(all, &count, MOST_TAGS, pool->used.slots[i]);
    qsort(all, (size_t)count, sizeof *all, by_bytes);
    if (count > most)
        count = most;
    memcpy(users, all, (size_t)count * sizeof *all);
    return count;
}

static void add_users(cup__pool *pool, cup__text *text)
{
    cup__pool_user users[5];
    char bytes[32];
    int count = cup__pool_users(pool, users, 5);
    for (int i = 0; i < count; i++)
        cup__text_add(text, "%s%s in %lld block%s of %s", i ? ", " : "; most used by: ",
                      cup__text_bytes((double)users[i].bytes, bytes), (long long)users[i].blocks,
                      users[i].blocks == 1 ? "" : "s", users[i].tag);
}

/* Only what would have made this allocation work. */
static void add_advice(const cup__pool *pool, const cup__memory_use *use, int64_t idle,
                       int64_t bytes, bool limited, cup__text *text)
{
    char words[32];
    int64_t graphs = use->reserved - use->allocated - idle;
    int64_t missing = bytes - use->largest_free;
    int64_t others = use->total - use->free - use->reserved;
    if (limited && use->free >= missing)
        cup__text_add(text, "; raising memory_limit to %s would do",
                      cup__text_bytes((double)(use->reserved + missing), words));
    if (!limited && others > missing && others > use->total / 16)
        cup__text_add(text, "; other programs, and this one outside of this context, hold %s of "
                            "the card (nvidia-smi shows them)",
                      cup__text_bytes((double)others, words));
    if (idle >= bytes)
        cup__text_add(text, "; %s are free here but in pieces: allocate the largest tensors first",
                      cup__text_bytes((double)idle, words));
    if (graphs >= missing)
        cup__text_add(text, "; captured graphs hold %s: free those that are done with",
                      cup__text_bytes((double)graphs, words));
    if (use->allocated >= missing && pool->used.count)
        cup__text_add(text, "; a smaller batch, or cup_recompute_results or cup_recompute for the "
                            "blocks of the model, needs less");
}

cup_status cup__pool_fail(cup__pool *pool, size_t bytes, const char *tag, bool limited)
{
    cup__memory_use use;
    cup__text text = {0};
    char asked[32], free[32], total[32], reserved[32], used[32], largest[32], limit[32];
    cup__pool_use(pool, &use);
    cup__pool_note(pool, CUP__POOL_FAIL, 0, bytes, tag);
    int64_t idle = 0;
    for (const cup__heap *heap = pool->heaps; heap; heap = heap->next)
        idle += heap->private ? 0 : cup__heap_free_bytes(heap);
    double pieces = idle ? 100.0 * (double)(idle - use.largest_free) / (double)idle : 0;
    cup__text_add(&text,
                  "out of memory on cuda:%d: %s for %s; %s of %s are free on the card; this "
                  "context holds %s, of which %s are in use, the largest free block is %s and "
                  "fragmentation %.0f %%",
                  pool->gpu->facts.index, cup__text_bytes((double)bytes, asked), tag,
                  cup__text_bytes((double)use.free, free),
                  cup__text_bytes((double)use.total, total),
                  cup__text_bytes((double)use.reserved, reserved),
                  cup__text_bytes((double)use.allocated, used),
                  cup__text_bytes((double)use.largest_free, largest), pieces);
    if (limited)
        cup__text_add(&text, "; the limit of %s would be passed",
                      cup__text_bytes((double)pool->limit, limit));
    add_users(pool, &text);
    if (bytes <= (size_t)use.total)
        add_advice(pool, &use, idle, (int64_t)bytes, limited, &text);
    else
        cup__text_add(&text, "; the card has less than that in all: use smaller sizes");
    const char *op = pool->gpu->op;
    cup_status status = cup__fail(pool->gpu->device.error, CUP_MEMORY, "%s%s%s", op ? op : "",
                                  op ? ": " : "", cup__text_string(&text));
    cup__text_free(&text);
    return status;
}

void cup__pool_walk(const cup__pool *pool,
                    void (*visit)(const cup__pool_block *block, void *user), void *user)
{
    static const enum cup__pool_state states[] = {[CUP__BLOCK_FREE] = CUP__POOL_FREE,
                                                  [CUP__BLOCK_USED] = CUP__POOL_USED,
                                                  [CUP__BLOCK_HOLE] = CUP__POOL_HOLE,
                                                  [CUP__BLOCK_HELD] = CUP__POOL_HELD};
    for (const cup__heap *heap = pool->heaps; heap; heap = heap->next)
        for (const cup__segment *segment = heap->segments; segment; segment = segment->next)
            for (const cup__block *b = segment->first; b; b = b->after) {
                cup__pool_block block = {.segment = segment->address,
                                         .address = b->address,
                                         .bytes = b->bytes,
                                         .tag = b->tag ? b->tag : "untagged",
                                         .state = states[b->state],
                                         .small = heap->round == CUP__UNIT,
                                         .of_graph = heap->private};
                visit(&block, user);
            }
}

cup__pool *cup__pool_of(const cup__cuda *gpu)
{
    return gpu->pool;
}

static const char *check_block(const cup__heap *heap, const cup__segment *segment,
                               const cup__block *block)
{
    const cup__block *after = block->after;
    uint64_t end = block->address + block->bytes;
    if (block->segment != segment || block->heap != heap)
        return "a block is not of its segment";
    if (!block->bytes || block->bytes % CUP__UNIT || block->address % CUP__UNIT)
        return "a block is not made of whole units";
    if (end != (after ? after->address : segment->address + segment->bytes))
        return "blocks leave a gap or overlap";
    if (after && after->before != block)
        return "a block and its neighbour disagree";
    if (after && block->state == after->state &&
        (block->state == CUP__BLOCK_FREE || block->state == CUP__BLOCK_HOLE))
        return "two free blocks were not joined";
    return NULL;
}

static const char *check_segment(const cup__heap *heap, const cup__segment *segment, size_t *mapped,
                                 size_t *used)
{
    size_t holes = 0, pieces = 0;
    if (segment->first->before || segment->first->address != segment->address)
        return "a segment does not begin with its first block";
    for (const cup__block *block = segment->first; block; block = block->after) {
        const char *wrong = check_block(heap, segment, block);
        if (wrong)
            return wrong;
        holes += block->state == CUP__BLOCK_HOLE ? block->bytes : 0;
        *used += block->state == CUP__BLOCK_USED || block->state == CUP__BLOCK_HELD;
    }
    for (size_t i = 0; i < segment->mapping_count; i++) {
        pieces += segment->mappings[i].bytes;
        if (i && segment->mappings[i].address <
                     segment->mappings[i - 1].address + segment->mappings[i - 1].bytes)
            return "mappings are out of order";
    }
    *mapped += segment->bytes - holes;
    if (segment->reserved && segment->bytes - holes != pieces)
        return "holes and mappings do not add up";
    return NULL;
}

const char *cup__pool_check(const cup__pool *pool)
{
    size_t mapped = 0, used = 0;
    for (const cup__heap *heap = pool->heaps; heap; heap = heap->next) {
        size_t before = used, shelved = 0, free = 0;
        for (const cup__segment *segment = heap->segments; segment; segment = segment->next) {
            const char *wrong = check_segment(heap, segment, &mapped, &used);
            if (wrong)
                return wrong;
            for (const cup__block *block = segment->first; block; block = block->after)
                free += block->state == CUP__BLOCK_FREE;
        }
        for (int bin = 0; bin < CUP__BINS; bin++)
            for (const cup__block *block = heap->bins[bin]; block; block = block->next)
                shelved++;
        if (free != shelved)
            return "a free block is in no bin";
        if (used - before != heap->used_blocks)
            return "used blocks are miscounted";
    }
    return (int64_t)mapped == pool->use.reserved ? NULL : "reserved bytes are miscounted";
}
