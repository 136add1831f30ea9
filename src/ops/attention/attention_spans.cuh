/* What the condition of a formula may be on a tile of queries and keys, found from what its parts
 * may be: tiles that it hides are not computed.
 *
 * The text that is compiled says FORMULA_SEES, whether anything can be found so, and FORMULA_SPANS,
 * which sets `seen` from query, key, head and batch; see src/custom/score_spans.c. Documents, in
 * which neighbours stand at places far apart, are all looked at. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_SPANS_CUH
#define CUP_OPS_ATTENTION_ATTENTION_SPANS_CUH

#include "attention_call.cuh"

#if FORMULA && FORMULA_SEES && !RANGES
#define SKIPS 1
#else
#define SKIPS 0
#endif

#if SKIPS

/* A number lies between these; a condition that does not hold is 0. */
struct span {
    float least, most;
};

/* Each operation rounds as the formula's own does, but for products, which may be rounded together
 * with a sum, and quotients. Here none are rounded together, so that the warp that copies and those
 * that multiply come to the same end. */
#define SPAN_ROUNDING 1e-6f
#define SPAN_INFINITE __int_as_float(0x7f800000)

DEVICE span span_any()
{
    return {-SPAN_INFINITE, SPAN_INFINITE};
}

/* What is no number may be anything. */
DEVICE span span_between(float least, float most)
{
    return least <= most ? span{least, most} : span_any();
}

DEVICE span span_truth(bool must, bool may)
{
    return {must ? 1.0f : 0.0f, may ? 1.0f : 0.0f};
}

DEVICE bool may_hold(span a)
{
    return a.least != 0 || a.most != 0;
}

DEVICE bool must_hold(span a)
{
    return a.least > 0 || a.most < 0;
}

DEVICE span span_number(float a)
{
    return span_between(a, a);
}

DEVICE span span_add(span a, span b)
{
    return span_between(__fadd_rn(a.least, b.least), __fadd_rn(a.most, b.most));
}

DEVICE span span_neg(span a)
{
    return {-a.most, -a.least};
}

DEVICE span span_sub(span a, span b)
{
    return span_add(a, span_neg(b));
}

DEVICE span span_mul(span a, span b)
{
    float w = __fmul_rn(a.least, b.least), x = __fmul_rn(a.least, b.most);
    float y = __fmul_rn(a.most, b.least), z = __fmul_rn(a.most, b.most);
    float least = fminf(fminf(w, x), fminf(y, z)), most = fmaxf(fmaxf(w, x), fmaxf(y, z));
    if (w != w || x != x || y != y || z != z)
        return span_any();
    return span_between(__fadd_rn(least, -__fmul_rn(SPAN_ROUNDING, fabsf(least))),
                        __fadd_rn(most, __fmul_rn(SPAN_ROUNDING, fabsf(most))));
}

DEVICE span span_div(span a, span b)
{
    return b.least > 0 || b.most < 0 ? span_mul(a, {__frcp_rn(b.most), __frcp_rn(b.least)})
                                     : span_any();
}

DEVICE span span_min(span a, span b)
{
    return {fminf(a.least, b.least), fminf(a.most, b.most)};
}

DEVICE span span_max(span a, span b)
{
    return {fmaxf(a.least, b.least), fmaxf(a.most, b.most)};
}

DEVICE span span_abs(span a)
{
    return {fmaxf(0, fmaxf(a.least, -a.most)), fmaxf(-a.least, a.most)};
}

DEVICE span span_floor(span a)
{
    return {floorf(a.least), floorf(a.most)};
}

DEVICE span span_not(span a)
{
    return span_truth(!may_hold(a), !must_hold(a));
}

DEVICE span span_and(span a, span b)
{
    return span_truth(must_hold(a) && must_hold(b), may_hold(a) && may_hold(b));
}

DEVICE span span_or(span a, span b)
{
    return span_truth(must_hold(a) || must_hold(b), may_hold(a) || may_hold(b));
}

DEVICE span span_less(span a, span b)
{
    return span_truth(a.most < b.least, a.least < b.most);
}

DEVICE span span_less_equal(span a, span b)
{
    return span_truth(a.most <= b.least, a.least <= b.most);
}

DEVICE span span_equal(span a, span b)
{
    return span_truth(a.least == b.most && a.most == b.least,
                      a.least <= b.most && b.least <= a.most);
}

DEVICE span span_not_equal(span a, span b)
{
    return span_not(span_equal(a, b));
}

DEVICE span span_where(span a, span b, span c)
{
    if (must_hold(a))
        return b;
    return may_hold(a) ? span{fminf(b.least, c.least), fmaxf(b.most, c.most)} : c;
}

/* Of positions: `first` and `count` of them, of which there are `limit`; `ahead` is added. */
DEVICE span span_places(int first, int count, int limit, int ahead)
{
    int last = first + count < limit ? first + count : limit;
    return {(float)(first + ahead), (float)(last - 1 + ahead)};
}

/* Whether any of `queries` from `query` on may see any of `keys` from `key` on. */
template <typename Call>
DEVICE bool may_be_seen(const Call &c, int batch_at, int head_at, int query_at, int queries,
                        int key_at, int keys)
{
    typedef float Real;
    const span query = span_places(query_at, queries, c.queries, c.keys - c.queries);
    const span key = span_places(key_at, keys, c.keys, 0);
    const span head = span_number((float)head_at), batch = span_number((float)batch_at);
    span seen;
    FORMULA_SPANS
    return may_hold(seen);
}

#endif

/* The last of the tiles [begin, n] of `size` keys that `rows` queries from `first` on may see
 * anything of; begin - 1 where there is none. By one thread. */
template <typename Call>
DEVICE int seen_up_to(const Call &c, int batch, int head, int first, int rows, int n, int begin,
                      int size)
{
#if SKIPS
#pragma unroll 2
    for (; n >= begin; n--)
        if (may_be_seen(c, batch, head, first, rows, n * size, size))
            break;
#endif
    return n;
}

/* The same by a whole warp, each of whose lanes looks at a tile. */
template <typename Call>
DEVICE int warp_seen_up_to(const Call &c, int batch, int head, int first, int rows, int n,
                           int begin, int size)
{
#if SKIPS
    for (; n >= begin; n -= 32) {
        int tile = n - (int)threadIdx.x % 32;
        unsigned seen = __ballot_sync(
            0xffffffffu, tile >= begin &&
                             may_be_seen(c, batch, head, first, rows, tile * size, size));
        if (seen)
            return n - __ffs((int)seen) + 1;
    }
    return begin - 1;
#endif
    return n;
}

/* The first of the tiles [n, end) of `size` queries that may see any of `rows` keys from `first`
 * on; end where there is none. */
template <typename Call>
DEVICE int seeing_from(const Call &c, int batch, int head, int first, int rows, int n, int end,
                       int size)
{
#if SKIPS
#pragma unroll 2
    for (; n < end; n++)
        if (may_be_seen(c, batch, head, n * size, size, first, rows))
            break;
#endif
    return n;
}

template <typename Call>
DEVICE int warp_seeing_from(const Call &c, int batch, int head, int first, int rows, int n, int end,
                            int size)
{
#if SKIPS
    for (; n < end; n += 32) {
        int tile = n + (int)threadIdx.x % 32;
        unsigned seen = __ballot_sync(
            0xffffffffu,
            tile < end && may_be_seen(c, batch, head, tile * size, size, first, rows));
        if (seen)
            return n + __ffs((int)seen) - 1;
    }
    return end;
#endif
    return n;
}

#endif
