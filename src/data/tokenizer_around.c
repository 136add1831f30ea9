/* Tokens round a text: what is put in front of it, and what ends it, as the files of a published
 * model say: tokenizer.json, tokenizer_config.json, generation_config.json and config.json. */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/tokenizer.h"

#define MOST_FILE ((uint64_t)16 << 20)
#define PARTING "<|endoftext|>"

static bool holds(const int32_t *list, int count, int32_t token)
{
    int i = 0;
    while (i < count && list[i] != token)
        i++;
    return i < count;
}

static bool is_token(const cup_tokenizer *t, int64_t token)
{
    return token >= 0 && token < t->size;
}

static bool is_word(const cup__json_node *object, const char *key, const char *word)
{
    const cup__json_node *node = cup__json_find(object, key);
    return node && node->kind == CUP__JSON_STRING && !strcmp(node->string, word);
}

/* Where a template's tokens go: in front of the text, then behind it. */
typedef struct template {
    cup__error *error;
    const cup__json *json;
    cup_tokenizer *tokenizer;
    const cup__json_node *tokens;
    bool behind;
} template;

static cup_status refuse(const template *p, const char *what)
{
    return cup__fail(p->error, CUP_UNSUPPORTED,
                     "%s: \"post_processor\" %s, which is not read here; a TemplateProcessing of "
                     "one text with up to %d tokens before and behind it is",
                     p->json->name, what, CUP__MOST_AROUND);
}

static cup_status add(template *p, int64_t token)
{
    cup__around *a = &p->tokenizer->around;
    int *count = p->behind ? &a->behind_count : &a->front_count;
    if (!is_token(p->tokenizer, token))
        return cup__fail(p->error, CUP_FORMAT,
                         "%s: \"post_processor\" has a token that is not from 0 to %d, one less "
                         "than there are",
                         p->json->name, (int)p->tokenizer->size - 1);
    if (*count == CUP__MOST_AROUND)
        return refuse(p, "puts more tokens round a text");
    (p->behind ? a->behind : a->front)[(*count)++] = (int32_t)token;
    return CUP_OK;
}

/* A piece is the text, or a name under which there are tokens. */
static cup_status add_piece(template *p, const cup__json_node *piece)
{
    const cup__json_node *name = cup__json_find(cup__json_find(piece, "SpecialToken"), "id");
    if (is_word(cup__json_find(piece, "Sequence"), "id", "A") && !p->behind) {
        p->behind = true;
        return CUP_OK;
    }
    const cup__json_node *ids =
        name && name->kind == CUP__JSON_STRING
            ? cup__json_find(cup__json_find(p->tokens, name->string), "ids")
            : NULL;
    if (!ids || ids->kind != CUP__JSON_ARRAY)
        return refuse(p, "has a piece that is neither the text nor a token");
    CUP__JSON_EACH (id, ids) {
        int64_t token = -1;
        cup__json_integer(id, &token);
        CUP_TRY(add(p, token));
    }
    return CUP_OK;
}

static cup_status read_template(template *p, const cup__json_node *step)
{
    const cup__json_node *pieces = cup__json_find(step, "single");
    p->tokens = cup__json_find(step, "special_tokens");
    if (p->behind || !pieces || pieces->kind != CUP__JSON_ARRAY)
        return refuse(p, "is no list of steps with one template");
    CUP__JSON_EACH (piece, pieces)
        CUP_TRY(add_piece(p, piece));
    return p->behind ? CUP_OK : refuse(p, "leaves the text out");
}

static cup_status read_step(template *p, const cup__json_node *step)
{
    if (is_word(step, "type", "TemplateProcessing"))
        return read_template(p, step);
    /* It moves the places of tokens in the text, which nobody asks for here. */
    return is_word(step, "type", "ByteLevel") ? CUP_OK : refuse(p, "is of another type");
}

