/* Images that are files of their own: found in folders or in a table, decoded by all threads. */
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "data/images.h"
#include "data/walk.h"
#include "tensor/context.h"

#define ROUND 256 /* files between questions whether to stop */

static cup_status add_image(cup__error *error, cup_images *out, const char *path, int64_t label,
                            size_t *room)
{
    if (!cup__grow(&out->labels, room, (size_t)out->count, sizeof *out->labels))
        return cup__no_memory(error, path);
    out->labels[out->count++] = label;
    return cup__names_add(error, &out->paths, path);
}

/* Decoding. */

typedef struct decoding {
    cup_images *images;
    int64_t first;
    bool alike;         /* all must have the size of the first */
    cup__error *errors; /* of each file of the round */
} decoding;

static cup_status decode_one(cup__error *error, const cup_images *images, int64_t i, bool alike,
                             uint8_t *pixels)
{
    cup__picture picture, to = {pixels, images->height, images->width, images->channels};
    CUP_TRY(cup__picture_read(error, images->paths.name[i], images->channels, &picture));
    bool differs = picture.height != to.height || picture.width != to.width;
    cup_status status =
        alike && differs
            ? cup__fail(error, CUP_SHAPE,
                        "%s has %lld x %lld pixels, and others have %lld x %lld; give the height "
                        "and width that all shall have",
                        images->paths.name[i], (long long)picture.height,
                        (long long)picture.width, (long long)to.height, (long long)to.width)
            : cup__picture_fit(error, &picture, &to);
    cup__free(picture.pixels);
    return status;
}

static void decode_some(int64_t begin, int64_t end, void *user)
{
    const decoding *d = user;
    int64_t bytes = d->images->height * d->images->width * d->images->channels;
    for (int64_t i = begin; i < end; i++)
        decode_one(&d->errors[i], d->images, d->first + i, d->alike,
                   d->images->pixels + (d->first + i) * bytes);
}

cup_status cup__images_get(cup__error *error, const cup_images *images, int64_t place,
                           uint8_t *room, const uint8_t **out)
{
    int64_t bytes = images->height * images->width * images->channels;
    *out = images->pixels ? images->pixels + place * bytes : room;
    return images->pixels ? CUP_OK : decode_one(error, images, place, images->alike, room);
}

/* Moves an image of the list to a place before it, or leaves it where it is. */
static void keep(cup_images *out, int64_t from, int64_t to)
{
    size_t bytes = (size_t)(out->height * out->width * out->channels);
    if (from == to)
        return;
    memcpy(out->pixels + (size_t)to * bytes, out->pixels + (size_t)from * bytes, bytes);
    out->labels[to] = out->labels[from];
    cup__free(out->paths.name[to]);
    out->paths.name[to] = out->paths.name[from];
    out->paths.name[from] = NULL;
}

/* What is wrong with the files of a round: a failure, or one image fewer each. */
static cup_status judge(cup_context *c, const cup_images_options *o, const decoding *d,
                        int64_t files, int64_t *kept)
{
    cup_images *out = d->images;
    for (int64_t i = 0; i < files; i++) {
        const cup__error *error = &d->errors[i];
        if (error->status == CUP_OK) {
            keep(out, d->first + i, (*kept)++);
            continue;
        }
        if (error->status != CUP_FORMAT || !o->skip_broken)
            return cup__fail(&c->error, error->status, "%s", error->text);
        out->skipped++;
        if (o->broken)
            o->broken(error->text, o->user);
    }
    return CUP_OK;
}

/* The size of the first image that can be decoded, where none was asked for. */
static cup_status find_size(cup_context *c, const cup_images_options *o, cup_images *out)
{
    out->channels = o->channels ? o->channels : 3;
    out->height = o->height;
    out->width = o->width;
    for (int64_t i = 0; i < out->count && !out->height; i++) {
        cup__error error = {0};
        cup__picture first;
        cup_status status = cup__picture_read(&error, out->paths.name[i], out->channels, &first);
        if (status == CUP_OK) {
            out->height = first.height;
            out->width = first.width;
            cup__free(first.pixels);
        } else if (status != CUP_FORMAT || !o->skip_broken) {
            return cup__fail(&c->error, status, "%s", error.text);
        }
    }
    return out->height ? CUP_OK
                       : cup__fail(&c->error, CUP_FORMAT,
                                   "none of %lld image files can be decoded; the first is %s",
                                   (long long)out->count,
                                   out->count ? out->paths.name[0] : "missing");
}

