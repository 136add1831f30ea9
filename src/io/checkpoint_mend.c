/* What an interrupted save has left, and what a new one would replace. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/lock.h"
#include "base/memory.h"
#include "io/checkpoint.h"

#define NEW CUP__CHECKPOINT_NEW

char *cup__checkpoint_path(const char *folder, const char *name, const char *ending)
{
    cup__text text = {0};
    cup__text_add(&text, "%s/%s%s", folder, name, ending);
    if (!text.failed)
        return text.bytes;
    cup__text_free(&text);
    return NULL;
}

cup_status cup__checkpoint_rename(cup__error *error, const char *folder, const char *name)
{
    char *from = cup__checkpoint_path(folder, name, NEW);
    char *to = cup__checkpoint_path(folder, name, "");
    cup_status status =
        from && to ? cup__file_rename(error, from, to) : cup__no_memory(error, folder);
    cup__free(from);
    cup__free(to);
    return status;
}

/* Whether a name is `begin`, then `middle`, then two numbers as those of a file in the making. */
static bool is_temporary(const char *name, const char *begin, const char *middle)
{
    size_t length = strlen(begin), digits;
    if (strncmp(name, begin, length) || strncmp(name + length, middle, strlen(middle)))
        return false;
    name += length + strlen(middle);
    digits = strspn(name, "0123456789");
    if (!digits || name[digits] != '.')
        return false;
    name += digits + 1;
    digits = strspn(name, "0123456789");
    return digits && !name[digits];
}

/* A file of a save under way: of a part's name, or a shard of it, with NEW behind it. */
static bool is_left_over(const char *name, const char *const *parts, size_t count)
{
    const char *end = strstr(name, NEW);
    while (end && strstr(end + 1, NEW))
        end = strstr(end + 1, NEW);
    if (end && (!end[strlen(NEW)] || is_temporary(end, "", NEW ".tmp.")))
        for (size_t i = 0; i < count; i++)
            if (cup__checkpoint_alike(name, (size_t)(end - name), parts[i]))
                return true;
    return is_temporary(name, "state.json", ".tmp.");
}

/* What the last save replaced goes at last; nothing but names beside state.json is taken for it. */
static cup_status remove_replaced(cup__error *error, const char *folder, const cup__json *last)
{
    const cup__json_node *list = cup__json_find(last->root, CUP__CHECKPOINT_REPLACED);
    if (!list)
        return CUP_OK;
    CUP__JSON_EACH(node, list)
        if (node->kind == CUP__JSON_STRING && !strchr(node->string, '/') && *node->string != '.')
            CUP_TRY(cup__checkpoint_remove(error, folder, node->string));
    return CUP_OK;
}

/* Gives the files of the last save their names, if it was interrupted before that. *whole says
 * whether there is one, all of whose files can be read. */
static cup_status finish_last(cup__error *error, const char *folder, bool *whole)
{
    cup__checkpoint last;
    cup__error local = {0};
    *whole = false;
    if (cup__checkpoint_number(folder) == 0)
        return CUP_OK;
    cup_status status = cup__checkpoint_look(&local, folder, &last);
    if (status == CUP_FORMAT)
        return CUP_OK;
    if (status != CUP_OK)
        return cup__fail(error, status, "%s", local.text);
    *whole = true;
    size_t i = 0;
    CUP__JSON_EACH(node, cup__json_find(last.json.root, "files"))
    {
        const char *path = last.files[i++].path;
        size_t length = strlen(path), end = strlen(NEW);
        if (status == CUP_OK && length > end && strcmp(path + length - end, NEW) == 0)
            status = cup__checkpoint_rename(error, folder, node->key);
    }
    if (status == CUP_OK)
        status = remove_replaced(error, folder, &last.json);
    cup__checkpoint_close(&last);
    return status;
}

cup_status cup__checkpoint_remove(cup__error *error, const char *folder, const char *name)
{
    char *path = cup__checkpoint_path(folder, name, "");
    cup_status status = path ? cup__file_remove(error, path) : cup__no_memory(error, folder);
    cup__free(path);
    return status;
}

static bool any_left(const char *folder, const cup__names *names, const char *const *parts,
                     size_t count)
{
    for (size_t i = 0; i < names->count; i++)
        if (is_left_over(names->name[i], parts, count))
            return true;
    return cup__checkpoint_has_replaced(folder);
}

