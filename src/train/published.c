/* Models from and to the folders that others publish. */
#include "train/published.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/grad.h"
#include "cupola/io.h"
#include "cupola/ops.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"

#define MOST_CONFIG ((uint64_t)16 << 20)
#define LONGEST_NAME 128
#define QUANTIZED "quantization_config"

static char *path_in(const char *folder, const char *name)
{
    size_t room = strlen(folder) + strlen(name) + 2;
    char *path = cup__malloc(room);
    if (path)
        snprintf(path, room, "%s/%s", folder, name);
    return path;
}

static bool is_there(const char *folder, const char *name)
{
    char *path = folder ? path_in(folder, name) : NULL;
    bool there = path && cup__file_exists(path);
    cup__free(path);
    return there;
}

bool cup__published_is(const char *folder)
{
    return is_there(folder, "config.json") && !is_there(folder, "state.json");
}

const cup__published_family *cup__published_family_of(const cup_gpt_config *config)
{
    const cup__published_family *first = NULL;
    for (const cup__published_family *f = cup__published_families; f->model_type; f++) {
        if (!f->is_one(config))
            continue;
        if (f->family == config->family)
            return f;
        first = first ? first : f;
    }
    return first;
}

static const cup__published_family *family_of(cup__error *error, const cup__json *json)
{
    const char *type;
    if (cup__json_get_string(error, json, json->root, "model_type", &type) != CUP_OK)
        return NULL;
    const cup__published_family *f = cup__published_families;
    while (f->model_type && strcmp(f->model_type, type))
        f++;
    if (f->model_type)
        return f;
    cup__fail(error, CUP_UNSUPPORTED,
              "%s: models of type \"%.40s\" are not known; those of gpt2, llama, mistral, qwen2, "
              "qwen3, mixtral and qwen3_moe are",
              json->name, type);
    return NULL;
}

void cup__published_rows(const cup_gpt_config *g, cup__published_part part, int64_t rows,
                         int64_t *from, int64_t *count)
{
    int64_t size = cup__gpt_head_size(g);
    int64_t heads = g->heads * size, shared = g->kv_heads * size;
    *from = part == CUP__PART_KEYS     ? heads
            : part == CUP__PART_VALUES ? heads + shared
            : part == CUP__PART_UP     ? g->hidden
                                       : 0;
    *count = part == CUP__PART_QUERIES                            ? heads
             : part == CUP__PART_KEYS || part == CUP__PART_VALUES ? shared
             : part == CUP__PART_GATE || part == CUP__PART_UP     ? g->hidden
                                                                  : rows;
}

bool cup__published_of_expert(const cup__published_tensor *t)
{
    return strstr(t->name, "experts.%d") != NULL;
}

/* One of the matrices of a stack. */
static cup_tensor *matrix_of(cup_tensor *all, int i)
{
    cup_tensor *one = cup__gpt_part(all, 0, i, i + 1);
    return one ? cup_reshape(all->context, one, 2, all->shape + 1) : NULL;
}

/* What a row of the table is of the model, as they have it: a view. NULL without an error where
 * the model has no such tensor. */
static cup_tensor *view_of(cup_gpt *m, const cup__published_tensor *t, int block, int expert)
{
    char name[LONGEST_NAME];
    int64_t count, from, rows;
    const cup_named *named = cup_parameters_named(m->parameters, &count);
    snprintf(name, sizeof name, t->own, block);
    for (int64_t i = 0; named && i < count; i++) {
        if (strcmp(named[i].name, name))
            continue;
        cup_tensor *own = named[i].tensor;
        own = cup__published_of_expert(t) ? matrix_of(own, expert) : own;
        if (!own)
            return NULL;
        cup__published_rows(&m->config, t->part, own->shape[0], &from, &rows);
        own = cup__gpt_part(own, 0, from, from + rows);
        return t->transposed ? cup_permute(m->context, own, (const int64_t[]){1, 0}, 2) : own;
    }
    return NULL;
}

/* A row of the table, of a block; of all experts where each has one. */
static cup_status visit(cup__published_walk *w, const cup__published_tensor *t, int block)
{
    cup_context *c = w->model->context;
    int count = cup__published_of_expert(t) ? (int)w->model->config.experts : 1;
    for (int e = 0; e < count; e++) {
        char name[LONGEST_NAME];
        snprintf(name, sizeof name, t->name, block, e);
        cup_tensor *view = view_of(w->model, t, block, e);
        CUP_TRY(c->error.status);
        if (view)
            CUP_TRY(w->visit(w->user, name, view));
    }
    return CUP_OK;
}

cup_status cup__published_each(cup__published_walk *w)
{
    for (const cup__published_tensor *t = w->family->tensors; t->name; t++) {
        int count = strstr(t->own, "%d") ? (int)w->model->config.layers : 1;
        for (int i = 0; i < count; i++)
            CUP_TRY(visit(w, t, i));
    }
    return CUP_OK;
}

/* What was found of a model, and where. */
typedef struct finds {
    const cup__published_family *family;
    const cup_tensors *tensors;
    const char *folder;
} finds;

static cup_tensor *find(const finds *f, const char *name)
{
    char longer[2 * LONGEST_NAME];
    cup_tensor *t = cup_tensors_find(f->tensors, name);
    if (t || !f->family->prefix)
        return t;
    snprintf(longer, sizeof longer, "%s%s", f->family->prefix, name);
    return cup_tensors_find(f->tensors, longer);
}

