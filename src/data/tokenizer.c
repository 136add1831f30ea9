#include "data/tokenizer.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/corpus.h"
#include "tensor/context.h"

#define MOST_FILE ((uint64_t)256 << 20)

static cup_tokenizer *make(cup__error *error, const cup__tokenizer_calls *calls)
{
    cup_tokenizer *t = cup__calloc(1, sizeof *t);
    if (!t) {
        cup__fail(error, CUP_MEMORY, "out of host memory for a tokenizer");
        return NULL;
    }
    t->calls = calls;
    t->around.begin = -1;
    return t;
}

/* The tokenizer when all went well, else NULL. */
static cup_tokenizer *keep_if(cup_status status, cup_tokenizer *t)
{
    if (status == CUP_OK) {
        cup__around_complete(t);
        return t;
    }
    cup_tokenizer_free(t);
    return NULL;
}

static bool has_corpus(cup_context *c, const cup_corpus *corpus)
{
    if (!corpus)
        cup__fail(&c->error, CUP_ARGUMENT, "tokenizer: the corpus is NULL");
    return corpus;
}

cup_tokenizer *cup_tokenizer_char_new(cup_context *c, const cup_corpus *corpus)
{
    if (!c || cup_error(c) != CUP_OK || !has_corpus(c, corpus))
        return NULL;
    cup_tokenizer *t = make(&c->error, &cup__tokenizer_char);
    return t ? keep_if(cup__char_train(&c->error, t, corpus->text.bytes, corpus->text.length), t)
             : NULL;
}

cup_status cup__bpe_begin(cup__error *error, int64_t size, cup_tokenizer **out)
{
    *out = NULL;
    if (size < 257 || size > CUP__MOST_TOKENS)
        return cup__fail(
            error, CUP_ARGUMENT,
            "a BPE vocabulary of %lld tokens is not possible; give from 257 (the bytes "
            "and <|endoftext|>) to %d",
            (long long)size, CUP__MOST_TOKENS);
    cup_tokenizer *t = make(error, &cup__tokenizer_bpe);
    if (!t)
        return CUP_MEMORY;
    for (int i = 0; i < 256; i++)
        t->byte_token[i] = i;
    cup_status status = cup__splitter_new(error, "gpt2", &t->splitter);
    if (status == CUP_OK)
        *out = t;
    else
        cup_tokenizer_free(t);
    return status;
}

cup_status cup__bpe_make(cup__error *error, cup_tokenizer *t, int64_t size, cup__words *words,
                         cup__watch watch)
{
    CUP_TRY(cup__bpe_learn(error, t, words, size - 257, watch));
    int32_t end = 256 + (int32_t)t->merge_count;
    cup__special special = {"<|endoftext|>", 13, end, false};
    t->size = end + 1;
    CUP_TRY(cup__bpe_complete(error, t, "the tokenizer", &special, 1));
    cup__around_complete(t);
    return CUP_OK;
}

static cup_status count_word(void *user, const char *text, size_t length)
{
    return cup__words_add(user, text, length) ? CUP_OK : CUP_MEMORY;
}

cup_tokenizer *cup_tokenizer_bpe_new(cup_context *c, const cup_corpus *corpus, int64_t size)
{
    cup_tokenizer *t;
    if (!c || cup_error(c) != CUP_OK || !has_corpus(c, corpus) ||
        cup__bpe_begin(&c->error, size, &t) != CUP_OK)
        return NULL;
    cup__words words = {0};
    const cup__text *text = &corpus->text;
    cup_status status =
        cup__split(&c->error, t->splitter, text->bytes, text->length, count_word, &words);
    if (status == CUP_OK)
        status = cup__bpe_make(&c->error, t, size, &words, (cup__watch){0});
    else if (c->error.status == CUP_OK)
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for the words of the text");
    cup__words_free(&words);
    return keep_if(status, t);
}

static bool is_published(const cup__json *json)
{
    return cup__json_find(json->root, "model") && !cup__json_find(json->root, "schema");
}

cup_status cup__tokenizer_parse(cup__error *error, const cup__json *json, cup_tokenizer **out)
{
    const char *kind;
    int64_t schema;
    *out = NULL;
    if (is_published(json)) {
        cup_tokenizer *published = make(error, &cup__tokenizer_bpe);
        cup_status read =
            published ? cup__bpe_published_load(error, json, published) : CUP_MEMORY;
        *out = keep_if(read, published);
        return read;
    }
    CUP_TRY(cup__json_get_integer(error, json, json->root, "schema", 1, 1, &schema));
    CUP_TRY(cup__json_get_string(error, json, json->root, "kind", &kind));
    bool is_char = strcmp(kind, "char") == 0;
    if (!is_char && strcmp(kind, "bpe") != 0)
        return cup__fail(error, CUP_FORMAT, "%s: \"kind\" must be \"char\" or \"bpe\"", json->name);
    cup_tokenizer *t = make(error, is_char ? &cup__tokenizer_char : &cup__tokenizer_bpe);
    if (!t)
        return CUP_MEMORY;
    cup_status status = t->calls->load(error, json, t);
    if (status == CUP_OK)
        status = cup__around_load(error, json, t);
    if (status == CUP_OK)
        status = cup__kept_load(error, json, t);
    *out = keep_if(status, t);
    return status;
}

