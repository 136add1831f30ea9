#include "data/corpus.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/utf8.h"
#include "data/lines.h"
#include "data/stream.h"
#include "data/walk.h"
#include "tensor/context.h"

#define USUAL_BYTES ((int64_t)1 << 30)
#define PIECE ((size_t)1 << 20)

static cup_status append(cup__error *error, cup_corpus *corpus, const char *path, const char *bytes,
                         size_t size)
{
    if (!cup__grow(&corpus->ends, &corpus->capacity, corpus->count, sizeof *corpus->ends))
        return cup__no_memory(error, path);
    cup__text_append(&corpus->text, bytes, size);
    if (corpus->text.failed)
        return cup__no_memory(error, path);
    corpus->ends[corpus->count++] = corpus->text.length;
    return CUP_OK;
}

static cup_status too_many(cup__error *error, const cup_corpus *corpus, const char *path)
{
    if (corpus->more)
        *corpus->more = true;
    return cup__fail(error, CUP_ARGUMENT,
                     "%s: with it the data would have more than %lld bytes; name fewer files, or "
                     "make tokens of them with cupola tokenize",
                     path, (long long)corpus->most_bytes);
}

/* Reads what is left of a file as far as the corpus has room for it. */
static cup_status read_stream(cup__error *error, const cup_corpus *corpus, cup__stream *stream,
                              cup__text *out)
{
    uint64_t room = (uint64_t)corpus->most_bytes - corpus->text.length;
    char *piece = cup__malloc(PIECE);
    size_t got = PIECE;
    cup_status status = piece ? CUP_OK : cup__no_memory(error, stream->file.path);
    if (status == CUP_OK && stream->file.size > room && !stream->packing)
        status = too_many(error, corpus, stream->file.path);
    while (status == CUP_OK && got == PIECE) {
        status = cup__stream_read(error, stream, piece, PIECE, &got);
        if (status == CUP_OK && got > room - out->length)
            status = too_many(error, corpus, stream->file.path);
        if (status == CUP_OK)
            cup__text_append(out, piece, got);
        if (out->failed)
            status = cup__no_memory(error, stream->file.path);
    }
    cup__free(piece);
    return status;
}

static cup_status read_text(cup__error *error, const cup_corpus *corpus, const char *path,
                            cup__text *out)
{
    cup__stream stream;
    cup_status status = cup__stream_open(error, path, &stream);
    if (status == CUP_OK)
        status = read_stream(error, corpus, &stream, out);
    cup__stream_close(&stream);
    return status;
}

typedef struct line_adder {
    cup__error *error;
    cup_corpus *corpus;
    const char *path;
} line_adder;

static cup_status add_line(void *user, const char *text, size_t length)
{
    const line_adder *a = user;
    return append(a->error, a->corpus, a->path, text, length);
}

/* A file of JSON Lines is a file a line. */
static cup_status add_text(cup__error *error, cup_corpus *corpus, const char *path,
                           const cup__text *text)
{
    line_adder adder = {error, corpus, path};
    if (!cup__lines_named(path))
        return append(error, corpus, path, text->bytes, text->length);
    const char *field = corpus->text_field ? corpus->text_field : CUP__TEXT_FIELD;
    return cup__lines_each(error, path, 1, text->bytes, text->length, field, add_line, &adder);
}

static cup_status check_text(cup__error *error, const char *path, const cup__text *text)
{
    const char *zero = text->length ? memchr(text->bytes, 0, text->length) : NULL;
    if (text->length == 0)
        return cup__fail(error, CUP_FORMAT, "%s is empty; name a file with text", path);
    if (zero)
        return cup__fail(error, CUP_FORMAT,
                         "%s is binary, not text: byte %zu is 0; name a text file, or convert it "
                         "to UTF-8",
                         path, (size_t)(zero - text->bytes));
    return CUP_OK;
}

