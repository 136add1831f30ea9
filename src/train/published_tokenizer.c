/* A tokenizer as others publish it beside a model: tokenizer.json, tokenizer_config.json and, where
 * it came with them, special_tokens_map.json, chat_template.jinja and generation_config.json. */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/io.h"
#include "data/tokenizer.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"
#include "train/published.h"

#define LENGTH "model_max_length"

static cup_status no_memory(cup_context *c)
{
    return cup__fail(&c->error, CUP_MEMORY, "export: out of host memory");
}

cup_status cup__published_json(cup_context *c, const char *folder, const char *name,
                               cup__json_writer *json)
{
    cup__json_close(json);
    char *path = cup__path_join(folder, name);
    if (!path || json->text.failed)
        no_memory(c);
    else
        cup_file_write(c, path, json->text.bytes, json->text.length);
    cup__free(path);
    cup__text_free(&json->text);
    return c->error.status;
}

/* None as null, since families have their own where a file says nothing; one as a number, several
 * as a list. */
static void write_ends(const cup__around *around, cup__json_writer *json)
{
    if (around->end_count == 0)
        cup__json_add_null(json, "eos_token_id");
    if (around->end_count == 1)
        cup__json_add_integer(json, "eos_token_id", around->ends[0]);
    if (around->end_count < 2)
        return;
    cup__json_open(json, "eos_token_id", CUP__JSON_ARRAY);
    for (int i = 0; i < around->end_count; i++)
        cup__json_add_integer(json, NULL, around->ends[i]);
    cup__json_close(json);
}

void cup__published_ids(const cup_tokenizer *t, cup__json_writer *json)
{
    if (t->around.begin >= 0)
        cup__json_add_integer(json, "bos_token_id", t->around.begin);
    else
        cup__json_add_null(json, "bos_token_id");
    write_ends(&t->around, json);
}

static bool is_put(const int32_t *list, int count, int32_t token)
{
    int i = 0;
    while (i < count && list[i] != token)
        i++;
    return i < count;
}

static void write_token(const cup_tokenizer *t, const char *key, int32_t token, char *name,
                        cup__json_writer *json)
{
    if (token >= 0)
        cup__json_add_string(json, key, cup__tokenizer_name(t, token, name));
}

static cup_status write_words(cup_gpt *m, const cup_tokenizer *t, const char *folder)
{
    char name[CUP__MOST_NAME];
    const cup__around *around = &t->around;
    int32_t end = around->end_count ? around->ends[0] : -1;
    cup__json_writer json = {.lines = 1};
    cup__json_open(&json, NULL, CUP__JSON_OBJECT);
    cup__json_add_string(&json, "tokenizer_class", "PreTrainedTokenizerFast");
    write_token(t, "bos_token", around->begin, name, &json);
    write_token(t, "eos_token", end, name, &json);
    if (around->begin >= 0)
        cup__json_add_boolean(&json, "add_bos_token",
                              is_put(around->front, around->front_count, around->begin));
    if (end >= 0)
        cup__json_add_boolean(&json, "add_eos_token",
                              is_put(around->behind, around->behind_count, end));
    cup__json_add_boolean(&json, "clean_up_tokenization_spaces", false);
    cup__json_add_integer(&json, LENGTH, m->config.context);
    return cup__published_json(m->context, folder, cup__kept_names[CUP__KEPT_WORDS], &json);
}

static cup_status write_kept(cup_context *c, const cup_tokenizer *t, cup__kept which,
                             const char *folder)
{
    char *path = cup__path_join(folder, cup__kept_names[which]);
    if (!path)
        return no_memory(c);
    cup_file_write(c, path, t->kept[which].bytes, t->kept[which].length);
    cup__free(path);
    return c->error.status;
}

/* Whether a file asks for texts that are longer than a model has positions for. Rotary ones have no
 * such end, and many a file says more than its model was trained with. */
static bool is_too_long(const cup_gpt *m, const cup__json *json)
{
    const cup__json_node *length = cup__json_find(json->root, LENGTH);
    return m->config.positions == CUP_POSITIONS_LEARNED && length &&
           length->kind == CUP__JSON_NUMBER &&
           cup__json_number(length) > (double)m->config.context;
}