cup_status cup__checkpoint_clear(cup__error *error, const char *folder, const char *const *parts,
                                 size_t count, bool owned)
{
    cup__names names;
    CUP_TRY(cup__folder_list(error, folder, &names));
    bool any = any_left(folder, &names, parts, count), whole = false;
    cup_status status = any ? finish_last(error, folder, &whole) : CUP_OK;
    any &= whole || owned;
    for (size_t i = 0; any && i < names.count && status == CUP_OK; i++)
        if (is_left_over(names.name[i], parts, count))
            status = cup__checkpoint_remove(error, folder, names.name[i]);
    cup__names_free(&names);
    return status;
}

/* The names of the files of the folder's state.json, which `last` keeps; NULL where it cannot be
 * read or nothing is left over. */
static const char **parts_of(const char *folder, cup__checkpoint *last, size_t *count)
{
    cup__names names;
    const cup__json_node *files;
    if (cup__checkpoint_state(NULL, folder, &last->json) != CUP_OK)
        return NULL;
    files = cup__json_find(last->json.root, "files");
    const char **parts = NULL;
    *count = 0;
    if (files && files->kind == CUP__JSON_OBJECT)
        parts = cup__calloc(files->count, sizeof *parts);
    if (!parts)
        return NULL;
    CUP__JSON_EACH(node, files)
    parts[(*count)++] = node->key;
    bool any = false;
    if (cup__folder_list(NULL, folder, &names) == CUP_OK) {
        any = any_left(folder, &names, parts, *count);
        cup__names_free(&names);
    }
    if (any)
        return parts;
    cup__free(parts);
    return NULL;
}

static cup_status mend(cup__error *error, const char *folder, bool locked)
{
    cup__checkpoint last = {0};
    cup__lock lock = {0};
    size_t count;
    const char **parts = parts_of(folder, &last, &count);
    cup_status status = CUP_OK;
    if (parts && !locked)
        status = cup__lock_take(error, folder, 0, &lock);
    if (parts && status == CUP_OK)
        status = cup__checkpoint_clear(error, folder, parts, count, false);
    cup__lock_drop(&lock);
    cup__free(parts);
    cup__json_free(&last.json);
    return status;
}

cup_status cup__checkpoint_mend(cup__error *error, const char *folder)
{
    return mend(error, folder, true);
}

void cup__checkpoint_mend_free(const char *folder)
{
    mend(NULL, folder, false);
}

/* What stands in the way of a file, as a status; CUP_OK: nothing. */
static cup_status look_at(cup__error *error, const char *folder, const char *name, bool *there)
{
    struct stat status;
    char *path = cup__checkpoint_path(folder, name, "");
    if (!path)
        return cup__no_memory(error, folder);
    *there = lstat(path, &status) == 0;
    int number = *there || errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    cup_status result = number ? cup__file_fail(error, path, "read", number) : CUP_OK;
    cup__free(path);
    return result;
}

/* A file that a shard of one of the names would replace; NULL: none, or no folder. */
static char *find_shard(const char *folder, const char *const *names)
{
    cup__names found;
    char *shard = NULL;
    if (cup__folder_list(NULL, folder, &found) != CUP_OK)
        return NULL;
    for (size_t i = 0; i < found.count && !shard; i++)
        for (size_t k = 0; names[k] && !shard; k++)
            if (cup__checkpoint_alike(found.name[i], strlen(found.name[i]), names[k]))
                shard = cup__strdup(found.name[i]);
    cup__names_free(&found);
    return shard;
}

/* What is there has no state.json beside it. */
static cup_status refuse(cup__error *error, const char *folder, const char *name)
{
    return cup__fail(error, CUP_ARGUMENT,
                     "%s/%s is there and would be replaced, but is of no checkpoint of ours; take "
                     "another folder, or let it be overwritten",
                     folder, name);
}

cup_status cup__checkpoint_vacant(cup__error *error, const char *folder, const char *const *names)
{
    cup__json json;
    cup__error why = {0};
    bool state, there;
    CUP_TRY(look_at(error, folder, "state.json", &state));
    there = state;
    const char *name = "state.json";
    for (size_t i = 0; names[i] && !there; i++) {
        name = names[i];
        CUP_TRY(look_at(error, folder, name, &there));
    }
    char *shard = there ? NULL : find_shard(folder, names);
    cup_status status = shard ? refuse(error, folder, shard) : CUP_OK;
    cup__free(shard);
    if (!there)
        return status;
    if (!state)
        return refuse(error, folder, name);
    status = cup__checkpoint_state(&why, folder, &json);
    if (status != CUP_OK)
        return cup__fail(error, status,
                         "%s holds something that would be replaced, and it cannot be read: %s. "
                         "Take another folder, or let it be overwritten",
                         folder, why.text);
    cup__json_free(&json);
    return cup__fail(error, CUP_ARGUMENT,
                     "%s holds the checkpoint of a run; go on with it, take another folder, or let "
                     "it be overwritten",
                     folder);
}
