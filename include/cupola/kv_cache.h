/* cupola/kv_cache.h: the keys and values of what a model has read, kept so that only new tokens are
 * computed. A cache holds them for several sequences of different lengths and for all layers of a
 * model, as the model computes them or as codes of 8 bits, in one piece a sequence or in pages that
 * sequences share out among them.
 *
 * A step of a model, after it has made q, k and v of the new tokens of each layer:
 *     cup_kv_cache_reserve(cache, sequence, tokens);           with pages, for each sequence
 *     cup_kv_cache_append(cache, layer, k, v, NULL);           for each layer
 *     o = cup_kv_cache_attend(cache, layer, q, NULL, NULL);
 *     cup_kv_cache_advance(cache, tokens, NULL);               once
 * How long sequences are stands on the device, so that the last three can be captured in a graph
 * (cupola/graph.h) that is launched for each token. What a cache keeps has no gradient: call with
 * recording off (cup_scope_open_without_grad). What the two ops below it mean in detail, for a
 * program with tensors of its own, is said at cup_kv_append and cup_kv_attention in
 * cupola/ops.h. */
#ifndef CUPOLA_KV_CACHE_H
#define CUPOLA_KV_CACHE_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cup_kv_cache cup_kv_cache;

typedef struct cup_kv_cache_options {
    size_t size;
    int64_t layers;     /* 0: one */
    int64_t value_size; /* of a head of values; 0: as of keys */
    int64_t page;       /* tokens of a page; 0: each sequence has its room in one piece */
    int64_t pages;      /* of all sequences together; 0: room for all to be full */
} cup_kv_cache_options;

/* An empty cache for so many sequences of up to `length` tokens, with `heads` heads of keys and
 * values of `head_size` elements. The dtype is that of the model's k and v, or f8e4m3, f8e5m2 or
 * i8: codes, with a scale for each token of each head, which the cache makes. NULL on failure. Free
 * it before the context. */
CUP_API cup_kv_cache *cup_kv_cache_new(cup_context *c, cup_dtype dtype, int64_t sequences,
                                       int64_t length, int64_t heads, int64_t head_size,
                                       const cup_kv_cache_options *options);
CUP_API void cup_kv_cache_free(cup_kv_cache *cache);

/* Puts k [sequences,heads,T,head_size] and v [.., value_size] of a layer behind what is kept of
 * each sequence. `counts`, an i32 tensor [sequences] or NULL, says how many of the T tokens each
 * sequence has. Lengths stay as they are. A sequence without room for its tokens is an error on a
 * CPU; on a GPU nothing of it is written, and attention gives NaN where there is no room, and
 * anything where pages were not reserved. */
CUP_API cup_status cup_kv_cache_append(cup_kv_cache *cache, int64_t layer, cup_tensor *k,
                                       cup_tensor *v, cup_tensor *counts);

typedef struct cup_kv_cache_attend_options {
    size_t size;
    double scale;        /* of scores; 0: 1/sqrt(head_size) */
    int64_t window_left; /* keys up to its own that a token sees; 0: all */
    double soft_cap;     /* 0: none */
    cup_tensor *sinks;   /* see cup_attention; NULL: none */
} cup_kv_cache_attend_options;

/* Attention of the new tokens, q [sequences,H,T,head_size] where H is a multiple of the heads, to
 * all of their sequence up to themselves: [sequences,H,T,value_size]. They were appended before,
 * with the same counts; tokens beyond a count give 0. NULL on failure. */
CUP_API cup_tensor *cup_kv_cache_attend(cup_kv_cache *cache, int64_t layer, cup_tensor *q,
                                        cup_tensor *counts,
                                        const cup_kv_cache_attend_options *options);

/* All sequences are longer by `tokens`, or by their counts where these are not NULL, when the
 * layers have been appended to. A count below 0 cuts a sequence, which keeps its pages. Counts that
 * would make a length negative, or longer than there is room for, are an error on a CPU, and the
 * cache stays as it was; on a GPU the sequences stay that have such counts. */
CUP_API cup_status cup_kv_cache_advance(cup_kv_cache *cache, int64_t tokens, cup_tensor *counts);

/* Makes a sequence, by its number, `tokens` long: of what is kept only the first are left; 0
 * empties it. Pages behind them are free again. Waits for the device, and is no call to be
 * captured. */
CUP_API cup_status cup_kv_cache_set(cup_kv_cache *cache, int64_t sequence, int64_t tokens);

/* Gives a sequence pages for `tokens` tokens in all, with those that it has. CUP_STATE where not
 * enough pages are free: then it has those it had. Without pages it only checks that there is room.
 * Not to be captured; a graph that was captured before goes by the new pages. */
CUP_API cup_status cup_kv_cache_reserve(cup_kv_cache *cache, int64_t sequence, int64_t tokens);
CUP_API int64_t cup_kv_cache_pages_free(const cup_kv_cache *cache); /* without pages: 0 */

/* The tensors of a cache, borrowed: the lengths, i32 [sequences]; the table of pages, i32
 * [sequences,pages of one], or NULL; a layer's keys [P,heads,page,head_size] and values, where
 * without pages P is the sequences and a page their length; the scales [P,heads,page] of these, in
 * f32, or NULL where the dtype is no code. */
CUP_API cup_tensor *cup_kv_cache_lengths(cup_kv_cache *cache);
CUP_API cup_tensor *cup_kv_cache_table(cup_kv_cache *cache);
CUP_API cup_tensor *cup_kv_cache_keys(cup_kv_cache *cache, int64_t layer);
CUP_API cup_tensor *cup_kv_cache_values(cup_kv_cache *cache, int64_t layer);
CUP_API cup_tensor *cup_kv_cache_key_scales(cup_kv_cache *cache, int64_t layer);
CUP_API cup_tensor *cup_kv_cache_value_scales(cup_kv_cache *cache, int64_t layer);

#ifdef __cplusplus
}
#endif
#endif
