/* Reading a BPE tokenizer's file. */
#include <string.h>

#include "base/memory.h"
#include "data/tokenizer.h"

/* Reads an array of `count` tokens. */
static cup_status get_tokens(cup__error *error, const cup__json *json, const cup__json_node *array,
                             const char *what, size_t count, int32_t *out)
{
    bool good = array->kind == CUP__JSON_ARRAY && array->count == count;
    if (good)
        CUP__JSON_EACH(node, array)
        {
            int64_t token = 0;
            good &= cup__json_integer(node, &token) && token >= 0 && token < CUP__MOST_TOKENS;
            *out++ = (int32_t)token;
        }
    if (!good)
        return cup__fail(error, CUP_FORMAT, "%s: %s must be %zu tokens", json->name, what, count);
    return CUP_OK;
}

static cup_status get_merges(cup__error *error, const cup__json *json, cup_tokenizer *t)
{
    const cup__json_node *merges;
    CUP_TRY(cup__json_get(error, json, json->root, "merges", CUP__JSON_ARRAY, &merges));
    t->merges = cup__malloc(merges->count * sizeof *t->merges);
    if (!t->merges)
        return cup__no_memory(error, json->name);
    CUP__JSON_EACH(node, merges)
    {
        int32_t merge[3];
        CUP_TRY(get_tokens(error, json, node, "each of \"merges\"", 3, merge));
        t->merges[t->merge_count++] = (cup__merge){merge[0], merge[1], merge[2]};
    }
    return CUP_OK;
}

static cup_status add_texts(cup__error *error, const cup__json *json, const cup_tokenizer *t,
                            const cup__json_node *object, bool pieces, cup__special *to)
{
    CUP__JSON_EACH(node, object)
    {
        int64_t token = -1;
        if (!cup__json_integer(node, &token) || token < 0 || token >= t->size)
            return cup__fail(error, CUP_FORMAT, "%s: \"%s\" must give tokens below \"size\"",
                             json->name, pieces ? "pieces" : "special");
        *to++ = (cup__special){node->key, strlen(node->key), (int32_t)token, pieces};
    }
    return CUP_OK;
}

static cup_status complete(cup__error *error, const cup__json *json, const cup__json_node *object,
                           const cup__json_node *pieces, cup_tokenizer *t)
{
    size_t count = object->count, all = count + (pieces ? pieces->count : 0);
    cup__special *special = cup__malloc(all * sizeof *special);
    if (!special)
        return cup__no_memory(error, json->name);
    cup_status status = add_texts(error, json, t, object, false, special);
    if (status == CUP_OK && pieces)
        status = add_texts(error, json, t, pieces, true, special + count);
    count = all;
    if (status == CUP_OK)
        status = cup__bpe_complete(error, t, json->name, special, count);
    cup__free(special);
    return status;
}

cup_status cup__bpe_load(cup__error *error, const cup__json *json, cup_tokenizer *t)
{
    const cup__json_node *bytes, *special, *pieces = NULL;
    const char *pattern;
    int64_t size;
    CUP_TRY(cup__json_get_string(error, json, json->root, "pattern", &pattern));
    CUP_TRY(cup__json_get_integer(error, json, json->root, "size", 256, CUP__MOST_TOKENS, &size));
    CUP_TRY(cup__json_get(error, json, json->root, "bytes", CUP__JSON_ARRAY, &bytes));
    CUP_TRY(cup__json_get(error, json, json->root, "special", CUP__JSON_OBJECT, &special));
    t->size = (int32_t)size;
    CUP_TRY(get_tokens(error, json, bytes, "\"bytes\"", 256, t->byte_token));
    CUP_TRY(get_merges(error, json, t));
    CUP_TRY(cup__bpe_pattern(error, t, pattern));
    if (cup__json_find(json->root, "pieces"))
        CUP_TRY(cup__json_get(error, json, json->root, "pieces", CUP__JSON_OBJECT, &pieces));
    if (cup__json_find(json->root, "nfc"))
        CUP_TRY(cup__json_get_boolean(error, json, json->root, "nfc", &t->nfc));
    if (cup__json_find(json->root, "whole_words"))
        CUP_TRY(cup__json_get_boolean(error, json, json->root, "whole_words", &t->whole_words));
    return complete(error, json, special, pieces, t);
}
