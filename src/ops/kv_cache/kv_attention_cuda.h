/* What the host sides of the kernels of kv_attention share. */
#ifndef CUP_OPS_KV_CACHE_KV_ATTENTION_CUDA_H
#define CUP_OPS_KV_CACHE_KV_ATTENTION_CUDA_H

#include "cuda/api.h"
#include "ops/kv_cache/kv_cache.h"

/* A kernel over shares of the keys, which y of its grid counts; `maps`, of keys and of values, are
 * its first arguments, or NULL. */
typedef struct cup__kv_kernel {
    const char *file, *entry;
    cup__knob knobs[CUP__KV_KNOBS];
    int count;
    cup__grid grid;
    const CUtensorMap *maps;
} cup__kv_kernel;

/* Launches it, and behind it what joins the shares where there are several. */
cup_status cup__kv_run(cup__call *call, const cup__kv_kernel *by);

/* The knobs of all kernels; returns how many. */
int cup__kv_attention_knobs(const cup__kv_attention *a, cup__knob *out);

/* Into how many shares of at least so many positions the keys are cut, so that a grid that has
 * `blocks` for each of them has about `busy`. */
int64_t cup__kv_shares(const cup__kv_attention *a, int64_t blocks, int64_t busy, int64_t least);

/* Whether heads begin at multiples of 16 bytes, and their elements are neighbours. */
bool cup__kv_lies_in_16_bytes(const cup_tensor *t);

#endif
