/* Where the kernels of kv_append and kv_attention find the tokens of a sequence. */
#ifndef CUP_OPS_KV_CACHE_KV_CACHE_CUH
#define CUP_OPS_KV_CACHE_KV_CACHE_CUH

#include "dtype.cuh"
#include "kv_cache_call.cuh"

/* Knobs: STORED (dtype of what is kept), CUP_ID (of lengths and counts), PAGED (by a table), SCALED
 * (numbers are kept with scales). */
#ifndef STORED
#define STORED CUP_T
#endif
#ifndef CUP_ID
#define CUP_ID CUP_I32
#endif
#ifndef PAGED
#define PAGED 0
#endif
#ifndef SCALED
#define SCALED 0
#endif

typedef dtype_of<STORED>::type kept;
typedef dtype_of<CUP_ID>::type id_type;

/* What was kept before, and how many of the tokens are there. Where there is no room for them it is
 * not known. */
struct kv_sequence {
    int length, count;
    bool known;
};

DEVICE kv_sequence sequence_of(const kv_call &c, int batch)
{
    long long length = (long long)((const id_type *)c.lengths.data)[batch * c.lengths.step];
    long long count = c.tokens;
    if (c.counts.data)
        count = (long long)((const id_type *)c.counts.data)[batch * c.counts.step];
    bool known = length >= 0 && count >= 0 && count <= c.tokens && length <= c.room - count;
    return {known ? (int)length : 0, known ? (int)count : 0, known};
}

/* Where a position of a sequence is kept; not known where the table names no page. */
struct kv_place {
    int page, within;
    bool known;
};

DEVICE kv_place place_kept(const kv_call &c, int batch, int position)
{
    kv_place p = {batch, position, true};
    if (PAGED) {
        int number = position / c.page;
        p.within = position - number * c.page;
        p.page = c.table[batch * c.table_batch + number * c.table_step];
        p.known = p.page >= 0 && p.page < c.pages;
    }
    return p;
}

DEVICE long long offset_kept(const kv_heads &h, const kv_place &p, int head)
{
    return p.page * h.batch + head * h.head + p.within * h.token;
}

#endif
