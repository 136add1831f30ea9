/* Checkpoints of a run: model.safetensors, optimizer.safetensors, tokenizer.json and losses.csv,
 * with the step, the training and what the data were in state.json. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/corpus.h"
#include "data/tokenizer.h"
#include "io/checkpoint.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"
#include "train/trainer.h"

#define SCHEMA 1
#define MODEL "model.safetensors"
#define OPTIMIZER "optimizer.safetensors"
#define TOKENIZER "tokenizer.json"
#define LOSSES "losses.csv"

const char *const cup__training_files[] = {MODEL, OPTIMIZER, TOKENIZER, LOSSES, "loss.svg", NULL};

static void add_number(cup__text *text, double value)
{
    cup__text_append(text, ",", 1);
    if (isfinite(value))
        cup__text_add_number(text, value);
}

static void write_points(const cup_trainer *t, cup__text *text)
{
    cup__text_add(text, "step,loss,norm,rate,validation\n");
    for (size_t i = 0; i < t->point_count; i++) {
        const cup_training_point *p = &t->points[i];
        cup__text_add(text, "%lld", (long long)p->step);
        add_number(text, p->loss);
        add_number(text, p->norm);
        add_number(text, p->rate);
        add_number(text, p->validation);
        cup__text_append(text, "\n", 1);
    }
}

static void write_state(const cup_trainer *t, cup__json_writer *writer)
{
    cup__json_open(writer, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(writer, "schema", SCHEMA);
    cup__json_add_string(writer, "kind", "gpt");
    cup__json_add_integer(writer, "step", t->steps);
    cup__json_add_unsigned(writer, "data", cup_data_hash(t->data));
    cup__gpt_config_write(writer, "model", &t->training.model);
    cup__training_write(writer, "training", &t->training);
    cup__sources_write(writer, cup__data_sources(t->data));
    cup__json_close(writer);
}

cup_status cup__trainer_own(cup_trainer *t)
{
    if (t->folder && !t->owns)
        CUP_TRY(cup__checkpoint_vacant(&t->c->error, t->folder, cup__training_files));
    t->owns = true;
    return CUP_OK;
}

cup_status cup_trainer_overwrite(cup_trainer *t)
{
    if (!t)
        return CUP_ARGUMENT;
    t->owns = true;
    return t->c->error.status;
}

cup_status cup_trainer_save(cup_trainer *t)
{
    if (!t)
        return CUP_ARGUMENT;
    cup_context *c = t->c;
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!t->folder)
        return cup__fail(&c->error, CUP_STATE, "training: the run has no folder for checkpoints");
    CUP_TRY(cup__trainer_own(t));
    CUP_TRY(cup__trainer_read(t, NULL));
    int64_t states;
    const cup_named *state = cup_optimizer_state(t->optimizer, &states);
    cup__text tokenizer = {0}, points = {0};
    cup__json_writer writer = {.lines = 2};
    write_points(t, &points);
    write_state(t, &writer);
    cup_status status = cup__tokenizer_text(&c->error, t->tokenizer, &tokenizer);
    if (status == CUP_OK && (points.failed || writer.text.failed))
        status = cup__fail(&c->error, CUP_MEMORY, "out of host memory for a checkpoint");
    const cup__checkpoint_part parts[] = {
        {.name = MODEL, .tensors = t->model->weights, .count = t->model->weight_count},
        {.name = OPTIMIZER, .tensors = state, .count = states},
        {.name = TOKENIZER, .bytes = tokenizer.bytes, .size = tokenizer.length},
        {.name = LOSSES, .bytes = points.bytes, .size = points.length},
    };
    if (status == CUP_OK)
        status = cup__checkpoint_save(c, t->folder, parts, 4, &writer.text);
    cup__text_free(&tokenizer);
    cup__text_free(&points);
    cup__text_free(&writer.text);
    if (status == CUP_OK)
        t->saved = t->point_count;
    return status;
}

/* What state.json says of a run. */
typedef struct saved {
    cup_training training;
    int64_t step;
    uint64_t data;
} saved;