cup_status cup__around_published(cup__error *error, const cup__json *json, cup_tokenizer *t)
{
    const cup__json_node *first = cup__json_find(json->root, "post_processor");
    const cup__json_node *list = cup__json_find(first, "processors");
    template p = {error, json, t, NULL, false};
    if (!first || first->kind == CUP__JSON_NULL)
        return CUP_OK;
    if (!is_word(first, "type", "Sequence"))
        return read_step(&p, first);
    if (!list || list->kind != CUP__JSON_ARRAY)
        return refuse(&p, "is no list of steps");
    CUP__JSON_EACH (step, list)
        CUP_TRY(read_step(&p, step));
    return CUP_OK;
}

static void add_end(cup_tokenizer *t, int64_t token)
{
    cup__around *a = &t->around;
    if (is_token(t, token) && a->end_count < CUP__MOST_AROUND &&
        !holds(a->ends, a->end_count, (int32_t)token))
        a->ends[a->end_count++] = (int32_t)token;
}

/* The token, or the tokens, of a key of config.json or generation_config.json. Those that the
 * tokenizer does not have are left out: models may know more, and many a file has another's. */
static cup_status read_ids(cup__error *error, const cup__json *json, const char *key,
                           int64_t ids[CUP__MOST_AROUND], int *count)
{
    const cup__json_node *node = cup__json_find(json->root, key);
    bool good = true;
    *count = 0;
    if (!node || node->kind == CUP__JSON_NULL)
        return CUP_OK;
    if (node->kind != CUP__JSON_ARRAY)
        good = cup__json_integer(node, &ids[(*count)++]);
    else if ((good = node->count <= CUP__MOST_AROUND))
        CUP__JSON_EACH (id, node)
            good &= cup__json_integer(id, &ids[(*count)++]);
    if (good)
        return CUP_OK;
    return cup__fail(error, CUP_FORMAT, "%s: \"%s\" must be a token or a list of up to %d",
                     json->name, key, CUP__MOST_AROUND);
}

static cup_status read_model(cup__error *error, const cup__json *json, cup_tokenizer *t)
{
    int64_t ids[CUP__MOST_AROUND];
    int count;
    CUP_TRY(read_ids(error, json, "eos_token_id", ids, &count));
    for (int i = 0; i < count; i++)
        add_end(t, ids[i]);
    CUP_TRY(read_ids(error, json, "bos_token_id", ids, &count));
    if (t->around.begin < 0 && count && is_token(t, ids[0]))
        t->around.begin = (int32_t)ids[0];
    return CUP_OK;
}

/* A text, or an object that has it; -1 where there is none, or it is no token. */
static int32_t token_of(const cup__json *json, const cup_tokenizer *t, const char *key)
{
    const cup__json_node *node = cup__json_find(json->root, key);
    if (node && node->kind == CUP__JSON_OBJECT)
        node = cup__json_find(node, "content");
    return node && node->kind == CUP__JSON_STRING ? cup_tokenizer_special(t, node->string) : -1;
}

/* What is put there is said by tokenizer.json unless a flag says otherwise. */
static cup_status read_flag(cup__error *error, const cup__json *json, const char *key,
                            int32_t token, int32_t *list, int *count)
{
    const cup__json_node *node = cup__json_find(json->root, key);
    bool set = false;
    if (!node || node->kind == CUP__JSON_NULL)
        return CUP_OK;
    CUP_TRY(cup__json_get_boolean(error, json, json->root, key, &set));
    if (token < 0 || set == holds(list, *count, token))
        return CUP_OK;
    *count = set;
    list[0] = token;
    return CUP_OK;
}

static cup_status read_tokenizer(cup__error *error, const cup__json *json, cup_tokenizer *t)
{
    cup__around *a = &t->around;
    int32_t end = token_of(json, t, "eos_token");
    a->begin = token_of(json, t, "bos_token");
    add_end(t, end);
    CUP_TRY(read_flag(error, json, "add_bos_token", a->begin, a->front, &a->front_count));
    return read_flag(error, json, "add_eos_token", end, a->behind, &a->behind_count);
}

