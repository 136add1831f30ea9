/* A call of qkv_attention_read, for its specification and its kernels. */
#ifndef CUP_OPS_KV_CACHE_QKV_READ_H
#define CUP_OPS_KV_CACHE_QKV_READ_H

#include "ops/attention/attention_score.h"
#include "ops/rope/rope.h"

enum {
    CUP__QKV_READ_QKV,
    CUP__QKV_READ_KEYS,
    CUP__QKV_READ_VALUES,
    CUP__QKV_READ_POSITION,
    CUP__QKV_READ_SLOPES, /* what may be left out begins here */
    CUP__QKV_READ_SINKS,
    CUP__QKV_READ_PLACE
};

/* With its defaults. */
typedef struct cup__qkv_read {
    cup_tensor *qkv, *keys, *values, *position, *o;
    cup_tensor *place; /* where the new key and value are put; the position, where none is given */
    int64_t batch, heads, kv_heads, size, length;
    int64_t window; /* keys that are seen, with the new one; 0: all */
    double scale;
    cup__rope_rule rope; /* its base is 0 where nothing is turned */
    double growth;       /* the factor by which the base grows from `original` on, or 0 */
    int64_t original;
    cup__attention_score score;
} cup__qkv_read;

cup__qkv_read cup__qkv_read_of(const cup__call *call);

const char *cup__qkv_read_texts_refuses(const cup__call *call);
cup_status cup__qkv_read_texts(cup__call *call);
const char *cup__qkv_read_lanes_refuses(const cup__call *call);
cup_status cup__qkv_read_lanes(cup__call *call);

#endif
