/* Files of a published model that say how its tokenizer is used, above all its chat template. They
 * are kept as they are, since others read more of them than this library does. */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "data/tokenizer.h"

/* A checkpoint has all of them in its tokenizer's file, so they are to be small beside a model. */
#define MOST_KEPT ((uint64_t)4 << 20)
#define KEY "files"

const char *const cup__kept_names[CUP__KEPT] = {
    [CUP__KEPT_WORDS] = "tokenizer_config.json",
    [CUP__KEPT_SPECIAL] = "special_tokens_map.json",
    [CUP__KEPT_TEMPLATE] = "chat_template.jinja",
    [CUP__KEPT_GENERATION] = "generation_config.json",
};

static cup_status check(cup__error *error, const char *path, const cup__text *file)
{
    const char *ending = strrchr(path, '.');
    size_t good = cup__utf8_check(file->bytes, file->length);
    cup__json json;
    if (good < file->length)
        return cup__fail(error, CUP_FORMAT,
                         "%s is not UTF-8 from byte %zu on; mend it, or take it away", path, good);
    if (strcmp(ending, ".json"))
        return CUP_OK;
    CUP_TRY(cup__json_parse(error, path, file->bytes, file->length, &json));
    bool object = json.root->kind == CUP__JSON_OBJECT;
    cup__json_free(&json);
    return object ? CUP_OK : cup__fail(error, CUP_FORMAT, "%s holds no JSON object", path);
}

static cup_status keep(cup__error *error, const char *path, cup__text *out)
{
    if (!cup__file_exists(path))
        return CUP_OK;
    cup__text file = {0};
    CUP_TRY(cup__file_read(error, path, MOST_KEPT, &file.bytes, &file.length));
    cup_status status = check(error, path, &file);
    if (status == CUP_OK)
        *out = file;
    else
        cup__text_free(&file);
    return status;
}

cup_status cup__kept_beside(cup__error *error, const char *folder, cup_tokenizer *t)
{
    for (int i = 0; i < CUP__KEPT; i++) {
        char *path = cup__path_join(folder, cup__kept_names[i]);
        cup_status status =
            path ? keep(error, path, &t->kept[i]) : cup__no_memory(error, folder);
        cup__free(path);
        CUP_TRY(status);
    }
    return CUP_OK;
}

cup_status cup__kept_load(cup__error *error, const cup__json *json, cup_tokenizer *t)
{
    const cup__json_node *files = cup__json_find(json->root, KEY);
    for (int i = 0; i < CUP__KEPT && files; i++) {
        const cup__json_node *file = cup__json_find(files, cup__kept_names[i]);
        if (!file)
            continue;
        if (file->kind != CUP__JSON_STRING)
            return cup__fail(error, CUP_FORMAT, "%s: \"%s\" of \"" KEY "\" must be a text",
                             json->name, cup__kept_names[i]);
        cup__text_append(&t->kept[i], file->string, file->count);
        if (t->kept[i].failed)
            return cup__no_memory(error, json->name);
    }
    return CUP_OK;
}

void cup__kept_save(const cup_tokenizer *t, cup__json_writer *w)
{
    bool open = false;
    for (int i = 0; i < CUP__KEPT; i++) {
        if (!t->kept[i].bytes)
            continue;
        if (!open)
            cup__json_open(w, KEY, CUP__JSON_OBJECT);
        open = true;
        cup__json_add_bytes(w, cup__kept_names[i], t->kept[i].bytes, t->kept[i].length);
    }
    if (open)
        cup__json_close(w);
}

void cup__kept_free(cup_tokenizer *t)
{
    for (int i = 0; i < CUP__KEPT; i++)
        cup__text_free(&t->kept[i]);
}