static cup_status take(void *user, const char *name, cup_tensor *view)
{
    const finds *f = user;
    cup_context *c = view->context;
    char theirs[CUP__SHAPE_TEXT], ours[CUP__SHAPE_TEXT];
    cup_tensor *t = find(f, name);
    if (!t)
        return cup__fail(&c->error, CUP_FORMAT, "%s: the weights have no \"%s\"", f->folder, name);
    cup__shape found = cup__shape_of(t), wanted = cup__shape_of(view);
    if (!cup__shape_equal(&found, &wanted))
        return cup__fail(&c->error, CUP_FORMAT,
                         "%s: \"%s\" is %s, and by config.json it must be %s", f->folder, name,
                         cup__tensor_text(t, theirs), cup__tensor_text(view, ours));
    cup_scope_open(c);
    cup_copy_into(c, view, cup_cast(c, t, view->dtype));
    cup_scope_return(c, NULL);
    return c->error.status;
}

/* NULL: the file is not that of a model, which the context's error says with its name. */
static const cup__published_family *take_config(cup_context *c, const cup__json *json,
                                                cup_gpt_config *out)
{
    *out = (cup_gpt_config){.size = sizeof *out};
    const cup__published_family *family = family_of(&c->error, json);
    if (family && cup__published_has(json->root, QUANTIZED)) {
        cup__published_refuse(&c->error, json, QUANTIZED, "quantized weights");
        return NULL;
    }
    if (!family || family->read(&c->error, json, out) != CUP_OK)
        return NULL;
    out->family = family->family;
    if (cup_gpt_config_check(c, out) == CUP_OK)
        return family;
    cup__error_prefix(&c->error, "%s: ", json->name);
    c->error.status = CUP_FORMAT;
    return NULL;
}

static cup_gpt *import(cup_context *c, const char *folder, const cup__json *json, cup_dtype dtype)
{
    cup_gpt_config config;
    const cup__published_family *family = take_config(c, json, &config);
    if (!family || cup__published_check(&c->error, folder, &config, family) != CUP_OK)
        return NULL;
    cup_gpt *m = cup_gpt_new(c, dtype, &config);
    cup_tensors *found = m ? cup_safetensors_load(c, folder) : NULL;
    finds f = {family, found, folder};
    cup__published_walk w = {m, family, take, &f};
    cup_status status = found ? cup__published_each(&w) : c->error.status;
    cup_tensors_free(found);
    if (status == CUP_OK)
        return m;
    cup_gpt_free(m);
    return NULL;
}

static cup_status read_config(cup_context *c, const char *folder, cup__json *json)
{
    char *path = folder ? path_in(folder, "config.json") : NULL;
    if (!path)
        return cup__fail(&c->error, folder ? CUP_MEMORY : CUP_ARGUMENT, "import: %s",
                         folder ? "out of host memory" : "the folder is NULL");
    cup_status status = cup__json_read(&c->error, path, MOST_CONFIG, json);
    cup__free(path);
    return status;
}

cup_gpt *cup_gpt_import(cup_context *c, const char *folder, cup_dtype dtype)
{
    cup__json json;
    if (!c || c->error.status != CUP_OK || read_config(c, folder, &json) != CUP_OK)
        return NULL;
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    cup_gpt *m = import(c, folder, &json, dtype);
    cup_scope_return(c, NULL);
    cup_grad_recording(c, was);
    cup__json_free(&json);
    return m;
}

cup_status cup__published_read(cup_context *c, const char *folder, cup_gpt_config *config,
                               const cup__published_family **family)
{
    cup_gpt_config found;
    cup__json json;
    CUP_TRY(read_config(c, folder, &json));
    *family = take_config(c, &json, &found);
    cup__json_free(&json);
    if (!*family)
        return c->error.status;
    *config = found;
    return CUP_OK;
}

cup_status cup_gpt_config_load(cup_context *c, const char *folder, cup_gpt_config *config)
{
    if (!c)
        return CUP_MEMORY;
    CUP_TRY(c->error.status);
    if (!config || !folder)
        return cup__fail(&c->error, CUP_ARGUMENT, "the %s NULL",
                         config ? "folder of a model is" : "place for its description is");
    cup_training training;
    const cup__published_family *family;
    if (cup__published_is(folder))
        return cup__published_read(c, folder, config, &family);
    CUP_TRY(cup_training_load(c, folder, &training, NULL));
    *config = training.model;
    return CUP_OK;
}

static cup_status copy_weights(cup_gpt *m, cup_gpt *from, const char *folder)
{
    cup_context *c = m->context;
    int64_t count, others;
    const cup_named *to = cup_parameters_named(m->parameters, &count);
    const cup_named *other = cup_parameters_named(from->parameters, &others);
    CUP_TRY(c->error.status);
    for (int64_t i = 0; i < count || i < others; i++) {
        cup__shape a = {0}, b = {0};
        bool both = i < count && i < others && !strcmp(to[i].name, other[i].name);
        if (both) {
            a = cup__shape_of(to[i].tensor);
            b = cup__shape_of(other[i].tensor);
        }
        if (!both || !cup__shape_equal(&a, &b))
            return cup__fail(&c->error, CUP_ARGUMENT,
                             "training: the model in %s differs from the one to be trained at %s; "
                             "leave what describes the model to it",
                             folder, i < count ? to[i].name : other[i].name);
        cup_copy_into(c, to[i].tensor, cup_cast(c, other[i].tensor, m->dtype));
    }
    return c->error.status;
}

cup_status cup__gpt_take_from(cup_gpt *m, const char *folder)
{
    cup_context *c = m->context;
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    cup_gpt *from = cup__published_is(folder) ? cup_gpt_import(c, folder, m->dtype)
                                              : cup_gpt_load(c, folder);
    if (from && from->adapters)
        cup_gpt_merge(from);
    cup_status status = c->error.status == CUP_OK ? copy_weights(m, from, folder) : c->error.status;
    cup_gpt_free(from);
    cup_scope_return(c, NULL);
    cup_grad_recording(c, was);
    return status;
}
