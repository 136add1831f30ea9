/* Keys and values that are kept: tensors for each layer, and who has which pages of them. */
#include "cupola/kv_cache.h"

#include "base/memory.h"
#include "base/options.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/debug.h"
#include "tensor/tensor.h"

#define POSITIONS_MOST (1 << 30)

enum { KEYS, VALUES, KEY_SCALES, VALUE_SCALES, PARTS };

struct cup_kv_cache {
    cup_context *context;
    cup_dtype dtype;
    int64_t sequences, length, heads, size, value_size, layers;
    int64_t page, pages, each; /* each: pages that a sequence may have; page 0: there are none */
    cup_tensor *(*layer)[PARTS];
    cup_tensor *lengths, *table;
    int32_t *owned; /* the table as the host knows it: [sequences, each], -1 behind the last */
    int32_t *free;  /* pages that nobody has */
    int64_t free_count;
};

static bool is_code(cup_dtype dtype)
{
    return dtype == CUP_I8 || dtype == CUP_F8E4M3 || dtype == CUP_F8E5M2;
}

static cup_status check_new(cup_context *c, const cup_kv_cache *k)
{
    bool is_float = k->dtype == CUP_F32 || k->dtype == CUP_F64 || k->dtype == CUP_F16 ||
                    k->dtype == CUP_BF16;
    if (!is_float && !is_code(k->dtype))
        return cup__fail(&c->error, CUP_DTYPE,
                         "kv_cache: what is kept is f32, f64, f16, bf16, f8e4m3, f8e5m2 or i8");
    const int64_t sizes[] = {k->sequences, k->length, k->heads, k->size, k->value_size, k->layers};
    static const char *const names[] = {"sequences", "length",     "heads",
                                        "head_size", "value_size", "layers"};
    for (int i = 0; i < 6; i++)
        if (sizes[i] < 1 || sizes[i] > POSITIONS_MOST)
            return cup__fail(&c->error, CUP_ARGUMENT,
                             "kv_cache: %s is %lld and must be from 1 to 2^30", names[i],
                             (long long)sizes[i]);
    if (k->page < 0 || k->page > POSITIONS_MOST || k->pages < 0 || k->pages > POSITIONS_MOST)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "kv_cache: %lld pages of %lld tokens; both must be from 1 to 2^30, or 0 "
                         "for none and for all",
                         (long long)k->pages, (long long)k->page);
    if (!k->page && k->pages)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "kv_cache: there are %lld pages of no tokens; set page too",
                         (long long)k->pages);
    return CUP_OK;
}

static cup_status make_table(cup_kv_cache *k)
{
    cup_context *c = k->context;
    if (k->pages > POSITIONS_MOST || k->sequences * k->each > POSITIONS_MOST)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "kv_cache: there are over 2^30 pages; make them larger");
    size_t bytes = (size_t)(k->sequences * k->each) * sizeof *k->owned;
    k->owned = cup__malloc(bytes);
    k->free = cup__malloc((size_t)k->pages * sizeof *k->free);
    if (!k->owned || !k->free)
        return cup__fail(&c->error, CUP_MEMORY, "kv_cache: out of host memory");
    for (int64_t i = 0; i < k->sequences * k->each; i++)
        k->owned[i] = -1;
    k->free_count = k->pages;
    for (int64_t i = 0; i < k->pages; i++)
        k->free[i] = (int32_t)(k->pages - 1 - i);
    const int64_t shape[] = {k->sequences, k->each};
    k->table = cup_keep(cup_tensor_from(c, CUP_I32, 2, shape, k->owned));
    return c->error.status;
}

static cup_status make_layers(cup_kv_cache *k)
{
    cup_context *c = k->context;
    int64_t outer = k->page ? k->pages : k->sequences, inner = k->page ? k->page : k->length;
    const int64_t keys[] = {outer, k->heads, inner, k->size};
    const int64_t values[] = {outer, k->heads, inner, k->value_size};
    k->layer = cup__calloc((size_t)k->layers, sizeof *k->layer);
    if (!k->layer)
        return cup__fail(&c->error, CUP_MEMORY, "kv_cache: out of host memory");
    for (int64_t i = 0; i < k->layers && c->error.status == CUP_OK; i++)
        for (int part = KEYS; part < (is_code(k->dtype) ? PARTS : KEY_SCALES); part++) {
            bool is_scale = part >= KEY_SCALES;
            k->layer[i][part] = cup_keep(cup_tensor_new(c, is_scale ? CUP_F32 : k->dtype,
                                                        is_scale ? 3 : 4,
                                                        part == VALUES ? values : keys));
        }
    return c->error.status;
}

