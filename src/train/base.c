/* The model that a run with adapters stands beside. It is not in the checkpoints of the run, which
 * say where it lies and know it again by a hash. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "nn/gpt.h"
#include "nn/parameters.h"
#include "tensor/context.h"
#include "train/adapters.h"
#include "train/published.h"
#include "train/together.h"

#define KEY "base"

/* A path that is not UTF-8 has no place in JSON; then none is kept. */
void cup__base_write(cup__json_writer *writer, const cup__base *base)
{
    size_t length = strlen(base->folder);
    bool whole = cup__utf8_check(base->folder, length) == length;
    cup__json_open(writer, KEY, CUP__JSON_OBJECT);
    cup__json_add_string(writer, "folder", whole ? base->folder : "");
    cup__json_add_unsigned(writer, "hash", base->hash);
    cup__json_close(writer);
}

cup_status cup__base_read(cup__error *error, const cup__json *json, const cup__json_node *object,
                          cup__base *base)
{
    const cup__json_node *node;
    CUP_TRY(cup__json_get(error, json, object, KEY, CUP__JSON_OBJECT, &node));
    CUP_TRY(cup__json_get_string(error, json, node, "folder", &base->folder));
    return cup__json_get_unsigned(error, json, node, "hash", &base->hash);
}

/* Whether a folder's checkpoint has adapters and so a base of its own. A chain of those could be
 * without end. */
static bool has_base(const char *folder)
{
    cup__error ignored = {0};
    cup__json json;
    if (cup__published_is(folder) || cup__checkpoint_state(&ignored, folder, &json) != CUP_OK)
        return false;
    bool has = cup__json_find(cup__json_find(json.root, "state"), KEY);
    cup__json_free(&json);
    return has;
}

static cup_status hash_weights(cup_gpt *m, uint64_t *hash)
{
    cup_context *c = m->context;
    int64_t count;
    const cup_named *named = cup_parameters_named(m->parameters, &count);
    CUP_TRY(c->error.status);
    cup_tensor **all = cup__calloc((size_t)count + 1, sizeof *all);
    if (!all)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a list of tensors");
    for (int64_t i = 0; i < count; i++)
        all[i] = named[i].tensor;
    cup_status status = cup__tensors_hash(c, all, count, hash);
    cup__free(all);
    return status;
}

/* The whole of a tensor, on each of those who have a part of it, but for rows that do not count. */
static cup_tensor *whole_of(const cup_gpt *m, const char *name, int64_t rows)
{
    cup_tensor *t = cup_parameters_find(m->parameters, name);
    const cup__portion *part = cup__parameters_part_named(m->parameters, name, strlen(name));
    if (t && part)
        t = cup__part_gather(m->context, t, part);
    return t && rows ? cup__gpt_part(t, 0, 0, rows) : t;
}

/* Of each tensor the first stage that has it lets the first of all hash the whole. */
static cup_status hash_one(cup_gpt *m, cup_comm *pipe, const char *name,
                           const cup__gpt_tensor *row, cup__tensor_hash *hash)
{
    cup_context *c = m->context;
    bool here = cup_parameters_find(m->parameters, name) != NULL;
    bool embedding = row->shape[0] == CUP__EXTENT_ROWS;
    int64_t rows = embedding ? m->config.vocabulary : 0;
    int64_t shape[3], first = here ? -cup_comm_rank(pipe) : -cup_comm_count(pipe);
    int ndim = 1 + (row->shape[1] != CUP__EXTENT_NONE) + (row->shape[2] != CUP__EXTENT_NONE);
    if (pipe)
        CUP_TRY(cup_comm_agree(pipe, &first, 1));
    for (int i = 0; i < ndim; i++)
        shape[i] = i == 0 && rows ? rows : cup__gpt_extent(&m->config, row->shape[i]);
    int owner = (int)-first, at = cup_comm_rank(pipe);
    cup_tensor *t = NULL;
    if (at == owner)
        t = whole_of(m, name, rows);
    else if (at == 0)
        t = cup_tensor_new(c, m->dtype, ndim, shape);
    CUP_TRY(c->error.status);
    if (at == owner && at > 0)
        return cup_comm_send(pipe, t, 0);
    if (at == 0 && owner > 0)
        CUP_TRY(cup_comm_receive(pipe, t, owner));
    return at == 0 ? cup__tensor_hash_add(hash, t) : CUP_OK;
}

