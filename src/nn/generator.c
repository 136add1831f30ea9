/* Text from a model: what was fed, and then what it draws, goes back in. */
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "cupola/ops.h"
#include "nn/drawing.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"

struct cup_generator {
    cup_gpt *model;
    cup_gpt_cache *cache;
    cup_sampling sampling;
    uint64_t draws;
    int32_t *tokens; /* all of the context that the model sees, those not yet read included */
    int64_t count;
    float *logits; /* of the token that comes next */
    cup__drawing *drawing; /* NULL: the host draws each token */
};

cup_generator *cup_generator_new(cup_gpt *m, const cup_sampling *sampling)
{
    if (!m || m->context->error.status != CUP_OK)
        return NULL;
    cup_generator *g = cup__calloc(1, sizeof *g);
    if (!g) {
        cup__fail(&m->context->error, CUP_MEMORY, "out of host memory for a generator");
        return NULL;
    }
    g->model = m;
    if (cup__options_take(&m->context->error, "generator", &g->sampling, sizeof g->sampling,
                          sampling) != CUP_OK) {
        cup_generator_free(g);
        return NULL;
    }
    g->tokens = cup__malloc((size_t)m->config.context * sizeof *g->tokens);
    g->logits = cup__malloc((size_t)m->config.vocabulary * sizeof *g->logits);
    g->cache = cup_gpt_cache_new(m, 1, 0);
    if (g->cache)
        g->drawing = cup__drawing_new(m, g->cache, &g->sampling);
    if (g->tokens && g->logits && m->context->error.status == CUP_OK)
        return g;
    if (m->context->error.status == CUP_OK)
        cup__fail(&m->context->error, CUP_MEMORY, "out of host memory for a generator");
    cup_generator_free(g);
    return NULL;
}

void cup_generator_free(cup_generator *g)
{
    if (!g)
        return;
    cup__drawing_free(g->drawing);
    cup_gpt_cache_free(g->cache);
    cup__free(g->tokens);
    cup__free(g->logits);
    cup__free(g);
}

static cup_status check_token(const cup_generator *g, int32_t token)
{
    if (token >= 0 && token < g->model->config.vocabulary)
        return CUP_OK;
    return cup__fail(&g->model->context->error, CUP_ARGUMENT,
                     "generator: token %d is none of the model's %lld", (int)token,
                     (long long)g->model->config.vocabulary);
}

/* Makes room in a full context: its latter half stays, and has to be read again because every
 * token has another position now. */
static void make_room(cup_generator *g)
{
    int64_t context = g->model->config.context;
    if (g->count < context)
        return;
    int64_t kept = context / 2;
    memmove(g->tokens, g->tokens + context - kept, (size_t)kept * sizeof *g->tokens);
    g->count = kept;
    cup_gpt_cache_cut(g->cache, 0);
    if (g->drawing)
        cup__drawing_drop(g->drawing);
}

cup_status cup_generator_feed(cup_generator *g, const int32_t *tokens, int64_t count)
{
    if (!g)
        return CUP_ARGUMENT;
    if (count < 0 || (count > 0 && !tokens))
        return cup__fail(&g->model->context->error, CUP_ARGUMENT,
                         "generator: %lld tokens to feed, and %s", (long long)count,
                         tokens ? "fewer than none cannot be" : "their place is NULL");
    if (g->drawing && count > 0) {
        cup__drawing_drop(g->drawing);
        cup_gpt_cache_cut(g->cache, g->count);
    }
    for (int64_t i = 0; i < count; i++) {
        CUP_TRY(check_token(g, tokens[i]));
        make_room(g);
        g->tokens[g->count++] = tokens[i];
    }
    return g->model->context->error.status;
}

/* Reads the tokens that the model has not seen yet; the logits behind the last one. */
static cup_status read_rest(cup_generator *g)
{
    cup_context *c = g->model->context;
    int64_t used = cup_gpt_cache_used(g->cache), fresh = g->count - used;
    cup_scope_open(c);
    cup_tensor *tokens = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, fresh}, g->tokens + used);
    cup_tensor *logits = cup_gpt_read(g->cache, tokens);
    if (logits && logits->dtype != CUP_F32)
        logits = cup_cast(c, logits, CUP_F32);
    size_t bytes = (size_t)g->model->config.vocabulary * sizeof *g->logits;
    cup_status status = logits ? cup_tensor_read(logits, g->logits, bytes) : c->error.status;
    cup_scope_return(c, NULL);
    return status;
}

/* The token that follows, as the host draws it. */
static int64_t next_of_host(cup_generator *g)
{
    if (read_rest(g) != CUP_OK)
        return -1;
    return cup_sample(g->logits, g->model->config.vocabulary, g->draws, &g->sampling);
}

/* The same as the device drew it, ahead. */
static int64_t next_of_device(cup_generator *g)
{
    cup_status status = CUP_OK;
    int64_t used = cup_gpt_cache_used(g->cache);
    if (!cup__drawing_has(g->drawing))
        status = cup__drawing_stands(g->drawing)
                     ? cup__drawing_go_on(g->drawing, g->model->config.context - used)
                     : cup__drawing_begin(g->drawing, g->tokens + used, g->count - used, g->draws);
    return status == CUP_OK ? cup__drawing_take(g->drawing) : -1;
}

int32_t cup_generator_next(cup_generator *g)
{
    if (!g || g->model->context->error.status != CUP_OK)
        return -1;
    cup__error *error = &g->model->context->error;
    if (g->count == 0) {
        cup__fail(error, CUP_STATE, "generator: it was fed nothing; give it at least one token");
        return -1;
    }
    /* Everything is read already only when the context was cut and nothing was fed since. */
    if (cup_gpt_cache_used(g->cache) == g->count && !(g->drawing && cup__drawing_has(g->drawing)))
        cup_gpt_cache_cut(g->cache, g->count - 1);
    int64_t token = g->drawing ? next_of_device(g) : next_of_host(g);
    if (token < 0) {
        cup__fail(error, CUP_STATE,
                  "generator: the model's output is not a number; its weights "
                  "are broken");
        return -1;
    }
    g->draws++;
    make_room(g);
    g->tokens[g->count++] = (int32_t)token;
    return (int32_t)token;
}
