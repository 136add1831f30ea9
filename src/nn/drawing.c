/* Writing on a GPU without the host between two tokens. */
#include "nn/drawing.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "cupola/graph.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"

#define MOST 32       /* tokens that are read back at once */
#define RUN 8         /* of which one graph draws so many */
#define LAST (RUN - 1)
#define HEAD_MOST 256 /* see qkv_attention_read */
#define VOCABULARY_MOST (1 << 24) /* see draw_token */

/* Calls at first, which compiles the kernels; then a graph of them. */
typedef enum phase { CALLS, CAPTURE, REPLAY, CALLS_ONLY } phase;

struct cup__drawing {
    cup_context *c;
    cup_gpt_cache *cache;
    cup__draw_token_attributes how;
    int64_t texts;
    cup_tensor *tokens;   /* i32 [RUN,texts]: of a run; the last row is what was drawn last */
    cup_tensor *counters; /* of the next draw, and where the token is to be read, i64 [2] */
    cup_tensor *log;      /* i32 [MOST,texts] */
    cup_graph *graph, *run; /* of a step, and of RUN of them */
    bool no_run;            /* it could not be captured */
    phase phase;
    char why[256]; /* it stays calls */
    int32_t *drawn; /* as the log */
    int64_t count, taken; /* of each text */
    int64_t pace; /* tokens to be drawn at once; the first ones are waited for singly */
    bool stands;
};

static cup_status make_tensors(cup__drawing *d)
{
    cup_context *c = d->c;
    d->tokens = cup_keep(cup_tensor_new(c, CUP_I32, 2, (int64_t[]){RUN, d->texts}));
    d->counters = cup_keep(cup_tensor_new(c, CUP_I64, 1, (int64_t[]){2}));
    d->log = cup_keep(cup_tensor_new(c, CUP_I32, 2, (int64_t[]){MOST, d->texts}));
    d->drawn = cup__malloc((size_t)(MOST * d->texts) * sizeof *d->drawn);
    return c->error.status != CUP_OK || d->drawn
               ? c->error.status
               : cup__fail(&c->error, CUP_MEMORY, "out of host memory for a generator");
}

const char *cup__drawing_refuses(const cup_gpt *m)
{
    if (m->config.rope_scaling.dynamic && m->cache_dtype)
        return "dynamic rotary positions do not go with keys and values in 8 bits";
    if (cup__gpt_head_size(&m->config) > HEAD_MOST)
        return "its heads have over 256 elements";
    return m->config.vocabulary < VOCABULARY_MOST ? NULL : "its vocabulary has 2^24 tokens";
}

cup__drawing *cup__drawing_new(cup_gpt *m, cup_gpt_cache *cache, int64_t texts,
                               const cup_sampling *sampling)
{
    cup_context *c = m->context;
    cup__drawing *d = cup__calloc(1, sizeof *d);
    if (!d) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a generator");
        return NULL;
    }
    d->c = c;
    d->cache = cache;
    d->texts = texts;
    d->how = (cup__draw_token_attributes){.temperature = sampling->temperature,
                                          .top_k = sampling->top_k,
                                          .top_p = sampling->top_p,
                                          .seed = (int64_t)sampling->seed};
    if (make_tensors(d) == CUP_OK)
        return d;
    cup__drawing_free(d);
    return NULL;
}

void cup__drawing_free(cup__drawing *d)
{
    if (!d)
        return;
    cup_graph_free(d->graph);
    cup_graph_free(d->run);
    cup_tensor_free(d->tokens);
    cup_tensor_free(d->counters);
    cup_tensor_free(d->log);
    cup__free(d->drawn);
    cup__free(d);
}

const char *cup__drawing_uncaptured(const cup__drawing *d)
{
    return d->phase == CALLS_ONLY ? d->why : NULL;
}

bool cup__drawing_has(const cup__drawing *d)
{
    return d->taken < d->count;
}

void cup__drawing_take(cup__drawing *d, int32_t *to)
{
    memcpy(to, d->drawn + d->taken++ * d->texts, (size_t)d->texts * sizeof *to);
}

bool cup__drawing_stands(const cup__drawing *d)
{
    return d->stands;
}

void cup__drawing_drop(cup__drawing *d)
{
    d->taken = d->count = 0;
    d->stands = false;
}

static cup_tensor *token_at(cup__drawing *d, int64_t place)
{
    return cup_reshape(d->c,
                       cup_slice(d->c, d->tokens, (int64_t[]){place, 0}, 2,
                                 (int64_t[]){1, d->texts}, 2),
                       1, &d->texts);
}

/* The token that follows, into its place. */
static cup_status draw(cup__drawing *d, cup_tensor *logits, int64_t place)
{
    cup_tensor *in[] = {logits, d->counters}, *out = token_at(d, place);
    if (logits && out)
        cup__op_call(d->c, &cup__rows[CUP__OP_draw_token], in, 2, &d->how, &out);
    return d->c->error.status;
}

