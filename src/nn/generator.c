/* Text from a model: what was fed, and then what it draws, goes back in. */
#include <math.h>
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
    int64_t texts;
    uint64_t draws;
    /* [context, texts]: all of it that the model sees, those not yet read included */
    int32_t *tokens;
    int64_t count;
    float *logits; /* of the tokens that come next */
    cup__drawing *drawing; /* NULL: the host draws each token */
    const char *refused;   /* why on a GPU, too */
};

cup_generator *cup_generator_new(cup_gpt *m, const cup_sampling *sampling)
{
    return cup_generator_texts_new(m, 1, sampling);
}

/* The places of texts x `each` elements, or NULL. */
static void *rows_of(int64_t texts, int64_t each, size_t size)
{
    return texts > (int64_t)(SIZE_MAX / size) / each ? NULL
                                                     : cup__malloc((size_t)(texts * each) * size);
}

static cup_status take_sampling(cup_generator *g, const cup_sampling *from)
{
    cup__error *error = &g->model->context->error;
    cup_sampling *s = &g->sampling;
    CUP_TRY(cup__options_take(error, "generator", s, sizeof *s, from));
    if (isnan(s->temperature) || isnan(s->top_p) || s->top_k < 0)
        return cup__fail(error, CUP_ARGUMENT,
                         "generator: a temperature of %g, a top_p of %g and a top_k of %lld; the "
                         "former must be numbers, and top_k not below 0",
                         s->temperature, s->top_p, (long long)s->top_k);
    return CUP_OK;
}

cup_generator *cup_generator_texts_new(cup_gpt *m, int64_t texts, const cup_sampling *sampling)
{
    if (!m || m->context->error.status != CUP_OK)
        return NULL;
    if (texts < 1 || texts > INT32_MAX) {
        cup__fail(&m->context->error, CUP_ARGUMENT,
                  "generator: it cannot write %lld texts; give it 1 or more", (long long)texts);
        return NULL;
    }
    cup_generator *g = cup__calloc(1, sizeof *g);
    if (!g) {
        cup__fail(&m->context->error, CUP_MEMORY, "out of host memory for a generator");
        return NULL;
    }
    g->model = m;
    g->texts = texts;
    if (take_sampling(g, sampling) != CUP_OK) {
        cup_generator_free(g);
        return NULL;
    }
    g->tokens = rows_of(texts, m->config.context, sizeof *g->tokens);
    g->logits = rows_of(texts, m->config.vocabulary, sizeof *g->logits);
    g->cache = cup_gpt_cache_window_new(m, texts, 0);
    g->refused = cup_device_is_cuda(m->context) ? cup__drawing_refuses(m) : NULL;
    if (g->cache && cup_device_is_cuda(m->context) && !g->refused)
        g->drawing = cup__drawing_new(m, g->cache, texts, &g->sampling);
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

const char *cup_generator_uncaptured(const cup_generator *g)
{
    if (!g)
        return NULL;
    return g->drawing ? cup__drawing_uncaptured(g->drawing) : g->refused;
}

static cup_status check_token(const cup_generator *g, int32_t token)
{
    if (token >= 0 && token < g->model->config.vocabulary)
        return CUP_OK;
    return cup__fail(&g->model->context->error, CUP_ARGUMENT,
                     "generator: token %d is none of the model's %lld", (int)token,
                     (long long)g->model->config.vocabulary);
}

/* What follows sees nothing of what was there. */
static void forget(cup_generator *g)
{
    g->count = 0;
    cup_gpt_cache_cut(g->cache, 0);
    if (g->drawing)
        cup__drawing_drop(g->drawing);
}

/* Behind the last token of a document another one begins. */
static void part_documents(cup_generator *g)
{
    const cup_gpt_config *config = &g->model->config;
    bool ended = config->documents && g->count > 0;
    for (int64_t text = 0; text < g->texts && ended; text++)
        ended = g->tokens[(g->count - 1) * g->texts + text] == config->document_end;
    if (ended)
        forget(g);
}

/* Makes room in a full context: its latter half stays, and has to be read again because every
 * token has another position now. */
static void make_room(cup_generator *g)
{
    int64_t context = g->model->config.context;
    if (g->count < context)
        return;
    int64_t kept = context / 2;
    memmove(g->tokens, g->tokens + (context - kept) * g->texts,
            (size_t)(kept * g->texts) * sizeof *g->tokens);
    forget(g);
    g->count = kept;
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
        part_documents(g);
        make_room(g);
        for (int64_t text = 0; text < g->texts; text++)
            g->tokens[g->count * g->texts + text] = tokens[i];
        g->count++;
    }
    return g->model->context->error.status;
}

