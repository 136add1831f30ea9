#include "cuda/unit.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/env.h"
#include "base/file.h"
#include "base/memory.h"
#include "cuda/sources.h"

#define MOST_BYTES (16 << 20)

/* Where a file may lie below the folder of CUP_KERNELS, or in a folder there, as a family's. */
static const char *const places[] = {"src/ops", "src/kernels", "src/optim", "ops",
                                     "kernels", "optim",       "."};

/* Sets *found when the folder itself has the file. */
static cup_status read_here(cup__error *error, const char *folder, cup__part *part, bool *found)
{
    cup_status status = CUP_OK;
    char *path = cup__path_join(folder, part->name);
    if (!path)
        return cup__fail(error, CUP_MEMORY, "out of host memory for %s", part->name);
    *found = cup__file_exists(path);
    if (*found) {
        status = cup__file_read(error, path, MOST_BYTES, &part->owned, &part->size);
        part->text = part->owned;
    }
    cup__free(path);
    return status;
}

/* The same for a folder in it. */
static cup_status read_below(cup__error *error, const char *folder, cup__part *part, bool *found)
{
    cup__names names = {0};
    cup_status status = cup__folder_list(error, folder, &names);
    for (size_t i = 0; i < names.count && status == CUP_OK && !*found; i++) {
        char *inside = cup__path_join(folder, names.name[i]);
        status = inside ? read_here(error, inside, part, found)
                        : cup__fail(error, CUP_MEMORY, "out of host memory for %s", part->name);
        cup__free(inside);
    }
    cup__names_free(&names);
    return status;
}

static cup_status read_from_folder(cup__error *error, const char *folder, cup__part *part,
                                   bool *found)
{
    cup_status status = CUP_OK;
    for (size_t i = 0; i < sizeof places / sizeof *places && status == CUP_OK && !*found; i++) {
        char *place = cup__path_join(folder, places[i]);
        if (!place)
            return cup__fail(error, CUP_MEMORY, "out of host memory for %s", part->name);
        status = read_here(error, place, part, found);
        if (status == CUP_OK && !*found && cup__folder_exists(place))
            status = read_below(error, place, part, found);
        cup__free(place);
    }
    return status;
}

static bool find_embedded(cup__part *part)
{
    for (const cup__source *source = cup__sources(); source->name; source++)
        if (!strcmp(source->name, part->name)) {
            part->name = source->name;
            part->text = source->text;
            part->size = source->size;
            return true;
        }
    return false;
}

static cup_status read_part(cup__error *error, cup__part *part, bool *found)
{
    const char *folder = cup__env_get(CUP__ENV_KERNELS);
    *found = false;
    if (*folder) {
        if (!cup__folder_exists(folder))
            return cup__fail(error, CUP_IO, "CUP_KERNELS=%s is not a folder; give the one that "
                                            "holds src/ops and src/kernels",
                             folder);
        CUP_TRY(read_from_folder(error, folder, part, found));
    }
    if (!*found)
        *found = find_embedded(part);
    return CUP_OK;
}

/* The next `#include "name"` at or after `at`; NULL when there is none. */
static const char *next_include(const char *at, char *name, size_t size)
{
    while (at) {
        const char *line = at + strspn(at, " \t\n");
        at = strchr(line, '\n');
        if (*line != '#')
            continue;
        line += 1 + strspn(line + 1, " \t");
        if (strncmp(line, "include", 7))
            continue;
        line += 7 + strspn(line + 7, " \t");
        size_t length = *line == '"' ? strcspn(line + 1, "\"\n") : 0;
        if (!length || length >= size || line[1 + length] != '"')
            continue;
        memcpy(name, line + 1, length);
        name[length] = 0;
        return at ? at : line + strlen(line);
    }
    return NULL;
}

static bool has_part(const cup__unit *unit, const char *name)
{
    for (int i = 0; i < unit->count; i++)
        if (!strcmp(unit->parts[i].name, name))
            return true;
    return false;
}

/* A name that is nowhere is left to the compiler, which knows the line that wants it. */
static cup_status add_includes(cup__error *error, cup__unit *unit, const char *text)
{
    char name[128];
    for (const char *at = text; (at = next_include(at, name, sizeof name));) {
        if (has_part(unit, name))
            continue;
        if (unit->count == CUP__MOST_PARTS)
            return cup__fail(error, CUP_COMPILE, "%s includes more than %d files",
                             unit->parts[0].name, CUP__MOST_PARTS);
        cup__part part = {.name = name};
        bool found;
        CUP_TRY(read_part(error, &part, &found));
        if (found && part.name == name) {
            part.name = cup__strdup(name);
            if (!part.name) {
                cup__free(part.owned);
                return cup__fail(error, CUP_MEMORY, "out of host memory for %s", name);
            }
        }
        if (found)
            unit->parts[unit->count++] = part;
    }
    return CUP_OK;
}

