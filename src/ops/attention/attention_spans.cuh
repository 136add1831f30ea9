/* What the condition of a formula may be on a tile of queries and keys, found from what its parts
 * may be: tiles that it hides are not computed, and in those that it shows nobody asks for it.
 *
 * The text that is compiled says FORMULA_SEES, whether anything can be found so, and FORMULA_SPANS,
 * which sets `seen` from query, key, head and batch; see src/custom/score_spans.c. Documents, in
 * which neighbours stand at places far apart, are all looked at. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_SPANS_CUH
#define CUP_OPS_ATTENTION_ATTENTION_SPANS_CUH

#include "attention_call.cuh"
#include "span.cuh"

#if FORMULA && FORMULA_SEES && !RANGES
#define SKIPS 1
#else
#define SKIPS 0
#endif

#if SKIPS

/* By what is the same for all pairs, and rounded down then, which is divided as the formula has it:
 * quotients of numbers that go up go up, or down. */
DEVICE span span_divided(span a, divisor<float> by)
{
    float x = divided_exactly(a.least, by), y = divided_exactly(a.most, by);
    return span_between(fminf(x, y), fmaxf(x, y));
}

/* Of positions: `first` and `count` of them, of which there are `limit`; `ahead` is added. */
DEVICE span span_places(int first, int count, int limit, int ahead)
{
    int last = first + count < limit ? first + count : limit;
    return {(float)(first + ahead), (float)(last - 1 + ahead)};
}

/* The tile of `queries` from `query` on and of `keys` from `key` on. */
struct tile_of_pairs {
    int query, queries, key, keys;
};

template <typename Call>
DEVICE span seen_of(const Call &c, int batch_at, int head_at, const tile_of_pairs &t)
{
    typedef float Real;
    const span query = span_places(t.query, t.queries, c.queries, c.keys - c.queries);
    const span key = span_places(t.key, t.keys, c.keys, 0);
    const span head = span_number((float)head_at), batch = span_number((float)batch_at);
    span seen;
    FORMULA_SPANS
    return seen;
}

#endif

/* What a warp knows of 32 tiles, bit i of tile `from` + i, or `from` - i where it walks down:
 * whether its block meets it, as all warps find alike, and whether this warp's own `rows` queries
 * or keys, from `own` on, see all of it; and of lists. */
struct known_tiles {
    int own, rows;
    int from;
    unsigned met, whole;
    known_word list; /* of all the block's queries */

    /* Without rows nothing is seen as a whole. */
    __device__ __forceinline__ known_tiles(int own, int rows)
        : own(own), rows(rows), from(-64), met(0), whole(0), list({-1, 0})
    {
    }

    __device__ __forceinline__ bool is_whole(int n) const
    {
        return SKIPS && whole >> (n > from ? n - from : from - n) & 1;
    }
};

#if SKIPS
/* Each lane looks at a tile, if there is one, and at what of it is the warp's own. */
template <typename Call>
DEVICE void look(const Call &c, int batch, int head, const tile_of_pairs &all,
                 const tile_of_pairs &own, bool is_there, known_tiles &known)
{
    const unsigned warp = 0xffffffffu;
    known.met = __ballot_sync(warp, is_there && may_hold(seen_of(c, batch, head, all)));
    known.whole = 0;
    if (known.rows)
        known.whole = __ballot_sync(warp, must_hold(seen_of(c, batch, head, own)));
}
#endif

/* The last of the tiles [begin, n] of `size` keys that `rows` queries from `first` on may see
 * anything of; begin - 1 where there is none. By a whole warp. */
template <typename Call>
DEVICE int seen_up_to(const Call &c, int batch, int head, int first, int rows, int n, int begin,
                      int size, known_tiles &known)
{
#if SKIPS
    for (; n >= begin; n = known.from - 32) {
        if ((unsigned)(known.from - n) >= 32) {
            int key = (n - (int)threadIdx.x % 32) * size;
            known.from = n;
            look(c, batch, head, {first, rows, key, size}, {known.own, known.rows, key, size},
                 key >= begin * size, known);
        }
        unsigned left = known.met & 0xffffffffu << (known.from - n);
        if (left)
            return known.from - __ffs((int)left) + 1;
    }
    return begin - 1;
#endif
    return n;
}

/* The first of the tiles [n, end) of `size` queries that may see any of `rows` keys from `first`
 * on; end where there is none. By a whole warp. */
template <typename Call>
DEVICE int seeing_from(const Call &c, int batch, int head, int first, int rows, int n, int end,
                       int size, known_tiles &known)
{
#if SKIPS
    for (; n < end; n = known.from + 32) {
        if ((unsigned)(n - known.from) >= 32) {
            int query = (n + (int)threadIdx.x % 32) * size;
            known.from = n;
            look(c, batch, head, {query, size, first, rows}, {query, size, known.own, known.rows},
                 query < end * size, known);
        }
        unsigned left = known.met >> (n - known.from);
        if (left)
            return n + __ffs((int)left) - 1;
    }
    return end;
#endif
    return n;
}

#endif
