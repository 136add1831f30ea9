/* One token for each code point, in their order. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "data/tokenizer.h"

#define CODES 0x110000
#define PIECE 1024

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "out of host memory for a character tokenizer");
}

/* `codes` must be rising. */
static cup_status set_codes(cup__error *error, cup_tokenizer *t, const uint32_t *codes,
                            size_t count)
{
    t->codes = cup__malloc(count * sizeof *codes);
    t->begins = cup__malloc((count + 1) * sizeof *t->begins);
    if (!t->codes || !t->begins)
        return no_memory(error);
    memcpy(t->codes, codes, count * sizeof *codes);
    for (size_t i = 0; i < count; i++) {
        char bytes[4];
        t->begins[i] = (uint32_t)t->bytes.length;
        cup__text_append(&t->bytes, bytes, (size_t)cup__utf8_encode(codes[i], bytes));
    }
    t->begins[count] = (uint32_t)t->bytes.length;
    t->size = (int32_t)count;
    return t->bytes.failed ? no_memory(error) : CUP_OK;
}

static cup_status mark(cup__error *error, const char *text, size_t length, uint8_t *seen)
{
    for (size_t at = 0; at < length;) {
        uint32_t code;
        int bytes = cup__utf8_decode(text + at, length - at, &code);
        if (bytes <= 0)
            return cup__fail(error, CUP_FORMAT,
                             "the text is not UTF-8: byte %zu is 0x%02x; convert it, or use the "
                             "BPE tokenizer, which takes any bytes",
                             at, (unsigned)(unsigned char)text[at]);
        seen[code] = 1;
        at += (size_t)bytes;
    }
    return CUP_OK;
}

cup_status cup__char_train(cup__error *error, cup_tokenizer *t, const char *text, size_t length)
{
    uint8_t *seen = cup__calloc(CODES, 1);
    uint32_t *codes = cup__malloc(CODES * sizeof *codes);
    cup_status status = seen && codes ? mark(error, text, length, seen) : no_memory(error);
    size_t count = 0;
    if (status == CUP_OK) {
        for (uint32_t code = 0; code < CODES; code++)
            if (seen[code])
                codes[count++] = code;
        status = set_codes(error, t, codes, count);
    }
    cup__free(seen);
    cup__free(codes);
    return status;
}

static int by_code(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int32_t token_of(const cup_tokenizer *t, uint32_t code)
{
    const uint32_t *found = bsearch(&code, t->codes, (size_t)t->size, sizeof *t->codes, by_code);
    return found ? (int32_t)(found - t->codes) : -1;
}

static cup_status refuse(cup__error *error, const char *text, size_t at, int bytes, uint32_t code)
{
    if (bytes <= 0)
        return cup__fail(error, CUP_FORMAT, "the text is not UTF-8: byte %zu is 0x%02x", at,
                         (unsigned)(unsigned char)text[at]);
    bool shown = code >= 0x20 && code != 0x7f;
    return cup__fail(error, CUP_FORMAT,
                     "the vocabulary has no character %s%.*s%sU+%04X, which the text has at byte "
                     "%zu; leave it out, or train on text that has it",
                     shown ? "\"" : "", shown ? bytes : 0, text + at, shown ? "\", " : "",
                     (unsigned)code, at);
}

static cup_status encode(cup__error *error, const cup_tokenizer *t, const char *text, size_t length,
                         cup__standing standing, cup__tokens out, void **work)
{
    (void)standing;
    (void)work;
    int32_t ascii[128], piece[PIECE];
    size_t count = 0;
    for (uint32_t code = 0; code < 128; code++)
        ascii[code] = token_of(t, code);
    for (size_t at = 0; at < length;) {
        uint32_t code = 0;
        int bytes = cup__utf8_decode(text + at, length - at, &code);
        int32_t token = bytes <= 0 ? -1 : code < 128 ? ascii[code] : token_of(t, code);
        if (token < 0)
            return refuse(error, text, at, bytes, code);
        piece[count++] = token;
        at += (size_t)bytes;
        if (count == PIECE || at == length) {
            CUP_TRY(out.put(out.user, piece, count));
            count = 0;
        }
    }
    return CUP_OK;
}

static void save(const cup_tokenizer *t, cup__json_writer *writer)
{
    cup__json_add_bytes(writer, "characters", cup__text_string(&t->bytes), t->bytes.length);
}

static cup_status parse(cup__error *error, const char *name, const cup__json_node *characters,
                        uint32_t *codes, size_t *count)
{
    size_t length = characters->count;
    *count = 0;
    for (size_t at = 0; at < length; (*count)++) {
        uint32_t *code = &codes[*count];
        at += (size_t)cup__utf8_decode(characters->string + at, length - at, code);
        if (*count && code[-1] >= *code)
            return cup__fail(error, CUP_FORMAT,
                             "%s: \"characters\" must be in rising order, each once; U+%04X is not",
                             name, (unsigned)*code);
    }
    return *count ? CUP_OK : cup__fail(error, CUP_FORMAT, "%s: \"characters\" is empty", name);
}

static cup_status load(cup__error *error, const cup__json *json, cup_tokenizer *t)
{
    const cup__json_node *characters;
    size_t count;
    CUP_TRY(cup__json_get(error, json, json->root, "characters", CUP__JSON_STRING, &characters));
    uint32_t *codes = cup__malloc(characters->count * sizeof *codes);
    if (!codes)
        return no_memory(error);
    cup_status status = parse(error, json->name, characters, codes, &count);
    if (status == CUP_OK)
        status = set_codes(error, t, codes, count);
    cup__free(codes);
    return status;
}

const cup__tokenizer_calls cup__tokenizer_char = {"char", encode, save, load, NULL};