static cup_status read_state(cup_context *c, const cup__checkpoint *checkpoint, saved *out)
{
    const cup__json *json = &checkpoint->json;
    const cup__json_node *state = checkpoint->state, *node;
    cup__error *error = &c->error;
    const char *kind;
    int64_t schema;
    memset(out, 0, sizeof *out);
    CUP_TRY(cup__json_get_integer(error, json, state, "schema", 0, INT64_MAX, &schema));
    if (schema != SCHEMA)
        return cup__fail(error, CUP_FORMAT,
                         "%s: schema %lld is not the one this version knows, which is %d",
                         json->name, (long long)schema, SCHEMA);
    CUP_TRY(cup__json_get_string(error, json, state, "kind", &kind));
    if (strcmp(kind, "gpt"))
        return cup__fail(error, CUP_FORMAT, "%s: the checkpoint is not of a gpt but of \"%.40s\"",
                         json->name, kind);
    CUP_TRY(cup__json_get_integer(error, json, state, "step", 0, INT64_MAX, &out->step));
    CUP_TRY(cup__json_get_unsigned(error, json, state, "data", &out->data));
    CUP_TRY(cup__json_get(error, json, state, "model", CUP__JSON_OBJECT, &node));
    CUP_TRY(cup__gpt_config_read(c, json, node, &out->training.model));
    CUP_TRY(cup__json_get(error, json, state, "training", CUP__JSON_OBJECT, &node));
    CUP_TRY(cup__training_read(c, json, node, &out->training));
    if (cup__training_check(c, &out->training) == CUP_OK)
        return CUP_OK;
    cup__error_prefix(error, "%s: ", json->name);
    return error->status = CUP_FORMAT;
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

/* One field of a line: a number, or nothing, which is NaN. */
static bool read_number(const char **at, char end, double *out)
{
    *out = NAN;
    if (**at != end) {
        char *behind;
        *out = cup__text_number(*at, &behind);
        if (behind == *at)
            return false;
        *at = behind;
    }
    return *(*at)++ == end;
}

static cup_status read_points(cup_trainer *t, const char *text)
{
    const char *at = strchr(text, '\n');
    at = at ? at + 1 : "";
    while (*at) {
        double step;
        cup_training_point *p = cup__trainer_point(t, 0);
        if (!p)
            return t->c->error.status;
        if (!read_number(&at, ',', &step) || !read_number(&at, ',', &p->loss) ||
            !read_number(&at, ',', &p->norm) || !read_number(&at, ',', &p->rate) ||
            !read_number(&at, '\n', &p->validation) || !(step >= 0 && step < 1e15))
            return cup__fail(&t->c->error, CUP_FORMAT, "%s: line %zu is not as it was written",
                             LOSSES, t->point_count + 1);
        p->step = (int64_t)step;
    }
    return CUP_OK;
}

/* The lines tell of the steps 0, 1, ... that were done, each once, and of evaluations between. */
static cup_status check_points(cup_trainer *t, int64_t steps)
{
    int64_t done = 0;
    bool fits = true;
    for (size_t i = 0; i < t->point_count && fits; i++) {
        const cup_training_point *p = &t->points[i];
        fits = p->step == done && (isfinite(p->loss) || isfinite(p->validation));
        done += isfinite(p->loss);
    }
    if (fits && done == steps)
        return CUP_OK;
    return cup__fail(&t->c->error, CUP_FORMAT,
                     "%s/state.json says that %lld steps were done, and %s does not tell of just "
                     "these; go back to an older copy of the folder",
                     t->folder, (long long)steps, LOSSES);
}

static cup_status check_fits(cup_trainer *t, const saved *found)
{
    cup__error *error = &t->c->error;
    const char *differs = cup__training_differs(&t->training, &found->training);
    if (differs)
        return cup__fail(error, CUP_ARGUMENT,
                         "training: %s is not what the checkpoint in %s was made with; leave it "
                         "out, or start a new run in another folder",
                         differs, t->folder);
    if (found->data != cup_data_hash(t->data))
        return cup__fail(error, CUP_ARGUMENT,
                         "training: the data are not those of the checkpoint in %s; give the same "
                         "files, unchanged, or start a new run in another folder",
                         t->folder);
    if (found->step > t->training.steps)
        return cup__fail(error, CUP_ARGUMENT,
                         "training: the checkpoint in %s has done %lld steps already, more than "
                         "the %lld asked for",
                         t->folder, (long long)found->step, (long long)t->training.steps);
    return CUP_OK;
}

static cup_status fill(cup_trainer *t, const cup__checkpoint *checkpoint, int64_t steps)
{
    cup_context *c = t->c;
    int64_t states;
    const cup_named *state = cup_optimizer_state(t->optimizer, &states);
    char *losses;
    size_t bytes;
    CUP_TRY(cup__checkpoint_fill(c, checkpoint, MODEL, t->model->weights, t->model->weight_count));
    CUP_TRY(cup__checkpoint_fill(c, checkpoint, OPTIMIZER, state, states));
    CUP_TRY(cup__checkpoint_read(&c->error, checkpoint, LOSSES, &losses, &bytes));
    t->point_count = 0;
    cup_status status = CUP_OK;
    if (strlen(losses) != bytes)
        status = cup__fail(&c->error, CUP_FORMAT, "%s: a byte of it is 0", LOSSES);
    else
        status = read_points(t, losses);
    if (status == CUP_OK)
        status = check_points(t, steps);
    cup__free(losses);
    int64_t counted = cup_optimizer_taken(t->optimizer) + cup_optimizer_skipped(t->optimizer);
    if (status == CUP_OK && counted != steps)
        status = cup__fail(&c->error, CUP_FORMAT,
                           "%s/state.json says that %lld steps were done, and %s %lld; go back to "
                           "an older copy of the folder",
                           t->folder, (long long)steps, OPTIMIZER, (long long)counted);
    return status;
}

cup_status cup_trainer_resume(cup_trainer *t)
{
    if (!t)
        return CUP_ARGUMENT;
    cup_context *c = t->c;
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!t->folder)
        return cup__fail(&c->error, CUP_STATE, "training: the run has no folder to resume from");
    cup__checkpoint checkpoint;
    saved found;
    CUP_TRY(cup__checkpoint_open(&c->error, t->folder, &checkpoint));
    cup_status status = read_state(c, &checkpoint, &found);
    if (status == CUP_OK)
        status = check_fits(t, &found);
    if (status == CUP_OK)
        status = fill(t, &checkpoint, found.step);
    cup__checkpoint_close(&checkpoint);
    if (status != CUP_OK)
        return status;
    t->owns = true;
    t->saved = t->point_count;
    t->steps = t->read = found.step;
    return CUP_OK;
}

cup_gpt *cup_gpt_load(cup_context *c, const char *folder)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    cup__checkpoint checkpoint;
    saved found;
    if (cup__checkpoint_open(&c->error, folder, &checkpoint) != CUP_OK)
        return NULL;
    cup_gpt *m = NULL;
    cup_status status = read_state(c, &checkpoint, &found);
    if (status == CUP_OK)
        m = cup_gpt_new(c, &found.training.model, found.training.dtype);
    if (m)
        status = cup__checkpoint_fill(c, &checkpoint, MODEL, m->weights, m->weight_count);
    cup__checkpoint_close(&checkpoint);
    if (m && status == CUP_OK)
        return m;
    cup_gpt_free(m);
    return NULL;
}

cup_tokenizer *cup_gpt_tokenizer_load(cup_context *c, const char *folder)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
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
