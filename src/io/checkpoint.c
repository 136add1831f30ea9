/* Saving a checkpoint, so that it can be interrupted anywhere. */
#include "io/checkpoint.h"

#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/named.h"
#include "tensor/context.h"

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length > wanted && strcmp(text + length - wanted, end) == 0;
}

static cup_status fill_part(cup_context *c, cup__error *error, cup__writer *writer,
                            const cup__checkpoint_part *part)
{
    if (part->copies)
        return cup__safetensors_write(error, writer, part->copies, (size_t)part->count);
    if (part->tensors)
        return cup__named_write(c, writer, part->tensors, part->count);
    return cup__writer_add(error, writer, part->bytes, part->size);
}

static cup_status check_name(cup__error *error, const char *name)
{
    if (*name && *name != '.' && !strchr(name, '/') && !ends_in(name, ".new") &&
        strcmp(name, "state.json") && strlen(name) < CUP__CHECKPOINT_NAME)
        return CUP_OK;
    return cup__fail(error, CUP_ARGUMENT, "a checkpoint cannot have a file \"%.100s\"", name);
}

cup_status cup__checkpoint_write(cup_context *c, cup__error *error, const char *folder,
                                 const cup__checkpoint_part *part, cup__checkpoint_file *out)
{
    cup__hash hash;
    cup__writer writer;
    *out = (cup__checkpoint_file){0};
    CUP_TRY(check_name(error, part->name));
    char *path = cup__checkpoint_path(folder, part->name, CUP__CHECKPOINT_NEW);
    cup_status status =
        path ? cup__writer_open(error, path, &writer) : cup__no_memory(error, folder);
    cup__free(path);
    CUP_TRY(status);
    cup__hash_begin(&hash);
    writer.hash = &hash;
    status = fill_part(c, error, &writer, part);
    out->bytes = writer.written;
    if (status == CUP_OK)
        status = cup__writer_commit(error, &writer);
    else
        cup__writer_abandon(&writer);
    memcpy(out->name, part->name, strlen(part->name) + 1);
    out->slices = part->slices;
    cup__hash_text(&hash, out->hash);
    return status;
}

static void name_files(cup__json_writer *document, const cup__checkpoint_file *files, int count)
{
    cup__json_open(document, "files", CUP__JSON_OBJECT);
    for (int i = 0; i < count; i++) {
        cup__json_open(document, files[i].name, CUP__JSON_OBJECT);
        cup__json_add_unsigned(document, "bytes", files[i].bytes);
        cup__json_add_string(document, "hash", files[i].hash);
        cup__json_close(document);
    }
    cup__json_close(document);
}

static cup_status write_state(cup__error *error, const char *folder, const cup__text *document)
{
    char *path = cup__checkpoint_path(folder, "state.json", "");
    if (!path || document->failed) {
        cup__free(path);
        return cup__no_memory(error, folder);
    }
    cup_status status = cup__file_write(error, path, document->bytes, document->length);
    cup__free(path);
    return status;
}

/* Whether state.json is surely not that of the save with this number. */
static bool is_still_old(const char *folder, uint64_t number)
{
    uint64_t found = cup__checkpoint_number(folder);
    char *path = cup__checkpoint_path(folder, "state.json", "");
    bool old = path && (found ? found < number : !cup__file_exists(path));
    cup__free(path);
    return old;
}

void cup__checkpoint_drop(const char *folder, const cup__checkpoint_file *files, int count)
{
    for (int i = 0; i < count; i++) {
        char *path = cup__checkpoint_path(folder, files[i].name, CUP__CHECKPOINT_NEW);
        if (path && *files[i].name)
            unlink(path);
        cup__free(path);
    }
}

cup_status cup__checkpoint_begin(cup__error *error, const char *folder, const char *const *names,
                                 size_t count)
{
    return cup__checkpoint_clear(error, folder, names, count, true);
}

/* Closes the document with the checksum of all that stands before it. */
static void close_document(cup__json_writer *document)
{
    static const char nothing[] = "00000000000000000000000000000000";
    char text[CUP__HASH_TEXT];
    cup__hash hash;
    cup__json_add_string(document, "hash", nothing);
    cup__json_close(document);
    if (document->text.failed)
        return;
    size_t digits = sizeof nothing - 1;
    char *at = document->text.bytes + document->text.length - strlen(CUP__CHECKPOINT_END) - digits;
    cup__hash_begin(&hash);
    cup__hash_add(&hash, document->text.bytes, (size_t)(at - document->text.bytes));
    memcpy(at, cup__hash_text(&hash, text), digits);
}

