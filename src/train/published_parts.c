/* The weights of a published model: one safetensors file, or several and an index of them. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cupola/io.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"
#include "train/published.h"

#define WHOLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define FRESH ".new" /* behind the name of a part until all are there */
#define LONGEST_FILE 64

typedef struct parts {
    cup_context *c;
    const char *folder;
    const cup_named *views;
    int64_t count, bytes;
    int *part; /* of each tensor, rising */
    int all;
} parts;

static cup_status no_memory(const parts *p)
{
    return cup__fail(&p->c->error, CUP_MEMORY, "export: out of host memory");
}

static int64_t bytes_of(const cup_tensor *t)
{
    return cup_tensor_count(t) * cup_dtype_size(t->dtype);
}

/* A part ends where the next tensor would make it too large; a tensor is never cut. */
static cup_status plan(parts *p, int64_t most)
{
    int64_t filled = 0;
    p->part = cup__calloc((size_t)p->count, sizeof *p->part);
    if (!p->part)
        return no_memory(p);
    for (int64_t i = 0; i < p->count; i++) {
        int64_t bytes = bytes_of(p->views[i].tensor);
        if (filled > 0 && bytes > most - filled) {
            p->all++;
            filled = 0;
        }
        p->part[i] = p->all;
        filled += bytes;
        p->bytes += bytes;
    }
    p->all++;
    return CUP_OK;
}

static void name_part(const parts *p, int part, const char *behind, char name[LONGEST_FILE])
{
    if (p->all == 1)
        snprintf(name, LONGEST_FILE, WHOLE "%s", behind);
    else
        snprintf(name, LONGEST_FILE, "model-%05d-of-%05d.safetensors%s", part + 1, p->all, behind);
}

/* A part's tensors as they lie in files, of which no others are there at the time. */
static cup_status copy_part(const parts *p, int part, cup_named *list, int64_t *count)
{
    *count = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (p->part[i] == part)
            list[(*count)++] = (cup_named){p->views[i].name, cup_copy(p->c, p->views[i].tensor)};
    return p->c->error.status;
}

static cup_status save_part(const parts *p, int part, const char *path)
{
    int64_t count;
    cup_named *list = cup__calloc((size_t)p->count, sizeof *list);
    if (!list)
        return no_memory(p);
    cup_scope_open(p->c);
    cup_status status = copy_part(p, part, list, &count);
    if (status == CUP_OK)
        status = cup_safetensors_save(p->c, path, list, count);
    cup_scope_return(p->c, NULL);
    cup__free(list);
    return status;
}

/* Does something with the path of a name in the folder. */
static cup_status with_path(const parts *p, const char *name,
                            cup_status (*act)(const parts *p, int part, const char *path), int part)
{
    char *path = cup__path_join(p->folder, name);
    cup_status status = path ? act(p, part, path) : no_memory(p);
    cup__free(path);
    return status;
}

static cup_status remove_file(const parts *p, int part, const char *path)
{
    (void)part;
    return cup__file_remove(&p->c->error, path);
}

/* From the name that it has until all are there. */
static cup_status place_part(const parts *p, int part, const char *path)
{
    char name[LONGEST_FILE];
    name_part(p, part, "", name);
    char *to = cup__path_join(p->folder, name);
    cup_status status = to ? cup__file_rename(&p->c->error, path, to) : no_memory(p);
    cup__free(to);
    return status;
}

static cup_status write_index(const parts *p, int part, const char *path)
{
    cup__json_writer json = {.lines = 2};
    char name[LONGEST_FILE];
    (void)part;
    cup__json_open(&json, NULL, CUP__JSON_OBJECT);
    cup__json_open(&json, "metadata", CUP__JSON_OBJECT);
    cup__json_add_integer(&json, "total_size", p->bytes);
    cup__json_close(&json);
    cup__json_open(&json, "weight_map", CUP__JSON_OBJECT);
    for (int64_t i = 0; i < p->count; i++) {
        name_part(p, p->part[i], "", name);
        cup__json_add_string(&json, p->views[i].name, name);
    }
    cup__json_close(&json);
    cup__json_close(&json);
    if (json.text.failed)
        no_memory(p);
    else
        cup__file_write(&p->c->error, path, json.text.bytes, json.text.length);
    cup__text_free(&json.text);
    return p->c->error.status;
}

/* Whether a name is one of an export's parts, and of one with another number of them. */
static bool is_stale(const parts *p, const char *name)
{
    char again[LONGEST_FILE];
    int part, all;
    if (sscanf(name, "model-%d-of-%d.safetensors", &part, &all) != 2 || part < 1 || all < part)
        return false;
    snprintf(again, sizeof again, "model-%05d-of-%05d.safetensors", part, all);
    return !strcmp(name, again) && (all != p->all || p->all == 1);
}

/* What was there before, and would be read in place of the new files, or not any more. */
static cup_status remove_others(const parts *p)
{
    cup__names names;
    CUP_TRY(with_path(p, p->all == 1 ? INDEX : WHOLE, remove_file, 0));
    CUP_TRY(cup__folder_list(&p->c->error, p->folder, &names));
    cup_status status = CUP_OK;
    for (size_t i = 0; i < names.count && status == CUP_OK; i++)
        if (is_stale(p, names.name[i]))
            status = with_path(p, names.name[i], remove_file, 0);
    cup__names_free(&names);
    return status;
}

static void undo(const parts *p)
{
    for (int i = 0; i < p->all; i++) {
        char name[LONGEST_FILE];
        name_part(p, i, FRESH, name);
        char *path = cup__path_join(p->folder, name);
        if (path)
            cup__file_remove(NULL, path);
        cup__free(path);
    }
}

/* All parts are there under other names before one of an older export is replaced. */
static cup_status write_parts(const parts *p)
{
    char name[LONGEST_FILE];
    for (int i = 0; i < p->all; i++) {
        name_part(p, i, FRESH, name);
        CUP_TRY(with_path(p, name, save_part, i));
    }
    for (int i = 0; i < p->all; i++) {
        name_part(p, i, FRESH, name);
        CUP_TRY(with_path(p, name, place_part, i));
    }
    if (p->all > 1)
        CUP_TRY(with_path(p, INDEX, write_index, 0));
    return remove_others(p);
}

cup_status cup__published_weights(cup_context *c, const char *folder, const cup_named *views,
                                  int64_t count, int64_t most)
{
    parts p = {c, folder, views, count, 0, NULL, 0};
    cup_status status = plan(&p, most);
    if (status == CUP_OK) {
        status = write_parts(&p);
        if (status != CUP_OK)
            undo(&p);
    }
    cup__free(p.part);
    return status;
}
