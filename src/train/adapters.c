/* Adapters from and to folders as peft has them: adapter_config.json and
 * adapter_model.safetensors. */
#include "train/adapters.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cupola/grad.h"
#include "cupola/io.h"
#include "cupola/ops.h"
#include "io/checkpoint.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"
#include "train/published.h"

#define CONFIG "adapter_config.json"
#define WEIGHTS "adapter_model.safetensors"
#define MOST_CONFIG ((uint64_t)1 << 20)
#define LONGEST_NAME 192
#define USUAL_RANK 8 /* and alpha, where a file does not say them */

/* A factor of an adapter and its name there. */
typedef struct factor {
    char name[LONGEST_NAME];
    cup_tensor *tensor;
} factor;

/* Which linear layer of a block a tensor of theirs is, and which part of it; CUP__LORA_COUNT: none
 * that has adapters, as experts have none. */
static int linear_of(const cup__published_tensor *t, int *part)
{
    static const char *const names[CUP__LORA_COUNT] = {
        "h.%d.attn.c_attn.weight", "h.%d.attn.c_proj.weight", "h.%d.mlp.c_fc.weight",
        "h.%d.mlp.c_proj.weight"};
    int which = 0;
    *part = t->part == CUP__PART_VALUES                            ? 2
            : t->part == CUP__PART_KEYS || t->part == CUP__PART_UP ? 1
                                                                   : 0;
    while (which < CUP__LORA_COUNT && strcmp(t->own, names[which]) != 0)
        which++;
    return cup__published_of_expert(t) ? CUP__LORA_COUNT : which;
}

bool cup__adapters_apart(const cup_gpt_config *config)
{
    const cup__published_family *f = cup__published_family_of(config);
    for (const cup__published_tensor *t = f ? f->tensors : NULL; t && t->name; t++)
        if (t->part == CUP__PART_QUERIES)
            return true;
    return false;
}

/* All factors of a model's adapters, two behind each other, to be freed. */
static factor *list_factors(cup_gpt *m, const cup__published_family *f, int64_t *count)
{
    int64_t rows = 0, layers = m->config.layers;
    for (const cup__published_tensor *t = f->tensors; t->name; t++)
        rows++;
    factor *all = cup__calloc((size_t)(2 * rows * layers), sizeof *all);
    *count = 0;
    if (!all)
        cup__fail(&m->context->error, CUP_MEMORY, "out of host memory for adapters");
    for (const cup__published_tensor *t = f->tensors; all && t->name; t++) {
        int part, which = linear_of(t, &part);
        for (int i = 0; which < CUP__LORA_COUNT && i < (int)layers; i++) {
            const cup_lora_layer *lora = &m->loras[i * CUP__LORA_COUNT + which];
            char name[LONGEST_NAME / 2];
            int used = snprintf(name, sizeof name, t->name, i);
            const char *prefix = f->prefix ? f->prefix : "";
            used -= (int)strlen(".weight");
            for (int k = 0; k < 2; k++) {
                factor *to = &all[(*count)++];
                to->tensor = k ? lora->b[part] : lora->a[part];
                snprintf(to->name, sizeof to->name, "base_model.model.%s%.*s.lora_%c.weight",
                         prefix, used, name, k ? 'B' : 'A');
            }
        }
    }
    return all;
}

/* The last word of the name of the layer that a factor belongs to. */
static const char *word_of(const factor *f, char out[LONGEST_NAME])
{
    snprintf(out, LONGEST_NAME, "%s", f->name);
    *strstr(out, ".lora_") = 0;
    return strrchr(out, '.') + 1;
}

static void write_targets(cup__json_writer *w, const factor *all, int64_t count)
{
    cup__json_open(w, "target_modules", CUP__JSON_ARRAY);
    for (int64_t i = 0; i < count; i += 2) {
        char own[LONGEST_NAME], other[LONGEST_NAME];
        const char *word = word_of(&all[i], own);
        int64_t first = 0;
        while (first < i && strcmp(word, word_of(&all[first], other)) != 0)
            first += 2;
        if (first == i)
            cup__json_add_string(w, NULL, word);
    }
    cup__json_close(w);
}