static cup_status read_file(cup__error *error, const char *folder, const char *name,
                            cup_status (*read)(cup__error *error, const cup__json *json,
                                               cup_tokenizer *t),
                            cup_tokenizer *t)
{
    cup__json json;
    char *path = cup__path_join(folder, name);
    cup_status status = path ? CUP_OK : cup__no_memory(error, folder);
    if (path && cup__file_exists(path)) {
        status = cup__json_read(error, path, MOST_FILE, &json);
        if (status == CUP_OK) {
            status = read(error, &json, t);
            cup__json_free(&json);
        }
    }
    cup__free(path);
    return status;
}

cup_status cup__around_beside(cup__error *error, const char *folder, cup_tokenizer *t)
{
    /* What was assumed without them. */
    t->around.begin = -1;
    t->around.end_count = 0;
    CUP_TRY(read_file(error, folder, "tokenizer_config.json", read_tokenizer, t));
    CUP_TRY(read_file(error, folder, "generation_config.json", read_model, t));
    CUP_TRY(read_file(error, folder, "config.json", read_model, t));
    cup__around_complete(t);
    return CUP_OK;
}

void cup__around_complete(cup_tokenizer *t)
{
    if (t->around.begin < 0 && t->around.front_count)
        t->around.begin = t->around.front[0];
    if (!t->around.end_count)
        add_end(t, cup_tokenizer_special(t, PARTING));
}

static cup_status load_list(cup__error *error, const cup__json *json, const char *key, int32_t size,
                            int32_t *list, int *count)
{
    const cup__json_node *node = cup__json_find(json->root, key);
    bool good = node && node->kind == CUP__JSON_ARRAY && node->count <= CUP__MOST_AROUND;
    if (!node)
        return CUP_OK;
    if (good)
        CUP__JSON_EACH (item, node) {
            int64_t token = -1;
            good &= cup__json_integer(item, &token) && token >= 0 && token < size;
            list[(*count)++] = (int32_t)token;
        }
    if (good)
        return CUP_OK;
    return cup__fail(error, CUP_FORMAT, "%s: \"%s\" must be a list of up to %d tokens below %d",
                     json->name, key, CUP__MOST_AROUND, (int)size);
}

cup_status cup__around_load(cup__error *error, const cup__json *json, cup_tokenizer *t)
{
    cup__around *a = &t->around;
    int64_t begin;
    CUP_TRY(load_list(error, json, "front", t->size, a->front, &a->front_count));
    CUP_TRY(load_list(error, json, "behind", t->size, a->behind, &a->behind_count));
    CUP_TRY(load_list(error, json, "ends", t->size, a->ends, &a->end_count));
    if (!cup__json_find(json->root, "begin"))
        return CUP_OK;
    CUP_TRY(cup__json_get_integer(error, json, json->root, "begin", 0, t->size - 1, &begin));
    a->begin = (int32_t)begin;
    return CUP_OK;
}

static void save_list(const char *key, const int32_t *list, int count, cup__json_writer *w)
{
    if (!count)
        return;
    cup__json_open(w, key, CUP__JSON_ARRAY);
    for (int i = 0; i < count; i++)
        cup__json_add_integer(w, NULL, list[i]);
    cup__json_close(w);
}

/* What follows from the tokenizer alone is left out, as it was from older files. */
void cup__around_save(const cup_tokenizer *t, cup__json_writer *w)
{
    const cup__around *a = &t->around;
    bool usual = a->end_count == 1 && a->ends[0] == cup_tokenizer_special(t, PARTING);
    if (a->begin >= 0)
        cup__json_add_integer(w, "begin", a->begin);
    save_list("front", a->front, a->front_count, w);
    save_list("behind", a->behind, a->behind_count, w);
    save_list("ends", a->ends, usual ? 0 : a->end_count, w);
}

