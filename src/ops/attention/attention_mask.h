/* Which keys a query sees: all that the host side of attention knows of masks. attention_mask.cuh
 * beside it is what the kernels know. A mask is a range of keys for each query, neither of whose
 * ends goes down from one query to the next.
 *
 * Query i stands at position i + keys - queries, so that the last one stands at the last key. It
 * sees the keys from `before` in front of its position to `after` behind it. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_MASK_H
#define CUP_OPS_ATTENTION_ATTENTION_MASK_H

#include "cupola/ops.h"
#include "dispatch/op.h"

#define CUP__MASK_UNLIMITED ((1 << 30) - 1)

typedef struct cup__attention_mask {
    int64_t queries, keys;
    int64_t before, after; /* CUP__MASK_UNLIMITED: all */
    bool causal;           /* what stands behind it is hidden, and nothing else */
    bool window;           /* something else is hidden */
} cup__attention_mask;

/* As the attributes of a row of attention say it. A window that hides nothing is none. */
#define CUP__MASK_OF(a, queries, keys)                                                             \
    cup__attention_mask_make((a)->causal, (a)->window_left, (a)->window_right, queries, keys)

static inline cup__attention_mask cup__attention_mask_make(bool causal, int64_t left, int64_t right,
                                                           int64_t queries, int64_t keys)
{
    cup__attention_mask m = {queries, keys, CUP__MASK_UNLIMITED, CUP__MASK_UNLIMITED, false, false};
    if (left > 0 && left < keys)
        m.before = left - 1;
    if (causal || (right > 0 && right < queries))
        m.after = causal ? 0 : right - 1;
    m.window = m.before < CUP__MASK_UNLIMITED || (!causal && m.after < CUP__MASK_UNLIMITED);
    m.causal = causal && !m.window;
    return m;
}

static inline cup_status cup__attention_mask_check(cup__call *call, int64_t left, int64_t right)
{
    const int64_t given[] = {left, right};
    for (int i = 0; i < 2; i++)
        if (given[i] < 0 || given[i] > CUP__MASK_UNLIMITED)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "a window counts the keys up to, or from, the query's own, with "
                                  "that one: from 1 to 2^30 - 1, or 0 for all, not %lld",
                                  (long long)given[i]);
    return CUP_OK;
}

/* The key that is a query's own. */
static inline int64_t cup__attention_position(const cup__attention_mask *m, int64_t query)
{
    return query + m->keys - m->queries;
}

/* The keys [first, end) that a query sees; the first is no more than the end. */
static inline int64_t cup__attention_end(const cup__attention_mask *m, int64_t query)
{
    int64_t end = query + 1 + m->keys - m->queries + m->after;
    return end < 0 ? 0 : end > m->keys ? m->keys : end;
}

static inline int64_t cup__attention_first(const cup__attention_mask *m, int64_t query)
{
    int64_t first = query + m->keys - m->queries - m->before, end = cup__attention_end(m, query);
    return first < 0 ? 0 : first < end ? first : end;
}

/* Ones, [queries, keys], where a query sees a key. */
static inline cup_tensor *cup__attention_mask_ones(cup_context *c, const cup__attention_mask *m,
                                                   cup_dtype dtype)
{
    cup__shape shape = {.dtype = dtype, .ndim = 2, .size = {m->queries, m->keys}};
    cup_tensor *ones = cup__full(c, &shape, 1);
    int64_t ahead = m->keys - m->queries;
    if (m->after < CUP__MASK_UNLIMITED)
        ones = cup_tril(c, ones, ahead + m->after);
    return m->before < CUP__MASK_UNLIMITED ? cup_triu(c, ones, ahead - m->before) : ones;
}

#endif
