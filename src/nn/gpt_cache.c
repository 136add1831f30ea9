/* Reading token by token: keys and values of what was read are kept, and only new rows are
 * computed. */
#include <stdlib.h>

#include "cupola/kv_cache.h"
#include "cupola/ops.h"
#include "nn/gpt.h"

struct cup_gpt_cache {
    cup_gpt *model;
    int64_t batch, length, used;
    cup_kv_cache *kept;
    bool coded;     /* what is kept are codes of 8 bits */
    int64_t stored; /* tokens that `kept` of codes knows of */
    /* Of blocks with a window, those from `first` on, where they do not keep all: the last of what
     * was read, behind `gone` tokens that are there no longer; each read brings up to `step`. */
    cup_kv_cache *near;
    int64_t first, step, gone;
    cup_tensor *moved; /* i64 [1]: what the device was told of `gone`, which is `told` */
    int64_t told;
};

#define LEAST_STEP 128 /* tokens that are read at once */

static cup_kv_cache *keys_of(const cup_gpt_cache *cache, cup_dtype dtype, int64_t length,
                             int64_t layers)
{
    const cup_gpt *m = cache->model;
    return cup_kv_cache_new(m->context, dtype, cache->batch, length, m->config.kv_heads,
                            cup__gpt_head_size(&m->config),
                            CUP_OPTIONS(cup_kv_cache_options, .layers = layers));
}

/* Half a window more than it hides behind is room for so many reads of one token that moving what
 * stays to the front costs next to nothing. Dynamic rotary positions turn by how much is read at
 * once, so what is read with them is not cut into pieces. */
static cup_status make_kept(cup_gpt_cache *cache, cup_dtype dtype, bool window)
{
    const cup_gpt_config *g = &cache->model->config;
    int64_t near = g->window > 0 ? g->layers - g->window_from : 0;
    int64_t step = g->window / 2 > LEAST_STEP ? g->window / 2 : LEAST_STEP;
    bool all = !window || near <= 0 || cache->coded || g->rope_scaling.dynamic ||
               g->window >= cache->length - step;
    cache->first = all ? g->layers : g->window_from;
    cache->step = all ? cache->length : step;
    if (cache->first > 0)
        cache->kept = keys_of(cache, dtype, cache->length, cache->first);
    if (!all) {
        cache->near = keys_of(cache, dtype, g->window - 1 + step, near);
        cache->moved =
            cup_keep(cup_zeros(cache->model->context, CUP_I64, 1, (const int64_t[]){1}));
    }
    return cup_error(cache->model->context);
}

/* What keys and values are kept in. */
static cup_status choose_dtype(const cup_gpt *m, cup_dtype *dtype)
{
    *dtype = m->dtype;
    if (!m->cache_dtype)
        return cup_error(m->context);
    cup_status status = cup_dtype_find(m->cache_dtype, dtype);
    if (status != CUP_OK || (*dtype != CUP_I8 && *dtype != CUP_F8E4M3 && *dtype != CUP_F8E5M2))
        return cup_fail(m->context, CUP_ARGUMENT,
                        "cache: keys and values are kept as the model's numbers, or in i8, f8e4m3 "
                        "or f8e5m2, not in \"%.40s\"",
                        m->cache_dtype);
    if (m->config.positions == CUP_POSITIONS_ALIBI)
        return cup_fail(m->context, CUP_UNSUPPORTED,
                        "cache: keys and values of a model with alibi are not kept in 8 bits; "
                        "leave cache_dtype out");
    return CUP_OK;
}

static cup_gpt_cache *make(cup_gpt *m, int64_t batch, int64_t length, bool window)
{
    if (!m || cup_error(m->context) != CUP_OK)
        return NULL;
    if (cup__gpt_check_whole(m, "cache") != CUP_OK)
        return NULL;
    if (cup_parameters_comm(m->parameters) || cup_parameters_experts_comm(m->parameters)) {
        cup_fail(m->context, CUP_UNSUPPORTED,
                 "cache: this process has a part of the model; load the whole from its checkpoint");
        return NULL;
    }
    if (length == 0)
        length = m->config.context;
    if (batch < 1 || length < 1 || length > m->config.context) {
        cup_fail(m->context, CUP_ARGUMENT,
                  "cache: %lld texts of %lld tokens; there must be at least one of each, and the "
                  "model's context is %lld",
                  (long long)batch, (long long)length, (long long)m->config.context);
        return NULL;
    }
    cup_gpt_cache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        cup_fail(m->context, CUP_MEMORY, "out of host memory for a cache");
        return NULL;
    }
    *cache = (cup_gpt_cache){
        .model = m, .batch = batch, .length = length, .coded = m->cache_dtype != NULL};
    cup_dtype dtype;
    if (choose_dtype(m, &dtype) == CUP_OK && make_kept(cache, dtype, window) == CUP_OK)
        return cache;
    cup_gpt_cache_free(cache);
    return NULL;
}

