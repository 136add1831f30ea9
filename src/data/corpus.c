#include "data/corpus.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "tensor/context.h"

#define USUAL_BYTES ((int64_t)1 << 30)
#define MOST_DEPTH 64

static cup_status no_memory(cup__error *error, const char *path)
{
    return cup__fail(error, CUP_MEMORY, "%s: out of host memory for the text", path);
}

static cup_status append(cup__error *error, cup_corpus *corpus, const char *path, const char *bytes,
                         size_t size)
{
    if (!cup__grow(&corpus->ends, &corpus->capacity, corpus->count, sizeof *corpus->ends))
        return no_memory(error, path);
    cup__text_append(&corpus->text, bytes, size);
    if (corpus->text.failed)
        return no_memory(error, path);
    corpus->ends[corpus->count++] = corpus->text.length;
    return CUP_OK;
}

/* Reads a file as far as the corpus has room for it. */
static cup_status read_text(cup__error *error, cup_corpus *corpus, const char *path, char **bytes,
                            size_t *size)
{
    uint64_t room = (uint64_t)corpus->most_bytes - corpus->text.length;
    struct stat there;
    if (stat(path, &there) == 0 && S_ISREG(there.st_mode) && (uint64_t)there.st_size > room)
        return cup__fail(error, CUP_ARGUMENT,
                         "%s: with it the data would have more than %lld bytes; name fewer files",
                         path, (long long)corpus->most_bytes);
    return cup__file_read(error, path, room, bytes, size);
}

static cup_status add_named_file(cup__error *error, cup_corpus *corpus, const char *path)
{
    char *bytes;
    size_t size;
    CUP_TRY(read_text(error, corpus, path, &bytes, &size));
    const char *zero = memchr(bytes, 0, size);
    cup_status status;
    if (size == 0)
        status = cup__fail(error, CUP_FORMAT, "%s is empty; name a file with text", path);
    else if (zero)
        status = cup__fail(error, CUP_FORMAT,
                           "%s is binary, not text: byte %zu is 0; name a text file, or convert it "
                           "to UTF-8",
                           path, (size_t)(zero - bytes));
    else
        status = append(error, corpus, path, bytes, size);
    cup__free(bytes);
    return status;
}

static cup_status add_found_file(cup__error *error, cup_corpus *corpus, const char *path)
{
    char *bytes;
    size_t size;
    CUP_TRY(read_text(error, corpus, path, &bytes, &size));
    cup_status status = CUP_OK;
    if (size == 0 || memchr(bytes, 0, size) || cup__utf8_check(bytes, size) != size)
        corpus->skipped++;
    else
        status = append(error, corpus, path, bytes, size);
    cup__free(bytes);
    return status;
}

static bool is_build_folder(const char *name)
{
    static const char *const names[] = {"build",        "out",         "dist", "target",
                                        "node_modules", "__pycache__", "venv"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* A run whose folder lies among its own text must find the same text when it is resumed. */
static bool is_checkpoint(const char *path)
{
    char *state = cup__path_join(path, "state.json");
    bool found = state && access(state, F_OK) == 0;
    cup__free(state);
    return found;
}

static cup_status add_folder(cup__error *error, cup_corpus *corpus, const char *path, int depth);

static cup_status add_entry(cup__error *error, cup_corpus *corpus, const char *folder,
                            const char *name, int depth)
{
    char *path = cup__path_join(folder, name);
    if (!path)
        return no_memory(error, folder);
    struct stat there;
    cup_status status = CUP_OK;
    if (lstat(path, &there))
        status = errno == ENOENT ? CUP_OK : cup__file_fail(error, path, "read", errno);
    else if (S_ISDIR(there.st_mode) && !is_build_folder(name) && !is_checkpoint(path))
        status = add_folder(error, corpus, path, depth + 1);
    else if (S_ISREG(there.st_mode))
        status = add_found_file(error, corpus, path);
    else
        corpus->skipped++;
    cup__free(path);
    return status;
}

static cup_status add_folder(cup__error *error, cup_corpus *corpus, const char *path, int depth)
{
    if (depth > MOST_DEPTH)
        return cup__fail(error, CUP_ARGUMENT, "%s: folders are nested deeper than %d levels", path,
                         MOST_DEPTH);
    cup__names names;
    CUP_TRY(cup__folder_list(error, path, &names));
    cup_status status = CUP_OK;
    for (size_t i = 0; i < names.count && status == CUP_OK; i++)
        if (names.name[i][0] == '.')
            corpus->skipped++;
        else
            status = add_entry(error, corpus, path, names.name[i], depth);
    cup__names_free(&names);
    return status;
}

static cup_status add_path(cup__error *error, cup_corpus *corpus, const char *path)
{
    if (!path || !*path)
        return cup__fail(error, CUP_ARGUMENT, "the path of a data file is empty");
    if (!cup__folder_exists(path))
        return add_named_file(error, corpus, path);
    size_t before = corpus->count;
    CUP_TRY(add_folder(error, corpus, path, 0));
    if (corpus->count == before)
        return cup__fail(error, CUP_FORMAT, "%s holds no text files; name another folder", path);
    return CUP_OK;
}

/* Where a later run finds the same text, whatever its own folder. */
static cup_status add_source(cup__error *error, cup_corpus *corpus, const char *path)
{
    char absolute[PATH_MAX];
    if (!realpath(path, absolute))
        return cup__file_fail(error, path, "found", errno);
    cup__text_append(&corpus->sources, absolute, strlen(absolute) + 1);
    return corpus->sources.failed ? no_memory(error, path) : CUP_OK;
}

cup_corpus *cup_corpus_load(cup_context *c, const char *const *paths, int count, int64_t most_bytes)
{
    if (!c || cup_error(c) != CUP_OK)
        return NULL;
    cup_corpus *corpus = cup__calloc(1, sizeof *corpus);
    if (!corpus) {
        no_memory(&c->error, "data");
        return NULL;
    }
    corpus->most_bytes = most_bytes > 0 ? most_bytes : USUAL_BYTES;
    cup_status status = CUP_OK;
    if (count < 1 || !paths)
        status = cup__fail(&c->error, CUP_ARGUMENT, "no data was named; give a file or a folder");
    for (int i = 0; i < count && status == CUP_OK; i++)
        if ((status = add_path(&c->error, corpus, paths[i])) == CUP_OK)
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
        status = no_memory(&c->error, "data");
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
