/* A training run of a GPT: what a batch and an evaluation are, for the loop that does the rest. */
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "data/tokenizer.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"
#include "train/adapters.h"

/* One of the step's batches. */
static cup_tensor *part(cup_tensor *all, int64_t i)
{
    cup__shape shape = {.dtype = all->dtype, .ndim = 2, .size = {all->shape[1], all->shape[2]}};
    return cup__tensor_view(all, &shape, all->stride + 1, i * all->stride[0]);
}

static cup_tensor *loss_of_batch(cup_context *c, int64_t i, void *user)
{
    const cup_trainer *t = user;
    int64_t own = i - t->share * t->group;
    (void)c;
    cup_tensor *loss = cup_gpt_loss(t->model, part(t->tokens, own), part(t->targets, own), true);
    if (t->forward_done)
        t->forward_done(t->forward_user);
    return loss;
}

static cup_tensor *chunk_of_batch(cup_context *c, int64_t i, int chunk, cup_tensor *x, void *user)
{
    const cup_trainer *t = user;
    int64_t own = i - t->share * t->group;
    cup_tensor *cost, *y = cup_gpt_chunk_call_cost(t->model, chunk, part(t->tokens, own), x,
                                                   part(t->targets, own), true, &cost);
    (void)c, cup_loop_cost(t->loop, cost);
    if (t->forward_done)
        t->forward_done(t->forward_user);
    return y;
}

static cup_status evaluate(cup_context *c, double *loss, void *user)
{
    const cup_trainer *t = user;
    const cup_training *a = &t->training;
    (void)c;
    return cup__gpt_evaluate(t->model, t->data, CUP_SPLIT_VALIDATION, t->loop->copies, t->pipe,
                             t->rows, a->evaluate_texts, loss);
}

static void rehearse_rows(const cup_trainer *t, int64_t rows)
{
    cup_context *c = t->model->context;
    const cup_gpt *m = t->model;
    const int64_t shape[] = {rows, cup__trainer_length(t), m->config.width};
    cup_tensor *tokens = cup_tensor_new(c, CUP_I32, 2, shape);
    cup_tensor *targets = cup_tensor_new(c, CUP_I32, 2, shape);
    bool sequence = cup__evaluated_whole(m, rows);
    for (int i = 0; i < m->chunks; i++) {
        cup_tensor *x = m->bounds[2 * i] ? cup_tensor_new(c, m->dtype, 3, shape) : NULL;
        cup_gpt_chunk_call(t->model, i, tokens, x, targets, false);
    }
    cup_parameters_sequence(m->parameters, sequence);
}

/* An evaluation has batches of two sizes at most. */
static void rehearse(cup_context *c, void *user)
{
    const cup_trainer *t = user;
    int64_t batch = t->rows, begin, end;
    int together = cup__evaluated_together(t->model);
    (void)c;
    cup__evaluated_share(t->loop->copies, together, t->texts, &begin, &end);
    if (end - begin >= batch)
        rehearse_rows(t, batch);
    if ((end - begin) % batch)
        rehearse_rows(t, (end - begin) % batch);
}

static cup_status check_vocabulary(cup_context *c, cup_trainer *t)
{
    cup_gpt_config *g = &t->training.model;
    int64_t size = cup_tokenizer_size(t->tokenizer);
    if (g->vocabulary == 0)
        g->vocabulary = size;
    if (g->vocabulary >= size)
        return CUP_OK;
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "training: the tokenizer has %lld tokens and the model knows %lld only; leave "
                     "the vocabulary to the tokenizer, or take the tokenizer of the checkpoint",
                     (long long)size, (long long)g->vocabulary);
}

/* Documents end with what the data was parted by. */
static cup_status take_parting(cup_context *c, cup_trainer *t)
{
    cup_gpt_config *g = &t->training.model;
    int32_t end = cup__around_parting(t->tokenizer);
    if (!g->documents)
        return CUP_OK;
    if (end < 0)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: the tokenizer has no token that ends a document, as "
                         "<|endoftext|>; take one of bpe, or leave documents out");
    g->document_end = end;
    return CUP_OK;
}

/* The model and its loop. */
static cup_status make_loop(cup_context *c, cup_trainer *t, const char *folder)
{
    const cup_training *a = &t->training;
    const cup_loop_calls calls = {.size = sizeof calls,
                                  .batch = cup__trainer_texts,
                                  .loss = t->pipe ? NULL : loss_of_batch,
                                  .chunk = t->pipe ? chunk_of_batch : NULL,
                                  .evaluate = evaluate,
                                  .rehearse = rehearse,
                                  .user = t};
    const cup_loop_options options = {
        .schedule = {.high = a->rate,
                     .low = a->rate_end,
                     .warmup = a->warmup,
                     .steps = a->steps,
                     .decline = a->decline,
                     .decline_steps = a->decline_steps},
        .optimizer = a->optimizer,
        .accumulate = t->batches * cup_comm_count(t->ring), /* losses of parts of texts */
        .comm = a->comm,
        .evaluate_every = a->evaluate_every,
        .save_every = a->save_every,
        .check_every = a->check_every,
        .background = a->background,
        .folder = folder,
        .kind = "gpt",
        .pipe = t->pipe,
        .between_dtype = a->dtype,
        .between_ndim = 3,
        .between = {t->rows, cup__trainer_length(t), a->model.width},
        .chunks = t->chunks,
        .non_finite = a->non_finite,
        .loss_scale = a->loss_scale,
        .loss_scale_steps = a->loss_scale_steps};
    t->loop = cup__loop_begin(c, &calls, &options, &cup__training_checkpoints,
                              &(cup__loop_sharers){t->among, t->experts, t->ring});
    if (!t->loop)
        return c->error.status;
    cup_seed(c, a->seed);
    t->model = cup_gpt_shared_new(c, a->dtype,
                                  CUP_OPTIONS(cup_gpt_sharing, .among = t->among,
                                              .experts = t->experts,
                                              .bounds = t->pipe ? t->bounds[0] : NULL,
                                              .chunks = (int)t->chunks),
                                  &a->model);
    if (!t->model)
        return c->error.status;
    CUP_TRY(cup__trainer_begin(c, t, folder));
    t->model->recompute = t->recompute;
    t->model->recompute_blocks = t->recompute_blocks;
    t->model->logits_most = a->logits_most;
    cup_parameters_ring(t->model->parameters, t->ring);
    cup_parameters_sequence(t->model->parameters, a->sequence);
    cup_parameters_fp8(t->model->parameters, cup__training_is_fp8(a));
    CUP_TRY(cup__loop_train(t->loop, cup__gpt_learned(t->model)));
    return cup__trainer_batches(c, t);
}

