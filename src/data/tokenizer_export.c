/* A BPE tokenizer as Hugging Face's tokenizers read it: tokenizer.json. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/tokenizer.h"
#include "tensor/context.h"

#define MARK "\xe2\x96\x81" /* U+2581, as which spaces are written */

/* A byte that can be printed stands for itself, the others for 256 and so on in their order. */
static int code_of(int byte)
{
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174)
        return byte;
    return byte <= 32 ? 256 + byte : byte <= 160 ? 256 + 33 + byte - 127 : 256 + 33 + 34;
}

/* Characters with marks for spaces, and the number of a byte that is a token. */
static const char *name_of_characters(const cup_tokenizer *t, int32_t token, char *out)
{
    size_t length, used = 0;
    const char *bytes = cup_tokenizer_token(t, token, &length);
    if (length == 1 && t->byte_token[(unsigned char)*bytes] == token) {
        snprintf(out, 8, "<0x%02X>", (unsigned)(unsigned char)*bytes);
        return out;
    }
    for (size_t i = 0; i < length; i++) {
        bool space = bytes[i] == ' ';
        memcpy(out + used, space ? MARK : bytes + i, space ? 3 : 1);
        used += space ? 3 : 1;
    }
    out[used] = 0;
    return out;
}

static const char *name_of(const cup_tokenizer *t, int32_t token, char *out)
{
    size_t length, used = 0;
    const char *bytes = cup_tokenizer_token(t, token, &length);
    if (t->spaces)
        return name_of_characters(t, token, out);
    for (size_t i = 0; i < length; i++) {
        int code = code_of((unsigned char)bytes[i]);
        if (code >= 0x80)
            out[used++] = (char)(0xc0 | code >> 6);
        out[used++] = (char)(code < 0x80 ? code : 0x80 | (code & 0x3f));
    }
    out[used] = 0;
    return out;
}

/* Its text as it is. */
static const char *special_of(const cup_tokenizer *t, int32_t token, char *out)
{
    size_t length;
    const char *bytes = cup_tokenizer_token(t, token, &length);
    memcpy(out, bytes, length);
    out[length] = 0;
    return out;
}

static bool is_special(const cup_tokenizer *t, int32_t token)
{
    size_t i = 0;
    while (i < t->special_count && t->special[i] != token)
        i++;
    return i < t->special_count;
}

const char *cup__tokenizer_name(const cup_tokenizer *t, int32_t token, char *out)
{
    return is_special(t, token) ? special_of(t, token, out) : name_of(t, token, out);
}

static void write_added(const cup_tokenizer *t, cup__json_writer *w)
{
    static const char *const nots[] = {"single_word", "lstrip", "rstrip", "normalized"};
    char text[CUP__LONGEST_TOKEN + 1];
    cup__json_open(w, "added_tokens", CUP__JSON_ARRAY);
    for (int32_t token = 0; token < t->size; token++) {
        if (!is_special(t, token))
            continue;
        cup__json_open(w, NULL, CUP__JSON_OBJECT);
        cup__json_add_integer(w, "id", token);
        cup__json_add_string(w, "content", special_of(t, token, text));
        for (size_t i = 0; i < sizeof nots / sizeof *nots; i++)
            cup__json_add_boolean(w, nots[i], false);
        cup__json_add_boolean(w, "special", true);
        cup__json_close(w);
    }
    cup__json_close(w);
}

static void write_level(cup__json_writer *w, const char *key, bool words)
{
    cup__json_open(w, key, CUP__JSON_OBJECT);
    cup__json_add_string(w, "type", "ByteLevel");
    cup__json_add_boolean(w, "add_prefix_space", false);
    cup__json_add_boolean(w, "trim_offsets", true);
    cup__json_add_boolean(w, "use_regex", words);
    cup__json_close(w);
}

