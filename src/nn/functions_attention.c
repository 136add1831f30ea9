/* Lists of blocks of keys for attention, of patterns that are local, global or strided. */
#include "nn/functions.h"

#include "base/memory.h"
#include "base/options.h"

#define NAME "attention_blocks"
#define POSITIONS_MOST (INT64_C(1) << 30)
#define PAIRS_MOST (INT64_C(1) << 28) /* of blocks, each of which is looked at */

typedef struct pattern {
    cup_attention_blocks_options o;
    int64_t queries, keys, query_blocks, key_blocks;
} pattern;

static int64_t floor_of(int64_t x, int64_t size)
{
    return x >= 0 ? x / size : -((size - 1 - x) / size);
}

/* The blocks [first, last] that hold the own keys of a block of queries; where queries stand before
 * the first key they are below 0. */
typedef struct own_blocks {
    int64_t first, last;
} own_blocks;

static own_blocks own_of(const pattern *p, int64_t block)
{
    int64_t size = p->o.block_size, ahead = p->keys - p->queries, end = (block + 1) * size;
    end = end < p->queries ? end : p->queries;
    return (own_blocks){floor_of(block * size + ahead, size), floor_of(end - 1 + ahead, size)};
}

static bool sees(const pattern *p, own_blocks own, int64_t key)
{
    const cup_attention_blocks_options *o = &p->o;
    if (o->causal && key > own.last)
        return false;
    if (key < o->global || (own.last >= 0 && own.first < o->global))
        return true;
    if (o->local && key > own.first - o->local && key < own.last + o->local)
        return true;
    return o->stride && (own.last - key) % o->stride == 0;
}

/* Puts the blocks that a block of queries sees into `to`, which may be NULL; returns how many. */
static int64_t list_of(const pattern *p, int64_t block, int32_t *to)
{
    own_blocks own = own_of(p, block);
    int64_t count = 0;
    for (int64_t key = 0; key < p->key_blocks; key++) {
        if (!sees(p, own, key))
            continue;
        if (to)
            to[count] = (int32_t)key;
        count++;
    }
    return count;
}

static bool take(cup_context *c, pattern *p, const cup_attention_blocks_options *options)
{
    cup_attention_blocks_options *o = &p->o;
    if (cup__options_take(&c->error, NAME, o, sizeof *o, options) != CUP_OK)
        return false;
    o->block_size = o->block_size ? o->block_size : 128;
    if (o->block_size < 16 || o->block_size > 1024 || (o->block_size & (o->block_size - 1)))
        cup_fail(c, CUP_ARGUMENT,
                 NAME ": block_size must be a power of two from 16 to 1024, or 0 for 128, not %lld",
                 (long long)o->block_size);
    else if (o->local < 0 || o->global < 0 || o->stride < 0 || !(o->local | o->global | o->stride))
        cup_fail(c, CUP_ARGUMENT,
                 NAME ": local, global and stride count blocks, and one of them must be above 0; "
                      "they are %lld, %lld and %lld",
                 (long long)o->local, (long long)o->global, (long long)o->stride);
    else if (p->queries < 0 || p->queries > POSITIONS_MOST || p->keys < 0 ||
             p->keys > POSITIONS_MOST)
        cup_fail(c, CUP_ARGUMENT, NAME ": there must be from 0 to 2^30 queries, and keys");
    if (cup_error(c) != CUP_OK)
        return false;
    p->query_blocks = (p->queries + o->block_size - 1) / o->block_size;
    p->key_blocks = (p->keys + o->block_size - 1) / o->block_size;
    if (p->query_blocks && p->key_blocks > PAIRS_MOST / p->query_blocks)
        cup_fail(c, CUP_ARGUMENT,
                 NAME ": %lld blocks of queries by %lld of keys are over 2^28; take larger blocks",
                 (long long)p->query_blocks, (long long)p->key_blocks);
    return cup_error(c) == CUP_OK;
}

cup_tensor *cup_attention_blocks(cup_context *c, int64_t queries, int64_t keys,
                                 const cup_attention_blocks_options *options)
{
    pattern p = {.queries = queries, .keys = keys};
    if (!c || cup_error(c) != CUP_OK || !take(c, &p, options))
        return NULL;
    int64_t most = 0;
    for (int64_t i = 0; i < p.query_blocks; i++) {
        int64_t count = list_of(&p, i, NULL);
        most = count > most ? count : most;
    }
    const int64_t shape[] = {1, 1, p.query_blocks, most};
    int32_t *lists = cup__malloc((size_t)(p.query_blocks * most + 1) * sizeof *lists);
    if (!lists) {
        cup_fail(c, CUP_MEMORY, NAME ": out of host memory");
        return NULL;
    }
    for (int64_t i = 0; i < p.query_blocks; i++)
        for (int64_t n = list_of(&p, i, lists + i * most); n < most; n++)
            lists[i * most + n] = -1;
    cup_tensor *t = cup_tensor_from(c, CUP_I32, 4, shape, lists);
    cup__free(lists);
    return t;
}
