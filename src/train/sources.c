/* Where a run's text lies, kept in its checkpoint. */
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "io/checkpoint.h"
#include "tensor/context.h"
#include "train/trainer.h"

#define KEY "sources"

/* A path that is not UTF-8 has no place in JSON; then none is kept. */
void cup__sources_write(cup__json_writer *writer, const cup__text *sources)
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

static cup_corpus *load(cup_context *c, const cup__checkpoint *checkpoint, const char *folder)
{
    const cup__json_node *list = cup__json_find(checkpoint->state, KEY);
    size_t count = list && list->kind == CUP__JSON_ARRAY ? list->count : 0, i = 0;
    if (count == 0 || count > INT32_MAX) {
        cup__fail(&c->error, CUP_ARGUMENT,
                  "training: the checkpoint in %s does not say where its text lies; name it again",
                  folder);
        return NULL;
    }
    const char **paths = cup__calloc(count, sizeof *paths);
    if (!paths) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for the paths of the text");
        return NULL;
    }
    CUP__JSON_EACH (path, list)
        paths[i++] = path->kind == CUP__JSON_STRING ? path->string : "";
    cup_corpus *corpus = cup_corpus_load(c, paths, (int)count, 0);
    cup__free(paths);
    return corpus;
}

cup_corpus *cup_gpt_corpus_load(cup_context *c, const char *folder)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    cup__checkpoint checkpoint;
    if (cup__checkpoint_open(&c->error, folder, &checkpoint) != CUP_OK)
        return NULL;
    cup_corpus *corpus = load(c, &checkpoint, folder);
    cup__checkpoint_close(&checkpoint);
    return corpus;
}
