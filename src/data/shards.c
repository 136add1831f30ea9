#include "data/shards.h"

#include <string.h>

#include "base/memory.h"

#define PIECE 65536
#define PLACES 64

/* The kinds of llm.c's files by their first number. */
static const struct {
    int32_t magic, version;
    int bytes; /* a token; 0: no tokens are in it */
    const char *words;
} kinds[] = {{20240520, 1, 2, "tokens"},
             {20240801, 7, 4, "tokens"},
             {20240326, 0, 0, "a model"},
             {20240328, 0, 0, "a tokenizer"},
             {20240522, 0, 0, "an evaluation with choices"},
             {20240527, 0, 0, "an optimizer's state"}};

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "out of host memory for the names of files of tokens");
}

static bool is_bin(const char *name)
{
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".bin") == 0 && name[0] != '.';
}

static bool is_of_llmc(const char *path)
{
    cup__file file;
    int32_t magic = 0;
    bool found = false;
    if (cup__file_open(NULL, path, &file) != CUP_OK)
        return false;
    if (file.size >= sizeof magic &&
        cup__file_read_at(NULL, &file, 0, &magic, sizeof magic) == CUP_OK)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            found |= kinds[i].bytes && kinds[i].magic == magic;
    cup__file_close(&file);
    return found;
}

/* Whether a file in a folder is one of tokens: others may end in .bin, too. */
static bool is_shard(const char *folder, const char *name)
{
    if (!is_bin(name))
        return false;
    if (strstr(name, "train") || strstr(name, "val"))
        return true;
    char *path = cup__path_join(folder, name);
    bool found = path && is_of_llmc(path);
    cup__free(path);
    return found;
}

bool cup__shards_named(const char *path)
{
    if (!cup__folder_exists(path))
        return is_bin(cup__path_name(path));
    cup__names names;
    bool found = false;
    if (cup__folder_list(NULL, path, &names) != CUP_OK)
        return false;
    for (size_t i = 0; i < names.count && !found; i++)
        found = is_shard(path, names.name[i]);
    cup__names_free(&names);
    return found;
}

bool cup__shard_known(int32_t number)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].magic == number)
            return true;
    return false;
}

static cup_status look_behind_header(cup__error *error, const cup__file *file, size_t kind,
                                     const int32_t header[3], cup__shard *out)
{
    uint64_t bytes = (uint64_t)kinds[kind].bytes, behind;
    if (!bytes)
        return cup__fail(error, CUP_FORMAT,
                         "%s is llm.c's file of %s, not of tokens; name files of tokens",
                         file->path, kinds[kind].words);
    if (file->size < CUP__SHARD_HEADER)
        return cup__fail(error, CUP_FORMAT,
                         "%s ends in the middle of its header, at byte %llu of %d; copy it again",
                         file->path, (unsigned long long)file->size, CUP__SHARD_HEADER);
    if (header[1] != kinds[kind].version)
        return cup__fail(error, CUP_FORMAT,
                         "%s is of version %d of llm.c's tokens, and version %d can be read; write "
                         "it anew with llm.c's scripts or cupola tokenize",
                         file->path, (int)header[1], (int)kinds[kind].version);
    behind = (file->size - CUP__SHARD_HEADER) / bytes;
    if (header[2] < 1 || (uint64_t)header[2] != behind ||
        (file->size - CUP__SHARD_HEADER) % bytes)
        return cup__fail(error, CUP_FORMAT,
                         "%s says that it has %d tokens, and %llu bytes follow its header, which "
                         "would be %llu; copy or write it again",
                         file->path, (int)header[2],
                         (unsigned long long)(file->size - CUP__SHARD_HEADER),
                         (unsigned long long)behind);
    out->begin = CUP__SHARD_HEADER;
    out->wide = bytes == 4;
    out->count = header[2];
    return CUP_OK;
}

cup_status cup__shard_look(cup__error *error, const cup__file *file, cup__shard *out)
{
    int32_t header[3] = {0};
    out->size = file->size;
    if (file->size >= sizeof header)
        CUP_TRY(cup__file_read_at(error, file, 0, header, sizeof header));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (header[0] == kinds[i].magic)
            return look_behind_header(error, file, i, header, out);
    if (file->size < 2 || file->size % 2)
        return cup__fail(error, CUP_FORMAT,
                         "%s has %llu bytes, which are no tokens: neither does it begin as llm.c's "
                         "files do, nor has it 2 bytes a token as nanoGPT's; copy it again, or "
                         "name text by another ending than .bin",
                         file->path, (unsigned long long)file->size);
    out->begin = 0;
    out->wide = false;
    out->count = (int64_t)(file->size / 2);
    return CUP_OK;
}