cup_gpt_cache *cup_gpt_cache_new(cup_gpt *m, int64_t batch, int64_t length)
{
    return make(m, batch, length, false);
}

cup_gpt_cache *cup_gpt_cache_window_new(cup_gpt *m, int64_t batch, int64_t length)
{
    return make(m, batch, length, true);
}

void cup_gpt_cache_free(cup_gpt_cache *cache)
{
    if (!cache)
        return;
    cup_kv_cache_free(cache->kept);
    cup_kv_cache_free(cache->near);
    cup_tensor_free(cache->moved);
    free(cache);
}

int64_t cup_gpt_cache_used(const cup_gpt_cache *cache)
{
    return cache ? cache->used : 0;
}

void cup_gpt_cache_cut(cup_gpt_cache *cache, int64_t used)
{
    if (!cache || used < 0 || used >= cache->used)
        return;
    bool seen = used - cache->gone >= cache->model->config.window - 1;
    cache->used = cache->gone == 0 || seen ? used : 0;
    cache->gone = cache->used ? cache->gone : 0;
}

cup_status cup_gpt_cache_set(cup_gpt_cache *cache, int64_t used)
{
    if (!cache)
        return CUP_ARGUMENT;
    cup_context *c = cache->model->context;
    if (used < 0 || used > cache->length)
        return cup_fail(c, CUP_ARGUMENT, "cache: %lld tokens cannot have been read into room for "
                                         "%lld",
                        (long long)used, (long long)cache->length);
    int64_t held = used - cache->gone, stays = cache->model->config.window - 1;
    if (cache->near && (held > stays + cache->step || (cache->gone > 0 && held < stays)))
        return cup_fail(c, CUP_ARGUMENT,
                        "cache: %lld tokens cannot have been read where a window alone is kept, "
                        "behind %lld that are gone; see cup_gpt_cache_reserve",
                        (long long)used, (long long)cache->gone);
    cache->used = used;
    cache->stored = -1;
    return cup_error(c);
}

static cup_status check_room(cup_gpt_cache *cache, cup_tensor *tokens)
{
    cup_context *c = cache->model->context;
    if (!tokens)
        return cup_fail(c, CUP_ARGUMENT, "cache: the tokens are NULL");
    char text[100];
    int64_t length = cup_tensor_size(tokens, 1);
    if (cup_tensor_ndim(tokens) != 2 || cup_tensor_size(tokens, 0) != cache->batch || length < 1)
        return cup_fail(c, CUP_SHAPE, "cache: tokens are %s; they must be [%lld,T]",
                        cup_tensor_text(tokens, text, sizeof text), (long long)cache->batch);
    if (length > cache->length - cache->used)
        return cup_fail(c, CUP_STATE,
                        "cache: %lld tokens were read and there is room for %lld, not for %lld "
                        "more; cut it first",
                        (long long)cache->used, (long long)cache->length, (long long)length);
    return cup__gpt_tokens_check(cache->model, tokens);
}

/* Tells the device how many positions of blocks with a window are gone. */
static cup_status tell_gone(cup_gpt_cache *cache)
{
    if (!cache->near || cache->told == cache->gone)
        return cup_error(cache->model->context);
    cup_status status = cup_tensor_write(cache->moved, &cache->gone, sizeof cache->gone);
    cache->told = status == CUP_OK ? cache->gone : -1;
    return status;
}

/* Where the new tokens stand: the vectors that are added to theirs. */
static cup_tensor *positions(const cup_gpt_cache *cache, int64_t length, cup_tensor *position)
{
    const cup_gpt *m = cache->model;
    if (!position)
        return cup__gpt_part(m->positions, 0, cache->used, cache->used + length);
    int64_t count = cup_tensor_count(position);
    cup_tensor *column = cup_reshape(m->context, position, 2, (const int64_t[]){count, 1});
    return cup_embedding(m->context, m->positions, column);
}

/* A cache of codes keeps its own lengths. */
static cup_status tell_used(cup_gpt_cache *cache)
{
    cup_status status = cup_error(cache->model->context);
    for (int64_t i = 0; i < cache->batch && cache->stored != cache->used && status == CUP_OK; i++)
        status = cup_kv_cache_set(cache->kept, i, cache->used);
    cache->stored = status == CUP_OK ? cache->used : -1;
    return status;
}

