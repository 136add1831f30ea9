/* Checkpoints of a loop: the model's tensors, the optimizer's, and losses.csv, with the step and
 * what the run was made with in state.json. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "comm/comm.h"
#include "optim/optimizer.h"
#include "tensor/tensor.h"
#include "train/together.h"

#define SCHEMA 1
#define PARTS_MOST 4

cup_status cup__loop_own(cup_loop *l)
{
    if (l->folder && !l->owns)
        CUP_TRY(cup__checkpoint_vacant(&l->c->error, l->folder, l->checkpoints->files));
    l->owns = true;
    return CUP_OK;
}

cup_status cup_loop_overwrite(cup_loop *l)
{
    if (!l)
        return CUP_ARGUMENT;
    l->owns = true;
    return l->c->error.status;
}

cup_status cup__loop_vacant(cup_context *c, const char *folder, const char *const *files)
{
    if (!c)
        return CUP_MEMORY;
    if (c->error.status == CUP_OK && !folder)
        return cup__fail(&c->error, CUP_ARGUMENT, "the folder of a run is NULL; name one");
    CUP_TRY(c->error.status);
    return cup__checkpoint_vacant(&c->error, folder, files);
}

static cup_status read_facts(cup__error *error, const cup__json *json, cup_checkpoint *out)
{
    const cup__json_node *state, *files;
    const char *kind;
    CUP_TRY(cup__json_get(error, json, json->root, "state", CUP__JSON_OBJECT, &state));
    CUP_TRY(cup__json_get(error, json, json->root, "files", CUP__JSON_OBJECT, &files));
    CUP_TRY(cup__json_get_string(error, json, state, "kind", &kind));
    CUP_TRY(cup__json_get_integer(error, json, state, "step", 0, INT64_MAX, &out->steps));
    CUP_TRY(cup__json_get_unsigned(error, json, json->root, "save", &out->saves));
    CUP__JSON_EACH(file, files)
    {
        int64_t bytes;
        CUP_TRY(cup__json_get_integer(error, json, file, "bytes", 0, INT64_MAX - out->bytes,
                                      &bytes));
        out->bytes += bytes;
    }
    snprintf(out->kind, sizeof out->kind, "%s", kind);
    out->checked = cup__json_find(json->root, "hash");
    return CUP_OK;
}

cup_status cup_checkpoint_look(cup_context *c, const char *folder, cup_checkpoint *out)
{
    cup__json json;
    if (out)
        *out = (cup_checkpoint){0};
    if (!c)
        return CUP_MEMORY;
    CUP_TRY(c->error.status);
    if (!folder || !out)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "checkpoint_look: the folder, or what takes the facts, is NULL");
    CUP_TRY(cup__checkpoint_state(&c->error, folder, &json));
    cup_status status = read_facts(&c->error, &json, out);
    cup__json_free(&json);
    if (status != CUP_OK)
        *out = (cup_checkpoint){0};
    return status;
}

static void write_state(const cup_loop *l, cup__json_writer *writer)
{
    cup__json_open(writer, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(writer, "schema", SCHEMA);
    cup__json_add_string(writer, "kind", l->kind);
    cup__json_add_integer(writer, "step", l->steps);
    l->checkpoints->write(l, writer);
    cup__json_close(writer);
}

/* The texts are made; what cannot be made is an error. */
static cup_status save(cup_loop *l, cup__text *own, cup__text *points, cup__json_writer *writer)
{
    const cup__loop_checkpoints *k = l->checkpoints;
    const cup__whole *w = l->weights, *s = l->states;
    int count = 0;
    cup__points_write(l, points);
    write_state(l, writer);
    if (k->own_file)
        CUP_TRY(k->own_text(l, own));
    if (points->failed || writer->text.failed)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a checkpoint");
    cup__checkpoint_part parts[PARTS_MOST];
    parts[count++] = (cup__checkpoint_part){CUP__MODEL_FILE, w->named, w->count, NULL, 0};
    parts[count++] = (cup__checkpoint_part){CUP__OPTIMIZER_FILE, s->named, s->count, NULL, 0};
    if (k->own_file)
        parts[count++] = (cup__checkpoint_part){
            .name = k->own_file, .bytes = own->bytes, .size = own->length};
    parts[count++] = (cup__checkpoint_part){
        .name = CUP__LOSSES_FILE, .bytes = points->bytes, .size = points->length};
    return cup__checkpoint_save(l->c, l->folder, parts, count, &writer->text);
}

/* Whether the run is one with a folder and without an error. */
static cup_status check_folder(cup_loop *l, const char *what_for)
{
    if (!l)
        return CUP_ARGUMENT;
    cup_context *c = l->c;
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!l->options.folder)
        return cup__fail(&c->error, CUP_STATE, "training: the run has no folder %s", what_for);
    return CUP_OK;
}

