#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "data/mix.h"
#include "data/tokenizer.h"
#include "tensor/context.h"

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "out of host memory for the tokens of the data");
}

static bool reserve(cup_data *d, int64_t more)
{
    if (more <= d->capacity - d->count)
        return true;
    int64_t capacity = d->capacity + d->capacity / 2 + more;
    void *grown = cup__realloc(d->tokens, (size_t)capacity, d->wide ? 4 : 2);
    if (!grown)
        return false;
    d->tokens = grown;
    d->capacity = capacity;
    return true;
}

typedef struct filler {
    cup__error *error;
    cup_data *data;
} filler;

static cup_status put(void *user, const int32_t *tokens, size_t count)
{
    filler *f = user;
    cup_data *d = f->data;
    if (!reserve(d, (int64_t)count))
        return no_memory(f->error);
    if (d->wide) {
        memcpy((int32_t *)d->tokens + d->count, tokens, count * sizeof *tokens);
    } else {
        uint16_t *to = (uint16_t *)d->tokens + d->count;
        for (size_t i = 0; i < count; i++)
            to[i] = (uint16_t)tokens[i];
    }
    d->count += (int64_t)count;
    return CUP_OK;
}

static cup_status encode(cup__error *error, cup_data *d, const cup_corpus *corpus,
                         const cup_tokenizer *t)
{
    filler f = {error, d};
    cup__tokens out = {put, &f};
    int32_t end = cup__around_parting(t);
    size_t from = 0;
    /* A first guess that suits either kind saves most of the growing. */
    if (!reserve(d, (int64_t)corpus->text.length / (t->codes ? 1 : 4) + 1))
        return no_memory(error);
    for (size_t i = 0; i < corpus->count; i++) {
        CUP_TRY(put(&f, t->around.front, (size_t)t->around.front_count));
        CUP_TRY(cup__tokenizer_encode(error, t, corpus->text.bytes + from, corpus->ends[i] - from,
                                      out));
        if (end >= 0)
            CUP_TRY(put(&f, &end, 1));
        from = corpus->ends[i];
    }
    return CUP_OK;
}

/* The cut is nanoGPT's, so that losses can be compared. */
static cup_status split(cup__error *error, cup_data *d, int64_t context)
{
    if (d->train < 0)
        d->train = (int64_t)(0.9 * (double)d->count);
    int64_t fewest = d->count - d->train < d->train ? d->count - d->train : d->train;
    if (context < 1)
        return cup__fail(error, CUP_ARGUMENT,
                         "a context of %lld tokens is not possible; give 1 or more",
                         (long long)context);
    if (fewest <= context)
        return cup__fail(error, CUP_ARGUMENT,
                         "the data has %lld tokens, %lld for training and %lld for validation, and "
                         "each part must have more than the context of %lld; give more text or a "
                         "smaller context",
                         (long long)d->count, (long long)d->train, (long long)(d->count - d->train),
                         (long long)context);
    return CUP_OK;
}

cup_data *cup_data_new(cup_context *c, const cup_corpus *corpus, const cup_tokenizer *t,
                       int64_t context)
{
    if (!c || cup_error(c) != CUP_OK)
        return NULL;
    if (!corpus || !t) {
        cup__fail(&c->error, CUP_ARGUMENT, "data: the %s is NULL", corpus ? "tokenizer" : "corpus");
        return NULL;
    }
    cup_data *d = cup__calloc(1, sizeof *d);
    if (!d) {
        no_memory(&c->error);
        return NULL;
    }
    d->wide = t->size > 65536;
    d->vocabulary = t->size;
    d->files = (int64_t)corpus->count;
    d->train = -1;
    cup_status status = encode(&c->error, d, corpus, t);
    if (status == CUP_OK)
        status = split(&c->error, d, context);
    cup__text_append(&d->sources, corpus->sources.bytes, corpus->sources.length);
    if (corpus->text_field && !(d->text_field = cup__strdup(corpus->text_field)))
        d->sources.failed = true;
    if (status == CUP_OK && d->sources.failed)
        status = no_memory(&c->error);
    if (status == CUP_OK)
        return d;
    cup_data_free(d);
    return NULL;
}

bool cup_data_has_tokens(const char *path)
{
    return path && cup__shards_named(path);
}

static cup_status open_shards(cup__error *error, cup_data *d, const char *const *paths, int count,
                              int64_t context)
{
    char absolute[PATH_MAX];
    CUP_TRY(cup__shards_open(error, paths, count, d->vocabulary, &d->shards));
    for (int i = 0; i < count; i++) {
        if (!realpath(paths[i], absolute))
            return cup__file_fail(error, paths[i], "found", errno);
        cup__text_append(&d->sources, absolute, strlen(absolute) + 1);
    }
    if (d->sources.failed)
        return no_memory(error);
    d->files = (int64_t)d->shards.count;
    d->count = d->shards.tokens;
    d->train = d->shards.train;
    CUP_TRY(split(error, d, context));
    return cup__shards_hash(error, &d->shards, &d->hash);
}

cup_data *cup_data_open(cup_context *c, const char *const *paths, int count, const cup_tokenizer *t,
                        int64_t context)
{
    if (!c || cup_error(c) != CUP_OK)
        return NULL;
    if (!paths || count < 1 || !t) {
        cup__fail(&c->error, CUP_ARGUMENT, "tokens: %s",
                  t ? "no data was named; give a file or a folder" : "the tokenizer is NULL");
        return NULL;
    }
    cup_data *d = cup__calloc(1, sizeof *d);
    if (!d) {
        no_memory(&c->error);
        return NULL;
    }
    d->vocabulary = t->size;
    if (open_shards(&c->error, d, paths, count, context) == CUP_OK)
        return d;
    cup_data_free(d);
    return NULL;
}