static cup_status make(cup_kv_cache *k)
{
    CUP_TRY(check_new(k->context, k));
    if (k->page) {
        k->each = (k->length + k->page - 1) / k->page;
        k->pages = k->pages ? k->pages : k->each * k->sequences;
        CUP_TRY(make_table(k));
    }
    k->lengths = cup_keep(cup_zeros(k->context, CUP_I32, 1, &k->sequences));
    CUP_TRY(k->context->error.status);
    return make_layers(k);
}

cup_kv_cache *cup_kv_cache_new(cup_context *c, cup_dtype dtype, int64_t sequences, int64_t length,
                               int64_t heads, int64_t head_size,
                               const cup_kv_cache_options *options)
{
    cup_kv_cache_options o;
    if (!c || c->error.status != CUP_OK ||
        cup__options_take(&c->error, "kv_cache", &o, sizeof o, options) != CUP_OK)
        return NULL;
    cup_kv_cache *k = cup__calloc(1, sizeof *k);
    if (!k) {
        cup__fail(&c->error, CUP_MEMORY, "kv_cache: out of host memory");
        return NULL;
    }
    *k = (cup_kv_cache){.context = c,
                        .dtype = dtype,
                        .sequences = sequences,
                        .length = length,
                        .heads = heads,
                        .size = head_size,
                        .value_size = o.value_size ? o.value_size : head_size,
                        .layers = o.layers ? o.layers : 1,
                        .page = o.page,
                        .pages = o.pages};
    bool was = cup_grad_recording(c, false);
    cup_status status = make(k);
    cup_grad_recording(c, was);
    if (status == CUP_OK)
        return k;
    cup_kv_cache_free(k);
    return NULL;
}

void cup_kv_cache_free(cup_kv_cache *k)
{
    if (!k)
        return;
    for (int64_t i = 0; k->layer && i < k->layers; i++)
        for (int part = 0; part < PARTS; part++)
            cup_tensor_free(k->layer[i][part]);
    cup_tensor_free(k->lengths);
    cup_tensor_free(k->table);
    cup__free(k->layer);
    cup__free(k->owned);
    cup__free(k->free);
    cup__free(k);
}

static cup_status check_layer(cup_kv_cache *k, int64_t layer)
{
    if (layer >= 0 && layer < k->layers)
        return k->context->error.status;
    return cup__fail(&k->context->error, CUP_ARGUMENT, "kv_cache: there is no layer %lld of %lld",
                     (long long)layer, (long long)k->layers);
}

cup_status cup_kv_cache_append(cup_kv_cache *cache, int64_t layer, cup_tensor *k, cup_tensor *v,
                               cup_tensor *counts)
{
    if (!cache)
        return CUP_ARGUMENT;
    CUP_TRY(check_layer(cache, layer));
    cup_tensor *const *at = cache->layer[layer];
    return cup_kv_append(cache->context, at[KEYS], at[VALUES], k, v, cache->lengths,
                         CUP_OPTIONS(cup_kv_append_options, .table = cache->table,
                                     .key_scales = at[KEY_SCALES],
                                     .value_scales = at[VALUE_SCALES], .counts = counts));
}

