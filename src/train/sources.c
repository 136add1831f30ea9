/* Where a run's text lies, kept in its checkpoint. */
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "data/corpus.h"
#include "io/checkpoint.h"
#include "tensor/context.h"
#include "train/trainer.h"

#define KEY "sources"
#define FIELD_KEY "text_field"
#define SETS_KEY "sets" /* of a mix: the weight of each, and how many of the sources are its */

/* A path that is not UTF-8 has no place in JSON; then none is kept. */
static void write_paths(cup__json_writer *writer, const cup__text *sources)
{
    cup__json_open(writer, KEY, CUP__JSON_ARRAY);
    bool whole = cup__utf8_check(sources->bytes, sources->length) == sources->length;
    for (size_t at = 0; whole && at < sources->length;) {
        const char *path = sources->bytes + at;
        cup__json_add_string(writer, NULL, path);
        at += strlen(path) + 1;
    }
    cup__json_close(writer);
}

static void write_sets(cup__json_writer *writer, const cup_data *data)
{
    cup__json_open(writer, SETS_KEY, CUP__JSON_ARRAY);
    for (int i = 0; i < cup_data_sets(data); i++) {
        cup__json_open(writer, NULL, CUP__JSON_OBJECT);
        cup__json_add_number(writer, "weight", cup__data_weight(data, i));
        cup__json_add_integer(writer, "sources", cup__data_source_count(data, i));
        cup__json_close(writer);
    }
    cup__json_close(writer);
}

void cup__sources_write(cup__json_writer *writer, const cup_data *data)
{
    const char *field = cup__data_text_field(data);
    write_paths(writer, cup__data_sources(data));
    if (field)
        cup__json_add_string(writer, FIELD_KEY, field);
    if (cup_data_sets(data))
        write_sets(writer, data);
}

/* The paths in a checkpoint, which point into it. */
static cup_status find_paths(cup_context *c, const cup__checkpoint *checkpoint, const char *folder,
                             const char ***paths, int *count)
{
    const cup__json_node *list = cup__json_find(checkpoint->state, KEY);
    size_t found = list && list->kind == CUP__JSON_ARRAY ? list->count : 0, i = 0;
    if (found == 0 || found > INT32_MAX)
        return cup__fail(
            &c->error, CUP_ARGUMENT,
            "training: the checkpoint in %s does not say where its text lies; name it again",
            folder);
    *paths = cup__calloc(found, sizeof **paths);
    if (!*paths)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for the paths of the text");
    CUP__JSON_EACH (path, list)
        (*paths)[i++] = path->kind == CUP__JSON_STRING ? path->string : "";
    *count = (int)found;
    return CUP_OK;
}

/* The text of paths that a checkpoint names. */
static cup_corpus *load(cup_context *c, const cup__checkpoint *checkpoint, const char *const *paths,
                        int count)
{
    const cup__json_node *field = cup__json_find(checkpoint->state, FIELD_KEY);
    bool named = field && field->kind == CUP__JSON_STRING;
    return cup_corpus_load(
        c, paths, count,
        CUP_OPTIONS(cup_corpus_options, .text_field = named ? field->string : NULL));
}

cup_corpus *cup_gpt_corpus_load(cup_context *c, const char *folder)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    cup__checkpoint checkpoint;
    const char **paths = NULL;
    int count = 0;
    cup_corpus *corpus = NULL;
    if (cup__checkpoint_open(&c->error, folder, &checkpoint) != CUP_OK)
        return NULL;
    if (find_paths(c, &checkpoint, folder, &paths, &count) == CUP_OK)
        corpus = load(c, &checkpoint, paths, count);
    cup__free(paths);
    cup__checkpoint_close(&checkpoint);
    return corpus;
}

static cup_data *make(cup_context *c, const cup__checkpoint *checkpoint, const char *const *paths,
                      int count, const cup_tokenizer *t, int64_t context)
{
    if (cup_data_has_tokens(paths[0]))
        return cup_data_open(c, paths, count, t, context);
    cup_corpus *corpus = load(c, checkpoint, paths, count);
    cup_data *data = corpus ? cup_data_new(c, corpus, t, context) : NULL;
    cup_corpus_free(corpus);
    return data;
}

/* The sets of a mix, each made of its own share of the paths. */
static cup_data *make_mix(cup_context *c, const cup__checkpoint *checkpoint,
                          const char *const *paths, int count, const cup_tokenizer *t,
                          int64_t context)
{
    const cup__json_node *list = cup__json_find(checkpoint->state, SETS_KEY);
    size_t most = list->count;
    cup_data **sets = cup__calloc(most, sizeof(cup_data *)), *mix = NULL;
    double *weights = cup__calloc(most, sizeof *weights);
    int made = 0, used = 0;
    if (!sets || !weights)
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for the sets of a mix");
    CUP__JSON_EACH (set, list) {
        int64_t own = 0;
        if (c->error.status != CUP_OK)
            break;
        cup__json_get_number(&c->error, &checkpoint->json, set, "weight", &weights[made]);
        cup__json_get_integer(&c->error, &checkpoint->json, set, "sources", 1, count - used, &own);
        if (c->error.status == CUP_OK)
            sets[made] = make(c, checkpoint, paths + used, (int)own, t, context);
        made += sets[made] != NULL;
        used += (int)own;
    }
    if (c->error.status == CUP_OK)
        mix = cup_data_mix(c, sets, weights, made);
    for (int i = 0; !mix && i < made; i++)
        cup_data_free(sets[i]);
    cup__free(sets);
    cup__free(weights);
    return mix;
}

static bool is_mix(const cup__checkpoint *checkpoint)
{
    const cup__json_node *list = cup__json_find(checkpoint->state, SETS_KEY);
    return list && list->kind == CUP__JSON_ARRAY && list->count > 0 && list->count < INT32_MAX;
}

cup_data *cup_gpt_data_load(cup_context *c, const char *folder, const cup_tokenizer *t,
                            int64_t context)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    cup__checkpoint checkpoint;
    const char **paths = NULL;
    int count = 0;
    cup_data *data = NULL;
    if (cup__checkpoint_open(&c->error, folder, &checkpoint) != CUP_OK)
        return NULL;
    if (find_paths(c, &checkpoint, folder, &paths, &count) == CUP_OK)
        data = (is_mix(&checkpoint) ? make_mix : make)(c, &checkpoint, paths, count, t, context);
    cup__free(paths);
    cup__checkpoint_close(&checkpoint);
    return data;
}