int64_t cup_data_files(const cup_data *d)
{
    return d ? d->files : 0;
}

void cup_data_free(cup_data *d)
{
    if (!d)
        return;
    cup__mix_free(&d->mix);
    cup__shards_close(&d->shards);
    cup__free(d->tokens);
    cup__text_free(&d->sources);
    cup__free(d->text_field);
    cup__free(d);
}

static int64_t begin_of(const cup_data *d, cup_split part)
{
    return part == CUP_SPLIT_TRAIN ? 0 : d->train;
}

int64_t cup_data_count(const cup_data *d, cup_split part)
{
    if (!d)
        return 0;
    if (d->mix.count)
        return cup__mix_tokens(&d->mix, part);
    return part == CUP_SPLIT_TRAIN        ? d->train
           : part == CUP_SPLIT_VALIDATION ? d->count - d->train
                                          : 0;
}

int64_t cup__data_vocabulary(const cup_data *d)
{
    return d->vocabulary;
}

const char *cup__data_text_field(const cup_data *d)
{
    return d->text_field;
}

const cup__text *cup__data_sources(const cup_data *d)
{
    return &d->sources;
}

uint64_t cup_data_hash(const cup_data *d)
{
    if (!d || d->shards.count || d->mix.count)
        return d ? d->hash : 0;
    return cup__hash_bytes(d->tokens, (size_t)d->count * (d->wide ? 4 : 2));
}

static int32_t token_at(const cup_data *d, int64_t place)
{
    return d->wide ? ((const int32_t *)d->tokens)[place] : ((const uint16_t *)d->tokens)[place];
}

cup_status cup__data_row(cup__error *error, const cup_data *d, cup_split part, int64_t place,
                         int64_t context, int32_t *inputs, int32_t *targets)
{
    place += begin_of(d, part);
    if (d->shards.count)
        return cup__shards_row(error, &d->shards, place, context, inputs, targets);
    for (int64_t i = 0; i < context; i++) {
        inputs[i] = token_at(d, place + i);
        targets[i] = token_at(d, place + i + 1);
    }
    return CUP_OK;
}

cup_status cup__data_check(cup_context *c, const cup_data *d, cup_split part, int64_t first_row,
                           int64_t rows, int64_t context, const int32_t *inputs,
                           const int32_t *targets)
{
    if (!c)
        return CUP_ARGUMENT;
    if (!d || !inputs || !targets)
        return cup__fail(&c->error, CUP_ARGUMENT, "a batch: the %s NULL",
                         d ? "places for inputs and targets must not be" : "data is");
    if (part != CUP_SPLIT_TRAIN && part != CUP_SPLIT_VALIDATION)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "a batch: the part %d of the data is neither that for training nor that "
                         "for validation",
                         (int)part);
    if (first_row < 0 || rows < 0 || first_row > INT64_MAX - rows || context < 1)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "a batch of %lld rows from row %lld with %lld tokens is not possible",
                         (long long)rows, (long long)first_row, (long long)context);
    int64_t count = d->mix.count ? cup__mix_fewest(&d->mix, part) : cup_data_count(d, part);
    if (context >= count)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "a context of %lld tokens is more than this part of the data has, %lld",
                         (long long)context, (long long)count);
    return CUP_OK;
}

cup_status cup_data_batch(cup_context *c, const cup_data *d, cup_split part, uint64_t seed,
                          uint64_t step, int64_t first_row, int64_t rows, int64_t context,
                          int32_t *inputs, int32_t *targets)
{
    CUP_TRY(cup__data_check(c, d, part, first_row, rows, context, inputs, targets));
    for (int64_t r = 0; r < rows; r++) {
        cup__draw drawn = cup__data_draw(seed, step, (uint64_t)(first_row + r));
        const cup_data *set = d->mix.count ? cup__mix_choose(&d->mix, drawn.set) : d;
        uint64_t places = (uint64_t)(cup_data_count(set, part) - context);
        int64_t place = (int64_t)((unsigned __int128)drawn.place * places >> 64);
        CUP_TRY(cup__data_row(&c->error, set, part, place, context, inputs + r * context,
                              targets + r * context));
    }
    return CUP_OK;
}

int64_t cup_data_windows(const cup_data *d, cup_split part, int64_t context)
{
    if (d && d->mix.count)
        return cup__mix_windows(&d->mix, part, context);
    int64_t count = cup_data_count(d, part);
    return context > 0 && count > 0 ? (count - 1) / context : 0;
}

cup_status cup_data_window(cup_context *c, const cup_data *d, cup_split part, int64_t first_row,
                           int64_t rows, int64_t context, int32_t *inputs, int32_t *targets)
{
    CUP_TRY(cup__data_check(c, d, part, first_row, rows, context, inputs, targets));
    int64_t windows = cup_data_windows(d, part, context);
    if (first_row + rows > windows)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "rows %lld to %lld were asked for; this part of the data has %lld windows "
                         "of %lld tokens",
                         (long long)first_row, (long long)(first_row + rows), (long long)windows,
                         (long long)context);
    for (int64_t r = 0; r < rows; r++) {
        int64_t window = first_row + r;
        const cup_data *set = d->mix.count ? cup__mix_at(&d->mix, part, context, &window) : d;
        CUP_TRY(cup__data_row(&c->error, set, part, window * context, context,
                              inputs + r * context, targets + r * context));
    }
    return CUP_OK;
}