cup_tensor *cup_kv_cache_attend(cup_kv_cache *cache, int64_t layer, cup_tensor *q,
                                cup_tensor *counts, const cup_kv_cache_attend_options *options)
{
    cup_kv_cache_attend_options o;
    if (!cache || check_layer(cache, layer) != CUP_OK ||
        cup__options_take(&cache->context->error, "kv_cache_attend", &o, sizeof o, options) !=
            CUP_OK)
        return NULL;
    cup_tensor *const *at = cache->layer[layer];
    return cup_kv_attention(
        cache->context, q, at[KEYS], at[VALUES], cache->lengths,
        CUP_OPTIONS(cup_kv_attention_options, .scale = o.scale, .window_left = o.window_left,
                    .soft_cap = o.soft_cap, .table = cache->table, .key_scales = at[KEY_SCALES],
                    .value_scales = at[VALUE_SCALES], .counts = counts, .sinks = o.sinks));
}

static cup_status check_counts(cup_kv_cache *k, cup_tensor *counts)
{
    cup_context *c = k->context;
    if (!cup__usable(counts, false, "kv_cache_advance"))
        return c->error.status;
    if (counts->context != c)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "kv_cache: counts belong to another context than the cache");
    if (counts->dtype != CUP_I32)
        return cup__fail(&c->error, CUP_DTYPE, "kv_cache: counts must be in i32; cast them");
    if (counts->ndim > 1 || (counts->count != 1 && counts->count != k->sequences))
        return cup__fail(&c->error, CUP_SHAPE,
                         "kv_cache: counts must be one number, or one for each of the %lld "
                         "sequences",
                         (long long)k->sequences);
    return CUP_OK;
}

static int64_t number(const cup_tensor *t, int64_t i)
{
    return (int64_t)cup__load(t, cup__offset_of(t, t->count > 1 ? i : 0));
}

/* Lengths on a GPU are known there alone. */
static cup_status check_lengths(cup_kv_cache *k, const cup_tensor *counts)
{
    cup_context *c = k->context;
    for (int64_t i = 0; i < k->sequences && !cup_device_is_cuda(c); i++) {
        int64_t length = number(k->lengths, i), more = number(counts, i);
        if (length + more < 0 || length + more > k->length)
            return cup__fail(&c->error, CUP_ARGUMENT,
                             "kv_cache: sequence %lld is %lld tokens long and cannot be longer by "
                             "%lld, as it has room for %lld; give a count that keeps it from 0 to "
                             "that, or cut it with cup_kv_cache_set",
                             (long long)i, (long long)length, (long long)more,
                             (long long)k->length);
    }
    return CUP_OK;
}

/* The lengths with their counts, or without where these lead out of the room. A sum that is beyond
 * an i32 is negative, as a length is at most 2^30. */
static cup_tensor *longer(cup_kv_cache *k, cup_tensor *counts)
{
    cup_context *c = k->context;
    cup_tensor *all = cup_add(c, k->lengths, counts);
    cup_tensor *most = cup_full(c, CUP_I32, 0, NULL, (double)k->length);
    all = cup_where(c, cup_less(c, all, cup_full(c, CUP_I32, 0, NULL, 0)), k->lengths, all);
    return cup_where(c, cup_less(c, most, all), k->lengths, all);
}

static cup_status advance(cup_kv_cache *k, int64_t tokens, cup_tensor *counts)
{
    cup_context *c = k->context;
    bool given = counts != NULL;
    if (given)
        CUP_TRY(check_counts(k, counts));
    else
        counts = cup_full(c, CUP_I32, 1, (int64_t[]){1}, (double)tokens);
    CUP_TRY(c->error.status);
    CUP_TRY(check_lengths(k, counts));
    return cup_copy_into(c, k->lengths,
                         given ? longer(k, counts) : cup_add(c, k->lengths, counts));
}

cup_status cup_kv_cache_advance(cup_kv_cache *cache, int64_t tokens, cup_tensor *counts)
{
    if (!cache)
        return CUP_ARGUMENT;
    cup_context *c = cache->context;
    CUP_TRY(c->error.status);
    if (tokens < 0 || tokens > cache->length)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "kv_cache: sequences cannot be longer by %lld tokens; there is room for "
                         "%lld",
                         (long long)tokens, (long long)cache->length);
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    advance(cache, tokens, counts);
    cup_scope_return(c, NULL);
    cup_grad_recording(c, was);
    return c->error.status;
}