/* A position on the device, and where it is among what a window alone is kept of; NULL: behind what
 * was read. */
typedef struct spot {
    cup_tensor *position, *place;
} spot;

/* Of a block with a window. */
static cup_tensor *read_near(cup_gpt_cache *cache, int64_t i, cup_tensor *x, cup_tensor **delta,
                             const spot *at)
{
    const cup_transformer_layer *block = &cache->model->blocks[i];
    cup_tensor *keys = cup_kv_cache_keys(cache->near, i - cache->first);
    cup_tensor *values = cup_kv_cache_values(cache->near, i - cache->first);
    return at->position
               ? cup_transformer_layer_read_window_at(block, x, delta, keys, values, at->position,
                                                      at->place)
               : cup_transformer_layer_read_window(block, x, delta, keys, values,
                                                   cache->used - cache->gone, cache->gone);
}

static cup_tensor *read_block(cup_gpt_cache *cache, int64_t i, cup_tensor *x, cup_tensor **delta,
                              const spot *at)
{
    const cup_transformer_layer *block = &cache->model->blocks[i];
    if (i >= cache->first)
        return read_near(cache, i, x, delta, at);
    cup_tensor *keys = cup_kv_cache_keys(cache->kept, i);
    cup_tensor *values = cup_kv_cache_values(cache->kept, i);
    if (cache->coded)
        return at->position
                   ? cup_transformer_layer_read_kept_at(block, x, delta, cache->kept, i)
                   : cup_transformer_layer_read_kept(block, x, delta, cache->kept, i, cache->used);
    return at->position
               ? cup_transformer_layer_read_at(block, x, delta, keys, values, at->position)
               : cup_transformer_layer_read(block, x, delta, keys, values, cache->used);
}

static spot spot_of(const cup_gpt_cache *cache, cup_tensor *position)
{
    cup_context *c = cache->model->context;
    if (!position || !cache->near)
        return (spot){position, NULL};
    if (cup_tensor_dtype(position) != CUP_I64)
        position = cup_cast(c, position, CUP_I64);
    return (spot){position, cup_sub(c, position, cache->moved)};
}

/* Makes a position on the device that of a cache of codes, which keeps its own lengths. */
static void set_lengths(cup_gpt_cache *cache, cup_tensor *position)
{
    cup_context *c = cache->model->context;
    cup_copy_into(c, cup_kv_cache_lengths(cache->kept), cup_cast(c, position, CUP_I32));
    cache->stored = -1;
}

/* At a position on the device, or where it is NULL behind what was read. */
static cup_tensor *read(cup_gpt_cache *cache, cup_tensor *tokens, cup_tensor *position)
{
    const cup_gpt *m = cache->model;
    cup_context *c = m->context;
    const spot at = spot_of(cache, position);
    if (position && cache->coded)
        set_lengths(cache, position);
    int64_t length = cup_tensor_size(tokens, 1);
    cup_tensor *x = cup_embedding(c, m->embedding, tokens), *delta = NULL;
    cup_tensor *place = m->positions ? positions(cache, length, position) : NULL;
    if (x && place && cup_tensor_count(place) == cup_tensor_count(x) && position)
        delta = place; /* The first norm adds it. */
    else if (m->positions)
        x = cup_add(c, x, place);
    bool was = cup_parameters_training(m->parameters, false);
    for (int64_t i = 0; i < m->config.layers; i++)
        x = read_block(cache, i, x, &delta, &at);
    cup_parameters_training(m->parameters, was);
    if (length > 1) {
        x = cup__gpt_part(x, 1, length - 1, length);
        delta = cup__gpt_part(delta, 1, length - 1, length);
    }
    cup_tensor *y = cup__gpt_end(m, x, delta, false);
    cup_tensor *logits =
        cup__gpt_part(cup__gpt_logits(m, y), -1, 0, m->config.vocabulary);
    return cup_reshape(c, logits, 2, (const int64_t[]){cache->batch, m->config.vocabulary});
}

static cup_tensor *read_apart(cup_gpt_cache *cache, cup_tensor *tokens, cup_tensor *position)
{
    cup_context *c = cache->model->context;
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    cup_tensor *logits = cup_scope_return(c, read(cache, tokens, position));
    cup_grad_recording(c, was);
    return logits;
}