static cup_status add_file(cup__error *error, const char *path, bool found, bool *taken, void *user)
{
    cup_corpus *corpus = user;
    cup__text text = {0};
    cup_status status = read_text(error, corpus, path, &text);
    if (status == CUP_OK && found)
        *taken = text.length && !memchr(text.bytes, 0, text.length) &&
                 cup__utf8_check(text.bytes, text.length) == text.length;
    else if (status == CUP_OK)
        status = check_text(error, path, &text);
    if (status == CUP_OK && *taken)
        status = add_text(error, corpus, path, &text);
    cup__text_free(&text);
    return status;
}

/* Where a later run finds the same text, whatever its own folder. */
static cup_status add_source(cup__error *error, cup_corpus *corpus, const char *path)
{
    char absolute[PATH_MAX];
    if (!realpath(path, absolute))
        return cup__file_fail(error, path, "found", errno);
    cup__text_append(&corpus->sources, absolute, strlen(absolute) + 1);
    return corpus->sources.failed ? cup__no_memory(error, path) : CUP_OK;
}

static cup_status take_options(cup__error *error, const cup_corpus_options *from,
                               cup_corpus *corpus)
{
    cup_corpus_options options;
    CUP_TRY(cup__options_take(error, "corpus", &options, sizeof options, from));
    corpus->most_bytes = options.most_bytes > 0 ? options.most_bytes : USUAL_BYTES;
    corpus->more = options.more;
    if (corpus->more)
        *corpus->more = false;
    if (!options.text_field)
        return CUP_OK;
    corpus->text_field = cup__strdup(options.text_field);
    return corpus->text_field ? CUP_OK : cup__no_memory(error, "data");
}

cup_corpus *cup_corpus_load(cup_context *c, const char *const *paths, int count,
                            const cup_corpus_options *options)
{
    if (!c || cup_error(c) != CUP_OK)
        return NULL;
    cup_corpus *corpus = cup__calloc(1, sizeof *corpus);
    if (!corpus) {
        cup__no_memory(&c->error, "data");
        return NULL;
    }
    cup_status status = take_options(&c->error, options, corpus);
    if (status == CUP_OK && (count < 1 || !paths))
        status = cup__fail(&c->error, CUP_ARGUMENT, "no data was named; give a file or a folder");
    for (int i = 0; i < count && status == CUP_OK; i++)
        if ((status = cup__walk(&c->error, paths[i], add_file, corpus, &corpus->skipped)) ==
            CUP_OK)
            status = add_source(&c->error, corpus, paths[i]);
    if (status == CUP_OK)
        return corpus;
    cup_corpus_free(corpus);
    return NULL;
}

cup_corpus *cup_corpus_new(cup_context *c, const char *text, size_t bytes)
{
    if (!c || cup_error(c) != CUP_OK)
        return NULL;
    cup_corpus *corpus = cup__calloc(1, sizeof *corpus);
    cup_status status = CUP_OK;
    if (!corpus)
        status = cup__no_memory(&c->error, "data");
    else if (!text || bytes == 0)
        status = cup__fail(&c->error, CUP_ARGUMENT, "the text for a corpus is empty");
    else
        status = append(&c->error, corpus, "data", text, bytes);
    if (status == CUP_OK)
        return corpus;
    cup_corpus_free(corpus);
    return NULL;
}

void cup_corpus_free(cup_corpus *corpus)
{
    if (!corpus)
        return;
    cup__text_free(&corpus->text);
    cup__text_free(&corpus->sources);
    cup__free(corpus->ends);
    cup__free(corpus->text_field);
    cup__free(corpus);
}

int64_t cup_corpus_files(const cup_corpus *corpus)
{
    return corpus ? (int64_t)corpus->count : 0;
}

int64_t cup_corpus_skipped(const cup_corpus *corpus)
{
    return corpus ? corpus->skipped : 0;
}

int64_t cup_corpus_bytes(const cup_corpus *corpus)
{
    return corpus ? (int64_t)corpus->text.length : 0;
}

const char *cup_corpus_text(const cup_corpus *corpus)
{
    return corpus ? cup__text_string(&corpus->text) : "";
}
