/* Keys and values that are kept, as kv_append and kv_attention see them: in pages of so many tokens
 * each, which a table hands to sequences; without one each sequence has the page of its number. */
#ifndef CUP_OPS_KV_CACHE_KV_CACHE_H
#define CUP_OPS_KV_CACHE_KV_CACHE_H

#include "cuda/cuda.h"
#include "dispatch/op.h"
#include "ops/kv_cache/kv_cache_call.cuh"

#define CUP__KV_POSITIONS (1 << 30)
#define CUP__KV_KNOBS 20

typedef struct cup__kv {
    cup_tensor *keys, *values, *key_scales, *value_scales;
    const cup_tensor *lengths, *table, *counts; /* these two and scales may be NULL */
    int64_t batch, tokens; /* sequences, and new tokens of each */
    int64_t heads, pages, page, room, size, value_size;
} cup__kv;

/* Of a call whose keys and values are inputs `first` and the next, its lengths and the optional
 * inputs behind them from input `rest` on. */
cup__kv cup__kv_of(const cup__call *call, int first, int rest, int64_t batch, int64_t tokens);
/* `like` is the input whose dtype the scales go by: f64, or else f32. */
cup_status cup__kv_check(cup__call *call, int first, int rest, int like);
/* That lengths, counts and tables, where they can be read, leave room for the new tokens. */
cup_status cup__kv_fits(cup__call *call, const cup__kv *kv);

/* What stood before the new tokens of a sequence, and how many of them are there. */
int64_t cup__kv_length(const cup__kv *kv, int64_t sequence);
int64_t cup__kv_count(const cup__kv *kv, int64_t sequence);
/* Where t, of what is kept or its scales, has a position of a sequence and a head. */
int64_t cup__kv_at(const cup__kv *kv, const cup_tensor *t, int64_t sequence, int64_t head,
                   int64_t position);
/* The scale of such a position; 1 where there are none. */
double cup__kv_scale(const cup__kv *kv, const cup_tensor *scales, int64_t sequence, int64_t head,
                     int64_t position);
/* Codes are divided by a scale, which other dtypes do without. */
bool cup__kv_is_codes(const cup__kv *kv);

void cup__kv_fill(kv_call *to, const cup__kv *kv);
kv_heads cup__kv_heads(const cup_tensor *t); /* t may be NULL */
int cup__kv_knobs(const cup__kv *kv, cup_dtype dtype, cup__knob *out);

/* Of kv_attention. */
enum { CUP__KV_Q, CUP__KV_KEYS, CUP__KV_VALUES, CUP__KV_LENGTHS, CUP__KV_SINKS = 8 };
typedef struct cup__kv_attention {
    cup__kv kv;
    cup_tensor *q, *o;
    const cup_tensor *sinks;
    int64_t heads, window; /* window: keys that a token sees up to its own */
    double scale, soft_cap;
} cup__kv_attention;

cup__kv_attention cup__kv_attention_of(const cup__call *call);
cup_status cup__kv_attention_cpu(cup__call *call);
const char *cup__kv_tiles_refuses(const cup__call *call);
const char *cup__kv_wgmma_refuses(const cup__call *call);
const char *cup__kv_lanes_refuses(const cup__call *call);
cup_status cup__kv_tiles(cup__call *call);
cup_status cup__kv_wgmma(cup__call *call);
cup_status cup__kv_lanes(cup__call *call);

#endif
