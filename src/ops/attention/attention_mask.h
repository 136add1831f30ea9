/* Which keys a query sees: all that the host side of attention knows of masks. attention_mask.cuh
 * beside it is what the kernels know. A mask is a range of keys for each query, neither of whose
 * ends goes down from one query to the next.
 *
 * Query i stands at position i + keys - queries, so that the last one stands at the last key. It
 * sees the keys from `before` in front of its position to `after` behind it. Where documents lie
 * one behind the other, this is so within each of them, and nothing else is seen. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_MASK_H
#define CUP_OPS_ATTENTION_ATTENTION_MASK_H

#include "cupola/ops.h"
#include "dispatch/op.h"

/* The optional inputs of the rows of attention, in their order behind all others, the first of
 * which have gradients of one number a query. */
enum {
    CUP__SLOPES,
    CUP__SINKS,
    CUP__NUMBERED,
    CUP__QUERY_OFFSETS = CUP__NUMBERED,
    CUP__KEY_OFFSETS,
    CUP__BIAS,
    CUP__KEY_BLOCKS,
    CUP__EXTRAS
};

static inline cup_tensor *cup__attention_extra(const cup__call *call, int i)
{
    return i < call->in_count ? call->in[i] : NULL;
}

#define CUP__MASK_UNLIMITED ((1 << 30) - 1)

typedef struct cup__attention_mask {
    int64_t queries, keys;
    int64_t before, after; /* CUP__MASK_UNLIMITED: all */
    bool causal;           /* what stands behind it is hidden, and nothing else */
    bool window;           /* something else is hidden */
    /* Where documents end, of [count] or [batch, count]; both NULL: there are none. */
    const cup_tensor *query_offsets, *key_offsets;
    int64_t documents;
} cup__attention_mask;

/* As the attributes of a row of attention and its optional inputs, from `first` on, say it. A
 * window that hides nothing is none. */
#define CUP__MASK_OF(a, call, first, queries, keys)                                                \
    CUP__MASK_FROM(a, false, call, first, queries, keys)
/* The same where the first query may stand at the first key. */
#define CUP__MASK_FROM(a, top_left, call, first, queries, keys)                                    \
    cup__attention_mask_make((a)->causal, top_left, (a)->window_left, (a)->window_right,           \
                             cup__attention_extra(call, (first) + CUP__QUERY_OFFSETS),             \
                             cup__attention_extra(call, (first) + CUP__KEY_OFFSETS), queries,      \
                             keys)

/* Queries that stand so many keys before where they would: the limits are moved instead, as neither
 * documents nor slopes come with it. */
static inline void cup__attention_mask_move(cup__attention_mask *m, int64_t ahead)
{
    if (m->before < CUP__MASK_UNLIMITED)
        m->before += ahead;
    if (m->before > CUP__MASK_UNLIMITED)
        m->before = CUP__MASK_UNLIMITED;
    if (m->after < CUP__MASK_UNLIMITED)
        m->after -= ahead;
}

static inline cup__attention_mask
cup__attention_mask_make(bool causal, bool top_left, int64_t left, int64_t right,
                         const cup_tensor *query_offsets, const cup_tensor *key_offsets,
                         int64_t queries, int64_t keys)
{
    int64_t ahead = top_left ? keys - queries : 0;
    cup__attention_mask m = {
        queries, keys,  CUP__MASK_UNLIMITED, CUP__MASK_UNLIMITED,
        false,   false, query_offsets,       key_offsets ? key_offsets : query_offsets,
        0};
    if (left > 0 && (left < keys || ahead))
        m.before = left - 1;
    if (causal || (right > 0 && (right < queries || ahead)))
        m.after = causal ? 0 : right - 1;
    cup__attention_mask_move(&m, ahead);
    m.documents = m.key_offsets ? m.key_offsets->shape[m.key_offsets->ndim - 1] : 0;
    m.window = m.key_offsets || m.before < CUP__MASK_UNLIMITED ||
               ((!causal || ahead) && m.after < CUP__MASK_UNLIMITED);
    m.causal = causal && !m.window;
    return m;
}

/* Nothing is seen from more than `before` in front of the position to `after` behind it, either of
 * which may be negative. Beyond the number of positions limits hide nothing, or all. */
