/* Reading a checkpoint: which of the files are the ones that state.json means. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/checkpoint.h"
#include "io/named.h"
#include "tensor/context.h"

#define MOST_STATE ((uint64_t)64 << 20)
#define PIECE ((size_t)1 << 20)
#define TRIES 20

static cup_status hash_file(cup__error *error, const cup__file *file, char out[CUP__HASH_TEXT])
{
    char *piece = cup__malloc(PIECE);
    if (!piece)
        return cup__no_memory(error, file->path);
    cup__hash hash;
    cup__hash_begin(&hash);
    cup_status status = CUP_OK;
    for (uint64_t at = 0; at < file->size && status == CUP_OK;) {
        size_t count = file->size - at < PIECE ? (size_t)(file->size - at) : PIECE;
        status = cup__file_read_at(error, file, at, piece, count);
        if (status == CUP_OK)
            cup__hash_add(&hash, piece, count);
        at += count;
    }
    cup__hash_text(&hash, out);
    cup__free(piece);
    return status;
}

/* Opens the file if it is the one that was saved; *found says so. Without a hash its size does. */
static cup_status try_file(cup__error *error, const char *path, uint64_t bytes, const char *hash,
                           cup__file *out, bool *found)
{
    char got[CUP__HASH_TEXT];
    *found = false;
    cup__error local = {0};
    cup_status status = cup__file_open(&local, path, out);
    if (status == CUP_IO && !cup__file_exists(path))
        return CUP_OK;
    if (status != CUP_OK)
        return cup__fail(error, status, "%s", local.text);
    *found = out->size == bytes && !hash;
    if (out->size == bytes && hash) {
        status = hash_file(error, out, got);
        *found = status == CUP_OK && strcmp(got, hash) == 0;
    }
    if (!*found)
        cup__file_close(out);
    return status;
}

static bool is_plain_name(const char *name)
{
    return *name && *name != '.' && !strchr(name, '/') && strcmp(name, "state.json") != 0;
}

/* Finds the saved file under its name or, when the writer did not get to renaming it, under the
 * one it was written with; and once more under its name, in case it was renamed in between. */
static cup_status find_file(cup__error *error, const cup__checkpoint *checkpoint,
                            const cup__json_node *node, bool check, cup__file *out, bool *found)
{
    static const char *const endings[] = {"", ".new", ""};
    const char *hash;
    uint64_t bytes;
    *found = false;
    if (!is_plain_name(node->key))
        return cup__fail(error, CUP_FORMAT, "%s: \"%.100s\" is no name of a file beside it",
                         checkpoint->json.name, node->key);
    CUP_TRY(cup__json_get_unsigned(error, &checkpoint->json, node, "bytes", &bytes));
    CUP_TRY(cup__json_get_string(error, &checkpoint->json, node, "hash", &hash));
    char *path = cup__path_join(checkpoint->folder, node->key);
    cup__text named = {0};
    cup_status status = path ? CUP_OK : cup__no_memory(error, node->key);
    for (int i = 0; i < 3 && status == CUP_OK && !*found; i++) {
        named.length = 0;
        cup__text_add(&named, "%s%s", path, endings[i]);
        if (named.failed)
            status = cup__no_memory(error, path);
        else
            status = try_file(error, named.bytes, bytes, check ? hash : NULL, out, found);
    }
    cup__text_free(&named);
    cup__free(path);
    return status;
}

/* Of what several processes check between them. */
typedef struct share {
    int rank, count;
} share;

static cup_status find_all(cup__error *error, share part, cup__checkpoint *out)
{
    const cup__json_node *files;
    bool found;
    CUP_TRY(cup__json_get(error, &out->json, out->json.root, "files", CUP__JSON_OBJECT, &files));
    out->files = cup__calloc(files->count, sizeof *out->files);
    if (!out->files)
        return cup__no_memory(error, out->folder);
    CUP__JSON_EACH(node, files)
    {
        bool check = (int)(out->count % (size_t)part.count) == part.rank;
        CUP_TRY(find_file(error, out, node, check, &out->files[out->count], &found));
        if (!found)
            return cup__fail(error, CUP_FORMAT,
                             "%s/%s is missing, damaged or from another save than state.json; copy "
                             "the folder again as a whole, or go back to an older one",
                             out->folder, node->key);
        out->count++;
    }
    return CUP_OK;
}

