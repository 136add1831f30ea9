/* Opening: one file, a folder, or an index that says which of several files holds each tensor. */
#include <string.h>

#include "base/memory.h"
#include "io/safetensors.h"

#define MOST_INDEX 100000000

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

/* An index may name files beside itself only. */
static bool is_plain_name(const char *name)
{
    return *name && *name != '.' && !strchr(name, '/') && !strchr(name, '\\');
}

static cup_status check_map(cup__error *error, const cup__json *index, const cup__json_node *map)
{
    CUP__JSON_EACH(file, map)
    {
        if (file->kind != CUP__JSON_STRING || strlen(file->string) != file->count ||
            !is_plain_name(file->string))
            return cup__fail(error, CUP_FORMAT,
                             "%s: \"weight_map\" gives \"%.100s\" something that is not a plain "
                             "file name",
                             index->name, file->key);
    }
    return CUP_OK;
}

/* Adds the file to the list of those seen so far, unless it is there. */
static void see(const cup__json_node **seen, size_t *count, const cup__json_node *file)
{
    for (size_t i = *count; i-- > 0;)
        if (strcmp(seen[i]->string, file->string) == 0)
            return;
    seen[(*count)++] = file;
}

cup_status cup__safetensors_join(cup__error *error, const char *path, size_t most,
                                 cup__safetensors *out)
{
    *out = (cup__safetensors){.path = cup__strdup(path),
                              .files = cup__calloc(most + 1, sizeof *out->files),
                              .headers = cup__calloc(most + 1, sizeof *out->headers)};
    if (out->path && out->files && out->headers)
        return CUP_OK;
    return cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
}

cup_status cup__safetensors_append(cup__error *error, cup__safetensors *all, cup__safetensors *one)
{
    size_t number = all->file_count;
    for (size_t i = 0; i < one->count; i++) {
        if (!cup__grow(&all->entries, &all->capacity, all->count, sizeof *all->entries))
            return cup__fail(error, CUP_MEMORY, "%s: out of host memory", all->path);
        all->entries[all->count] = one->entries[i];
        all->entries[all->count++].file = (uint32_t)number;
    }
    all->files[number] = one->files[0];
    all->headers[number] = one->headers[0];
    all->file_count++;
    one->files[0] = (cup__file){.handle = -1};
    one->headers[0] = (cup__json){0};
    return CUP_OK;
}

static cup_status add_file(cup__error *error, const char *folder, const char *name,
                           cup__safetensors *out)
{
    char *path = cup__path_join(folder, name);
    if (!path)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory", name);
    cup__file file;
    cup__safetensors one;
    cup_status status = cup__file_open(error, path, &file);
    cup__free(path);
    CUP_TRY(status);
    CUP_TRY(cup__safetensors_take(error, &file, &one));
    status = cup__safetensors_append(error, out, &one);
    cup__safetensors_close(&one);
    return status;
}

/* Every tensor must be where the index says, and nothing else in the files. */
static cup_status compare_with_map(cup__error *error, const cup__json *index,
                                   const cup__json_node *map, const cup__safetensors *tensors)
{
    CUP__JSON_EACH(file, map)
    {
        const cup__safetensors_entry *entry = cup__safetensors_find(tensors, file->key);
        if (!entry || strcmp(cup__path_name(tensors->files[entry->file].path), file->string) != 0)
            return cup__fail(error, CUP_FORMAT, "%s: \"%.100s\" is not in %.100s", index->name,
                             file->key, file->string);
    }
    if (map->count != tensors->count)
        return cup__fail(error, CUP_FORMAT, "%s names %u tensors, but its files hold %zu",
                         index->name, map->count, tensors->count);
    return CUP_OK;
}

static cup_status open_files(cup__error *error, const cup__json *index, const char *folder,
                             const cup__json_node *map, cup__safetensors *out)
{
    CUP_TRY(check_map(error, index, map));
    const cup__json_node **seen = cup__malloc(map->count * sizeof *seen);
    if (!seen)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory", index->name);
    size_t files = 0;
    CUP__JSON_EACH(file, map)
    see(seen, &files, file);
    cup_status status = cup__safetensors_join(error, index->name, files, out);
    for (size_t i = 0; i < files && status == CUP_OK; i++)
        status = add_file(error, folder, seen[i]->string, out);
    cup__free(seen);
    CUP_TRY(status);
    CUP_TRY(cup__safetensors_sort(error, out));
    return compare_with_map(error, index, map, out);
}

static cup_status open_index(cup__error *error, const char *path, cup__safetensors *out)
{
    cup__json index;
    const cup__json_node *map;
    CUP_TRY(cup__json_read(error, path, MOST_INDEX, &index));
    char *folder = cup__strdup(path);
    cup_status status = CUP_OK;
    if (!folder)
        status = cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
    else
        status = cup__json_get(error, &index, index.root, "weight_map", CUP__JSON_OBJECT, &map);
    if (status == CUP_OK) {
        folder[cup__path_name(path) - path] = 0;
        status = open_files(error, &index, folder, map, out);
    }
    cup__free(folder);
    cup__json_free(&index);
    if (status != CUP_OK)
        cup__safetensors_close(out);
    return status;
}

static cup_status open_file(cup__error *error, const char *path, cup__safetensors *out)
{
    if (ends_in(path, ".index.json"))
        return open_index(error, path, out);
    cup__file file;
    CUP_TRY(cup__file_open(error, path, &file));
    return cup__safetensors_take(error, &file, out);
}

cup_status cup__safetensors_open(cup__error *error, const char *path, cup__safetensors *out)
{
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors"};
    *out = (cup__safetensors){0};
    if (!cup__folder_exists(path))
        return open_file(error, path, out);
    for (int i = 0; i < 2; i++) {
        char *inside = cup__path_join(path, names[i]);
        if (!inside)
            return cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
        bool there = cup__file_exists(inside);
        cup_status status = there ? open_file(error, inside, out) : CUP_OK;
        cup__free(inside);
        if (there)
            return status;
    }
    return cup__fail(error, CUP_IO,
                     "%s is a folder without model.safetensors or model.safetensors.index.json",
                     path);
}