static cup_status write_config(const cup_gpt *m, const factor *all, int64_t count,
                               const char *folder, const char *base)
{
    cup__error *error = &m->context->error;
    cup__json_writer w = {.lines = 1};
    cup__json_open(&w, NULL, CUP__JSON_OBJECT);
    cup__json_add_string(&w, "peft_type", "LORA");
    cup__json_add_string(&w, "task_type", "CAUSAL_LM");
    if (base)
        cup__json_add_bytes(&w, "base_model_name_or_path", base, strlen(base));
    else
        cup__json_add_null(&w, "base_model_name_or_path");
    cup__json_add_integer(&w, "r", m->lora_rank);
    cup__json_add_number(&w, "lora_alpha", m->lora_alpha);
    cup__json_add_number(&w, "lora_dropout", 0);
    cup__json_add_string(&w, "bias", "none");
    cup__json_add_boolean(&w, "fan_in_fan_out", !cup__adapters_apart(&m->config));
    write_targets(&w, all, count);
    cup__json_add_boolean(&w, "inference_mode", true);
    cup__json_add_boolean(&w, "use_rslora", false);
    cup__json_add_boolean(&w, "use_dora", false);
    cup__json_close(&w);
    char *path = cup__checkpoint_path(folder, CONFIG, "");
    cup_status status = !path || w.text.failed
                            ? cup__fail(error, CUP_MEMORY, "export: out of host memory")
                            : cup__file_write(error, path, w.text.bytes, w.text.length);
    cup__free(path);
    cup__text_free(&w.text);
    return status;
}

static cup_status write_weights(cup_context *c, const factor *all, int64_t count,
                                const char *folder)
{
    char *path = cup__checkpoint_path(folder, WEIGHTS, "");
    cup_named *named = cup__calloc((size_t)count + 1, sizeof *named);
    cup_status status = CUP_OK;
    for (int64_t i = 0; named && i < count; i++)
        named[i] = (cup_named){all[i].name, all[i].tensor};
    if (!path || !named)
        status = cup__fail(&c->error, CUP_MEMORY, "export: out of host memory");
    else
        status = cup_safetensors_save(c, path, named, count);
    cup__free(named);
    cup__free(path);
    return status;
}

/* The family whose names the adapters have, which are whole in folders of others. */
static const cup__published_family *family_of(const cup_gpt *m)
{
    if (cup__gpt_check_whole(m, "adapters") != CUP_OK)
        return NULL;
    if (cup_parameters_comm(m->parameters)) {
        cup__fail(&m->context->error, CUP_UNSUPPORTED,
                  "adapters: this process has a part of the model, and folders of others hold "
                  "adapters of whole ones; load the whole from its checkpoint");
        return NULL;
    }
    const cup__published_family *f = cup__published_family_of(&m->config);
    if (!f)
        cup__fail(&m->context->error, CUP_UNSUPPORTED,
                  "adapters: they have names in the folders of others where the model is one of "
                  "cup_gpt_export; this one is none, so merge them and keep the checkpoint");
    return f;
}

cup_status cup_gpt_adapters_export(cup_gpt *m, const char *folder, const char *base)
{
    if (!m)
        return CUP_ARGUMENT;
    cup_context *c = m->context;
    CUP_TRY(c->error.status);
    if (!folder || !m->adapters)
        return cup__fail(&c->error, folder ? CUP_STATE : CUP_ARGUMENT, "export: %s",
                         folder ? "the model has no adapters" : "the folder is NULL");
    int64_t count;
    const cup__published_family *f = family_of(m);
    if (!f)
        return c->error.status;
    CUP_TRY(cup__folder_make(&c->error, folder));
    factor *all = list_factors(m, f, &count);
    cup_status status = all ? write_weights(c, all, count, folder) : c->error.status;
    if (status == CUP_OK)
        status = write_config(m, all, count, folder, base);
    cup__free(all);
    return status;
}