cup_status cup_loop_save(cup_loop *l)
{
    CUP_TRY(check_folder(l, "for checkpoints"));
    CUP_TRY(cup__loop_own(l));
    CUP_TRY(cup__loop_read(l, NULL));
    CUP_TRY(cup__loop_compare(l));
    CUP_TRY(cup__optimizer_collect(l->optimizer));
    CUP_TRY(cup__loop_collect(l));
    cup__text own = {0}, points = {0};
    cup__json_writer writer = {.lines = 2};
    cup_comm_busy(l->comm, true);
    cup_status status = l->folder ? save(l, &own, &points, &writer) : CUP_OK;
    cup_comm_busy(l->comm, false);
    cup__loop_whole_free(l);
    cup__optimizer_whole_free(l->optimizer);
    cup__text_free(&own);
    cup__text_free(&points);
    cup__text_free(&writer.text);
    if (status == CUP_OK) {
        l->saved = l->point_count;
        l->has_checkpoint = true;
    }
    return status;
}

cup_status cup__loop_state_read(cup__error *error, const cup__checkpoint *checkpoint,
                                const char *kind, int64_t *step)
{
    const cup__json *json = &checkpoint->json;
    const char *found;
    int64_t schema;
    CUP_TRY(cup__json_get_integer(error, json, checkpoint->state, "schema", 0, INT64_MAX, &schema));
    if (schema != SCHEMA)
        return cup__fail(error, CUP_FORMAT,
                         "%s: schema %lld is not the one this version knows, which is %d",
                         json->name, (long long)schema, SCHEMA);
    CUP_TRY(cup__json_get_string(error, json, checkpoint->state, "kind", &found));
    if (strcmp(found, kind))
        return cup__fail(error, CUP_FORMAT, "%s: the checkpoint is not of a %s but of \"%.40s\"",
                         json->name, kind, found);
    return cup__json_get_integer(error, json, checkpoint->state, "step", 0, INT64_MAX, step);
}

static cup_status fill_points(cup_loop *l, const cup__checkpoint *checkpoint, int64_t steps)
{
    char *losses;
    size_t bytes;
    CUP_TRY(
        cup__checkpoint_read(&l->c->error, checkpoint, CUP__LOSSES_FILE, &losses, &bytes));
    cup_status status = CUP_OK;
    if (strlen(losses) != bytes)
        status = cup__fail(&l->c->error, CUP_FORMAT, "%s: a byte of it is 0", CUP__LOSSES_FILE);
    else
        status = cup__points_read(l, losses, steps);
    cup__free(losses);
    return status;
}

static cup_status fill(cup_loop *l, const cup__checkpoint *checkpoint, int64_t steps)
{
    cup_context *c = l->c;
    CUP_TRY(cup__loop_whole(l));
    const cup__whole *weights = l->weights, *states = l->states;
    CUP_TRY(cup__checkpoint_fill(c, checkpoint, CUP__MODEL_FILE, weights->named, weights->count));
    CUP_TRY(cup__checkpoint_fill(c, checkpoint, CUP__OPTIMIZER_FILE, states->named, states->count));
    CUP_TRY(fill_points(l, checkpoint, steps));
    int64_t counted = cup_optimizer_taken(l->optimizer) + cup_optimizer_skipped(l->optimizer);
    if (counted == steps)
        return c->error.status;
    return cup__fail(&c->error, CUP_FORMAT,
                     "%s/state.json says that %lld steps were done, and %s %lld; go back to an "
                     "older copy of the folder",
                     l->folder, (long long)steps, CUP__OPTIMIZER_FILE, (long long)counted);
}

static cup_status resume(cup_loop *l, const cup__checkpoint *checkpoint, int64_t *steps)
{
    CUP_TRY(cup__loop_state_read(&l->c->error, checkpoint, l->kind, steps));
    CUP_TRY(l->checkpoints->check(l, checkpoint));
    if (*steps > l->options.schedule.steps)
        return cup__fail(&l->c->error, CUP_ARGUMENT,
                         "training: the checkpoint in %s has done %lld steps already, more than "
                         "the %lld asked for",
                         l->folder, (long long)*steps, (long long)l->options.schedule.steps);
    return fill(l, checkpoint, *steps);
}

static cup_status resume_alone(cup_loop *l)
{
    cup_context *c = l->c;
    cup__checkpoint checkpoint;
    int64_t steps = 0;
    CUP_TRY(cup__checkpoint_open(&c->error, l->folder, &checkpoint));
    cup_status status = resume(l, &checkpoint, &steps);
    cup__checkpoint_close(&checkpoint);
    if (status != CUP_OK)
        return status;
    l->owns = l->resumed = true;
    l->saved = l->point_count;
    l->steps = l->read = steps;
    return CUP_OK;
}

/* A failure of rank 0 is told to the others when it leaves them. */
cup_status cup_loop_resume(cup_loop *l)
{
    CUP_TRY(check_folder(l, "to resume from"));
    if (l->folder)
        CUP_TRY(resume_alone(l));
    cup_status status = cup__loop_spread(l);
    cup__loop_whole_free(l);
    return status;
}
