/* Text into files of tokens: pieces of it are read, encoded by all threads and written in their
 * order, as many at a time as bound the memory. */
#include "data/tokenize.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/parallel.h"
#include "data/lines.h"
#include "data/reader.h"
#include "data/tokenizer.h"
#include "data/works.h"
#include "tensor/context.h"

#define SHARD_TOKENS 100000000
#define PIECES_A_THREAD 4
#define PIECES_MOST 1024
#define PART ".part"

/* A piece and its tokens. */
typedef struct task {
    struct job *job;
    cup__piece piece;
    cup__error error;
    char *tokens; /* of 16 or 32 bits */
    size_t count, capacity;
    int64_t texts;
} task;

typedef struct job {
    cup_context *c;
    const cup_tokenizer *tokenizer;
    cup_tokenize_options options;
    bool wide;
    int32_t end; /* of a text; -1: there is none */
    cup__reader reader;
    task *tasks;
    size_t task_count, task_most;
    cup__works works; /* what encoding keeps */
    cup__shard_writer parts[2]; /* by cup_split */
    int64_t texts;
    char *folder; /* in which all is made, to be renamed */
} job;

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "out of host memory for making tokens of text");
}

static cup_status put(void *user, const int32_t *tokens, size_t count)
{
    task *k = user;
    size_t each = k->job->wide ? 4 : 2;
    if (count > k->capacity - k->count) {
        size_t capacity = k->capacity + k->capacity / 2 + count + 1024;
        char *grown = cup__realloc(k->tokens, capacity, each);
        if (!grown)
            return no_memory(&k->error);
        k->tokens = grown;
        k->capacity = capacity;
    }
    if (k->job->wide) {
        memcpy(k->tokens + 4 * k->count, tokens, 4 * count);
    } else {
        uint16_t *to = (uint16_t *)(void *)k->tokens + k->count;
        for (size_t i = 0; i < count; i++)
            to[i] = (uint16_t)tokens[i];
    }
    k->count += count;
    return CUP_OK;
}

/* A task and the work of the thread that does it. */
typedef struct doer {
    task *task;
    void *work;
} doer;

static cup_status encode(doer *d, const char *text, size_t length, bool begins, bool ends)
{
    task *k = d->task;
    const job *j = k->job;
    const cup__around *around = &j->tokenizer->around;
    if (begins && around->front_count)
        CUP_TRY(put(k, around->front, (size_t)around->front_count));
    CUP_TRY(cup__tokenizer_encode_next(&k->error, j->tokenizer, text, length,
                                       begins, (cup__tokens){put, k}, &d->work));
    k->texts += ends;
    return ends && j->end >= 0 ? put(k, &j->end, 1) : CUP_OK;
}

static cup_status encode_line(void *user, const char *text, size_t length)
{
    return encode(user, text, length, true, true);
}

static void do_task(doer *d)
{
    task *k = d->task;
    const cup__piece *p = &k->piece;
    cup_status status;
    if (p->lines)
        status = cup__lines_each(&k->error, p->path, p->line, p->bytes, p->length,
                                 k->job->options.text_field, encode_line, d);
    else
        status = encode(d, p->bytes, p->length, p->begins, p->ends);
    if (status != CUP_OK && !p->lines)
        cup__error_prefix(&k->error, "%s: ", p->path);
}

static void do_tasks(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    doer d = {.work = cup__works_take(&j->works)};
    for (int64_t i = begin; i < end; i++) {
        d.task = &j->tasks[i];
        do_task(&d);
    }
    cup__tokenizer_forget(j->tokenizer, cup__works_give(&j->works, d.work));
}

static void clear_tasks(job *j)
{
    for (size_t i = 0; i < j->task_count; i++) {
        task *k = &j->tasks[i];
        cup__free(k->piece.bytes);
        k->piece.bytes = NULL;
        k->count = 0;
        k->texts = 0;
    }
    j->task_count = 0;
}

static cup_status read_tasks(job *j)
{
    clear_tasks(j);
    while (j->task_count < j->task_most) {
        cup__piece piece;
        CUP_TRY(cup__reader_next(&j->c->error, &j->reader, &piece));
        if (!piece.bytes)
            break;
        j->tasks[j->task_count].job = j;
        j->tasks[j->task_count++].piece = piece;
    }
    return CUP_OK;
}