static cup_status unsupported(cup__error *error, const cup__json *json, const char *key)
{
    return cup__fail(error, CUP_UNSUPPORTED,
                     "%s: \"%s\" asks for what this version's adapters do not have", json->name,
                     key);
}

/* Whether a key says nothing: not there, null, false, or empty. */
static bool is_empty(const cup__json *json, const char *key)
{
    const cup__json_node *node = cup__json_find(json->root, key);
    return !node || node->kind == CUP__JSON_NULL ||
           (node->kind == CUP__JSON_BOOL && !node->boolean) ||
           ((node->kind == CUP__JSON_ARRAY || node->kind == CUP__JSON_OBJECT) && node->count == 0);
}

/* Some begin with a part of the model's weights, which they take from these: beside the weights as
 * they are, what they hold is not what was trained. */
static cup_status check_beginning(cup__error *error, const cup__json *json)
{
    static const char *const taken[] = {"pissa", "olora", "corda", "loftq", "lora_ga", NULL};
    const cup__json_node *node = cup__json_find(json->root, "init_lora_weights");
    if (!node || node->kind != CUP__JSON_STRING)
        return CUP_OK;
    for (int i = 0; taken[i]; i++)
        if (!strncmp(node->string, taken[i], strlen(taken[i])))
            return cup__fail(error, CUP_UNSUPPORTED,
                             "%s: adapters that begin as \"%.40s\" stand beside other weights than "
                             "the model's; have peft convert them (save_pretrained with "
                             "path_initial_model_for_weight_conversion)",
                             json->name, node->string);
    return CUP_OK;
}

static cup_status check_kind(cup__error *error, const cup__json *json)
{
    static const char *const strange[] = {
        "use_dora",      "modules_to_save",   "rank_pattern", "lora_bias",
        "alpha_pattern", "layer_replication", "use_qalora",   "target_parameters",
        "use_bdlora",    "arrow_config",      "alora_invocation_tokens", NULL};
    const cup__json_node *type = cup__json_find(json->root, "peft_type");
    const cup__json_node *bias = cup__json_find(json->root, "bias");
    if (!type || type->kind != CUP__JSON_STRING || strcmp(type->string, "LORA") != 0)
        return unsupported(error, json, "peft_type");
    if (cup__published_has(json->root, "bias") &&
        (bias->kind != CUP__JSON_STRING || strcmp(bias->string, "none") != 0))
        return unsupported(error, json, "bias");
    for (int i = 0; strange[i]; i++)
        if (!is_empty(json, strange[i]))
            return unsupported(error, json, strange[i]);
    return check_beginning(error, json);
}

static cup_status read_rank(cup__error *error, const cup__json *json, int64_t *rank, double *alpha)
{
    const cup__json_node *root = json->root;
    bool rooted;
    *rank = USUAL_RANK;
    CUP_TRY(check_kind(error, json));
    if (cup__published_has(root, "r"))
        CUP_TRY(cup__json_get_integer(error, json, root, "r", 1, CUP__LORA_RANK_MOST, rank));
    CUP_TRY(cup__published_above_or(error, json, root, "lora_alpha", USUAL_RANK, alpha));
    CUP_TRY(cup__published_flag_or(error, json, root, "use_rslora", false, &rooted));
    *alpha *= rooted ? sqrt((double)*rank) : 1;
    return CUP_OK;
}