/* The tokens that the model has not seen yet, [texts, fresh]. */
static cup_tensor *rest_of(const cup_generator *g)
{
    cup_context *c = g->model->context;
    int64_t used = cup_gpt_cache_used(g->cache), fresh = g->count - used;
    int32_t *rows = rows_of(g->texts, fresh, sizeof *rows);
    if (!rows) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a generator");
        return NULL;
    }
    for (int64_t text = 0; text < g->texts; text++)
        for (int64_t i = 0; i < fresh; i++)
            rows[text * fresh + i] = g->tokens[(used + i) * g->texts + text];
    cup_tensor *tokens = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){g->texts, fresh}, rows);
    cup__free(rows);
    return tokens;
}

/* Reads them; the logits behind the last ones. */
static cup_status read_rest(cup_generator *g)
{
    cup_context *c = g->model->context;
    cup_scope_open(c);
    cup_tensor *tokens = rest_of(g);
    cup_tensor *logits = tokens ? cup_gpt_read(g->cache, tokens) : NULL;
    if (logits && logits->dtype != CUP_F32)
        logits = cup_cast(c, logits, CUP_F32);
    size_t bytes = (size_t)(g->texts * g->model->config.vocabulary) * sizeof *g->logits;
    cup_status status = logits ? cup_tensor_read(logits, g->logits, bytes) : c->error.status;
    cup_scope_return(c, NULL);
    return status;
}

/* The tokens that follow, as the host draws them. */
static cup_status next_of_host(cup_generator *g, int32_t *to)
{
    int64_t vocabulary = g->model->config.vocabulary;
    CUP_TRY(read_rest(g));
    for (int64_t text = 0; text < g->texts; text++)
        to[text] = (int32_t)cup_sample(g->logits + text * vocabulary, vocabulary,
                                       g->draws * (uint64_t)g->texts + (uint64_t)text,
                                       &g->sampling);
    return CUP_OK;
}

/* The same as the device drew them, ahead. */
static cup_status next_of_device(cup_generator *g, int32_t *to)
{
    int64_t used = cup_gpt_cache_used(g->cache);
    if (!cup__drawing_has(g->drawing) && cup__drawing_stands(g->drawing)) {
        CUP_TRY(cup__drawing_go_on(g->drawing, g->model->config.context - used));
    } else if (!cup__drawing_has(g->drawing)) {
        cup_scope_open(g->model->context);
        cup_tensor *tokens = rest_of(g);
        cup_status status = tokens ? cup__drawing_begin(g->drawing, tokens, g->draws)
                                   : g->model->context->error.status;
        cup_scope_return(g->model->context, NULL);
        CUP_TRY(status);
    }
    cup__drawing_take(g->drawing, to);
    return CUP_OK;
}

static cup_status next_of(cup_generator *g, int32_t *to)
{
    cup__error *error = &g->model->context->error;
    if (g->count == 0)
        return cup__fail(error, CUP_STATE,
                         "generator: it was fed nothing; give it at least one token");
    /* Everything is read already only when the context was cut and nothing was fed since. */
    if (cup_gpt_cache_used(g->cache) == g->count && !(g->drawing && cup__drawing_has(g->drawing)))
        cup_gpt_cache_cut(g->cache, g->count - 1);
    CUP_TRY(g->drawing ? next_of_device(g, to) : next_of_host(g, to));
    for (int64_t text = 0; text < g->texts; text++) {
        if (to[text] == -2)
            return cup__fail(error, CUP_MEMORY, "out of host memory for a generator");
        if (to[text] < 0)
            return cup__fail(error, CUP_STATE,
                             "generator: the model's output is not a number; its weights "
                             "are broken");
    }
    g->draws++;
    part_documents(g);
    make_room(g);
    memcpy(g->tokens + g->count++ * g->texts, to, (size_t)g->texts * sizeof *to);
    return CUP_OK;
}

cup_status cup_generator_next_texts(cup_generator *g, int32_t *tokens)
{
    if (!g)
        return CUP_ARGUMENT;
    CUP_TRY(g->model->context->error.status);
    if (!tokens)
        return cup__fail(&g->model->context->error, CUP_ARGUMENT,
                         "generator: the place for the tokens is NULL");
    return next_of(g, tokens);
}

int32_t cup_generator_next(cup_generator *g)
{
    int32_t token;
    if (!g || g->model->context->error.status != CUP_OK)
        return -1;
    if (g->texts > 1) {
        cup__fail(&g->model->context->error, CUP_STATE,
                  "generator: it writes %lld texts; cup_generator_next_texts gives a token of each",
                  (long long)g->texts);
        return -1;
    }
    return next_of(g, &token) == CUP_OK ? token : -1;
}
