/* Checkpoints of a loop: the model's tensors, the optimizer's, and losses.csv, with the step and
 * what the run was made with in state.json. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "optim/optimizer.h"
#include "tensor/tensor.h"
#include "train/saving.h"
#include "train/shards.h"
#include "train/together.h"

/* No file can take the place of a folder, which the first save would find, hours later. */
static cup_status check_files(const cup_loop *l)
{
    cup_status status = CUP_OK;
    for (size_t i = 0; l->checkpoints->files[i] && status == CUP_OK; i++) {
        char *path = cup__path_join(l->folder, l->checkpoints->files[i]);
        if (!path)
            return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a training run");
        if (cup__folder_exists(path))
            status = cup__fail(&l->c->error, CUP_IO,
                               "%s is a folder, in the place of which the run writes a file; "
                               "remove it, or take another folder for the run",
                               path);
        cup__free(path);
    }
    return status;
}

cup_status cup__loop_own(cup_loop *l)
{
    if (l->folder)
        CUP_TRY(check_files(l));
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
    CUP_TRY(cup__save_begin(l, false));
    return cup__save_finish(l);
}

cup_status cup__loop_state_read(cup__error *error, const cup__checkpoint *checkpoint,
                                const char *kind, int64_t *step)
{
    const cup__json *json = &checkpoint->json;
    const char *found;
    int64_t schema;
    CUP_TRY(cup__json_get_integer(error, json, checkpoint->state, "schema", 0, INT64_MAX, &schema));
    if (schema != CUP__LOOP_SCHEMA)
        return cup__fail(error, CUP_FORMAT,
                         "%s: schema %lld is not the one this version knows, which is %d",
                         json->name, (long long)schema, CUP__LOOP_SCHEMA);
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

/* What this process needs of it: where all see the folder each reads what it keeps. */
static cup_status fill_tensors(cup_loop *l, const cup__checkpoint *checkpoint)
{
    cup_context *c = l->c;
    if (!l->shared) {
        CUP_TRY(cup__loop_whole(l));
        const cup__whole *w = l->weights, *s = l->states;
        CUP_TRY(cup__checkpoint_fill(c, checkpoint, CUP__MODEL_FILE, w->named, w->count));
        return cup__checkpoint_fill(c, checkpoint, CUP__OPTIMIZER_FILE, s->named, s->count);
    }
    return cup__shards_read(l, checkpoint);
}

static cup_status fill(cup_loop *l, const cup__checkpoint *checkpoint, int64_t steps)
{
    cup_context *c = l->c;
    CUP_TRY(fill_tensors(l, checkpoint));
    CUP_TRY(fill_points(l, checkpoint, steps));
    int64_t counted = cup_optimizer_taken(l->optimizer) + cup_optimizer_skipped(l->optimizer);
    if (counted == steps)
        return c->error.status;
    return cup__fail(&c->error, CUP_FORMAT,
                     "%s/state.json says that %lld steps were done, and %s %lld; go back to an "
                     "older copy of the folder",
                     l->path, (long long)steps, CUP__OPTIMIZER_FILE, (long long)counted);
}

static cup_status resume(cup_loop *l, const cup__checkpoint *checkpoint, int64_t *steps)
{
    CUP_TRY(cup__loop_state_read(&l->c->error, checkpoint, l->kind, steps));
    CUP_TRY(l->checkpoints->check(l, checkpoint));
    if (*steps > l->options.schedule.steps)
        return cup__fail(&l->c->error, CUP_ARGUMENT,
                         "training: the checkpoint in %s has done %lld steps already, more than "
                         "the %lld asked for",
                         l->path, (long long)*steps, (long long)l->options.schedule.steps);
    return fill(l, checkpoint, *steps);
}

/* Where all see the folder each checks a share of the files, and all fail with one. */
static cup_status open_folder(cup_loop *l, cup__checkpoint *out)
{
    cup__error *error = &l->c->error;
    if (!l->shared)
        return cup__checkpoint_open(error, l->path, out);
    CUP_TRY(cup__checkpoint_open_share(error, l->path, cup_comm_rank(l->comm),
                                       cup_comm_count(l->comm), out));
    uint64_t save = 0;
    cup__json_get_unsigned(error, &out->json, out->json.root, "save", &save);
    int64_t numbers[] = {(int64_t)save, -(int64_t)save};
    cup_status status = cup_comm_agree(l->comm, numbers, 2);
    if (status == CUP_OK && numbers[0] != -numbers[1])
        status = cup__fail(error, CUP_IO,
                           "%s: not all processes see the same checkpoint there; take a folder "
                           "that all see as it is",
                           l->path);
    if (status != CUP_OK)
        cup__checkpoint_close(out);
    return status;
}

static cup_status resume_alone(cup_loop *l)
{
    cup__checkpoint checkpoint;
    int64_t steps = 0;
    CUP_TRY(open_folder(l, &checkpoint));
    cup_status status = resume(l, &checkpoint, &steps);
    cup__checkpoint_close(&checkpoint);
    if (status != CUP_OK)
        return status;
    l->owns = l->resumed = true;
    l->saved = l->point_count;
    l->steps = l->read = steps;
    return CUP_OK;
}

/* A failure of one is told to the others when it leaves them. */
cup_status cup_loop_resume(cup_loop *l)
{
    CUP_TRY(check_folder(l, "to resume from"));
    if (l->folder || l->shared)
        CUP_TRY(resume_alone(l));
    cup_status status = cup__loop_spread(l);
    cup__loop_whole_free(l);
    float scale[2];
    if (status == CUP_OK)
        l->skipped = cup_optimizer_skipped(l->optimizer);
    if (status == CUP_OK && l->optimizer->scale) {
        status = cup_tensor_read(l->optimizer->scale, scale, sizeof scale);
        l->loss_scale = (double)scale[0];
    }
    return status;
}
