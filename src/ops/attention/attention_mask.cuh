/* Which keys a query sees: all that the kernels of attention know of masks, as attention_mask.h
 * says it. The first part is plain C, which the host fills in; the rest are functions of a call.
 *
 * CAUSAL hides the keys behind a query's position; WINDOW has limits on both sides of it, and does
 * without CAUSAL. With neither all keys are seen. With RANGES, and WINDOW, what is seen stands in
 * memory, where attention_ranges.cu wrote it. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_MASK_CUH
#define CUP_OPS_ATTENTION_ATTENTION_MASK_CUH

typedef struct attention_mask {
    int before, after;
} attention_mask;

/* What each query, or each key, sees of the others: for each batch, or once for all, where it
 * begins, where it ends, and by how much a key's number is more than that of the query which stands
 * at it; as many of each as there are positions. */
typedef struct attention_sight {
    const int *first;
    long long batch; /* from one to the next, 0: there is one for all */
} attention_sight;

typedef struct attention_sights {
    attention_sight queries, keys;
} attention_sights;

/* What attention_ranges.cu makes them of: documents, which end before these positions. */
typedef struct attention_ends {
    const void *ends; /* of whole numbers of 32 or 64 bits; NULL: there is one, of all positions */
    long long batch, step;
    int is_wide, positions;
    int *sight;
} attention_ends;

typedef struct attention_documents {
    attention_ends queries, keys;
    long long before, after;
    int count, batches;
} attention_documents;

#ifdef __CUDACC__

#include "dtype.cuh"

#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef RANGES
#define RANGES 0
#endif

/* Number `which` of a position. Rows past the last are as the last. */
DEVICE int sight_of(const attention_sight &s, int batch, int position, int count, int which)
{
    position = position < count ? position : count - 1;
    return s.first[batch * s.batch + (long long)which * count + (position < 0 ? 0 : position)];
}

/* The keys [first, end) that a query sees are [first_seen(), seen_by()); where the former is no
 * less, it sees none. Neither goes down from one query to the next. */
template <typename Call> DEVICE int seen_by(const Call &c, int query)
{
    int seen = CAUSAL ? query + 1 + c.keys - c.queries : c.keys;
    if (WINDOW)
        seen = query + 1 + c.keys - c.queries + c.mask.after;
    return seen < c.keys ? seen : c.keys;
}

template <typename Call> DEVICE int seen_by(const Call &c, int batch, int query)
{
    return RANGES ? sight_of(c.ranges.queries, batch, query, c.queries, 1) : seen_by(c, query);
}

template <typename Call> DEVICE int first_seen(const Call &c, int batch, int query)
{
    if (!WINDOW)
        return 0;
    if (RANGES)
        return sight_of(c.ranges.queries, batch, query, c.queries, 0);
    int first = query + c.keys - c.queries - c.mask.before;
    return first < 0 ? 0 : first;
}

/* The key that is a query's own; by how much its number is more than the query's. */
template <typename Call> DEVICE int position_of(const Call &c, int batch, int query)
{
    return query +
           (RANGES ? sight_of(c.ranges.queries, batch, query, c.queries, 2) : c.keys - c.queries);
}

template <typename Call> DEVICE int ahead_of(const Call &c, int batch, int key)
{
    return RANGES ? sight_of(c.ranges.keys, batch, key, c.keys, 2) : c.keys - c.queries;
}

/* The tiles of keys that queries see anything of begin here. */
template <typename Call> DEVICE int first_tile(const Call &c, int batch, int first_query, int size)
{
    return WINDOW ? first_seen(c, batch, first_query) / size : 0;
}

/* The queries before this one, which may be negative, see no key from `key` on; those from the
 * other one on see no key up to `key`. */
template <typename Call> DEVICE int first_seeing(const Call &c, int batch, int key)
{
    if (RANGES)
        return sight_of(c.ranges.keys, batch, key, c.keys, 0);
    int first = CAUSAL ? key - (c.keys - c.queries) : 0;
    if (WINDOW)
        first = key - (c.keys - c.queries) - c.mask.after;
    return first;
}

template <typename Call> DEVICE int end_seeing(const Call &c, int batch, int key)
{
    if (!WINDOW)
        return c.queries;
    if (RANGES)
        return sight_of(c.ranges.keys, batch, key, c.keys, 1);
    int end = key - (c.keys - c.queries) + c.mask.before + 1;
    return end < c.queries ? end : c.queries;
}

/* Scores before `first`, of row g and of row g + 8, become -infinity; they lie as mma.sync leaves
 * them. */
template <int Columns> DEVICE void mask_before(float (&s)[Columns][4], int first_g, int first_g8)
{
    int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < Columns; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (8 * j + 2 * t + i % 2 < (i < 2 ? first_g : first_g8))
                s[j][i] = -__int_as_float(0x7f800000);
}

#endif
#endif
