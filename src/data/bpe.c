/* A byte-level BPE tokenizer: its tokens from its merges, and its file. */
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "data/tokenizer.h"

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "out of host memory for a BPE tokenizer");
}

/* The bytes of tokens in the order in which they are made. */
typedef struct vocabulary {
    cup__error *error;
    const char *name;
    cup_tokenizer *tokenizer;
    cup__text bytes;
    struct place {
        uint32_t begin, length; /* the length is 0 while the token is not made */
    } * places;
} vocabulary;

static cup_status define(vocabulary *v, int32_t token, const char *bytes, size_t length)
{
    if (token < 0 || token >= v->tokenizer->size)
        return cup__fail(v->error, CUP_FORMAT, "%s: token %d is not below the size %d", v->name,
                         (int)token, (int)v->tokenizer->size);
    if (length == 0 || length > CUP__LONGEST_TOKEN)
        return cup__fail(v->error, CUP_FORMAT,
                         "%s: token %d has %zu bytes; from 1 to %d are allowed", v->name,
                         (int)token, length, CUP__LONGEST_TOKEN);
    struct place *place = &v->places[token];
    if (place->length) {
        /* Two merges may make the same bytes, and share a token then. */
        if (place->length == length && memcmp(v->bytes.bytes + place->begin, bytes, length) == 0)
            return CUP_OK;
        return cup__fail(v->error, CUP_FORMAT, "%s: token %d is made in two ways", v->name,
                         (int)token);
    }
    *place = (struct place){(uint32_t)v->bytes.length, (uint32_t)length};
    cup__text_append(&v->bytes, bytes, length);
    if (v->bytes.failed || v->bytes.length > UINT32_MAX - CUP__LONGEST_TOKEN)
        return no_memory(v->error);
    return CUP_OK;
}

static cup_status define_merge(vocabulary *v, size_t rank)
{
    cup_tokenizer *t = v->tokenizer;
    const cup__merge *m = &t->merges[rank];
    char bytes[2 * CUP__LONGEST_TOKEN];
    size_t length = 0;
    for (int side = 0; side < 2; side++) {
        int32_t part = side ? m->right : m->left;
        if (part < 0 || part >= t->size || !v->places[part].length)
            return cup__fail(v->error, CUP_FORMAT,
                             "%s: merge %zu uses token %d, which is not made before it", v->name,
                             rank, (int)part);
        memcpy(bytes + length, v->bytes.bytes + v->places[part].begin, v->places[part].length);
        length += v->places[part].length;
    }
    CUP_TRY(define(v, m->token, bytes, length));
    uint64_t pair = cup__pair(m->left, m->right);
    if (cup__map_find(&t->ranks, pair) != CUP__NOT_THERE)
        return cup__fail(v->error, CUP_FORMAT, "%s: merge %zu is there twice", v->name, rank);
    return cup__map_add(&t->ranks, pair, (uint32_t)rank) ? CUP_OK : no_memory(v->error);
}

/* A piece of one character is where merging begins with it. */
static cup_status define_piece(vocabulary *v, const cup__special *piece)
{
    cup_tokenizer *t = v->tokenizer;
    uint32_t code;
    bool is_text = cup__utf8_check(piece->text, piece->length) == piece->length &&
                   !memchr(piece->text, 0, piece->length);
    if ((!t->spaces && !t->whole_words) || !is_text)
        return cup__fail(v->error, CUP_FORMAT, "%s: nothing makes token %d", v->name,
                         (int)piece->token);
    CUP_TRY(define(v, piece->token, piece->text, piece->length));
    t->pieces[t->piece_count++] = piece->token;
    int used = cup__utf8_decode(piece->text, piece->length, &code);
    if (used <= 0 || (size_t)used != piece->length ||
        cup__map_find(&t->characters, code) != CUP__NOT_THERE)
        return CUP_OK;
    return cup__map_add(&t->characters, code, (uint32_t)piece->token) ? CUP_OK
                                                                      : no_memory(v->error);
}

static cup_status define_all(vocabulary *v, const cup__special *special, size_t special_count)
{
    cup_tokenizer *t = v->tokenizer;
    for (int i = 0; i < 256; i++)
        CUP_TRY(define(v, t->byte_token[i], (char[]){(char)i}, 1));
    for (size_t i = 0; i < special_count; i++)
        if (special[i].piece)
            CUP_TRY(define_piece(v, &special[i]));
    for (size_t i = 0; i < t->merge_count; i++)
        CUP_TRY(define_merge(v, i));
    for (size_t i = 0; i < special_count; i++) {
        if (special[i].piece)
            continue;
        if (t->spaces && special[i].length == 1)
            return cup__fail(v->error, CUP_UNSUPPORTED,
                             "%s: the special text \"%s\" has one byte; with words of characters "
                             "two are the fewest",
                             v->name, special[i].text);
        CUP_TRY(define(v, special[i].token, special[i].text, special[i].length));
        t->special[t->special_count++] = special[i].token;
    }
    return CUP_OK;
}

