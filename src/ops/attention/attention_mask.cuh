/* Which keys a query sees: all that the kernels of attention know of masks, as attention_mask.h
 * says it. The first part is plain C, which the host fills in; the rest are functions of a call.
 *
 * CAUSAL hides the keys behind a query's position; WINDOW has limits on both sides of it, and does
 * without CAUSAL. With neither all keys are seen. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_MASK_CUH
#define CUP_OPS_ATTENTION_ATTENTION_MASK_CUH

typedef struct attention_mask {
    int before, after;
} attention_mask;

#ifdef __CUDACC__

#include "dtype.cuh"

#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef WINDOW
#define WINDOW 0
#endif

/* The keys [first, end) that a query sees are [first_seen(), seen_by()); where the former is no
 * less, it sees none. Neither goes down from one query to the next. */
template <typename Call> DEVICE int seen_by(const Call &c, int query)
{
    int seen = CAUSAL ? query + 1 + c.keys - c.queries : c.keys;
    if (WINDOW)
        seen = query + 1 + c.keys - c.queries + c.mask.after;
    return seen < c.keys ? seen : c.keys;
}

template <typename Call> DEVICE int first_seen(const Call &c, int query)
{
    if (!WINDOW)
        return 0;
    int first = query + c.keys - c.queries - c.mask.before;
    return first < 0 ? 0 : first;
}

/* The tiles of keys that queries see anything of begin here. */
template <typename Call> DEVICE int first_tile(const Call &c, int first_query, int size)
{
    return WINDOW ? first_seen(c, first_query) / size : 0;
}

/* The queries before this one, which may be negative, see no key from `key` on; those from the
 * other one on see no key up to `key`. */
template <typename Call> DEVICE int first_seeing(const Call &c, int key)
{
    int first = CAUSAL ? key - (c.keys - c.queries) : 0;
    if (WINDOW)
        first = key - (c.keys - c.queries) - c.mask.after;
    return first;
}

template <typename Call> DEVICE int end_seeing(const Call &c, int key)
{
    if (!WINDOW)
        return c.queries;
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