static cup_status add_file(cup__error *error, cup__shards *s, const char *path)
{
    cup__file file;
    cup__shard shard = {0};
    CUP_TRY(cup__file_open(error, path, &file));
    cup_status status = cup__shard_look(error, &file, &shard);
    cup__file_close(&file);
    CUP_TRY(status);
    shard.path = cup__strdup(path);
    if (!shard.path || !cup__grow(&s->shard, &s->capacity, s->count, sizeof *s->shard)) {
        cup__free(shard.path);
        return no_memory(error);
    }
    s->shard[s->count++] = shard;
    return CUP_OK;
}

static cup_status add_folder(cup__error *error, cup__shards *s, const char *folder)
{
    cup__names names;
    cup_status status = CUP_OK;
    CUP_TRY(cup__folder_list(error, folder, &names));
    for (size_t i = 0; i < names.count && status == CUP_OK; i++) {
        if (!is_shard(folder, names.name[i]))
            continue;
        char *path = cup__path_join(folder, names.name[i]);
        status = path ? add_file(error, s, path) : no_memory(error);
        cup__free(path);
    }
    cup__names_free(&names);
    return status;
}

static bool is_validation(const cup__shard *shard)
{
    const char *name = cup__path_name(shard->path);
    return !strstr(name, "train") && strstr(name, "val");
}

/* Puts those for training first, otherwise in their order, and gives each its place. */
static cup_status arrange(cup__error *error, cup__shards *s)
{
    cup__shard *sorted = cup__malloc(s->count * sizeof *sorted);
    size_t count = 0;
    if (!sorted)
        return no_memory(error);
    for (int part = 0; part < 2; part++) {
        s->train = s->tokens;
        for (size_t i = 0; i < s->count; i++)
            if (is_validation(&s->shard[i]) == part) {
                sorted[count] = s->shard[i];
                sorted[count].first = s->tokens;
                s->tokens += sorted[count++].count;
            }
    }
    if (s->train == 0 || s->train == s->tokens)
        s->train = -1;
    cup__free(s->shard);
    s->shard = sorted;
    s->capacity = count;
    return CUP_OK;
}

cup_status cup__shards_open(cup__error *error, const char *const *paths, int count,
                            int64_t vocabulary, cup__shards *out)
{
    *out = (cup__shards){.train = -1, .vocabulary = vocabulary};
    for (int i = 0; i < count; i++) {
        if (!paths[i] || !*paths[i])
            return cup__fail(error, CUP_ARGUMENT, "the path of a file of tokens is empty");
        if (!cup__shards_named(paths[i]))
            return cup__fail(error, CUP_ARGUMENT,
                             "%s is neither a file of tokens, whose name ends in .bin, nor a "
                             "folder with such; name either tokens or text, not both",
                             paths[i]);
        CUP_TRY(cup__folder_exists(paths[i]) ? add_folder(error, out, paths[i])
                                             : add_file(error, out, paths[i]));
    }
    if (out->count == 0)
        return cup__fail(error, CUP_ARGUMENT, "no tokens were named; give a file or a folder");
    return arrange(error, out);
}

void cup__shards_close(cup__shards *s)
{
    for (size_t i = 0; i < s->count; i++)
        cup__free(s->shard[i].path);
    cup__free(s->shard);
    *s = (cup__shards){0};
}

/* A file is opened for each reading, so that there may be more of them than a process may have
 * open. */
static cup_status open_again(cup__error *error, const cup__shard *shard, cup__file *file)
{
    CUP_TRY(cup__file_open(error, shard->path, file));
    if (file->size == shard->size)
        return CUP_OK;
    uint64_t size = file->size;
    cup__file_close(file);
    return cup__fail(error, CUP_IO,
                     "%s has %llu bytes and had %llu when it was opened; leave it alone while it "
                     "is read",
                     shard->path, (unsigned long long)size, (unsigned long long)shard->size);
}

static cup_status refuse_token(cup__error *error, const cup__shards *s, const cup__shard *shard,
                               int64_t place, uint32_t token)
{
    return cup__fail(error, CUP_FORMAT,
                     "%s: token %lld is %lu, and the tokenizer has %lld tokens only; give the "
                     "tokenizer that the tokens were made with",
                     shard->path, (long long)(place - shard->first), (unsigned long)token,
                     (long long)s->vocabulary);
}

