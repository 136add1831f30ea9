/* Lists of blocks of keys, as the host side of attention knows them: which blocks of keys a block
 * of queries sees, of what masks let it see. attention_lists.cuh beside it is what the kernels
 * know. They are looked up as bits, which live through a call. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_LISTS_H
#define CUP_OPS_ATTENTION_ATTENTION_LISTS_H

#include "dispatch/op.h"

typedef struct cup__attention_lists {
    const cup_tensor *given; /* [B,H,T',N], with 1 for B or H; NULL: every block sees all */
    int64_t size;            /* positions of a block */
    int64_t key_blocks, words;
    int64_t batch, head; /* words from one to the next; 0: one for all */
    const uint32_t *bits;
} cup__attention_lists;

/* Of lists that may be NULL, for so many keys; bits are still to be made. */
cup__attention_lists cup__attention_lists_of(const cup_tensor *given, int64_t size, int64_t keys);
/* The sizes are those of batches, heads, queries and keys. */
cup_status cup__attention_lists_check(cup__call *call, const cup_tensor *given, int64_t size,
                                      const int64_t *sizes);
int64_t cup__attention_block_size(int64_t given);

static inline bool cup__attention_is_listed(const cup__attention_lists *l, int64_t batch,
                                            int64_t head, int64_t query, int64_t key)
{
    if (!l->bits)
        return true;
    int64_t block = key / l->size;
    const uint32_t *row =
        l->bits + batch * l->batch + head * l->head + query / l->size * l->words;
    return row[block / 32] >> block % 32 & 1;
}

/* Whether any of the keys [from, to) are. */
static inline bool cup__attention_is_any_listed(const cup__attention_lists *l, int64_t batch,
                                                int64_t head, int64_t query, int64_t from,
                                                int64_t to)
{
    for (int64_t key = from; key < to; key = l->bits ? (key / l->size + 1) * l->size : to)
        if (cup__attention_is_listed(l, batch, head, query, key))
            return true;
    return false;
}

#endif