/* All that the file says but for the length. */
static cup_status write_shorter(cup_gpt *m, const cup__json *json, const char *folder)
{
    cup__json_writer w = {.lines = 1};
    cup__json_open(&w, NULL, CUP__JSON_OBJECT);
    CUP__JSON_EACH (value, json->root)
        if (strcmp(value->key, LENGTH))
            cup__json_add_node(&w, value->key, value);
        else
            cup__json_add_integer(&w, LENGTH, m->config.context);
    return cup__published_json(m->context, folder, cup__kept_names[CUP__KEPT_WORDS], &w);
}

static cup_status write_config(cup_gpt *m, const cup_tokenizer *t, const char *folder)
{
    cup_context *c = m->context;
    const cup__text *kept = &t->kept[CUP__KEPT_WORDS];
    cup__json json;
    if (!kept->bytes)
        return write_words(m, t, folder);
    CUP_TRY(cup__json_parse(&c->error, cup__kept_names[CUP__KEPT_WORDS], kept->bytes, kept->length,
                            &json));
    cup_status status = is_too_long(m, &json) ? write_shorter(m, &json, folder)
                                              : write_kept(c, t, CUP__KEPT_WORDS, folder);
    cup__json_free(&json);
    return status;
}

cup_status cup__published_generation(cup_context *c, const cup_tokenizer *t, const char *folder)
{
    const char *name = cup__kept_names[CUP__KEPT_GENERATION];
    if (t->kept[CUP__KEPT_GENERATION].bytes)
        return write_kept(c, t, CUP__KEPT_GENERATION, folder);
    cup__json_writer json = {.lines = 1};
    cup__json_open(&json, NULL, CUP__JSON_OBJECT);
    cup__published_ids(t, &json);
    return cup__published_json(c, folder, name, &json);
}

/* What has a default of this library's is written anyway; what has none must not be another's. */
static cup_status check_free(cup_context *c, const cup_tokenizer *t, cup__kept which,
                             const char *folder)
{
    char *path = cup__path_join(folder, cup__kept_names[which]);
    if (!path)
        return no_memory(c);
    if (!t->kept[which].bytes && cup__file_exists(path))
        cup__fail(&c->error, CUP_ARGUMENT,
                  "export: %s is of another tokenizer, and would be read with this one; take it "
                  "away, or write to another folder",
                  path);
    cup__free(path);
    return c->error.status;
}

cup_status cup__published_tokenizer_check(cup_context *c, const cup_tokenizer *t,
                                          const char *folder)
{
    const char *kind = cup_tokenizer_kind(t);
    if (strcmp(kind, "bpe"))
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "export: a tokenizer of kind %s is none that others read; leave it out, "
                         "or train with one of kind bpe",
                         kind);
    CUP_TRY(check_free(c, t, CUP__KEPT_SPECIAL, folder));
    return check_free(c, t, CUP__KEPT_TEMPLATE, folder);
}

static cup_status write_all(cup_gpt *m, const cup_tokenizer *t, const char *folder)
{
    cup_context *c = m->context;
    CUP_TRY(cup__folder_make(&c->error, folder));
    char *path = cup__path_join(folder, "tokenizer.json");
    cup_status status = path ? cup_tokenizer_export(c, t, path) : no_memory(c);
    cup__free(path);
    CUP_TRY(status);
    CUP_TRY(write_config(m, t, folder));
    for (int i = CUP__KEPT_SPECIAL; i <= CUP__KEPT_TEMPLATE; i++)
        if (t->kept[i].bytes)
            CUP_TRY(write_kept(c, t, (cup__kept)i, folder));
    return CUP_OK;
}

cup_status cup_gpt_tokenizer_publish(cup_gpt *m, const cup_tokenizer *t, const char *folder)
{
    if (!m)
        return CUP_ARGUMENT;
    cup_context *c = m->context;
    CUP_TRY(c->error.status);
    if (!t || !folder)
        return cup__fail(&c->error, CUP_ARGUMENT, "export: the %s is NULL",
                         t ? "folder" : "tokenizer");
    CUP_TRY(cup__published_tokenizer_check(c, t, folder));
    return write_all(m, t, folder);
}
