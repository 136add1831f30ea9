/* Files of a checkpoint that are shards of one, and those that a save replaces. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "io/checkpoint.h"

#define MARK "-00000-of-00000" /* what a shard has before its ending, as digits */

bool cup__checkpoint_shard(const char *name, int number, int count, char out[CUP__CHECKPOINT_NAME])
{
    const char *end = strrchr(name, '.');
    size_t stem = end ? (size_t)(end - name) : strlen(name);
    int length = count > 1 ? snprintf(out, CUP__CHECKPOINT_NAME, "%.*s-%05d-of-%05d%s", (int)stem,
                                      name, number + 1, count, end ? end : "")
                           : snprintf(out, CUP__CHECKPOINT_NAME, "%s", name);
    return length < CUP__CHECKPOINT_NAME;
}

/* A name's length without its ending, which begins at *end, and without the mark of a shard. */
static size_t stem_of(const char *name, size_t length, size_t *end)
{
    size_t size = strlen(MARK), at = length;
    while (at > 0 && name[at - 1] != '.')
        at--;
    *end = at ? at - 1 : length;
    if (*end <= size)
        return *end;
    const char *mark = name + *end - size;
    for (size_t i = 0; i < size; i++)
        if (MARK[i] == '0' ? !isdigit((unsigned char)mark[i]) : mark[i] != MARK[i])
            return *end;
    return *end - size;
}

bool cup__checkpoint_alike(const char *found, size_t length, const char *name)
{
    size_t wanted = strlen(name), end, other;
    size_t a = stem_of(found, length, &end), b = stem_of(name, wanted, &other);
    return a == b && !memcmp(found, name, a) && length - end == wanted - other &&
           !memcmp(found + end, name + other, length - end);
}

static bool is_among(const char *name, const cup__checkpoint_file *files, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(name, files[i].name))
            return true;
    return false;
}

static bool add(cup__names *out, const char *name)
{
    if (!cup__grow(&out->name, &out->capacity, out->count, sizeof *out->name))
        return false;
    char *own = cup__strdup(name);
    if (own)
        out->name[out->count++] = own;
    return own;
}

static bool is_there(const char *folder, const char *name)
{
    char *path = cup__checkpoint_path(folder, name, "");
    bool there = path && cup__file_exists(path);
    cup__free(path);
    return there;
}

bool cup__checkpoint_has_replaced(const char *folder)
{
    cup__json last;
    bool any = false;
    if (cup__checkpoint_state(NULL, folder, &last) != CUP_OK)
        return false;
    const cup__json_node *list = cup__json_find(last.root, CUP__CHECKPOINT_REPLACED);
    if (list)
        CUP__JSON_EACH(node, list)
            any |= node->kind == CUP__JSON_STRING && is_there(folder, node->string);
    cup__json_free(&last);
    return any;
}

cup_status cup__checkpoint_replaced(cup__error *error, const char *folder,
                                    const cup__checkpoint_file *files, int count, cup__names *out)
{
    static const char *const keys[] = {"files", CUP__CHECKPOINT_REPLACED};
    cup__json last;
    bool added = true;
    *out = (cup__names){0};
    if (cup__checkpoint_state(NULL, folder, &last) != CUP_OK)
        return CUP_OK;
    for (int i = 0; i < 2; i++) {
        const cup__json_node *list = cup__json_find(last.root, keys[i]);
        if (!list)
            continue;
        CUP__JSON_EACH(node, list) {
            const char *name = node->kind == CUP__JSON_STRING ? node->string : node->key;
            if (name && !is_among(name, files, count) && is_there(folder, name))
                added &= add(out, name);
        }
    }
    cup__json_free(&last);
    if (added)
        return CUP_OK;
    cup__names_free(out);
    return cup__no_memory(error, folder);
}