/* The files of a model in the folder of its tokenizer. */
static cup_status read_beside(cup__error *error, const char *path, cup_tokenizer *t)
{
    const char *slash = strrchr(path, '/');
    char *folder = cup__strdup(slash ? path : ".");
    if (!folder)
        return cup__no_memory(error, path);
    if (slash)
        folder[slash - path + 1] = 0;
    cup_status status = cup__around_beside(error, folder, t);
    if (status == CUP_OK)
        status = cup__kept_beside(error, folder, t);
    cup__free(folder);
    return status;
}

/* Of ours or of others. */
static cup_status load_json(cup__error *error, const char *path, cup_tokenizer **out)
{
    cup__json json;
    CUP_TRY(cup__json_read(error, path, MOST_FILE, &json));
    cup_status status = cup__tokenizer_parse(error, &json, out);
    if (status == CUP_OK && is_published(&json)) {
        status = read_beside(error, path, *out);
        *out = keep_if(status, *out);
    }
    cup__json_free(&json);
    return status;
}

/* `path` is that of vocab.json, possibly with something in front of the name. */
static cup_status load_gpt2(cup__error *error, const char *path, cup_tokenizer **out)
{
    char *merges = cup__strdup(path);
    cup_tokenizer *t = make(error, &cup__tokenizer_bpe);
    cup_status status = CUP_OK;
    if (!merges || !t) {
        status = cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
    } else {
        memcpy(merges + strlen(path) - 10, "merges.txt", 10);
        status = cup__gpt2_load(error, path, merges, t);
        if (status == CUP_OK)
            status = read_beside(error, path, t);
    }
    cup__free(merges);
    *out = keep_if(status, t);
    return status;
}

static cup_status load_file(cup__error *error, const char *path, cup_tokenizer **out)
{
    size_t length = strlen(path);
    bool gpt2 = length >= 10 && strcmp(path + length - 10, "vocab.json") == 0;
    return gpt2 ? load_gpt2(error, path, out) : load_json(error, path, out);
}

cup_tokenizer *cup_tokenizer_load(cup_context *c, const char *path)
{
    if (!c || cup_error(c) != CUP_OK)
        return NULL;
    if (!path) {
        cup__fail(&c->error, CUP_ARGUMENT, "tokenizer: the path is NULL");
        return NULL;
    }
    cup_tokenizer *t = NULL;
    if (!cup__folder_exists(path)) {
        load_file(&c->error, path, &t);
        return t;
    }
    char *vocabulary = cup__path_join(path, "vocab.json");
    char *whole = cup__path_join(path, "tokenizer.json");
    /* Others than GPT-2 have a vocab.json besides, which does not say what their words are. */
    if (!vocabulary || !whole)
        cup__fail(&c->error, CUP_MEMORY, "%s: out of host memory", path);
    else
        load_file(&c->error,
                  cup__file_exists(vocabulary) && !cup__file_exists(whole) ? vocabulary : whole,
                  &t);
    cup__free(vocabulary);
    cup__free(whole);
    return t;
}