/* Moves the last of what is there to the front, by way of a copy that may lie under it. */
static void move_to_front(cup_context *c, cup_tensor *t, int64_t from, int64_t count)
{
    const int64_t front[] = {0, 0, 0, 0}, back[] = {0, 0, from, 0}, size[] = {-1, -1, count, -1};
    cup_scope_open(c);
    cup_tensor *last = cup_copy(c, cup_slice(c, t, back, 4, size, 4));
    cup_copy_into(c, cup_slice(c, t, front, 4, size, 4), last);
    cup_scope_close(c);
}

/* Room for so many more tokens in blocks with a window: of what was read only that stays which the
 * window of the next one shows. */
static cup_status make_room(cup_gpt_cache *cache, int64_t length)
{
    cup_context *c = cache->model->context;
    int64_t window = cache->model->config.window, held = cache->used - cache->gone;
    int64_t stays = window - 1;
    if (!cache->near || held + length <= stays + cache->step)
        return tell_gone(cache);
    bool was = cup_grad_recording(c, false);
    for (int64_t i = 0; i < cache->model->config.layers - cache->first && stays > 0; i++) {
        move_to_front(c, cup_kv_cache_keys(cache->near, i), held - stays, stays);
        move_to_front(c, cup_kv_cache_values(cache->near, i), held - stays, stays);
    }
    cup_grad_recording(c, was);
    /* Of blocks of which some were moved nothing can be read. */
    bool moved = cup_error(c) == CUP_OK;
    cache->gone = moved ? cache->used - stays : 0;
    cache->used = moved ? cache->used : 0;
    return tell_gone(cache);
}

cup_status cup_gpt_cache_reserve(cup_gpt_cache *cache, int64_t tokens)
{
    if (!cache)
        return CUP_ARGUMENT;
    cup_context *c = cache->model->context;
    int64_t room = cache->length - cache->used, most = room < cache->step ? room : cache->step;
    if (tokens < 0 || tokens > most)
        return cup_fail(c, CUP_ARGUMENT,
                        "cache: it can have room for up to %lld more tokens at once, not for %lld",
                        (long long)most, (long long)tokens);
    return cup_error(c) == CUP_OK ? make_room(cache, tokens) : cup_error(c);
}

/* As many at once as there is room for. */
static cup_tensor *read_steps(cup_gpt_cache *cache, cup_tensor *tokens)
{
    cup_context *c = cache->model->context;
    int64_t length = cup_tensor_size(tokens, 1), before = cache->used;
    cup_tensor *logits = NULL;
    for (int64_t at = 0; at < length && cup_error(c) == CUP_OK;) {
        int64_t count = length - at < cache->step ? length - at : cache->step;
        cup_tensor_free(logits);
        logits = make_room(cache, count) == CUP_OK
                     ? read_apart(cache, cup__gpt_part(tokens, 1, at, at + count), NULL)
                     : NULL;
        cache->used += logits ? count : 0;
        at += count;
    }
    if (!logits)
        cup_gpt_cache_cut(cache, before);
    return logits;
}

cup_tensor *cup_gpt_read(cup_gpt_cache *cache, cup_tensor *tokens)
{
    if (!cache || check_room(cache, tokens) != CUP_OK ||
        (cache->coded && tell_used(cache) != CUP_OK))
        return NULL;
    if (cache->near)
        return read_steps(cache, tokens);
    int64_t length = cup_tensor_size(tokens, 1);
    cup_tensor *logits = read_apart(cache, tokens, NULL);
    if (logits && cache->coded && cup_kv_cache_advance(cache->kept, length, NULL) == CUP_OK)
        cache->stored += length;
    if (logits)
        cache->used += length;
    return logits;
}

cup_tensor *cup_gpt_read_at(cup_gpt_cache *cache, cup_tensor *tokens, cup_tensor *position)
{
    if (!cache)
        return NULL;
    cup_context *c = cache->model->context;
    char text[100];
    if (!tokens || !position) {
        cup_fail(c, CUP_ARGUMENT, "cache: the %s NULL", tokens ? "position is" : "tokens are");
        return NULL;
    }
    if (cup_tensor_ndim(tokens) != 2 || cup_tensor_size(tokens, 0) != cache->batch ||
        cup_tensor_size(tokens, 1) != 1) {
        cup_fail(c, CUP_SHAPE, "cache: tokens are %s; to read at a position they must be [%lld,1]",
                 cup_tensor_text(tokens, text, sizeof text), (long long)cache->batch);
        return NULL;
    }
    return cup__gpt_tokens_check(cache->model, tokens) == CUP_OK && tell_gone(cache) == CUP_OK
               ? read_apart(cache, tokens, position)
               : NULL;
}