static cup_status make(cup_context *c, cup_trainer *t, const char *folder)
{
    cup_training *a = &t->training;
    CUP_TRY(check_vocabulary(c, t));
    CUP_TRY(take_parting(c, t));
    CUP_TRY(cup__training_check(c, a));
    if (a->lora_rank && !a->from && !(folder && cup__checkpoint_number(folder) > 0))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: adapters stand beside a model that is there; name its folder "
                         "with `from`");
    CUP_TRY(cup__training_precision(c, a));
    CUP_TRY(cup__trainer_group(c, t));
    CUP_TRY(cup__trainer_share(c, t));
    cup_training own = *a;
    own.batch = t->rows;
    own.accumulate = t->share;
    CUP_TRY(cup__training_policy(c, t, &own));
    CUP_TRY(cup__training_fits(c, &own));
    t->texts =
        cup__evaluated_texts(t->data, CUP_SPLIT_VALIDATION, a->model.context, a->evaluate_texts);
    return make_loop(c, t, folder);
}

/* The graphs of the loop first, which read the others. */
static void free_parts(cup_trainer *t)
{
    cup_loop_free(t->loop);
    cup_tensor_free(t->tokens);
    cup_tensor_free(t->targets);
    cup_gpt_free(t->model);
    cup_comm_free(t->experts);
    cup_comm_free(t->ring);
    cup_comm_free(t->pipe);
    cup_comm_free(t->among);
    cup__free(t->host_tokens);
    cup__free(t->host_targets);
    cup__free(t->base);
}

cup_trainer *cup_trainer_new(cup_context *c, const cup_data *data, const cup_tokenizer *tokenizer,
                             const char *folder, const cup_training *training)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (!training || !data || !tokenizer) {
        cup__fail(&c->error, CUP_ARGUMENT, "training: the %s NULL",
                  !training ? "description of the run is" : data ? "tokenizer is" : "data is");
        return NULL;
    }
    cup_trainer *t = cup__calloc(1, sizeof *t);
    if (!t) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a training run");
        return NULL;
    }
    t->data = data;
    t->tokenizer = tokenizer;
    cup_scope_open(c);
    cup_status status =
        cup__options_take(&c->error, "training", &t->training, sizeof t->training, training);
    t->training.model.size = sizeof t->training.model;
    if (status == CUP_OK)
        status = make(c, t, folder);
    cup_scope_return(c, NULL);
    if (status == CUP_OK)
        return t;
    cup_trainer_free(t);
    return NULL;
}

void cup_trainer_free(cup_trainer *t)
{
    if (!t)
        return;
    free_parts(t);
    cup__free(t);
}

cup_status cup__training_dry(cup_context *c, const cup_training *training, cup_trainer *t)
{
    *t = (cup_trainer){.training = *training, .texts = training->batch, .groups = 1};
    t->recompute = training->recompute;
    t->recompute_blocks = training->recompute_blocks;
    cup__training_cut(&t->training);
    t->training.from = NULL;
    CUP_TRY(cup__trainer_share(c, t));
    return make_loop(c, t, NULL);
}

void cup__training_dry_free(cup_trainer *t)
{
    free_parts(t);
}

void cup__training_kernels(cup_context *c, const cup_training *training)
{
    cup_trainer t;
    cup_scope_open(c);
    if (cup__training_dry(c, training, &t) == CUP_OK)
        cup__loop_rehearse(t.loop);
    cup_scope_return(c, NULL);
    cup__training_dry_free(&t);
}

cup_gpt *cup_trainer_model(cup_trainer *t)
{
    return t ? t->model : NULL;
}

int64_t cup_trainer_steps(const cup_trainer *t)
{
    return t ? cup_loop_steps(t->loop) : 0;
}

int64_t cup_trainer_skipped(const cup_trainer *t)
{
    return t ? cup_loop_skipped(t->loop) : 0;
}

double cup_trainer_loss_scale(const cup_trainer *t)
{
    return t ? cup_loop_loss_scale(t->loop) : 0;
}

const cup_training_point *cup_trainer_points(const cup_trainer *t, int64_t *count)
{
    return cup_loop_points(t ? t->loop : NULL, count);
}

cup_status cup_trainer_resume(cup_trainer *t)
{
    return cup_loop_resume(t ? t->loop : NULL);
}

cup_status cup_trainer_overwrite(cup_trainer *t)
{
    return cup_loop_overwrite(t ? t->loop : NULL);
}

cup_status cup_trainer_run(cup_trainer *t, const cup_training_hooks *hooks)
{
    return cup_loop_run(t ? t->loop : NULL, hooks);
}

cup_status cup_trainer_save(cup_trainer *t)
{
    return cup_loop_save(t ? t->loop : NULL);
}
