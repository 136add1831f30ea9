/* A BPE tokenizer of text of any size: pieces of it are read, their words counted by all threads,
 * each for itself, and added up now and then. */
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/parallel.h"
#include "data/lines.h"
#include "data/reader.h"
#include "data/tokenizer.h"
#include "data/works.h"
#include "tensor/context.h"

#define PIECES_A_THREAD 4
#define PIECES_JOINED 128 /* then words are added up and bounded: whatever the number of threads   \
                           */
#define WORDS 4000000
#define WORDS_LEAST 1000

typedef struct job {
    cup_context *c;
    cup_tokenizer *tokenizer;
    cup_tokenizer_learn_options options;
    cup__reader reader;
    cup__piece pieces[PIECES_JOINED];
    cup__error errors[PIECES_JOINED]; /* of each */
    size_t done, count;               /* of the pieces, before those that are there and with them */
    cup__works works;                 /* cup__words */
    cup__words words;
    cup_tokenizer_learned learned;
} job;

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "out of host memory for counting words; give fewer");
}

/* A thread's own words, and what they were in. */
typedef struct counter {
    const job *job;
    cup__words *words;
    cup__error *error;
    int64_t seen, texts;
} counter;

static cup_status count_word(void *user, const char *text, size_t length)
{
    counter *k = user;
    k->seen += (int64_t)((length + CUP__WORD_LONGEST - 1) / CUP__WORD_LONGEST);
    return cup__words_add(k->words, text, length) ? CUP_OK : no_memory(k->error);
}

static cup_status count_text(void *user, const char *text, size_t length)
{
    counter *k = user;
    k->texts++;
    return cup__split(k->error, k->job->tokenizer->splitter, text, length, count_word, k);
}

static void count_piece(counter *k, const cup__piece *p)
{
    if (p->lines) {
        cup__lines_each(k->error, p->path, p->line, p->bytes, p->length, k->job->options.text_field,
                        count_text, k);
        return;
    }
    if (count_text(k, p->bytes, p->length) != CUP_OK)
        cup__error_prefix(k->error, "%s: ", p->path);
    k->texts -= !p->ends;
}

static void count_pieces(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    cup__words *words = cup__works_take(&j->works);
    counter k = {.job = j, .words = words ? words : cup__calloc(1, sizeof *words)};
    for (int64_t i = begin; i < end; i++) {
        size_t at = j->done + (size_t)i;
        k.error = &j->errors[at];
        if (k.words)
            count_piece(&k, &j->pieces[at]);
        else
            no_memory(k.error);
    }
    __atomic_fetch_add(&j->learned.words, k.seen, __ATOMIC_RELAXED);
    __atomic_fetch_add(&j->learned.texts, k.texts, __ATOMIC_RELAXED);
    cup__works_give(&j->works, k.words);
}

static void free_pieces(job *j)
{
    for (size_t i = j->done; i < j->count; i++) {
        cup__free(j->pieces[i].bytes);
        j->pieces[i].bytes = NULL;
    }
    j->done = j->count;
}

static cup_status tell(job *j, int64_t merges)
{
    const cup_tokenizer_learn_options *o = &j->options;
    if (o->progress && o->progress((int64_t)cup__reader_done(&j->reader), (int64_t)j->reader.total,
                                   merges, o->user))
        return cup__fail(&j->c->error, CUP_INTERRUPTED, "learning a tokenizer was stopped");
    return CUP_OK;
}

/* As many pieces as threads have something to do with. */
static cup_status count_some(job *j, bool *ended)
{
    size_t most = j->done + (size_t)cup__threads() * PIECES_A_THREAD;
    cup_status status = CUP_OK;
    while (j->count < most && j->count < PIECES_JOINED && !*ended && status == CUP_OK) {
        cup__piece *p = &j->pieces[j->count];
        status = cup__reader_next(&j->c->error, &j->reader, p);
        *ended = !p->bytes;
        j->count += p->bytes != NULL;
    }
    if (status == CUP_OK)
        cup__parallel_for((int64_t)(j->count - j->done), 1, count_pieces, j);
    for (size_t i = j->done; i < j->count && status == CUP_OK; i++)
        if (j->errors[i].status != CUP_OK)
            status = cup__fail(&j->c->error, j->errors[i].status, "%s", j->errors[i].text);
    free_pieces(j);
    return status == CUP_OK ? tell(j, 0) : status;
}