static inline void cup__attention_mask_narrow(cup__attention_mask *m, int64_t before,
                                              int64_t after)
{
    bool only_behind = !m->window && before >= m->keys - 1 && after >= 0;
    before = before < -m->queries ? -m->queries : before;
    after = after < -m->keys ? -m->keys : after;
    if (before < m->before && before < m->keys - 1)
        m->before = before;
    if (after < m->after && after < m->queries - 1)
        m->after = after;
    if (m->before < CUP__MASK_UNLIMITED && m->before + m->after < 0) {
        m->before = CUP__MASK_UNLIMITED;
        m->after = -m->keys;
    }
    m->causal = only_behind && m->after == 0;
    m->window = m->window || (!m->causal && (m->before < CUP__MASK_UNLIMITED ||
                                             m->after < CUP__MASK_UNLIMITED));
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

static inline cup_status cup__attention_offsets_check(cup__call *call, int first)
{
    const cup_tensor *q = cup__attention_extra(call, first + CUP__QUERY_OFFSETS);
    const cup_tensor *k = cup__attention_extra(call, first + CUP__KEY_OFFSETS), *all[] = {q, k};
    for (int i = 0; i < 2; i++) {
        if (all[i] && all[i]->dtype != CUP_I32 && all[i]->dtype != CUP_I64)
            return cup__call_fail(call, CUP_DTYPE, "offsets must be in i32 or i64");
        if (all[i] && all[i]->ndim != 1 &&
            (all[i]->ndim != 2 || all[i]->shape[0] != call->in[0]->shape[0]))
            return cup__call_fail(call, CUP_SHAPE,
                                  "offsets must be [N], or [B,N] with a row for each of the %lld "
                                  "batches",
                                  (long long)call->in[0]->shape[0]);
    }
    int64_t of_q = q ? q->shape[q->ndim - 1] : 1, of_k = k ? k->shape[k->ndim - 1] : of_q;
    return of_q == of_k ? CUP_OK
                        : cup__call_fail(call, CUP_SHAPE,
                                         "there are %lld documents of queries and %lld of keys; "
                                         "key_offsets without query_offsets are the length of the "
                                         "keys, [1] or [B,1]",
                                         (long long)of_q, (long long)of_k);
}

static inline int64_t cup__attention_offset(const cup_tensor *t, int64_t batch, int64_t document)
{
    bool alike = t->ndim == 1;
    return (int64_t)cup__load(t, document * t->stride[!alike] + (alike ? 0 : batch * t->stride[0]));
}

/* Offsets that go down, or too far, are an error where they can be read. */
static inline cup_status cup__attention_offsets_read(const cup__attention_mask *m, int64_t batches,
                                                     cup__error *error)
{
    const cup_tensor *all[] = {m->query_offsets, m->key_offsets};
    for (int64_t i = 0; i < 2 * batches * m->documents; i++) {
        const cup_tensor *t = all[i % 2];
        int64_t d = i / 2 % m->documents, b = i / 2 / m->documents;
        int64_t least = d && t ? cup__attention_offset(t, b, d - 1) : 0;
        int64_t end = t ? cup__attention_offset(t, b, d) : 0, most = i % 2 ? m->keys : m->queries;
        if (end < least || end > most)
            return cup__fail(error, CUP_ARGUMENT,
                             "attention: document %lld ends before position %lld, but must end "
                             "from %lld to %lld: offsets go up to the number of %s",
                             (long long)d, (long long)end, (long long)least, (long long)most,
                             i % 2 ? "keys" : "queries");
    }
    return CUP_OK;
}

/* The document of a query: its queries [from, to), its keys, and whether it is in one at all. */
typedef struct cup__attention_document {
    int64_t from, to, first_key, last_key;
    bool is_one;
} cup__attention_document;

static inline cup__attention_document cup__attention_find(const cup__attention_mask *m,
                                                          int64_t batch, int64_t query)
{
    cup__attention_document d = {0, m->queries, 0, m->keys, true};
    if (!m->key_offsets)
        return d;
    d.to = d.last_key = 0;
    for (int64_t i = 0; i < m->documents; i++) {
        d.from = d.to;
        d.first_key = d.last_key;
        d.to = m->query_offsets ? cup__attention_offset(m->query_offsets, batch, i) : m->queries;
        d.last_key = cup__attention_offset(m->key_offsets, batch, i);
        if (query < d.to)
            return d;
    }
    d.is_one = false;
    d.first_key = d.last_key;
    return d;
}

/* The key that is a query's own. */
static inline int64_t cup__attention_position(const cup__attention_mask *m, int64_t batch,
                                              int64_t query)
{
    cup__attention_document d = cup__attention_find(m, batch, query);
    return query + (d.is_one ? d.last_key - d.to : 0);
}

/* The keys [first, end) that a query sees; the first is no more than the end. */
static inline int64_t cup__attention_end(const cup__attention_mask *m, int64_t batch, int64_t query)
{
    cup__attention_document d = cup__attention_find(m, batch, query);
    int64_t end = query + 1 + d.last_key - d.to + m->after;
    return end < d.first_key ? d.first_key : end > d.last_key ? d.last_key : end;
}

static inline int64_t cup__attention_first(const cup__attention_mask *m, int64_t batch,
                                           int64_t query)
{
    cup__attention_document d = cup__attention_find(m, batch, query);
    int64_t end = cup__attention_end(m, batch, query);
    int64_t first = query + d.last_key - d.to - m->before;
    return first < d.first_key ? d.first_key : first < end ? first : end;
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