static void write_split(cup__json_writer *w, const char *text, size_t length)
{
    cup__text regex = {0};
    cup__text_add(&regex, "%.*s", (int)length, text);
    cup__json_open(w, NULL, CUP__JSON_OBJECT);
    cup__json_add_string(w, "type", "Split");
    cup__json_open(w, "pattern", CUP__JSON_OBJECT);
    cup__json_add_string(w, "Regex", regex.bytes ? regex.bytes : text);
    cup__json_close(w);
    cup__json_add_string(w, "behavior", "Isolated");
    cup__json_add_boolean(w, "invert", false);
    cup__json_close(w);
    cup__text_free(&regex);
}

static void write_words(const cup_tokenizer *t, cup__json_writer *w)
{
    const char *name = cup__splitter_pattern(t->splitter), *text = cup__published_words(name);
    bool digits = !strcmp(name, "gpt2-digits");
    bool lines = !strncmp(name, CUP__SPLIT_REGEX, strlen(CUP__SPLIT_REGEX));
    if (!text && !digits && !lines) {
        write_level(w, "pre_tokenizer", true);
        return;
    }
    cup__json_open(w, "pre_tokenizer", CUP__JSON_OBJECT);
    cup__json_add_string(w, "type", "Sequence");
    cup__json_open(w, "pretokenizers", CUP__JSON_ARRAY);
    if (digits) {
        cup__json_open(w, NULL, CUP__JSON_OBJECT);
        cup__json_add_string(w, "type", "Digits");
        cup__json_add_boolean(w, "individual_digits", true);
        cup__json_close(w);
    } else if (text) {
        write_split(w, text, strlen(text));
    }
    for (name += strlen(CUP__SPLIT_REGEX); lines; name += strcspn(name, "\n") + 1) {
        write_split(w, name, strcspn(name, "\n"));
        lines = name[strcspn(name, "\n")] != 0;
    }
    write_level(w, NULL, digits);
    cup__json_close(w);
    cup__json_close(w);
}

static void write_mark(cup__json_writer *w, const char *type, const char *key, const char *from,
                       const char *to)
{
    cup__json_open(w, NULL, CUP__JSON_OBJECT);
    cup__json_add_string(w, "type", type);
    if (from) {
        cup__json_open(w, "pattern", CUP__JSON_OBJECT);
        cup__json_add_string(w, "String", from);
        cup__json_close(w);
    }
    if (key)
        cup__json_add_string(w, key, to);
}

/* How spaces become characters of words. */
static void write_spaces(const cup_tokenizer *t, cup__json_writer *w)
{
    static const char *const schemes[] = {[CUP__SPACES_AS_THEY_ARE] = "never",
                                          [CUP__SPACES_FIRST] = "first",
                                          [CUP__SPACES_ALWAYS] = "always"};
    if (t->spaces == CUP__SPACES_ONE_MORE) {
        cup__json_open(w, "normalizer", CUP__JSON_OBJECT);
        cup__json_add_string(w, "type", "Sequence");
        cup__json_open(w, "normalizers", CUP__JSON_ARRAY);
        write_mark(w, "Prepend", "prepend", NULL, MARK);
        cup__json_close(w);
        write_mark(w, "Replace", "content", " ", MARK);
        cup__json_close(w);
        cup__json_close(w);
        cup__json_close(w);
        cup__json_add_null(w, "pre_tokenizer");
        return;
    }
    cup__json_add_null(w, "normalizer");
    cup__json_open(w, "pre_tokenizer", CUP__JSON_OBJECT);
    cup__json_add_string(w, "type", "Metaspace");
    cup__json_add_string(w, "replacement", MARK);
    cup__json_add_string(w, "prepend_scheme", schemes[t->spaces]);
    cup__json_add_boolean(w, "split", false);
    cup__json_close(w);
}