static cup_status write_tasks(job *j)
{
    cup__error *error = &j->c->error;
    for (size_t i = 0; i < j->task_count; i++) {
        task *k = &j->tasks[i];
        if (k->error.status != CUP_OK)
            return cup__fail(error, k->error.status, "%s", k->error.text);
        CUP_TRY(cup__shard_writer_add(error, &j->parts[k->piece.validation], k->tokens, k->count));
        j->texts += k->texts;
    }
    return CUP_OK;
}

static cup_status tell(job *j)
{
    const cup_tokenize_options *o = &j->options;
    int64_t tokens = j->parts[0].tokens + j->parts[1].tokens;
    if (o->progress && o->progress((int64_t)cup__reader_done(&j->reader),
                                   (int64_t)j->reader.total, tokens, o->user))
        return cup__fail(&j->c->error, CUP_INTERRUPTED, "making tokens of text was stopped");
    return CUP_OK;
}

static cup_status do_all(job *j)
{
    do {
        CUP_TRY(read_tasks(j));
        cup__parallel_for((int64_t)j->task_count, 1, do_tasks, j);
        CUP_TRY(write_tasks(j));
        CUP_TRY(tell(j));
    } while (j->task_count);
    for (int part = 0; part < 2; part++)
        CUP_TRY(cup__shard_writer_end(&j->c->error, &j->parts[part]));
    if (j->parts[CUP_SPLIT_TRAIN].tokens)
        return CUP_OK;
    return cup__fail(&j->c->error, CUP_FORMAT,
                     "there is no text for training in the files; name others, or a smaller part "
                     "for validation");
}

static cup_status save_tokenizer(job *j)
{
    char *path = cup__path_join(j->folder, "tokenizer.json");
    cup_status status =
        path ? cup_tokenizer_save(j->c, j->tokenizer, path) : no_memory(&j->c->error);
    cup__free(path);
    return status;
}

static void undo(job *j)
{
    cup__shard_writer_undo(&j->parts[0]);
    cup__shard_writer_undo(&j->parts[1]);
    char *path = cup__path_join(j->folder, "tokenizer.json");
    if (path)
        unlink(path);
    cup__free(path);
    rmdir(j->folder);
}

static cup_status check_folder(cup__error *error, const char *folder)
{
    cup__names names;
    if (!cup__file_exists(folder) && !cup__folder_exists(folder))
        return CUP_OK;
    CUP_TRY(cup__folder_list(error, folder, &names));
    size_t count = names.count;
    cup__names_free(&names);
    if (count == 0)
        return CUP_OK;
    return cup__fail(error, CUP_ARGUMENT,
                     "the folder %s is not empty, and tokens replace nothing; name another one",
                     folder);
}

/* All is made in a folder beside the one that is wanted, which has its name when all is there. */
static cup_status make_folder(job *j, const char *folder)
{
    cup__error *error = &j->c->error;
    size_t length = strlen(folder);
    CUP_TRY(check_folder(error, folder));
    while (length > 1 && folder[length - 1] == '/')
        length--;
    j->folder = cup__malloc(length + sizeof PART);
    if (!j->folder)
        return no_memory(error);
    snprintf(j->folder, length + sizeof PART, "%.*s" PART, (int)length, folder);
    if (!cup__file_exists(j->folder) && !cup__folder_exists(j->folder))
        return cup__folder_make(error, j->folder);
    cup_status status = cup__fail(error, CUP_ARGUMENT,
                                  "%s is there: another process makes these tokens, or was killed "
                                  "while it did; then remove it",
                                  j->folder);
    cup__free(j->folder);
    j->folder = NULL;
    return status;
}

static bool is_bare(const cup_tokenize_options *o)
{
    return o->format == CUP_TOKEN_FORMAT_NANOGPT;
}

static cup_status begin(job *j, const char *folder)
{
    int64_t pieces = (int64_t)cup__threads() * PIECES_A_THREAD;
    j->task_most = (size_t)(pieces < PIECES_MOST ? pieces : PIECES_MOST);
    j->tasks = cup__calloc(j->task_most, sizeof *j->tasks);
    if (!j->tasks || !cup__works_begin(&j->works, j->task_most))
        return no_memory(&j->c->error);
    CUP_TRY(make_folder(j, folder));
    for (int part = 0; part < 2; part++)
        j->parts[part] = (cup__shard_writer){.folder = j->folder,
                                             .prefix = part ? "val" : "train",
                                             .wide = j->wide,
                                             .bare = is_bare(&j->options),
                                             .most = is_bare(&j->options)
                                                         ? INT64_MAX
                                                         : j->options.shard_tokens,
                                             .writer.handle = -1};
    return CUP_OK;
}