/* The checksum stands before the last bytes of the text and is that of all before it. */
static bool is_whole(const char *text, size_t size)
{
    size_t end = strlen(CUP__CHECKPOINT_END), digits = CUP__HASH_TEXT - 1;
    char got[CUP__HASH_TEXT];
    cup__hash hash;
    if (size < digits + end || strcmp(text + size - end, CUP__CHECKPOINT_END))
        return false;
    cup__hash_begin(&hash);
    cup__hash_add(&hash, text, size - end - digits);
    return memcmp(cup__hash_text(&hash, got), text + size - end - digits, digits) == 0;
}

static cup_status check_state(cup__error *error, const cup__json *json, const char *text,
                              size_t size)
{
    int64_t schema;
    CUP_TRY(cup__json_get_integer(error, json, json->root, "schema", 1, INT64_MAX, &schema));
    if (schema > CUP__CHECKPOINT_SCHEMA)
        return cup__fail(error, CUP_FORMAT,
                         "%s: schema %lld is of a later version of Cupola; this one knows those up "
                         "to %d",
                         json->name, (long long)schema, CUP__CHECKPOINT_SCHEMA);
    bool old = schema == 1 && !cup__json_find(json->root, "hash");
    if (old || is_whole(text, size))
        return CUP_OK;
    return cup__fail(error, CUP_FORMAT,
                     "%s is damaged or was edited: it does not fit its checksum; copy the folder "
                     "again as a whole, or go back to an older one",
                     json->name);
}

static cup_status read_path(cup__error *error, const char *path, cup__json *out)
{
    char *text;
    size_t size;
    CUP_TRY(cup__file_read(error, path, MOST_STATE, &text, &size));
    cup_status status = cup__json_parse(error, path, text, size, out);
    if (status == CUP_OK) {
        status = check_state(error, out, text, size);
        if (status != CUP_OK)
            cup__json_free(out);
    }
    cup__free(text);
    return status;
}

cup_status cup__checkpoint_state(cup__error *error, const char *folder, cup__json *out)
{
    char *path = cup__path_join(folder, "state.json");
    if (!path)
        return cup__no_memory(error, folder);
    cup_status status;
    struct stat there;
    if (!cup__folder_exists(folder))
        status = cup__fail(error, CUP_IO, "%s is no folder; name that of a checkpoint",
                           *folder ? folder : "\"\"");
    else if (stat(path, &there) && errno != ENOENT)
        status = cup__file_fail(error, path, "read", errno);
    else if (!cup__file_exists(path))
        status = cup__fail(error, CUP_FORMAT,
                           "%s holds no finished checkpoint: it has no state.json; no save was "
                           "completed there",
                           folder);
    else
        status = read_path(error, path, out);
    cup__free(path);
    return status;
}

static cup_status open_once(cup__error *error, const char *folder, share part,
                            cup__checkpoint *out)
{
    *out = (cup__checkpoint){0};
    CUP_TRY(cup__checkpoint_state(error, folder, &out->json));
    out->folder = cup__strdup(folder);
    cup_status status = out->folder ? CUP_OK : cup__no_memory(error, folder);
    if (status == CUP_OK)
        status = cup__json_get(error, &out->json, out->json.root, "state", CUP__JSON_OBJECT,
                               &out->state);
    if (status == CUP_OK)
        status = find_all(error, part, out);
    return status;
}