/* Reads the token at one place and draws the next one into another. */
static cup_status step(cup__drawing *d, int64_t from, int64_t to)
{
    cup_context *c = d->c;
    cup_scope_open(c);
    cup_tensor *token = cup_reshape(c, token_at(d, from), 2, (int64_t[]){d->texts, 1});
    cup_tensor *position =
        cup_slice(c, d->counters, (int64_t[]){1}, 1, (int64_t[]){1}, 1);
    cup_status status = draw(d, cup_gpt_read_at(d->cache, token, position), to);
    cup_scope_return(c, NULL);
    return status;
}

/* A graph of the steps that draw the last `count` tokens of a run. NULL, without an error, where
 * steps cannot be captured. */
static cup_graph *capture(cup__drawing *d, int64_t count)
{
    cup_context *c = d->c;
    if (cup_capture_begin(c) != CUP_OK)
        return NULL;
    bool (*stop)(void *) = c->stop;
    c->stop = NULL;
    for (int64_t to = RUN - count, from = LAST; to < RUN; from = to++)
        step(d, from, to);
    cup_graph *graph = cup_capture_end(c);
    c->stop = stop;
    if (graph)
        return graph;
    snprintf(d->why, sizeof d->why, "%s", cup_error_text(c));
    cup__log(CUP__INFO, "generator: the step is not captured: %s", d->why);
    cup_error_clear(c);
    return NULL;
}

/* Draws one more. Where a step cannot be captured it stays calls. */
static cup_status draw_one(cup__drawing *d)
{
    if (d->phase == CAPTURE) {
        d->graph = capture(d, 1);
        CUP_TRY(d->c->error.status);
        d->phase = d->graph ? REPLAY : CALLS_ONLY;
    }
    if (d->phase == CALLS)
        d->phase = CAPTURE;
    return d->phase == REPLAY ? cup_graph_launch(d->graph) : step(d, LAST, LAST);
}

/* Draws a run. */
static cup_status draw_run(cup__drawing *d)
{
    if (!d->run)
        d->run = capture(d, RUN);
    d->no_run = !d->run;
    return d->run ? cup_graph_launch(d->run) : d->c->error.status;
}

/* The last `count` tokens of the run, into their place in the log. */
static cup_status note(cup__drawing *d, int64_t at, int64_t count)
{
    cup__device *device = d->c->device;
    int32_t *to = (int32_t *)d->log->data + at * d->texts;
    int32_t *from = (int32_t *)d->tokens->data + (RUN - count) * d->texts;
    size_t bytes = (size_t)(count * d->texts) * sizeof *d->drawn;
    return bytes ? device->calls->copy(device, to, from, bytes) : CUP_OK;
}

/* Waits for what was noted. */
static cup_status collect(cup__drawing *d, int64_t count)
{
    CUP_TRY(cup_tensor_read(d->log, d->drawn, (size_t)(MOST * d->texts) * sizeof *d->drawn));
    d->count = count;
    d->taken = 0;
    d->stands = true;
    return CUP_OK;
}

cup_status cup__drawing_begin(cup__drawing *d, cup_tensor *tokens, uint64_t number)
{
    cup_context *c = d->c;
    int64_t count = cup_tensor_size(tokens, 1);
    cup__drawing_drop(d);
    /* The draw raises both. */
    int64_t counters[] = {(int64_t)number, cup_gpt_cache_used(d->cache) + count - 1};
    CUP_TRY(cup_tensor_write(d->counters, counters, sizeof counters));
    cup_scope_open(c);
    cup_status status = draw(d, cup_gpt_read(d->cache, tokens), LAST);
    cup_scope_return(c, NULL);
    if (status == CUP_OK)
        status = note(d, 0, 1);
    d->pace = 1;
    return status == CUP_OK ? collect(d, 1) : status;
}

cup_status cup__drawing_go_on(cup__drawing *d, int64_t most)
{
    int64_t count = d->pace < most ? d->pace : most, used = cup_gpt_cache_used(d->cache);
    d->stands = false;
    CUP_TRY(cup_gpt_cache_reserve(d->cache, count));
    for (int64_t i = 0, more; i < count; i += more) {
        more = 1;
        if (d->phase == REPLAY && !d->no_run && count - i >= RUN) {
            CUP_TRY(draw_run(d));
            more = d->run ? RUN : 0;
        } else {
            CUP_TRY(draw_one(d));
        }
        CUP_TRY(note(d, i, more));
    }
    CUP_TRY(cup_gpt_cache_set(d->cache, used + count));
    d->pace = 2 * d->pace < MOST ? 2 * d->pace : MOST;
    return collect(d, count);
}
