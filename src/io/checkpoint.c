/* Saving a checkpoint, so that it can be interrupted anywhere. */
#include "io/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/named.h"
#include "tensor/context.h"

static cup_status no_memory(cup__error *error, const char *path)
{
    return cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
}

/* Only one process may write into a folder at a time. Where a file system has no locks, it goes on
 * without. */
static cup_status lock(cup__error *error, const char *folder, int *handle)
{
    *handle = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*handle < 0)
        return cup__file_fail(error, folder, "opened", errno);
    if (flock(*handle, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return CUP_OK;
    close(*handle);
    return cup__fail(error, CUP_STATE,
                     "another process is saving into %s; give each run a folder of its own",
                     folder);
}

/* folder/name + ending; NULL when there is no memory. */
static char *path_of(const char *folder, const char *name, const char *ending)
{
    cup__text text = {0};
    cup__text_add(&text, "%s/%s%s", folder, name, ending);
    if (!text.failed)
        return text.bytes;
    cup__text_free(&text);
    return NULL;
}

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length > wanted && strcmp(text + length - wanted, end) == 0;
}

static cup_status rename_new(cup__error *error, const char *folder, const char *name)
{
    char *from = path_of(folder, name, ".new"), *to = path_of(folder, name, "");
    cup_status status = from && to ? cup__file_rename(error, from, to) : no_memory(error, folder);
    cup__free(from);
    cup__free(to);
    return status;
}

/* Gives the files of the last save their names, if it was interrupted before that. */
static cup_status finish_last(cup__error *error, const char *folder)
{
    cup__checkpoint last;
    if (cup__checkpoint_number(folder) == 0)
        return CUP_OK;
    cup__error local = {0};
    cup_status status = cup__checkpoint_open(&local, folder, &last);
    /* Files that do not fit together are no reason not to replace them. */
    if (status == CUP_FORMAT)
        return CUP_OK;
    if (status != CUP_OK)
        return cup__fail(error, status, "%s", local.text);
    size_t i = 0;
    CUP__JSON_EACH(node, cup__json_find(last.json.root, "files"))
    {
        if (status == CUP_OK && ends_in(last.files[i++].path, ".new"))
            status = rename_new(error, folder, node->key);
    }
    cup__checkpoint_close(&last);
    return status;
}

static cup_status remove_file(cup__error *error, const char *folder, const char *name)
{
    char *path = path_of(folder, name, "");
    cup_status status = path ? cup__file_remove(error, path) : no_memory(error, folder);
    cup__free(path);
    return status;
}

static bool begins_with(const char *text, const char *begin, const char *ending)
{
    size_t length = strlen(begin);
    return strncmp(text, begin, length) == 0 && strncmp(text + length, ending, strlen(ending)) == 0;
}

static bool is_left_over(const char *name, const cup__checkpoint_part *parts, int count)
{
    for (int i = 0; i < count; i++)
        if (begins_with(name, parts[i].name, ".new.tmp.") ||
            (begins_with(name, parts[i].name, ".new") && ends_in(name, ".new")))
            return true;
    return begins_with(name, "state.json", ".tmp.");
}

/* Clears away what an interrupted save has left. */
static cup_status clear_last(cup__error *error, const char *folder,
                             const cup__checkpoint_part *parts, int count)
{
    cup__names names;
    CUP_TRY(cup__folder_list(error, folder, &names));
    bool any = false;
    for (size_t i = 0; i < names.count; i++)
        any |= is_left_over(names.name[i], parts, count);
    cup_status status = any ? finish_last(error, folder) : CUP_OK;
    for (size_t i = 0; any && i < names.count && status == CUP_OK; i++)
        if (is_left_over(names.name[i], parts, count))
            status = remove_file(error, folder, names.name[i]);
    cup__names_free(&names);
    return status;
}

static cup_status fill_part(cup_context *c, cup__writer *writer, const cup__checkpoint_part *part)
{
    if (part->tensors)
        return cup__named_write(c, writer, part->tensors, part->count);
    return cup__writer_add(&c->error, writer, part->bytes, part->size);
}

