/* What is a GPT's own in the checkpoints of its runs, and what is made of them: the training and
 * what the data were, in state.json, and tokenizer.json. */
#include <string.h>

#include "base/memory.h"
#include "data/corpus.h"
#include "data/tokenizer.h"
#include "io/checkpoint.h"
#include "nn/config.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"
#include "train/adapters.h"
#include "train/published.h"

#define KIND "gpt"
#define TOKENIZER "tokenizer.json"

/* The files of a run: those of its checkpoint, then those written from it. */
static const char *const files[] = {CUP__MODEL_FILE,  CUP__OPTIMIZER_FILE, TOKENIZER,
                                    CUP__LOSSES_FILE, "loss.svg",          "loss.html",
                                    NULL};

static void write(const cup_loop *l, cup__json_writer *writer)
{
    const cup_trainer *t = l->calls.user;
    cup__json_add_unsigned(writer, "data", cup_data_hash(t->data));
    cup__gpt_config_write(writer, "model", &t->training.model);
    cup__training_write(writer, "training", &t->training);
    if (t->base)
        cup__base_write(writer, &(cup__base){t->base, t->base_hash});
    cup__sources_write(writer, t->data);
}

static cup_status write_tokenizer(const cup_loop *l, cup__text *out)
{
    const cup_trainer *t = l->calls.user;
    return cup__tokenizer_text(&l->c->error, t->tokenizer, out);
}

/* What state.json says of a run. */
typedef struct saved {
    cup_training training;
    int64_t step;
    uint64_t data;
    cup__base base; /* where adapters are trained; points into the checkpoint */
} saved;

static cup_status read_state(cup_context *c, const cup__checkpoint *checkpoint, saved *out)
{
    const cup__json *json = &checkpoint->json;
    const cup__json_node *state = checkpoint->state, *node;
    cup__error *error = &c->error;
    memset(out, 0, sizeof *out);
    CUP_TRY(cup__loop_state_read(error, checkpoint, KIND, &out->step));
    CUP_TRY(cup__json_get_unsigned(error, json, state, "data", &out->data));
    CUP_TRY(cup__json_get(error, json, state, "model", CUP__JSON_OBJECT, &node));
    CUP_TRY(cup__gpt_config_read(c, json, node, &out->training.model));
    CUP_TRY(cup__json_get(error, json, state, "training", CUP__JSON_OBJECT, &node));
    CUP_TRY(cup__training_read(c, json, node, &out->training));
    if (out->training.lora_rank)
        CUP_TRY(cup__base_read(error, json, state, &out->base));
    if (cup__training_check(c, &out->training) == CUP_OK)
        return CUP_OK;
    cup__error_prefix(error, "%s: ", json->name);
    return error->status = CUP_FORMAT;
}

static cup_status check(cup_loop *l, const cup__checkpoint *checkpoint)
{
    const cup_trainer *t = l->calls.user;
    saved found;
    CUP_TRY(read_state(l->c, checkpoint, &found));
    const char *differs = cup__training_differs(&t->training, &found.training);
    if (differs)
        return cup__fail(&l->c->error, CUP_ARGUMENT,
                         "training: %s is not what the checkpoint in %s was made with; leave it "
                         "out, or start a new run in another folder",
                         differs, l->path);
    if (t->training.lora_rank && found.base.hash != t->base_hash)
        return cup__fail(&l->c->error, CUP_ARGUMENT,
                         "training: the model in %s has other weights than the one that the "
                         "adapters in %s were trained beside; bring back those",
                         t->base, l->path);
    if (found.data == cup_data_hash(t->data))
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_ARGUMENT,
                     "training: the data are not those of the checkpoint in %s; give the same "
                     "files, unchanged, or start a new run in another folder",
                     l->path);
}

const cup__loop_checkpoints cup__training_checkpoints = {
    .files = files,
    .write = write,
    .check = check,
    .own_file = TOKENIZER,
    .own_text = write_tokenizer,
};

cup_status cup_training_vacant(cup_context *c, const char *folder)
{
    return cup__loop_vacant(c, folder, files);
}

cup_status cup__training_of(cup_context *c, const cup__checkpoint *checkpoint,
                            cup_training *training)
{
    saved found;
    CUP_TRY(read_state(c, checkpoint, &found));
    *training = found.training;
    return CUP_OK;
}

cup_status cup_training_load(cup_context *c, const char *folder, cup_training *training,
                             int64_t *steps)
{
    if (!c)
        return CUP_MEMORY;
    if (c->error.status != CUP_OK)
        return c->error.status;
    cup__checkpoint checkpoint;
    saved found;
    CUP_TRY(cup__checkpoint_open(&c->error, folder, &checkpoint));
    cup_status status = read_state(c, &checkpoint, &found);
    cup__checkpoint_close(&checkpoint);
    if (status != CUP_OK)
        return status;
    *training = found.training;
    if (steps)
        *steps = found.step;
    return CUP_OK;
}

/* The model of an open checkpoint; with its averages in place of its weights. */
static cup_gpt *load_from(cup_context *c, const cup__checkpoint *checkpoint, bool average)
{
    saved found;
    if (read_state(c, checkpoint, &found) != CUP_OK)
        return NULL;
    cup_gpt *m = cup_gpt_new(c, found.training.dtype, &found.training.model);
    int64_t count;
    cup_status status = c->error.status;
    if (m && found.training.lora_rank)
        status = cup__base_take(m, &found.base, &found.training);
    const cup_named *weights =
        status == CUP_OK ? cup_parameters_named(cup__gpt_learned(m), &count) : NULL;
    if (weights)
        status = cup__checkpoint_fill(c, checkpoint, CUP__MODEL_FILE, weights, count);
    if (weights && average && status == CUP_OK)
        status = cup__take_averages(c, checkpoint, cup__gpt_learned(m),
                                    found.training.optimizer.average);
    if (weights && status == CUP_OK)
        return m;
    cup_gpt_free(m);
    return NULL;
}

static cup_gpt *load(cup_context *c, const char *folder, bool average)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (!average && cup__published_is(folder))
        return cup_gpt_import(c, folder, CUP_F32);
    cup__checkpoint checkpoint;
    if (cup__checkpoint_open(&c->error, folder, &checkpoint) != CUP_OK)
        return NULL;
    cup_gpt *m = load_from(c, &checkpoint, average);
    cup__checkpoint_close(&checkpoint);
    return m;
}

cup_gpt *cup_gpt_load(cup_context *c, const char *folder)
{
    return load(c, folder, false);
}

cup_gpt *cup_gpt_load_average(cup_context *c, const char *folder)
{
    return load(c, folder, true);
}

cup_tokenizer *cup_gpt_tokenizer_load(cup_context *c, const char *folder)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (cup__published_is(folder))
        return cup_tokenizer_load(c, folder);
    cup__checkpoint checkpoint;
    if (cup__checkpoint_open(&c->error, folder, &checkpoint) != CUP_OK)
        return NULL;
    char *text;
    size_t bytes;
    cup__json json;
    cup_tokenizer *t = NULL;
    cup_status status = cup__checkpoint_read(&c->error, &checkpoint, TOKENIZER, &text, &bytes);
    cup__checkpoint_close(&checkpoint);
    if (status != CUP_OK)
        return NULL;
    if (cup__json_parse(&c->error, TOKENIZER, text, bytes, &json) == CUP_OK) {
        cup__tokenizer_parse(&c->error, &json, &t);
        cup__json_free(&json);
    }
    cup__free(text);
    return t;
}