cup_status cup__images_decode(cup_context *c, const cup_images_options *o, cup_images *out)
{
    if (!out->count)
        return cup__fail(&c->error, CUP_FORMAT,
                         "there are no image files (.png, .jpg, .jpeg, .webp)");
    int64_t kept = 0, all = out->count;
    CUP_TRY(find_size(c, o, out));
    out->alike = !o->height;
    if (o->as_needed)
        return CUP_OK;
    CUP_TRY(cup__images_room(&c->error, out->paths.name[0], o, out));
    decoding d = {.images = out,
                  .alike = out->alike,
                  .errors = cup__calloc(ROUND, sizeof *d.errors)};
    cup_status status = d.errors ? CUP_OK : cup__no_memory(&c->error, "decoding images");
    for (d.first = 0; d.first < all && status == CUP_OK; d.first += ROUND) {
        int64_t files = all - d.first < ROUND ? all - d.first : ROUND;
        memset(d.errors, 0, ROUND * sizeof *d.errors);
        cup__parallel_for(files, 1, decode_some, &d);
        status = judge(c, o, &d, files, &kept);
        if (status == CUP_OK)
            status = cup__stopped(c);
    }
    cup__free(d.errors);
    if (status != CUP_OK)
        return status;
    for (int64_t i = kept; i < all; i++)
        cup__free(out->paths.name[i]);
    out->count = kept;
    out->paths.count = (size_t)kept;
    return kept ? CUP_OK
                : cup__fail(&c->error, CUP_FORMAT, "no image file of %lld could be decoded",
                            (long long)all);
}

/* Folders. */

typedef struct class_files {
    cup_images *out;
    size_t room;
    int64_t label, number;
    cup_split split;
    bool parted; /* files say themselves which part they are */
} class_files;

static cup_status visit(cup__error *error, const char *path, bool found, bool *taken, void *user)
{
    class_files *f = user;
    (void)found;
    if (!cup__picture_named(path)) {
        *taken = false;
        return CUP_OK;
    }
    bool kept = cup__images_kept(f->number++);
    if (!f->parted && kept != (f->split == CUP_SPLIT_VALIDATION))
        return CUP_OK;
    return add_image(error, f->out, path, f->label, &f->room);
}

/* Names of the folders in one, in the order of their bytes; hidden ones are none. */
static cup_status list_classes(cup__error *error, const char *folder, cup__names *classes)
{
    cup__names names;
    CUP_TRY(cup__folder_list(error, folder, &names));
    cup_status status = CUP_OK;
    for (size_t i = 0; i < names.count && status == CUP_OK; i++) {
        char *path = cup__path_join(folder, names.name[i]);
        if (!path)
            status = cup__no_memory(error, folder);
        else if (names.name[i][0] != '.' && cup__folder_exists(path))
            status = cup__names_add(error, classes, names.name[i]);
        cup__free(path);
    }
    cup__names_free(&names);
    return status;
}

/* The folder of a part below one; NULL in *out where there is none of these names. */
static cup_status find_part(cup__error *error, const char *folder, const char *const *names,
                            char **out)
{
    for (*out = NULL; *names; names++) {
        char *path = cup__path_join(folder, *names);
        if (!path)
            return cup__no_memory(error, folder);
        if (cup__folder_exists(path)) {
            *out = path;
            return CUP_OK;
        }
        cup__free(path);
    }
    return CUP_OK;
}

static cup_status read_classes(cup_context *c, const char *folder, class_files *f)
{
    int64_t none = 0;
    for (size_t i = 0; i < f->out->classes.count; i++) {
        char *path = cup__path_join(folder, f->out->classes.name[i]);
        if (!path)
            return cup__no_memory(&c->error, folder);
        f->label = (int64_t)i;
        f->number = 0;
        cup_status status = CUP_OK;
        if (cup__folder_exists(path))
            status = cup__walk(&c->error, path, visit, f, &none);
        if (status == CUP_FORMAT && f->number == 0) {
            cup__error_clear(&c->error);
            cup__fail(&c->error, CUP_FORMAT,
                      "%s, the folder of a class, holds no images (.png, .jpg, .jpeg, .webp); put "
                      "some there, or remove it",
                      path);
        }
        cup__free(path);
        CUP_TRY(status);
    }
    return CUP_OK;
}