/* Where words are looked up before they are merged. */
static cup_status list_words(vocabulary *v)
{
    cup_tokenizer *t = v->tokenizer;
    size_t length;
    t->word_tokens = cup__malloc((size_t)t->size * sizeof *t->word_tokens);
    if (!t->word_tokens)
        return no_memory(v->error);
    for (int32_t token = 0; token < t->size; token++) {
        const char *bytes = cup_tokenizer_token(t, token, &length);
        size_t known = t->words.count;
        uint32_t index = cup__strings_add(&t->words, bytes, length);
        if (index == CUP__NOT_THERE)
            return no_memory(v->error);
        if (index == known)
            t->word_tokens[index] = token;
    }
    return CUP_OK;
}

/* Puts the bytes into the order of the tokens. */
static cup_status arrange(vocabulary *v)
{
    cup_tokenizer *t = v->tokenizer;
    for (int32_t i = 0; i < t->size; i++) {
        if (!v->places[i].length)
            return cup__fail(v->error, CUP_FORMAT, "%s: nothing makes token %d", v->name, (int)i);
        t->begins[i] = (uint32_t)t->bytes.length;
        cup__text_append(&t->bytes, v->bytes.bytes + v->places[i].begin, v->places[i].length);
    }
    t->begins[t->size] = (uint32_t)t->bytes.length;
    return t->bytes.failed ? no_memory(v->error) : CUP_OK;
}

cup_status cup__bpe_complete(cup__error *error, cup_tokenizer *t, const char *name,
                             const cup__special *special, size_t special_count)
{
    size_t size = (size_t)t->size;
    vocabulary v = {error, name, t, {0}, cup__calloc(size, sizeof *v.places)};
    t->begins = cup__malloc((size + 1) * sizeof *t->begins);
    t->special = cup__malloc(special_count * sizeof *t->special);
    t->pieces = cup__malloc(special_count * sizeof *t->pieces);
    cup_status status = CUP_OK;
    if (!v.places || !t->begins || !t->special || !t->pieces)
        status = no_memory(error);
    else
        status = define_all(&v, special, special_count);
    if (status == CUP_OK)
        status = arrange(&v);
    if (status == CUP_OK && t->whole_words)
        status = list_words(&v);
    if (status == CUP_OK && t->spaces)
        t->parts_at_spaces = cup__spaces_part_words(t);
    cup__text_free(&v.bytes);
    cup__free(v.places);
    return status;
}

cup_status cup__bpe_pattern(cup__error *error, cup_tokenizer *t, const char *pattern)
{
    t->spaces = cup__spaces_named(pattern);
    return t->spaces ? CUP_OK : cup__splitter_new(error, pattern, &t->splitter);
}

static void save_texts(const cup_tokenizer *t, const char *key, const int32_t *tokens,
                       size_t count, cup__json_writer *writer)
{
    size_t length;
    cup__json_open(writer, key, CUP__JSON_OBJECT);
    for (size_t i = 0; i < count; i++) {
        char text[CUP__LONGEST_TOKEN + 1] = {0};
        const char *bytes = cup_tokenizer_token(t, tokens[i], &length);
        memcpy(text, bytes, length);
        cup__json_add_integer(writer, text, tokens[i]);
    }
    cup__json_close(writer);
}

static void save(const cup_tokenizer *t, cup__json_writer *writer)
{
    cup__json_add_string(writer, "pattern", t->spaces ? cup__spaces_name(t->spaces)
                                                      : cup__splitter_pattern(t->splitter));
    cup__json_add_integer(writer, "size", t->size);
    if (t->nfc)
        cup__json_add_boolean(writer, "nfc", true);
    if (t->whole_words)
        cup__json_add_boolean(writer, "whole_words", true);
    save_texts(t, "special", t->special, t->special_count, writer);
    if (t->piece_count)
        save_texts(t, "pieces", t->pieces, t->piece_count, writer);
    cup__json_open(writer, "bytes", CUP__JSON_ARRAY);
    for (int i = 0; i < 256; i++)
        cup__json_add_integer(writer, NULL, t->byte_token[i]);
    cup__json_close(writer);
    cup__json_open(writer, "merges", CUP__JSON_ARRAY);
    for (size_t i = 0; i < t->merge_count; i++) {
        cup__json_open(writer, NULL, CUP__JSON_ARRAY);
        cup__json_add_integer(writer, NULL, t->merges[i].left);
        cup__json_add_integer(writer, NULL, t->merges[i].right);
        cup__json_add_integer(writer, NULL, t->merges[i].token);
        cup__json_close(writer);
    }
    cup__json_close(writer);
}

const cup__tokenizer_calls cup__tokenizer_bpe = {"bpe", cup__bpe_encode, save, cup__bpe_load,
                                                 cup__bpe_forget};