static cup_status rename_folder(job *j)
{
    char *to = cup__strdup(j->folder);
    if (!to)
        return no_memory(&j->c->error);
    to[strlen(to) - strlen(PART)] = 0;
    cup_status status = cup__file_rename(&j->c->error, j->folder, to);
    /* It may have its name and not be on the disk; then that is what must go again. */
    if (status != CUP_OK && !cup__folder_exists(j->folder))
        strcpy(j->folder, to);
    cup__free(to);
    return status;
}

static cup_status run(job *j, const char *const *paths, int count, const char *folder,
                      double validation)
{
    CUP_TRY(cup__reader_open(&j->c->error, paths, count, validation, &j->reader));
    cup_status status = begin(j, folder);
    if (status == CUP_OK)
        status = do_all(j);
    if (status == CUP_OK)
        status = save_tokenizer(j);
    if (status == CUP_OK)
        status = rename_folder(j);
    if (status != CUP_OK && j->folder)
        undo(j);
    return status;
}

static void end(job *j)
{
    clear_tasks(j);
    for (size_t i = 0; j->tasks && i < j->task_most; i++)
        cup__free(j->tasks[i].tokens);
    while (j->works.count)
        cup__tokenizer_forget(j->tokenizer, cup__works_take(&j->works));
    cup__works_end(&j->works);
    cup__free(j->tasks);
    cup__free(j->folder);
    cup__reader_close(&j->reader);
}

static cup_status check(cup_context *c, const char *const *paths, int count,
                        const cup_tokenizer *t, const char *folder, double validation,
                        cup_tokenize_options *o)
{
    if (!paths || count < 1 || !t || !folder || !*folder)
        return cup__fail(&c->error, CUP_ARGUMENT, "making tokens of text: %s",
                         !t                    ? "the tokenizer is NULL"
                         : !paths || count < 1 ? "no data was named; give a file or a folder"
                                               : "no folder was named for them");
    if (!(validation >= 0 && validation < 1))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "making tokens of text: the part for validation is %g; give 0 or more and "
                         "less than 1",
                         validation);
    if (o->shard_tokens < 0 || o->shard_tokens > INT32_MAX)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "making tokens of text: %lld tokens a file; give 1 to %d, or 0 for %d",
                         (long long)o->shard_tokens, INT32_MAX, SHARD_TOKENS);
    if (o->format != CUP_TOKEN_FORMAT_LLMC && !is_bare(o))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "making tokens of text: there is no format %d; give one of "
                         "cup_token_format",
                         (int)o->format);
    if (is_bare(o) && t->size > 65536)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "making tokens of text: nanoGPT's files have 16 bits a token, for 65536 "
                         "of them, and the tokenizer has %lld; write llm.c's files, or take "
                         "another tokenizer",
                         (long long)t->size);
    o->shard_tokens = o->shard_tokens ? o->shard_tokens : SHARD_TOKENS;
    o->text_field = o->text_field ? o->text_field : CUP__TEXT_FIELD;
    return CUP_OK;
}

cup_status cup_tokenize(cup_context *c, const char *const *paths, int count, const cup_tokenizer *t,
                        const char *folder, double validation, const cup_tokenize_options *options,
                        cup_tokenized *made)
{
    if (!c)
        return CUP_ARGUMENT;
    if (c->error.status != CUP_OK)
        return c->error.status;
    job j = {.c = c, .tokenizer = t, .reader.stream.file.handle = -1};
    CUP_TRY(cup__options_take(&c->error, "cup_tokenize", &j.options, sizeof j.options, options));
    CUP_TRY(check(c, paths, count, t, folder, validation, &j.options));
    j.wide = t->size > 65536;
    j.end = cup__around_parting(t);
    cup_status status = run(&j, paths, count, folder, validation);
    if (status == CUP_OK && made)
        *made = (cup_tokenized){.bytes = (int64_t)j.reader.total,
                                .texts = j.texts,
                                .skipped = j.reader.skipped,
                                .train = j.parts[CUP_SPLIT_TRAIN].tokens,
                                .validation = j.parts[CUP_SPLIT_VALIDATION].tokens,
                                .files = j.parts[0].files + j.parts[1].files};
    end(&j);
    return status;
}