/* Where tokens go: both may be NULL, and then they are checked only. */
typedef struct row {
    int64_t place, context; /* of the row's first token */
    int32_t *inputs, *targets;
} row;

static void put(const row *to, int64_t at, int32_t token)
{
    if (to->inputs && at < to->context)
        to->inputs[at] = token;
    if (to->targets && at > 0)
        to->targets[at - 1] = token;
}

/* The tokens from `place` on that are in the bytes. */
static cup_status take_bytes(cup__error *error, const cup__shards *s, const cup__shard *shard,
                             int64_t place, const void *bytes, size_t count, const row *to)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t token =
            shard->wide ? ((const uint32_t *)bytes)[i] : ((const uint16_t *)bytes)[i];
        if (token >= (uint64_t)s->vocabulary)
            return refuse_token(error, s, shard, place + (int64_t)i, token);
        put(to, place + (int64_t)i - to->place, (int32_t)token);
    }
    return CUP_OK;
}

/* Tokens [from, to), all of them in one file. */
static cup_status read_shard(cup__error *error, const cup__shards *s, const cup__shard *shard,
                             int64_t from, int64_t to, const row *out)
{
    _Alignas(4) char bytes[PIECE];
    size_t each = shard->wide ? 4 : 2;
    cup__file file;
    cup_status status = CUP_OK;
    CUP_TRY(open_again(error, shard, &file));
    while (from < to && status == CUP_OK) {
        size_t most = PIECE / each;
        size_t count = (uint64_t)(to - from) < most ? (size_t)(to - from) : most;
        uint64_t offset = shard->begin + (uint64_t)(from - shard->first) * each;
        status = cup__file_read_at(error, &file, offset, bytes, count * each);
        if (status == CUP_OK)
            status = take_bytes(error, s, shard, from, bytes, count, out);
        from += (int64_t)count;
    }
    cup__file_close(&file);
    return status;
}

/* The file that a token is in. */
static size_t find(const cup__shards *s, int64_t place)
{
    size_t low = 0, high = s->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->shard[middle].first <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

cup_status cup__shards_row(cup__error *error, const cup__shards *s, int64_t place, int64_t context,
                           int32_t *inputs, int32_t *targets)
{
    const row to = {place, context, inputs, targets};
    int64_t end = place + context + 1;
    for (size_t i = find(s, place); place < end && i < s->count; i++) {
        int64_t behind = s->shard[i].first + s->shard[i].count;
        int64_t until = behind < end ? behind : end;
        CUP_TRY(read_shard(error, s, &s->shard[i], place, until, &to));
        place = until;
    }
    return CUP_OK;
}

static cup_status hash_shard(cup__error *error, const cup__shards *s, const cup__shard *shard,
                             const cup__file *file, cup__hash *hash)
{
    _Alignas(4) char bytes[PIECE];
    size_t each = shard->wide ? 4 : 2;
    int64_t most = (int64_t)(PIECE / each), pieces = (shard->count + most - 1) / most;
    int64_t places = pieces < PLACES ? pieces : PLACES;
    for (int64_t i = 0; i < places; i++) {
        int64_t piece = places > 1 ? i * (pieces - 1) / (places - 1) : 0;
        int64_t from = piece * most, left = shard->count - from;
        size_t count = (size_t)(left < most ? left : most);
        CUP_TRY(cup__file_read_at(error, file, shard->begin + (uint64_t)from * each, bytes,
                                  count * each));
        CUP_TRY(take_bytes(error, s, shard, shard->first + from, bytes, count, &(row){0}));
        cup__hash_add(hash, bytes, count * each);
    }
    return CUP_OK;
}

cup_status cup__shards_hash(cup__error *error, const cup__shards *s, uint64_t *out)
{
    cup__hash hash;
    char text[CUP__HASH_TEXT];
    cup__hash_begin(&hash);
    cup__hash_add(&hash, &s->train, sizeof s->train);
    for (size_t i = 0; i < s->count; i++) {
        cup__file file;
        CUP_TRY(open_again(error, &s->shard[i], &file));
        cup__hash_add(&hash, &s->shard[i].count, sizeof s->shard[i].count);
        cup_status status = hash_shard(error, s, &s->shard[i], &file, &hash);
        cup__file_close(&file);
        CUP_TRY(status);
    }
    cup__hash_text(&hash, text);
    *out = cup__hash_bytes(text, sizeof text - 1);
    return CUP_OK;
}