cup_status cup__unit_open(cup__error *error, const char *file, const char *text, cup__unit *out)
{
    bool found = text != NULL;
    out->count = 0;
    cup__part *first = &out->parts[0];
    *first = (cup__part){.name = file, .text = text, .size = text ? strlen(text) : 0};
    if (!text)
        CUP_TRY(read_part(error, first, &found));
    if (!found)
        return cup__fail(error, CUP_COMPILE, "there is no kernel source %s", file);
    if (first->owned && !(first->name = cup__strdup(file))) {
        cup__free(first->owned);
        return cup__fail(error, CUP_MEMORY, "out of host memory for %s", file);
    }
    out->count = 1;
    for (int i = 0; i < out->count; i++) {
        cup_status status = add_includes(error, out, out->parts[i].text);
        if (status != CUP_OK) {
            cup__unit_close(out);
            return status;
        }
    }
    return CUP_OK;
}

void cup__unit_close(cup__unit *unit)
{
    for (int i = 0; i < unit->count; i++) {
        if (!unit->parts[i].owned)
            continue;
        cup__free((char *)(uintptr_t)unit->parts[i].name);
        cup__free(unit->parts[i].owned);
    }
    unit->count = 0;
}

void cup__knobs_sort(cup__knob *sorted, const cup__knob *knobs, int count)
{
    for (int i = 0; i < count; i++) {
        int at = i;
        for (; at > 0 && strcmp(sorted[at - 1].name, knobs[i].name) > 0; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = knobs[i];
    }
}

void cup__knobs_text(cup__text *text, const cup__knob *knobs, int count)
{
    for (int i = 0; i < count; i++)
        cup__text_add(text, "%s%s=%lld", i ? " " : "", knobs[i].name, (long long)knobs[i].value);
}

static void hash_text(XXH3_state_t *state, const char *text, size_t size)
{
    uint64_t length = size;
    XXH3_128bits_update(state, &length, sizeof length);
    XXH3_128bits_update(state, text, size);
}

cup__key cup__unit_key(const cup__unit *unit, const char *arch, const cup__knob *knobs,
                       int knob_count)
{
    static const int version[] = {CUP_VERSION_MAJOR, CUP_VERSION_MINOR, CUP_VERSION_PATCH};
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    hash_text(&state, (const char *)version, sizeof version);
    hash_text(&state, arch, strlen(arch));
    for (int i = 0; i < unit->count; i++) {
        hash_text(&state, unit->parts[i].name, strlen(unit->parts[i].name));
        hash_text(&state, unit->parts[i].text, unit->parts[i].size);
    }
    for (int i = 0; i < knob_count; i++) {
        hash_text(&state, knobs[i].name, strlen(knobs[i].name));
        XXH3_128bits_update(&state, &knobs[i].value, sizeof knobs[i].value);
    }
    XXH128_hash_t hash = XXH3_128bits_digest(&state);
    return (cup__key){hash.low64, hash.high64};
}

/* A part's text with each include replaced by what it names, the first time it is met. */
static void expand(const cup__unit *unit, int part, bool *met, cup__text *out)
{
    const char *from = unit->parts[part].text, *at = from;
    char name[128];
    met[part] = true;
    while ((at = next_include(at, name, sizeof name))) {
        const char *line = at;
        while (line > from && line[-1] != '\n')
            line--;
        cup__text_append(out, from, (size_t)(line - from));
        for (int i = 1; i < unit->count; i++)
            if (!strcmp(unit->parts[i].name, name) && !met[i])
                expand(unit, i, met, out);
        from = at;
    }
    cup__text_add(out, "%s\n", from);
}

char *cup__unit_dump(const cup__unit *unit, const char *arch, const cup__knob *knobs,
                     int knob_count, const char *folder)
{
    bool met[CUP__MOST_PARTS] = {false};
    cup__text text = {0}, name = {0};
    cup__key key = cup__unit_key(unit, arch, knobs, knob_count);
    cup__text_add(&name, "%.*s.%s.%016llx.cu", (int)strcspn(unit->parts[0].name, "."),
                  unit->parts[0].name, arch, (unsigned long long)key.low);
    for (int i = 0; i < knob_count; i++)
        cup__text_add(&text, "#define %s %lld\n", knobs[i].name, (long long)knobs[i].value);
    expand(unit, 0, met, &text);
    char *path = name.failed ? NULL : cup__path_join(folder, name.bytes);
    if (!path || text.failed || cup__folder_make(NULL, folder) != CUP_OK ||
        cup__file_write(NULL, path, text.bytes, text.length) != CUP_OK) {
        cup__free(path);
        path = NULL;
    }
    cup__text_free(&text);
    cup__text_free(&name);
    return path;
}
