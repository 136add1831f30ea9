/* The one argument of the kernels of kv_append and kv_attention, as the host fills it and they read
 * it. Plain C, included by both. */
#ifndef CUP_OPS_KV_CACHE_KV_CACHE_CALL_CUH
#define CUP_OPS_KV_CACHE_KV_CACHE_CALL_CUH

#define KV_SHARES_MOST 128

/* A tensor seen as [batch, heads, tokens, size], or [pages, heads, page, size], and without a size
 * where each token has one number; strides in elements. */
typedef struct kv_heads {
    void *data;
    long long batch, head, token, feature;
} kv_heads;

/* Whole numbers, one a sequence or, with a step of 0, one for all. */
typedef struct kv_numbers {
    const void *data;
    long long step;
} kv_numbers;

typedef struct kv_call {
    kv_heads keys, values;             /* what is kept */
    kv_heads key_scales, value_scales; /* f64 where q or k is, else f32 */
    kv_numbers lengths, counts;        /* counts: NULL, all tokens */
    const int *table;                  /* with PAGED: of sequence and number of the page */
    long long table_batch, table_step;
    kv_heads q, o, k, v;
    const void *sinks; /* one a head, f32 or f64 */
    long long sinks_step;
    void *part; /* with several shares: [batch, heads, tokens, shares, value_size + 2] */
    int batch, heads, kv_heads, tokens, size, value_size;
    int pages, page, room; /* room: positions a sequence has */
    int window;            /* keys up to a token's own that it sees */
    int shares;            /* blocks that cut the keys of a sequence among them */
    double scale, cap;     /* of a score for powers of 2; with SOFT_CAP cap tanh(scale score) */
} kv_call;

#endif