/* Whether state.json is that of another save by now. */
static bool was_replaced(const cup__checkpoint *checkpoint)
{
    cup__json now;
    if (!checkpoint->folder || cup__checkpoint_state(NULL, checkpoint->folder, &now) != CUP_OK)
        return false;
    uint64_t before = 0, after = 0;
    cup__json_get_unsigned(NULL, &checkpoint->json, checkpoint->json.root, "save", &before);
    cup__json_get_unsigned(NULL, &now, now.root, "save", &after);
    cup__json_free(&now);
    return before != after;
}

cup_status cup__checkpoint_open(cup__error *error, const char *folder, cup__checkpoint *out)
{
    *out = (cup__checkpoint){0};
    if (!folder)
        return cup__fail(error, CUP_ARGUMENT, "the folder of the checkpoint is NULL; name one");
    /* What cannot be mended can be read all the same. */
    cup__checkpoint_mend_free(folder);
    return cup__checkpoint_look(error, folder, out);
}

static cup_status look(cup__error *error, const char *folder, share part, cup__checkpoint *out)
{
    cup_status status;
    for (int i = 0;; i++) {
        cup__error attempt = {0};
        status = open_once(&attempt, folder, part, out);
        /* A newer checkpoint may have come in between: then its files are the right ones. */
        bool again = status == CUP_FORMAT && i < TRIES && was_replaced(out);
        if (status != CUP_OK)
            cup__checkpoint_close(out);
        if (status != CUP_OK && !again)
            cup__fail(error, status, "%s", attempt.text);
        if (!again)
            return status;
    }
}

cup_status cup__checkpoint_look(cup__error *error, const char *folder, cup__checkpoint *out)
{
    return look(error, folder, (share){0, 1}, out);
}

cup_status cup__checkpoint_open_share(cup__error *error, const char *folder, int rank, int count,
                                      cup__checkpoint *out)
{
    return look(error, folder, (share){rank, count}, out);
}

void cup__checkpoint_close(cup__checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->count; i++)
        cup__file_close(&checkpoint->files[i]);
    cup__free(checkpoint->files);
    cup__free(checkpoint->folder);
    cup__json_free(&checkpoint->json);
    *checkpoint = (cup__checkpoint){0};
}

static cup_status part_of(cup__error *error, const cup__checkpoint *checkpoint, const char *name,
                          const cup__file **out)
{
    size_t i = 0;
    CUP__JSON_EACH(node, cup__json_find(checkpoint->json.root, "files"))
    {
        *out = &checkpoint->files[i++];
        if (strcmp(node->key, name) == 0)
            return CUP_OK;
    }
    return cup__fail(error, CUP_FORMAT, "the checkpoint %s has no %s", checkpoint->folder, name);
}

/* Its own handle, so that it can be closed by itself. */
static cup_status open_again(cup__error *error, const cup__file *file, cup__safetensors *out)
{
    cup__file own = {.handle = dup(file->handle), .size = file->size};
    if (own.handle < 0)
        return cup__file_fail(error, file->path, "opened", errno);
    own.path = cup__strdup(file->path);
    if (!own.path) {
        close(own.handle);
        return cup__no_memory(error, file->path);
    }
    return cup__safetensors_take(error, &own, out);
}

/* All shards of a part as one. */
static cup_status open_part(cup__error *error, const cup__checkpoint *checkpoint, const char *name,
                            cup__safetensors *out)
{
    size_t i = 0;
    char *path = cup__checkpoint_path(checkpoint->folder, name, "");
    *out = (cup__safetensors){0};
    cup_status status = path ? cup__safetensors_join(error, path, checkpoint->count, out)
                             : cup__no_memory(error, name);
    cup__free(path);
    CUP__JSON_EACH(node, cup__json_find(checkpoint->json.root, "files"))
    {
        cup__safetensors one;
        const cup__file *file = &checkpoint->files[i++];
        if (status != CUP_OK || !cup__checkpoint_alike(node->key, strlen(node->key), name))
            continue;
        status = open_again(error, file, &one);
        if (status == CUP_OK) {
            status = cup__safetensors_append(error, out, &one);
            cup__safetensors_close(&one);
        }
    }
    if (status == CUP_OK && out->file_count == 0)
        status = cup__fail(error, CUP_FORMAT, "the checkpoint %s has no %s", checkpoint->folder,
                           name);
    if (status == CUP_OK)
        status = cup__safetensors_sort(error, out);
    if (status != CUP_OK)
        cup__safetensors_close(out);
    return status;
}