/* state.json as it is to be, but for the checksum. */
static void describe(cup__json_writer *document, const cup__checkpoint_file *files, int count,
                     uint64_t number, const cup__names *replaced, const cup__json_node *state)
{
    bool shards = replaced->count > 0, slices = false;
    for (int i = 0; i < count; i++) {
        slices |= files[i].slices;
        for (int j = 0; j < i; j++)
            shards |= cup__checkpoint_alike(files[i].name, strlen(files[i].name), files[j].name);
    }
    cup__json_open(document, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(document, "schema",
                          slices   ? CUP__CHECKPOINT_SCHEMA
                          : shards ? CUP__CHECKPOINT_SHARDS
                                   : CUP__CHECKPOINT_WHOLE);
    cup__json_add_unsigned(document, "save", number);
    name_files(document, files, count);
    if (replaced->count)
        cup__json_open(document, CUP__CHECKPOINT_REPLACED, CUP__JSON_ARRAY);
    for (size_t i = 0; i < replaced->count; i++)
        cup__json_add_string(document, NULL, replaced->name[i]);
    if (replaced->count)
        cup__json_close(document);
    cup__json_add_node(document, "state", state);
    close_document(document);
}

static cup_status commit(cup__error *error, const char *folder, const cup__checkpoint_file *files,
                         int count, const cup__json_node *state)
{
    uint64_t number = cup__checkpoint_number(folder) + 1;
    cup__json_writer document = {.lines = 3};
    cup__names replaced = {0};
    cup_status status = cup__checkpoint_replaced(error, folder, files, count, &replaced);
    if (status == CUP_OK) {
        describe(&document, files, count, number, &replaced, state);
        status = write_state(error, folder, &document.text);
    }
    cup__text_free(&document.text);
    for (int i = 0; i < count && status == CUP_OK; i++)
        status = cup__checkpoint_rename(error, folder, files[i].name);
    for (size_t i = 0; i < replaced.count && status == CUP_OK; i++)
        status = cup__checkpoint_remove(error, folder, replaced.name[i]);
    cup__names_free(&replaced);
    /* What is not yet part of a checkpoint only takes room, on a full disk above all. */
    if (status != CUP_OK && is_still_old(folder, number))
        cup__checkpoint_drop(folder, files, count);
    return status;
}

cup_status cup__checkpoint_commit(cup__error *error, const char *folder,
                                  const cup__checkpoint_file *files, int count,
                                  const cup__text *state)
{
    cup__json json;
    cup_status status = state->failed ? cup__no_memory(error, folder) : CUP_OK;
    if (status == CUP_OK)
        status = cup__json_parse(error, "the state", cup__text_string(state), state->length, &json);
    if (status != CUP_OK) {
        cup__checkpoint_drop(folder, files, count);
        return status;
    }
    status = commit(error, folder, files, count, json.root);
    cup__json_free(&json);
    return status;
}

static cup_status save(cup_context *c, const char *folder, const cup__checkpoint_part *parts,
                       int count, const cup__text *state, const char **names,
                       cup__checkpoint_file *files)
{
    cup__error *error = &c->error;
    for (int i = 0; i < count; i++) {
        names[i] = parts[i].name;
        CUP_TRY(check_name(error, names[i]));
        for (int j = 0; j < i; j++)
            if (!strcmp(names[i], names[j]))
                return cup__fail(error, CUP_ARGUMENT,
                                 "a checkpoint cannot have a file \"%.100s\" twice", names[i]);
    }
    CUP_TRY(cup__checkpoint_begin(error, folder, names, (size_t)count));
    cup_status status = CUP_OK;
    int written = 0;
    for (; written < count && status == CUP_OK; written++)
        status = cup__checkpoint_write(c, error, folder, &parts[written], &files[written]);
    if (status == CUP_OK)
        return cup__checkpoint_commit(error, folder, files, count, state);
    cup__checkpoint_drop(folder, files, written);
    return status;
}

cup_status cup__checkpoint_save(cup_context *c, const char *folder,
                                const cup__checkpoint_part *parts, int count,
                                const cup__text *state)
{
    if (!c || !folder || !*folder)
        return CUP_ARGUMENT;
    const char **names = cup__calloc((size_t)count, sizeof *names);
    cup__checkpoint_file *files = cup__calloc((size_t)count, sizeof *files);
    cup_status status = names && files ? save(c, folder, parts, count, state, names, files)
                                       : cup__no_memory(&c->error, folder);
    cup__free(names);
    cup__free(files);
    return status;
}
