/* The one argument of the attention kernels, as the host fills it and the kernels read it. Plain C,
 * included by both. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_CALL_CUH
#define CUP_OPS_ATTENTION_ATTENTION_CALL_CUH

#include "attention_lists.cuh"
#include "attention_mask.cuh"
#include "attention_score.cuh"

/* The number of a head among those of all texts and processes, for dropout. */
#define WHOLE_HEAD(c, row) ((row) + (row) / (c).heads * (c).others + (c).first)

/* Where positions are parts of sequences: tiles of 16 of all, those of the first stretch, and what
 * makes a tile of it and of the second one that of the whole. */
typedef struct attention_stretches {
    int all, half, first, second;
} attention_stretches;

typedef struct attention_drawn {
    attention_stretches rows, keys;
} attention_drawn;

#ifdef PARTS
#define TILES(s, count) ((s).all)
#define WHOLE_TILE(s, tile) ((tile) + ((tile) < (s).half ? (s).first : (s).second))
#else
#define TILES(s, count) (((count) + 15) / 16)
#define WHOLE_TILE(s, tile) (tile)
#endif
/* The number of the tile of 16 queries and 16 keys that holds these, for dropout. */
#define DRAWN_TILE(c, row, query, key)                                                             \
    (((unsigned long long)WHOLE_HEAD(c, row) * (unsigned)TILES((c).drawn.rows, (c).queries) +      \
      (unsigned)WHOLE_TILE((c).drawn.rows, (query) / 16)) *                                        \
         (unsigned)TILES((c).drawn.keys, (c).keys) +                                               \
     (unsigned)WHOLE_TILE((c).drawn.keys, (key) / 16))

/* A tensor seen as [batch, heads, positions, size]; strides in elements. */
typedef struct attention_heads {
    void *data;
    long long batch, head, position, feature;
} attention_heads;

typedef struct attention_call {
    attention_heads q, k, v, o, d_o, dq, dk, dv;
    void *lse;          /* [batch, heads, queries], natural; NULL: not wanted */
    void *delta;        /* of backward, as lse: sums of o times d_o */
    void *lse_log2;     /* of backward: lse to base 2, infinite for a query that sees nothing; where
                           f32 is split, the largest score of the query */
    void *inverse;      /* of backward where f32 is split: 1 / sum of e^(score - largest), or 0 */
    void *part;         /* of a split forward: sums of each part, see attention_decode.cu */
    const void *random; /* seed and step, 64 bits each */
    int batch, heads, kv_heads, queries, keys, size;
    int causal, splits;
    unsigned sequence, threshold; /* of dropout; threshold 0: none */
    int others, first; /* heads of a text that other processes have; those before these */
    attention_drawn drawn; /* for PARTS */
    float scale, factor;          /* factor: what dropout multiplies by */
    double scale_f64, factor_f64;
    attention_mask mask; /* for WINDOW */
    attention_score score;
    attention_sights ranges;
    attention_lists lists;
    unsigned *queue; /* see units.cuh */
    const float *scales; /* for ROUNDED: what q, k, v and d_o were divided by, 16-byte aligned */
#if FORMULA || !defined(__CUDACC__)
    attention_formula formula; /* last: kernels without one do not have it */
#endif
} attention_call;

#endif
