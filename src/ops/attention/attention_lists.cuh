/* Lists of blocks of keys: which of them a block of queries sees, of what masks let it see. What
 * was given as lists stands in memory as bits, one for each block of keys, which attention_lists.cu
 * writes. The first part is plain C, which the host fills in; the rest are functions of a call.
 *
 * LISTS is how many positions a block has, a power of two of at least 16, and 0 without lists. So
 * the 16 queries and 8 keys of a warp's fragment are of one block each, and a tile of keys whose
 * size is a power of two up to 512 has all its bits in one word. Tiles of queries are powers of two
 * as well, so that each holds whole blocks or lies in one. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_LISTS_CUH
#define CUP_OPS_ATTENTION_ATTENTION_LISTS_CUH

typedef struct attention_lists {
    const unsigned *bits;
    long long batch, head; /* words from one to the next; 0: one for all */
    long long words;       /* of a block of queries */
} attention_lists;

/* What attention_lists.cu makes them of: [batches, heads, blocks, count] numbers. */
typedef struct attention_named {
    const void *numbers; /* whole ones of 32 or 64 bits */
    long long batch, head, block, step;
    unsigned *bits;
    long long heads, blocks, count, key_blocks, words, all; /* all: words of everything */
    int is_wide;
} attention_named;

#ifdef __CUDACC__

#include "dtype.cuh"

#ifndef LISTS
#define LISTS 0
#endif
#define LIST_SPAN (LISTS > 0 ? LISTS : 1024)

/* The bits of the block of a query; queries past the last are as the last. */
template <typename Call>
DEVICE const unsigned *list_of(const Call &c, int batch, int head, int query)
{
    query = query < c.queries ? query : c.queries - 1;
    return c.lists.bits + batch * c.lists.batch + head * c.lists.head +
           query / LIST_SPAN * c.lists.words;
}

/* Word `at` of all the blocks that `rows` queries from `first` on belong to. */
template <typename Call>
DEVICE unsigned listed_word(const Call &c, int batch, int head, int first, int rows, int at)
{
    unsigned bits = list_of(c, batch, head, first)[at];
    for (int i = LIST_SPAN; i < rows; i += LIST_SPAN)
        bits |= list_of(c, batch, head, first + i)[at];
    return bits;
}

/* The bits of a tile of `size` keys, from the lowest on, for `rows` queries. */
template <typename Call>
DEVICE unsigned listed_bits(const Call &c, int batch, int head, int first, int rows, int key,
                            int size)
{
    int block = key / LIST_SPAN, count = size / LIST_SPAN;
    if (block / 32 >= c.lists.words)
        return 0;
    unsigned bits = listed_word(c, batch, head, first, rows, block / 32) >> block % 32;
    return count >= 32 ? bits : bits & ((1u << (count > 1 ? count : 1)) - 1);
}

template <typename Call>
DEVICE bool is_listed(const Call &c, int batch, int head, int first, int rows, int key, int size)
{
    return !LISTS || listed_bits(c, batch, head, first, rows, key, size) != 0;
}

/* The first of the tiles [n, end) of `size` keys that any of `rows` queries see by their lists,
 * and end where there is none. */
template <typename Call>
DEVICE int listed_from(const Call &c, int batch, int head, int first, int rows, int n, int end,
                       int size)
{
    if (!LISTS)
        return n;
    for (int block = n * size / LIST_SPAN; n < end && block / 32 < c.lists.words;
         block = (block / 32 + 1) * 32) {
        unsigned bits = listed_word(c, batch, head, first, rows, block / 32) >> block % 32;
        if (!bits)
            continue;
        int tile = (block + __ffs((int)bits) - 1) * LIST_SPAN / size;
        tile = tile > n ? tile : n;
        return tile < end ? tile : end;
    }
    return end;
}

/* The word of some rows that was read last. */
struct known_word {
    int at; /* -1: none */
    unsigned bits;
};

/* The last of the tiles [begin, n], and begin - 1 where there is none. */
template <typename Call>
DEVICE int listed_up_to(const Call &c, int batch, int head, int first, int rows, int n, int begin,
                        int size, known_word &known)
{
    if (!LISTS)
        return n;
    int block = ((n + 1) * size - 1) / LIST_SPAN, least = begin * size / LIST_SPAN;
    if (n < begin)
        return begin - 1;
    while (block >= least) {
        if (block / 32 != known.at) {
            known.at = block / 32;
            known.bits =
                known.at < c.lists.words ? listed_word(c, batch, head, first, rows, known.at) : 0;
        }
        unsigned bits = known.bits & 0xffffffffu >> (31 - block % 32);
        if (bits) {
            int found = block / 32 * 32 + 31 - __clz((int)bits);
            int tile = ((found + 1) * LIST_SPAN - 1) / size;
            return found < least ? begin - 1 : tile < n ? tile : n;
        }
        block = block / 32 * 32 - 1;
    }
    return begin - 1;
}

/* Scores of a warp, whose 16 queries begin at `query`, with keys from `key` on that its list does
 * not name become -infinity; they lie as mma.sync leaves them. */
template <int Columns, typename Call>
DEVICE void mask_unlisted(const Call &c, int batch, int head, int query, int key,
                          float (&s)[Columns][4])
{
    if (!LISTS)
        return;
    unsigned bits = listed_bits(c, batch, head, query, 16, key, 8 * Columns);
#pragma unroll
    for (int j = 0; j < Columns; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(bits >> (8 * j / LIST_SPAN) & 1))
                s[j][i] = -__int_as_float(0x7f800000);
}

#endif
#endif