static cup_status write_part(cup_context *c, const char *folder, const cup__checkpoint_part *part,
                             cup__json_writer *files)
{
    char text[CUP__HASH_TEXT];
    cup__hash hash;
    cup__writer writer;
    char *path = path_of(folder, part->name, ".new");
    cup_status status =
        path ? cup__writer_open(&c->error, path, &writer) : no_memory(&c->error, folder);
    cup__free(path);
    CUP_TRY(status);
    cup__hash_begin(&hash);
    writer.hash = &hash;
    status = fill_part(c, &writer, part);
    uint64_t bytes = writer.written;
    if (status == CUP_OK)
        status = cup__writer_commit(&c->error, &writer);
    else
        cup__writer_abandon(&writer);
    cup__json_open(files, part->name, CUP__JSON_OBJECT);
    cup__json_add_unsigned(files, "bytes", bytes);
    cup__json_add_string(files, "hash", cup__hash_text(&hash, text));
    cup__json_close(files);
    return status;
}

static cup_status write_parts(cup_context *c, const char *folder, const cup__checkpoint_part *parts,
                              int count, cup__json_writer *document)
{
    cup__json_open(document, "files", CUP__JSON_OBJECT);
    for (int i = 0; i < count; i++)
        CUP_TRY(write_part(c, folder, &parts[i], document));
    cup__json_close(document);
    return CUP_OK;
}

static cup_status write_state(cup__error *error, const char *folder, const cup__text *document)
{
    char *path = path_of(folder, "state.json", "");
    if (!path || document->failed) {
        cup__free(path);
        return no_memory(error, folder);
    }
    cup_status status = cup__file_write(error, path, document->bytes, document->length);
    cup__free(path);
    return status;
}

/* Whether state.json is surely not that of the save with this number. */
static bool is_still_old(const char *folder, uint64_t number)
{
    uint64_t found = cup__checkpoint_number(folder);
    char *path = path_of(folder, "state.json", "");
    bool old = path && (found ? found < number : !cup__file_exists(path));
    cup__free(path);
    return old;
}

static void remove_new(const char *folder, const cup__checkpoint_part *parts, int count)
{
    for (int i = 0; i < count; i++) {
        char *path = path_of(folder, parts[i].name, ".new");
        if (path)
            unlink(path);
        cup__free(path);
    }
}

static cup_status save(cup_context *c, const char *folder, const cup__checkpoint_part *parts,
                       int count, const cup__json_node *state)
{
    CUP_TRY(clear_last(&c->error, folder, parts, count));
    uint64_t number = cup__checkpoint_number(folder) + 1;
    cup__json_writer document = {.lines = 3};
    cup__json_open(&document, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(&document, "schema", 1);
    cup__json_add_unsigned(&document, "save", number);
    cup_status status = write_parts(c, folder, parts, count, &document);
    cup__json_add_node(&document, "state", state);
    cup__json_close(&document);
    if (status == CUP_OK)
        status = write_state(&c->error, folder, &document.text);
    cup__text_free(&document.text);
    for (int i = 0; i < count && status == CUP_OK; i++)
        status = rename_new(&c->error, folder, parts[i].name);
    /* What is not yet part of a checkpoint only takes room, on a full disk above all. */
    if (status != CUP_OK && is_still_old(folder, number))
        remove_new(folder, parts, count);
    return status;
}

static cup_status check_parts(cup__error *error, const cup__checkpoint_part *parts, int count)
{
    for (int i = 0; i < count; i++) {
        const char *name = parts[i].name;
        bool good = *name && *name != '.' && !strchr(name, '/') && !ends_in(name, ".new") &&
                    strcmp(name, "state.json") != 0;
        for (int j = 0; j < i; j++)
            good &= strcmp(name, parts[j].name) != 0;
        if (!good)
            return cup__fail(error, CUP_ARGUMENT,
                             "a checkpoint cannot have a file \"%.100s\", or not twice", name);
    }
    return CUP_OK;
}

cup_status cup__checkpoint_save(cup_context *c, const char *folder,
                                const cup__checkpoint_part *parts, int count,
                                const cup__text *state)
{
    if (!c || !folder || !*folder)
        return CUP_ARGUMENT;
    cup__json json;
    int handle;
    CUP_TRY(check_parts(&c->error, parts, count));
    if (state->failed)
        return no_memory(&c->error, folder);
    CUP_TRY(cup__json_parse(&c->error, "the state", cup__text_string(state), state->length, &json));
    cup_status status = cup__folder_make(&c->error, folder);
    if (status == CUP_OK)
        status = lock(&c->error, folder, &handle);
    if (status == CUP_OK) {
        status = save(c, folder, parts, count, json.root);
        close(handle);
    }
    cup__json_free(&json);
    return status;
}
