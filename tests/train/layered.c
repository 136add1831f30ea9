#include "train/layered.h"

#include <math.h>

#include "base/error.h"
#include "comm/together.h"

#define ROWS 6
#define WORDS 24

static cup_status write_batch(cup_context *c, int64_t step, void *user)
{
    layered *m = user;
    int32_t ids[LAYERED_BATCHES * ROWS], targets[LAYERED_BATCHES * ROWS];
    (void)c;
    for (int i = 0; i < LAYERED_BATCHES * ROWS; i++) {
        ids[i] = (int32_t)((i * 7 + step * 13) % WORDS);
        targets[i] = (int32_t)((ids[i] * 5 + 3) % WORDS);
    }
    float bias[16] = {NAN};
    if (m->breaks && step == m->breaks)
        CUP_TRY(cup_tensor_write(m->norm.bias, bias, sizeof bias));
    CUP_TRY(cup_tensor_write(m->ids, ids, sizeof ids));
    return cup_tensor_write(m->targets, targets, sizeof targets);
}

static cup_tensor *rows_of(cup_context *c, cup_tensor *all, int64_t batch)
{
    return cup_slice(c, all, &(int64_t){batch * ROWS}, 1, &(int64_t){ROWS}, 1);
}

/* One of the layers is computed again in backward; the embedding is also what gives the logits. */
static cup_tensor *block(cup_context *c, cup_tensor *const *inputs, int count, void *user)
{
    layered *m = user;
    (void)count;
    return cup_tanh(c, cup_linear_layer_call(&m->layers[1], inputs[0]));
}

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    layered *m = user;
    cup_tensor *h = cup_embedding_layer_call(&m->words, rows_of(c, m->ids, batch));
    for (int i = 0; i < LAYERED_LAYERS; i++)
        h = cup_add(c, h, i == 1 ? cup_recompute(c, block, &h, 1, m)
                                 : cup_tanh(c, cup_linear_layer_call(&m->layers[i], h)));
    h = cup_layernorm_layer_call(&m->norm, h);
    h = cup_matmul(c, h, m->words.weight, false, true);
    h = cup_cross_entropy(c, h, rows_of(c, m->targets, batch), -1, NULL);
    cup_memory memory;
    if (cup_memory_use(c, &memory) == CUP_OK && memory.allocated > m->most)
        m->most = memory.allocated;
    return h;
}

cup_loop *layered_make(layered *m, cup_context *c, cup_comm *comm, const layered_how *how)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    const int64_t width = how->width ? how->width : 16, count = LAYERED_BATCHES * ROWS;
    *m = (layered){.c = c, .width = width, .breaks = how->breaks};
    cup_seed(c, 5);
    m->list = cup_parameters_new(c, CUP_F32);
    cup_embedding_layer_new(&m->words, m->list, "words", WORDS, width, NULL);
    for (int i = 0; i < LAYERED_LAYERS; i++)
        cup_linear_layer_new(&m->layers[i], m->list, names[i], width, width, NULL);
    cup_layernorm_layer_new(&m->norm, m->list, "norm", width, NULL);
    m->ids = cup_keep(cup_tensor_new(c, CUP_I32, 1, &count));
    m->targets = cup_keep(cup_tensor_new(c, CUP_I32, 1, &count));
    cup_loop_calls calls = CUP_DEFAULTS(cup_loop_calls);
    calls.batch = write_batch;
    calls.loss = loss;
    calls.user = m;
    return cup_loop_new(m->list, &calls,
                        CUP_OPTIONS(cup_loop_options, .accumulate = LAYERED_BATCHES, .comm = comm,
                                    .folder = how->folder, .background = how->background,
                                    .save_every = how->save_every,
                                    .optimizer = {.clip = how->clip,
                                                  .stage = how->stage,
                                                  .split = how->split || how->stage ? comm
                                                                                    : NULL},
                                    .schedule = {.high = 0.02,
                                                 .decline = CUP_DECLINE_CONSTANT,
                                                 .steps = how->steps ? how->steps
                                                                     : LAYERED_STEPS}));
}

void layered_end(layered *m, cup_loop *loop)
{
    if (cup_error(m->c))
        wrong("%s", cup_error_text(m->c));
    cup_loop_free(loop);
    cup_parameters_free(m->list);
}
