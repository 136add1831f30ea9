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
    char *path = cup__checkpoint_path(folder, part->name, CUP__CHECKPOINT_NEW);
    cup_status status =
        path ? cup__writer_open(&c->error, path, &writer) : cup__no_memory(&c->error, folder);
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

static void remove_new(const char *folder, const cup__checkpoint_part *parts, int count)
{
    for (int i = 0; i < count; i++) {
        char *path = cup__checkpoint_path(folder, parts[i].name, CUP__CHECKPOINT_NEW);
        if (path)
            unlink(path);
        cup__free(path);
    }
}

static cup_status clear_last(cup__error *error, const char *folder,
                             const cup__checkpoint_part *parts, int count)
{
    const char **names = cup__calloc((size_t)count, sizeof *names);
    if (!names)
        return cup__no_memory(error, folder);
    for (int i = 0; i < count; i++)
        names[i] = parts[i].name;
    cup_status status = cup__checkpoint_clear(error, folder, names, (size_t)count, true);
    cup__free(names);
    return status;
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

static cup_status save(cup_context *c, const char *folder, const cup__checkpoint_part *parts,
                       int count, const cup__json_node *state)
{
    CUP_TRY(clear_last(&c->error, folder, parts, count));
    uint64_t number = cup__checkpoint_number(folder) + 1;
    cup__json_writer document = {.lines = 3};
    cup__json_open(&document, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(&document, "schema", CUP__CHECKPOINT_SCHEMA);
    cup__json_add_unsigned(&document, "save", number);
    cup_status status = write_parts(c, folder, parts, count, &document);
    cup__json_add_node(&document, "state", state);
    close_document(&document);
    if (status == CUP_OK)
        status = write_state(&c->error, folder, &document.text);
    cup__text_free(&document.text);
    for (int i = 0; i < count && status == CUP_OK; i++)
        status = cup__checkpoint_rename(&c->error, folder, parts[i].name);
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
    CUP_TRY(check_parts(&c->error, parts, count));
    if (state->failed)
        return cup__no_memory(&c->error, folder);
    CUP_TRY(cup__json_parse(&c->error, "the state", cup__text_string(state), state->length, &json));
    cup_status status = save(c, folder, parts, count, json.root);
    cup__json_free(&json);
    return status;
}
