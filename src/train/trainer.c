/* Making a training run, and what can be asked of it. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "io/checkpoint.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"
#include "train/trainer.h"

/* Of a step on a GPU that runs without the host: a signal waits so long. */
#define PART_SECONDS 0.25

static cup_status make_batches(cup_trainer *t)
{
    const cup_training *a = &t->training;
    cup_context *c = t->c;
    const int64_t shape[] = {a->accumulate, a->batch, a->model.context};
    size_t tokens = (size_t)(shape[0] * shape[1] * shape[2]);
    t->host_tokens = cup__malloc(tokens * sizeof *t->host_tokens);
    t->host_targets = cup__malloc(tokens * sizeof *t->host_targets);
    size_t row = (size_t)a->accumulate + 1;
    t->host_pending = cup__malloc(CUP__PENDING_MOST * row * sizeof *t->host_pending);
    if (!t->host_tokens || !t->host_targets || !t->host_pending)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for the batches of a step");
    t->tokens = cup_keep(cup_tensor_new(c, CUP_I32, 3, shape));
    t->targets = cup_keep(cup_tensor_new(c, CUP_I32, 3, shape));
    t->losses = cup_keep(cup_tensor_new(c, CUP_F32, 1, shape));
    t->pending =
        cup_keep(cup_tensor_new(c, CUP_F32, 2, (int64_t[]){CUP__PENDING_MOST, a->accumulate + 1}));
    return c->error.status;
}

static cup_status check_vocabulary(cup_trainer *t)
{
    cup_gpt_config *g = &t->training.model;
    int64_t size = cup_tokenizer_size(t->tokenizer);
    if (g->vocabulary == 0)
        g->vocabulary = size;
    if (g->vocabulary >= size)
        return CUP_OK;
    return cup__fail(&t->c->error, CUP_ARGUMENT,
                     "training: the tokenizer has %lld tokens and the model knows %lld only; leave "
                     "the vocabulary to the tokenizer, or take the tokenizer of the checkpoint",
                     (long long)size, (long long)g->vocabulary);
}

/* Seconds to wait for the lock of a folder, which somebody who only reads may hold for a moment. */
#define LOCK_SECONDS 1

/* Makes the folder and writes its lock there, which also tries whether that is possible: the first
 * checkpoint may be hours away. */
static cup_status open_folder(cup_trainer *t, const char *folder)
{
    cup__error *error = &t->c->error;
    CUP_TRY(cup__folder_make(error, folder));
    t->folder = cup__strdup(folder);
    if (!t->folder)
        return cup__fail(error, CUP_MEMORY, "out of host memory for a training run");
    CUP_TRY(cup__lock_take(error, folder, LOCK_SECONDS, &t->lock));
    return cup__checkpoint_mend(error, folder);
}

static cup_status make(cup_trainer *t, const char *folder)
{
    cup_training *a = &t->training;
    CUP_TRY(check_vocabulary(t));
    CUP_TRY(cup__training_check(t->c, a));
    CUP_TRY(cup_precision(t->c, a->precision));
    t->schedule =
        (cup_schedule){.high = a->rate, .low = a->rate_end, .warmup = a->warmup, .steps = a->steps};
    CUP_TRY(cup__training_fits(t->c, a));
    if (folder)
        CUP_TRY(open_folder(t, folder));
    cup_seed(t->c, a->seed);
    t->model = cup_gpt_new(t->c, &a->model, a->dtype);
    if (!t->model)
        return t->c->error.status;
    t->model->recompute = a->recompute;
    t->model->logits_most = a->logits_most;
    t->optimizer =
        cup_optimizer_new(t->c, t->model->parameters, t->model->parameter_count, &a->optimizer);
    return t->optimizer ? make_batches(t) : t->c->error.status;
}

cup_trainer *cup_trainer_new(cup_context *c, const cup_training *training, const cup_data *data,
                             const cup_tokenizer *tokenizer, const char *folder)
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
    t->c = c;
    cup__context_join(c);
    t->training = *training;
    t->part_seconds = PART_SECONDS;
    t->parts = 1;
    t->data = data;
    t->tokenizer = tokenizer;
    cup_scope_open(c);
    cup_status status = make(t, folder);
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
    cup__trainer_free_graphs(t);
    cup_optimizer_free(t->optimizer);
    cup_gpt_free(t->model);
    cup_tensor_free(t->tokens);
    cup_tensor_free(t->targets);
    cup_tensor_free(t->losses);
    cup_tensor_free(t->pending);
    cup__free(t->host_tokens);
    cup__free(t->host_targets);
    cup__free(t->host_pending);
    cup__free(t->points);
    cup__lock_drop(&t->lock);
    cup__free(t->folder);
    cup__context_leave(t->c);
    cup__free(t);
}

cup_gpt *cup_trainer_model(cup_trainer *t)
{
    return t ? t->model : NULL;
}

int64_t cup_trainer_steps(const cup_trainer *t)
{
    return t ? t->steps : 0;
}

const cup_training_point *cup_trainer_points(const cup_trainer *t, int64_t *count)
{
    if (count)
        *count = t ? (int64_t)t->point_count : 0;
    return t ? t->points : NULL;
}

cup_training_point *cup__trainer_point(cup_trainer *t, int64_t step)
{
    if (!cup__grow(&t->points, &t->point_capacity, t->point_count, sizeof *t->points)) {
        cup__fail(&t->c->error, CUP_MEMORY, "out of host memory for the losses of a run");
        return NULL;
    }
    cup_training_point *point = &t->points[t->point_count++];
    *point = (cup_training_point){step, NAN, NAN, cup_schedule_rate(&t->schedule, step), NAN};
    return point;
}