/* Fills a factor; one that the file does not have, with its other half, becomes zeros. */
static cup_status fill(cup_context *c, const factor *to, cup_tensor *from, bool there,
                       const char *folder)
{
    char theirs[CUP__SHAPE_TEXT], ours[CUP__SHAPE_TEXT];
    cup__shape wanted = cup__shape_of(to->tensor);
    cup_scope_open(c);
    if (!there) {
        cup_copy_into(c, to->tensor, cup_scale(c, to->tensor, 0));
    } else if (!from) {
        cup__fail(&c->error, CUP_FORMAT, "%s: the weights have no \"%s\"", folder, to->name);
    } else {
        cup__shape found = cup__shape_of(from);
        if (cup__shape_equal(&found, &wanted))
            cup_copy_into(c, to->tensor, cup_cast(c, from, to->tensor->dtype));
        else
            cup__fail(&c->error, CUP_FORMAT,
                      "%s: \"%s\" is %s, and beside this model it must be %s", folder, to->name,
                      cup__tensor_text(from, theirs), cup__tensor_text(to->tensor, ours));
    }
    cup_scope_return(c, NULL);
    return c->error.status;
}

/* What the model has no adapters for. */
static cup_status refuse_others(cup_context *c, const cup_tensors *found, const factor *all,
                                int64_t count, const char *folder)
{
    for (int64_t i = 0; i < cup_tensors_count(found); i++) {
        int64_t k = 0;
        while (k < count && strcmp(all[k].name, cup_tensors_name(found, i)) != 0)
            k++;
        if (k == count)
            return cup__fail(&c->error, CUP_UNSUPPORTED,
                             "%s: this model has no place for the adapter \"%.150s\"", folder,
                             cup_tensors_name(found, i));
    }
    return CUP_OK;
}

static cup_status read_weights(cup_gpt *m, const cup__published_family *f, const char *folder)
{
    cup_context *c = m->context;
    int64_t count;
    char *path = cup__checkpoint_path(folder, WEIGHTS, "");
    factor *all = list_factors(m, f, &count);
    cup_tensors *found = path && all ? cup_safetensors_load(c, path) : NULL;
    cup_status status = c->error.status;
    if (!path)
        status = cup__fail(&c->error, CUP_MEMORY, "out of host memory for adapters");
    if (found && status == CUP_OK)
        status = refuse_others(c, found, all, count, folder);
    for (int64_t i = 0; found && i < count && status == CUP_OK; i++) {
        cup_tensor *own = cup_tensors_find(found, all[i].name);
        bool there = own || cup_tensors_find(found, all[i ^ 1].name);
        status = fill(c, &all[i], own, there, folder);
    }
    cup_tensors_free(found);
    cup__free(all);
    cup__free(path);
    return status;
}

static cup_status read_config(cup_context *c, const char *folder, cup__json *out)
{
    char *path = cup__checkpoint_path(folder, CONFIG, "");
    if (!path)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for adapters");
    cup_status status = cup__json_read(&c->error, path, MOST_CONFIG, out);
    cup__free(path);
    return status;
}

static cup_status load(cup_gpt *m, const char *folder)
{
    cup_context *c = m->context;
    cup__json json;
    int64_t rank;
    double alpha;
    const cup__published_family *f = family_of(m);
    if (!f)
        return c->error.status;
    CUP_TRY(read_config(c, folder, &json));
    cup_status status = read_rank(&c->error, &json, &rank, &alpha);
    cup__json_free(&json);
    CUP_TRY(status);
    CUP_TRY(cup_gpt_adapt(m, rank, alpha, cup__adapters_apart(&m->config)));
    return read_weights(m, f, folder);
}

cup_status cup_gpt_adapters_load(cup_gpt *m, const char *folder)
{
    if (!m)
        return CUP_ARGUMENT;
    cup_context *c = m->context;
    CUP_TRY(c->error.status);
    if (!folder)
        return cup__fail(&c->error, CUP_ARGUMENT, "adapters: their folder is NULL");
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    cup_status status = load(m, folder);
    cup_scope_return(c, NULL);
    cup_grad_recording(c, was);
    return status;
}