static bool has_slices(const cup__checkpoint *checkpoint)
{
    int64_t schema = 0;
    cup__json_get_integer(NULL, &checkpoint->json, checkpoint->json.root, "schema", 1, INT64_MAX,
                          &schema);
    return schema > CUP__CHECKPOINT_SHARDS;
}

cup_status cup__checkpoint_fill_cut(cup_context *c, const cup__checkpoint *checkpoint,
                                    const char *name, const cup__wanted *wanted, int64_t count,
                                    int64_t all, bool cast)
{
    cup__safetensors open;
    CUP_TRY(open_part(&c->error, checkpoint, name, &open));
    cup_status status = CUP_OK;
    bool slices = has_slices(checkpoint);
    int64_t found = slices ? cup__slices_count(&open) : (int64_t)open.count;
    if (all >= 0 && found != all)
        status = cup__fail(&c->error, CUP_FORMAT,
                           "%s holds %lld tensors, but %lld are needed; it is of another model",
                           open.path, (long long)found, (long long)all);
    if (status == CUP_OK)
        status = cup__slices_fill(c, &open, slices, cast, wanted, count);
    /* What is needed comes from the same checkpoint: tensors that do not fit are a bad file. */
    if (status == CUP_SHAPE || status == CUP_DTYPE || status == CUP_UNSUPPORTED)
        c->error.status = status = CUP_FORMAT;
    cup__safetensors_close(&open);
    return status;
}

cup_status cup__checkpoint_fill_some(cup_context *c, const cup__checkpoint *checkpoint,
                                     const char *name, const cup_named *tensors, int64_t count,
                                     int64_t all)
{
    cup__wanted *wanted = cup__calloc((size_t)count + 1, sizeof *wanted);
    if (!wanted)
        return cup__no_memory(&c->error, name);
    for (int64_t i = 0; i < count; i++)
        wanted[i] = (cup__wanted){tensors[i].name, tensors[i].tensor,
                                  cup__cut_none(tensors[i].tensor)};
    cup_status status =
        cup__checkpoint_fill_cut(c, checkpoint, name, wanted, count, all, false);
    cup__free(wanted);
    return status;
}

cup_status cup__checkpoint_fill(cup_context *c, const cup__checkpoint *checkpoint, const char *name,
                                const cup_named *tensors, int64_t count)
{
    return cup__checkpoint_fill_some(c, checkpoint, name, tensors, count, count);
}

cup_status cup__checkpoint_read(cup__error *error, const cup__checkpoint *checkpoint,
                                const char *name, char **out, size_t *size)
{
    const cup__file *file = NULL;
    *out = NULL;
    CUP_TRY(part_of(error, checkpoint, name, &file));
    *out = cup__malloc((size_t)file->size + 1);
    if (!*out)
        return cup__no_memory(error, file->path);
    cup_status status = cup__file_read_at(error, file, 0, *out, (size_t)file->size);
    if (status != CUP_OK) {
        cup__free(*out);
        *out = NULL;
        return status;
    }
    (*out)[file->size] = 0;
    *size = (size_t)file->size;
    return CUP_OK;
}

uint64_t cup__checkpoint_number(const char *folder)
{
    cup__json json;
    uint64_t number = 0;
    if (cup__checkpoint_state(NULL, folder, &json) != CUP_OK)
        return 0;
    cup__json_get_unsigned(NULL, &json, json.root, "save", &number);
    cup__json_free(&json);
    return number;
}