static void write_text(const char *name, int kind, cup__json_writer *w)
{
    cup__json_open(w, NULL, CUP__JSON_OBJECT);
    cup__json_open(w, "Sequence", CUP__JSON_OBJECT);
    cup__json_add_string(w, "id", name);
    cup__json_add_integer(w, "type_id", kind);
    cup__json_close(w);
    cup__json_close(w);
}

static void write_tokens(const cup_tokenizer *t, const int32_t *list, int count, int kind,
                         cup__json_writer *w)
{
    char name[CUP__MOST_NAME];
    for (int i = 0; i < count; i++) {
        cup__json_open(w, NULL, CUP__JSON_OBJECT);
        cup__json_open(w, "SpecialToken", CUP__JSON_OBJECT);
        cup__json_add_string(w, "id", cup__tokenizer_name(t, list[i], name));
        cup__json_add_integer(w, "type_id", kind);
        cup__json_close(w);
        cup__json_close(w);
    }
}

static void write_pieces(const cup_tokenizer *t, const char *key, int texts, cup__json_writer *w)
{
    const cup__around *a = &t->around;
    cup__json_open(w, key, CUP__JSON_ARRAY);
    for (int i = 0; i < texts; i++) {
        write_tokens(t, a->front, a->front_count, i, w);
        write_text(i ? "B" : "A", i, w);
        write_tokens(t, a->behind, a->behind_count, i, w);
    }
    cup__json_close(w);
}

static void define(const cup_tokenizer *t, int32_t token, cup__json_writer *w)
{
    char name[CUP__MOST_NAME];
    cup__tokenizer_name(t, token, name);
    cup__json_open(w, name, CUP__JSON_OBJECT);
    cup__json_add_string(w, "id", name);
    cup__json_open(w, "ids", CUP__JSON_ARRAY);
    cup__json_add_integer(w, NULL, token);
    cup__json_close(w);
    cup__json_open(w, "tokens", CUP__JSON_ARRAY);
    cup__json_add_string(w, NULL, name);
    cup__json_close(w);
    cup__json_close(w);
}

void cup__around_export(const cup_tokenizer *t, cup__json_writer *w)
{
    const cup__around *a = &t->around;
    if (!a->front_count && !a->behind_count) {
        cup__json_add_null(w, "post_processor");
        return;
    }
    cup__json_open(w, "post_processor", CUP__JSON_OBJECT);
    cup__json_add_string(w, "type", "TemplateProcessing");
    write_pieces(t, "single", 1, w);
    write_pieces(t, "pair", 2, w);
    cup__json_open(w, "special_tokens", CUP__JSON_OBJECT);
    for (int i = 0; i < a->front_count; i++)
        if (!holds(a->front, i, a->front[i]))
            define(t, a->front[i], w);
    for (int i = 0; i < a->behind_count; i++)
        if (!holds(a->behind, i, a->behind[i]) && !holds(a->front, a->front_count, a->behind[i]))
            define(t, a->behind[i], w);
    cup__json_close(w);
    cup__json_close(w);
}

int32_t cup__around_parting(const cup_tokenizer *t)
{
    const cup__around *a = &t->around;
    int32_t usual = cup_tokenizer_special(t, PARTING);
    if (usual >= 0 && holds(a->ends, a->end_count, usual))
        return usual;
    return a->end_count ? a->ends[0] : -1;
}

const int32_t *cup_tokenizer_ends(const cup_tokenizer *t, int *count)
{
    if (count)
        *count = t ? t->around.end_count : 0;
    return t ? t->around.ends : NULL;
}

const int32_t *cup_tokenizer_front(const cup_tokenizer *t, int *count)
{
    if (count)
        *count = t ? t->around.front_count : 0;
    return t ? t->around.front : NULL;
}