/* That of the whole model in the order of its tensors, whoever has which part of it. */
static cup_status hash_parts(cup_gpt *m, cup_comm *pipe, uint64_t *out)
{
    cup_status status = CUP_OK;
    cup__tensor_hash hash = {.begun = false};
    for (const cup__gpt_tensor *t = cup__gpt_tensors; t->name; t++) {
        int64_t blocks = t->absent && t->absent(&m->config) ? 0
                         : t->in_block                      ? m->config.layers
                                                            : 1;
        for (int64_t i = 0; i < blocks && status == CUP_OK; i++) {
            char name[64];
            snprintf(name, sizeof name, t->name, (int)i);
            cup_scope_open(m->context);
            status = hash_one(m, pipe, name, t, &hash);
            cup_scope_return(m->context, NULL);
        }
    }
    int64_t number = (int64_t)cup__tensor_hash_end(&hash);
    if (cup_comm_rank(pipe) > 0)
        number = INT64_MIN;
    if (pipe && status == CUP_OK)
        status = cup_comm_agree(pipe, &number, 1);
    *out = (uint64_t)number;
    return status;
}

/* Those who share out the model of a run, with `comm` of all; or none. */
typedef struct sharers {
    cup_comm *comm, *pipe;
    bool parted;
} sharers;

static cup_status take(cup_gpt *m, const char *folder, const sharers *s, uint64_t *hash)
{
    cup_context *c = m->context;
    if (!*folder)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "adapters: the checkpoint does not say where their model lies; name it "
                         "with --from");
    if (has_base(folder))
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "adapters: the model in %s has adapters itself; merge them with cupola "
                         "export --merge, and name that folder",
                         folder);
    cup_status status = s->parted ? cup__gpt_take_parts(m, folder, s->comm)
                                  : cup__gpt_take_from(m, folder);
    if (status != CUP_OK) {
        cup__error_prefix(&c->error, "adapters: the model beside which they stand: ");
        return c->error.status;
    }
    return s->parted ? hash_parts(m, s->pipe, hash) : hash_weights(m, hash);
}

cup_status cup__base_take(cup_gpt *m, const cup__base *base, const cup_training *training)
{
    uint64_t hash;
    CUP_TRY(take(m, base->folder, &(sharers){NULL, NULL, false}, &hash));
    if (hash != base->hash)
        return cup__fail(&m->context->error, CUP_FORMAT,
                         "adapters: the model in %s has other weights than when they were trained "
                         "beside it; bring back those",
                         base->folder);
    return cup_gpt_adapt(m, training->lora_rank, training->lora_alpha,
                         cup__adapters_apart(&m->config));
}

/* The base that a folder's checkpoint names, to be freed. */
static char *find_base(cup_context *c, const char *folder)
{
    cup__json json;
    cup__base base;
    const cup__json_node *state;
    char *found = NULL;
    if (cup__checkpoint_state(&c->error, folder, &json) != CUP_OK)
        return NULL;
    if (cup__json_get(&c->error, &json, json.root, "state", CUP__JSON_OBJECT, &state) == CUP_OK &&
        cup__base_read(&c->error, &json, state, &base) == CUP_OK) {
        found = cup__strdup(base.folder);
        if (!found)
            cup__fail(&c->error, CUP_MEMORY, "out of host memory for a path");
    }
    cup__json_free(&json);
    return found;
}

cup_status cup_gpt_base(cup_context *c, const char *folder, char *path, size_t size)
{
    if (!c)
        return CUP_MEMORY;
    CUP_TRY(c->error.status);
    if (!folder || !path || size == 0)
        return cup__fail(&c->error, CUP_ARGUMENT, "base: the %s",
                         folder ? "place for its path is NULL, or of 0 bytes" : "folder is NULL");
    *path = 0;
    char *found = find_base(c, folder);
    if (!found)
        return c->error.status;
    size_t length = strlen(found);
    if (length < size)
        memcpy(path, found, length + 1);
    else
        cup__fail(&c->error, CUP_ARGUMENT, "base: its path has %zu bytes, and there is room for "
                                           "%zu", length, size - 1);
    cup__free(found);
    return c->error.status;
}

cup_status cup__trainer_begin(cup_context *c, cup_trainer *t, const char *folder)
{
    const cup_training *a = &t->training;
    bool parted = t->among || t->pipe || t->experts;
    if (!a->lora_rank)
        return !a->from ? CUP_OK
               : parted ? cup__gpt_take_parts(t->model, a->from, a->comm)
                        : cup__gpt_take_from(t->model, a->from);
    char absolute[PATH_MAX];
    if (a->from)
        t->base = cup__strdup(realpath(a->from, absolute) ? absolute : a->from);
    else if (folder && cup__checkpoint_number(folder) > 0)
        t->base = find_base(c, folder);
    CUP_TRY(c->error.status);
    if (a->from && !t->base)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a path");
    if (t->base)
        CUP_TRY(take(t->model, t->base, &(sharers){a->comm, t->pipe, parted}, &t->base_hash));
    return cup_gpt_adapt(t->model, a->lora_rank, a->lora_alpha,
                         cup__adapters_apart(&t->model->config));
}