static cup_status check_sequence(cup_kv_cache *k, int64_t sequence, int64_t tokens)
{
    if (sequence < 0 || sequence >= k->sequences)
        return cup__fail(&k->context->error, CUP_ARGUMENT,
                         "kv_cache: there is no sequence %lld of %lld", (long long)sequence,
                         (long long)k->sequences);
    if (tokens < 0 || tokens > k->length)
        return cup__fail(&k->context->error, CUP_ARGUMENT,
                         "kv_cache: a sequence has room for %lld tokens, not for %lld",
                         (long long)k->length, (long long)tokens);
    return k->context->error.status;
}

static cup_status write_table(cup_kv_cache *k)
{
    return cup_tensor_write(k->table, k->owned,
                            (size_t)(k->sequences * k->each) * sizeof *k->owned);
}

cup_status cup_kv_cache_reserve(cup_kv_cache *cache, int64_t sequence, int64_t tokens)
{
    if (!cache)
        return CUP_ARGUMENT;
    CUP_TRY(check_sequence(cache, sequence, tokens));
    if (!cache->page)
        return CUP_OK;
    int32_t *own = cache->owned + sequence * cache->each;
    int64_t wanted = (tokens + cache->page - 1) / cache->page, has = 0;
    while (has < cache->each && own[has] >= 0)
        has++;
    if (wanted <= has)
        return CUP_OK;
    if (wanted - has > cache->free_count)
        return cup__fail(&cache->context->error, CUP_STATE,
                         "kv_cache: %lld pages are free, not the %lld more that sequence %lld "
                         "needs for %lld tokens; cut another one, or make a cache of more pages",
                         (long long)cache->free_count, (long long)(wanted - has),
                         (long long)sequence, (long long)tokens);
    for (; has < wanted; has++)
        own[has] = cache->free[--cache->free_count];
    return write_table(cache);
}

cup_status cup_kv_cache_set(cup_kv_cache *cache, int64_t sequence, int64_t tokens)
{
    if (!cache)
        return CUP_ARGUMENT;
    CUP_TRY(check_sequence(cache, sequence, tokens));
    cup_context *c = cache->context;
    size_t bytes = (size_t)cache->sequences * sizeof(int32_t);
    int32_t *lengths = cup__malloc(bytes);
    if (!lengths)
        return cup__fail(&c->error, CUP_MEMORY, "kv_cache: out of host memory");
    cup_status status = cup_tensor_read(cache->lengths, lengths, bytes);
    lengths[sequence] = (int32_t)tokens;
    if (status == CUP_OK)
        status = cup_tensor_write(cache->lengths, lengths, bytes);
    cup__free(lengths);
    if (status != CUP_OK || !cache->page)
        return status;
    int32_t *own = cache->owned + sequence * cache->each;
    for (int64_t i = (tokens + cache->page - 1) / cache->page; i < cache->each; i++)
        if (own[i] >= 0) {
            cache->free[cache->free_count++] = own[i];
            own[i] = -1;
        }
    return write_table(cache);
}

int64_t cup_kv_cache_pages_free(const cup_kv_cache *cache)
{
    return cache ? cache->free_count : 0;
}

cup_tensor *cup_kv_cache_lengths(cup_kv_cache *cache)
{
    return cache ? cache->lengths : NULL;
}

cup_tensor *cup_kv_cache_table(cup_kv_cache *cache)
{
    return cache ? cache->table : NULL;
}

static cup_tensor *part_of(cup_kv_cache *cache, int64_t layer, int part)
{
    return cache && check_layer(cache, layer) == CUP_OK ? cache->layer[layer][part] : NULL;
}

cup_tensor *cup_kv_cache_keys(cup_kv_cache *cache, int64_t layer)
{
    return part_of(cache, layer, KEYS);
}

cup_tensor *cup_kv_cache_values(cup_kv_cache *cache, int64_t layer)
{
    return part_of(cache, layer, VALUES);
}

cup_tensor *cup_kv_cache_key_scales(cup_kv_cache *cache, int64_t layer)
{
    return part_of(cache, layer, KEY_SCALES);
}

cup_tensor *cup_kv_cache_value_scales(cup_kv_cache *cache, int64_t layer)
{
    return part_of(cache, layer, VALUE_SCALES);
}