static void write_spaces_decoder(const cup_tokenizer *t, cup__json_writer *w)
{
    cup__json_open(w, "decoder", CUP__JSON_OBJECT);
    cup__json_add_string(w, "type", "Sequence");
    cup__json_open(w, "decoders", CUP__JSON_ARRAY);
    write_mark(w, "Replace", "content", MARK, " ");
    cup__json_close(w);
    write_mark(w, "ByteFallback", NULL, NULL, NULL);
    cup__json_close(w);
    write_mark(w, "Fuse", NULL, NULL, NULL);
    cup__json_close(w);
    if (t->spaces != CUP__SPACES_AS_THEY_ARE) {
        write_mark(w, "Strip", "content", NULL, " ");
        cup__json_add_integer(w, "start", 1);
        cup__json_add_integer(w, "stop", 0);
        cup__json_close(w);
    }
    cup__json_close(w);
    cup__json_close(w);
}

static void write_model(const cup_tokenizer *t, cup__json_writer *w, char *name)
{
    static const char *const nones[] = {"dropout", "unk_token", "continuing_subword_prefix",
                                        "end_of_word_suffix"};
    cup__json_open(w, "model", CUP__JSON_OBJECT);
    cup__json_add_string(w, "type", "BPE");
    for (size_t i = 0; i < sizeof nones / sizeof *nones; i++)
        cup__json_add_null(w, nones[i]);
    cup__json_add_boolean(w, "fuse_unk", t->spaces);
    cup__json_add_boolean(w, "byte_fallback", t->spaces);
    if (t->whole_words)
        cup__json_add_boolean(w, "ignore_merges", true);
    cup__json_open(w, "vocab", CUP__JSON_OBJECT);
    for (int32_t i = 0; i < t->size; i++)
        cup__json_add_integer(w, cup__tokenizer_name(t, i, name), i);
    cup__json_close(w);
    cup__json_open(w, "merges", CUP__JSON_ARRAY);
    for (size_t i = 0; i < t->merge_count; i++) {
        name_of(t, t->merges[i].left, name);
        size_t used = strlen(name);
        name[used] = ' ';
        name_of(t, t->merges[i].right, name + used + 1);
        cup__json_add_string(w, NULL, name);
    }
    cup__json_close(w);
    cup__json_close(w);
}

static void write_nfc(const cup_tokenizer *t, cup__json_writer *w)
{
    if (!t->nfc) {
        cup__json_add_null(w, "normalizer");
        return;
    }
    cup__json_open(w, "normalizer", CUP__JSON_OBJECT);
    cup__json_add_string(w, "type", "NFC");
    cup__json_close(w);
}

static void write_steps(const cup_tokenizer *t, cup__json_writer *w)
{
    if (t->spaces) {
        write_spaces(t, w);
    } else {
        write_nfc(t, w);
        write_words(t, w);
    }
    cup__around_export(t, w);
    if (t->spaces)
        write_spaces_decoder(t, w);
    else
        write_level(w, "decoder", true);
}

cup_status cup_tokenizer_export(cup_context *c, const cup_tokenizer *t, const char *path)
{
    if (!c)
        return CUP_MEMORY;
    CUP_TRY(c->error.status);
    if (!t || !path)
        return cup__fail(&c->error, CUP_ARGUMENT, "exporting a tokenizer: the %s is NULL",
                         t ? "path" : "tokenizer");
    if (t->calls != &cup__tokenizer_bpe)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "exporting a tokenizer: one of %s is none that others read; bpe is",
                         t->calls->kind);
    char *name = cup__malloc(2 * CUP__MOST_NAME);
    if (!name)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for exporting a tokenizer");
    cup__json_writer w = {.lines = 1};
    cup__json_open(&w, NULL, CUP__JSON_OBJECT);
    cup__json_add_string(&w, "version", "1.0");
    cup__json_add_null(&w, "truncation");
    cup__json_add_null(&w, "padding");
    write_added(t, &w);
    write_steps(t, &w);
    write_model(t, &w, name);
    cup__json_close(&w);
    if (w.text.failed)
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for exporting a tokenizer");
    else
        cup__file_write(&c->error, path, w.text.bytes, w.text.length);
    cup__text_free(&w.text);
    cup__free(name);
    return c->error.status;
}