cup_status cup__images_folder(cup_context *c, const char *folder, cup_split split,
                              const cup_images_options *options, cup_images *out)
{
    static const char *const trains[] = {"train", NULL};
    static const char *const keeps[] = {"val", "validation", "test", NULL};
    bool is_train = split == CUP_SPLIT_TRAIN;
    char *train, *kept = NULL;
    CUP_TRY(find_part(&c->error, folder, trains, &train));
    cup_status status = train ? find_part(&c->error, folder, keeps, &kept) : CUP_OK;
    const char *base = train ? train : folder;
    class_files f = {.out = out, .split = split, .parted = kept != NULL};
    /* The classes are those of training, also where a part lacks one. */
    if (status == CUP_OK)
        status = list_classes(&c->error, base, &out->classes);
    if (status == CUP_OK && out->classes.count == 0)
        status = cup__fail(&c->error, CUP_FORMAT,
                           "%s holds neither arrays of images nor a folder for each class; `%s` "
                           "in cupola/images.h says what can be read",
                           folder, "cup_images_load");
    if (status == CUP_OK)
        status = read_classes(c, !is_train && kept ? kept : base, &f);
    cup__free(train);
    cup__free(kept);
    CUP_TRY(status);
    return cup__images_decode(c, options, out);
}

/* A table. */

/* A line "path,class", either of which may stand in quotes, with two for one. */
static char *take_field(char **at)
{
    char *from = *at, *to = from, *field = from;
    bool quoted = *from == '"';
    from += quoted;
    for (; *from; from++) {
        if (quoted && *from == '"' && from[1] != '"') {
            quoted = false;
            continue;
        }
        if (!quoted && *from == ',')
            break;
        from += quoted && *from == '"';
        *to++ = *from;
    }
    *at = *from ? from + 1 : from;
    *to = 0;
    return field;
}

typedef struct table {
    const char *path;
    char *folder;
    cup_split split;
    cup_images *out;
    size_t room;
    int64_t *numbers; /* of images, a class */
    size_t number_room;
} table;

static cup_status add_row(cup__error *error, table *t, const char *name, const char *class)
{
    int64_t label;
    size_t before = t->out->classes.count;
    CUP_TRY(cup__class_number(error, &t->out->classes, class, &label));
    if (!cup__grow(&t->numbers, &t->number_room, t->out->classes.count, sizeof *t->numbers))
        return cup__no_memory(error, t->path);
    if (t->out->classes.count > before)
        t->numbers[label] = 0;
    if (cup__images_kept(t->numbers[label]++) != (t->split == CUP_SPLIT_VALIDATION))
        return CUP_OK;
    char *path = cup__path_join(t->folder, name);
    cup_status status =
        path ? add_image(error, t->out, path, label, &t->room) : cup__no_memory(error, t->path);
    cup__free(path);
    return status;
}

static cup_status read_rows(cup__error *error, table *t, char *text)
{
    char *rest = NULL;
    int64_t number = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        line[strcspn(line, "\r")] = 0;
        number++;
        char *at = line;
        const char *name = take_field(&at), *class = take_field(&at);
        bool heads = number == 1 && !cup__picture_named(name);
        if (heads || (!*name && !*class))
            continue;
        if (!*name || !*class || *at)
            return cup__fail(error, CUP_FORMAT,
                             "%s: row %lld is not \"path,class\", as each must be", t->path,
                             (long long)number);
        CUP_TRY(add_row(error, t, name, class));
    }
    return CUP_OK;
}

cup_status cup__images_table(cup_context *c, const char *path, cup_split split,
                             const cup_images_options *options, cup_images *out)
{
    char *text;
    table t = {.path = path, .split = split, .out = out};
    CUP_TRY(cup__file_read(&c->error, path, (uint64_t)1 << 30, &text, NULL));
    t.folder = cup__strdup(path);
    cup_status status = t.folder ? CUP_OK : cup__no_memory(&c->error, path);
    if (status == CUP_OK) {
        *(char *)cup__path_name(t.folder) = 0;
        status = read_rows(&c->error, &t, text);
    }
    cup__free(text);
    cup__free(t.folder);
    cup__free(t.numbers);
    CUP_TRY(status);
    return cup__images_decode(c, options, out);
}