/* The words of all threads. */
static cup_status join(job *j)
{
    if (!cup__words_join(&j->words, (cup__words *const *)(void *)j->works.work, j->works.count) ||
        !cup__words_bound(&j->words, (size_t)j->options.words, &j->learned.dropped))
        return no_memory(&j->c->error);
    j->done = j->count = 0;
    return tell(j, 0);
}

static cup_status count_all(job *j)
{
    for (bool ended = false; !ended;) {
        do
            CUP_TRY(count_some(j, &ended));
        while (!ended && j->count < PIECES_JOINED);
        CUP_TRY(join(j));
    }
    j->learned.different = (int64_t)cup__words_count(&j->words);
    if (j->learned.different)
        return CUP_OK;
    return cup__fail(&j->c->error, CUP_FORMAT,
                     "there is no text in the files to learn a tokenizer from; name others");
}

static bool stops(int64_t merges, void *user)
{
    job *j = user;
    const cup_tokenizer_learn_options *o = &j->options;
    return o->progress &&
           o->progress((int64_t)j->reader.total, (int64_t)j->reader.total, merges, o->user);
}

static cup_status run(job *j, const char *const *paths, int count, int64_t size)
{
    cup__error *error = &j->c->error;
    CUP_TRY(cup__bpe_begin(error, size, &j->tokenizer));
    CUP_TRY(cup__reader_open(error, paths, count, 0, &j->reader));
    if (!cup__works_begin(&j->works, PIECES_JOINED))
        return no_memory(error);
    CUP_TRY(count_all(j));
    CUP_TRY(cup__bpe_make(error, j->tokenizer, size, &j->words, (cup__watch){stops, j}));
    j->learned.bytes = (int64_t)j->reader.total;
    j->learned.skipped = j->reader.skipped;
    j->learned.merges = (int64_t)j->tokenizer->merge_count;
    return CUP_OK;
}

static void end(job *j)
{
    free_pieces(j);
    while (j->works.count) {
        cup__words *words = cup__works_take(&j->works);
        cup__words_free(words);
        cup__free(words);
    }
    cup__works_end(&j->works);
    cup__words_free(&j->words);
    cup__reader_close(&j->reader);
    cup__free(j);
}

static cup_status check(cup__error *error, const char *const *paths, int count,
                        cup_tokenizer_learn_options *o)
{
    if (!paths || count < 1)
        return cup__fail(error, CUP_ARGUMENT,
                         "learning a tokenizer: no data was named; give a file or a folder");
    if (o->words && (o->words < WORDS_LEAST || o->words > INT32_MAX))
        return cup__fail(error, CUP_ARGUMENT,
                         "learning a tokenizer of %lld different words at most; give %d to %d, or "
                         "0 for %d",
                         (long long)o->words, WORDS_LEAST, INT32_MAX, WORDS);
    o->words = o->words ? o->words : WORDS;
    o->text_field = o->text_field ? o->text_field : CUP__TEXT_FIELD;
    return CUP_OK;
}

cup_tokenizer *cup_tokenizer_learn(cup_context *c, const char *const *paths, int count,
                                   int64_t size, const cup_tokenizer_learn_options *options,
                                   cup_tokenizer_learned *learned)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    job *j = cup__calloc(1, sizeof *j);
    if (!j) {
        no_memory(&c->error);
        return NULL;
    }
    j->c = c;
    j->reader.stream.file.handle = -1;
    cup_status status = cup__options_take(&c->error, "cup_tokenizer_learn", &j->options,
                                          sizeof j->options, options);
    if (status == CUP_OK)
        status = check(&c->error, paths, count, &j->options);
    if (status == CUP_OK)
        status = run(j, paths, count, size);
    cup_tokenizer *t = j->tokenizer;
    if (status == CUP_OK && learned)
        *learned = j->learned;
    end(j);
    if (status == CUP_OK)
        return t;
    cup_tokenizer_free(t);
    return NULL;
}