cup_status cup__tokenizer_text(cup__error *error, const cup_tokenizer *t, cup__text *out)
{
    cup__json_writer writer = {.lines = 1};
    cup__json_open(&writer, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(&writer, "schema", 1);
    cup__json_add_string(&writer, "kind", t->calls->kind);
    cup__around_save(t, &writer);
    cup__kept_save(t, &writer);
    t->calls->save(t, &writer);
    cup__json_close(&writer);
    *out = writer.text;
    if (!out->failed)
        return CUP_OK;
    cup__text_free(out);
    return cup__fail(error, CUP_MEMORY, "out of host memory for saving a tokenizer");
}

cup_status cup_tokenizer_save(cup_context *c, const cup_tokenizer *t, const char *path)
{
    if (!c)
        return CUP_MEMORY;
    if (!t || !path)
        return cup__fail(&c->error, CUP_ARGUMENT, "saving a tokenizer: the %s is NULL",
                         t ? "path" : "tokenizer");
    cup__text text;
    CUP_TRY(cup__tokenizer_text(&c->error, t, &text));
    cup_status status = cup__file_write(&c->error, path, text.bytes, text.length);
    cup__text_free(&text);
    return status;
}

void cup_tokenizer_free(cup_tokenizer *t)
{
    if (!t)
        return;
    cup__text_free(&t->bytes);
    cup__free(t->begins);
    cup__free(t->special);
    cup__free(t->codes);
    cup__free(t->merges);
    cup__map_free(&t->ranks);
    cup__splitter_free(t->splitter);
    cup__strings_free(&t->words);
    cup__free(t->word_tokens);
    cup__map_free(&t->characters);
    cup__free(t->pieces);
    cup__kept_free(t);
    cup__free(t);
}

const char *cup_tokenizer_kind(const cup_tokenizer *t)
{
    return t ? t->calls->kind : "";
}

int64_t cup_tokenizer_size(const cup_tokenizer *t)
{
    return t ? t->size : 0;
}

const char *cup_tokenizer_token(const cup_tokenizer *t, int32_t token, size_t *bytes)
{
    bool known = t && token >= 0 && token < t->size;
    if (bytes)
        *bytes = known ? t->begins[token + 1] - t->begins[token] : 0;
    if (!known)
        return NULL;
    return t->bytes.bytes + t->begins[token];
}

int32_t cup_tokenizer_special(const cup_tokenizer *t, const char *text)
{
    size_t wanted = text ? strlen(text) : 0, length;
    for (size_t i = 0; t && text && i < t->special_count; i++) {
        const char *bytes = cup_tokenizer_token(t, t->special[i], &length);
        if (length == wanted && memcmp(bytes, text, length) == 0)
            return t->special[i];
    }
    return -1;
}

/* The longest special text that `text` begins with, -1 for none. */
static int32_t special_at(const cup_tokenizer *t, const char *text, size_t length, size_t *used)
{
    int32_t best = -1;
    size_t bytes;
    *used = 0;
    for (size_t i = 0; i < t->special_count; i++) {
        const char *special = cup_tokenizer_token(t, t->special[i], &bytes);
        if (bytes > *used && bytes <= length && memcmp(special, text, bytes) == 0) {
            best = t->special[i];
            *used = bytes;
        }
    }
    return best;
}

cup_status cup__tokenizer_encode_next(cup__error *error, const cup_tokenizer *t, const char *text,
                                      size_t length, bool begins, cup__tokens out, void **work)
{
    cup__standing standing = begins ? CUP__STANDING_FIRST : CUP__STANDING_WITHIN;
    bool begins_special[256] = {false};
    size_t from = 0, used;
    for (size_t i = 0; i < t->special_count; i++)
        begins_special[(unsigned char)*cup_tokenizer_token(t, t->special[i], &used)] = true;
    for (size_t at = 0; at < length; at++) {
        if (!begins_special[(unsigned char)text[at]])
            continue;
        int32_t special = special_at(t, text + at, length - at, &used);
        if (special < 0)
            continue;
        if (at > from)
            CUP_TRY(t->calls->encode(error, t, text + from, at - from, standing, out, work));
        CUP_TRY(out.put(out.user, &special, 1));
        standing = CUP__STANDING_BEHIND;
        from = at + used;
        at = from - 1;
    }
    if (from == length)
        return CUP_OK;
    return t->calls->encode(error, t, text + from, length - from, standing, out, work);
}

void cup__tokenizer_forget(const cup_tokenizer *t, void *work)
{
    if (t->calls->forget)
        t->calls->forget(work);
}

cup_status cup__tokenizer_encode(cup__error *error, const cup_tokenizer *t, const char *text,
                                 size_t length, cup__tokens out)
{
    void *work = NULL;
    cup_status status = cup__tokenizer_encode_next(error, t, text, length, true, out, &work);
    cup__tokenizer_forget(t, work);
    return status;
}

typedef struct buffer {
    cup__error *error;
    int32_t *tokens;
    size_t count, room;
} buffer;

static cup_status put_into_buffer(void *user, const int32_t *tokens, size_t count)
{
    buffer *b = user;
    if (count > b->room - b->count)
        return cup__fail(b->error, CUP_UNSUPPORTED,
                         "the text has more tokens than bytes when it is brought into NFC; do so "
                         "before it is encoded");
    memcpy(b->tokens + b->count, tokens, count * sizeof *tokens);
    b->count += count;
    return CUP_OK;
}

int64_t cup_tokenizer_encode(cup_context *c, const cup_tokenizer *t, const char *text, size_t bytes,
                             int32_t *tokens)
{
    if (!c)
        return -1;
    if (!t || (bytes && (!text || !tokens))) {
        cup__fail(&c->error, CUP_ARGUMENT, "encoding: the %s is NULL",
                  !t ? "tokenizer" : text ? "place for the tokens" : "text");
        return -1;
    }
    buffer b = {&c->error, tokens, 0, bytes + 1};
    cup__tokens out = {put_into_buffer, &b};
    cup_status status = cup__tokenizer_encode(&c->error, t, text, bytes, out);
    return status == CUP_OK ? (int64_t)b.count : -1;
}
