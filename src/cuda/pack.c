/* Packs: many compiled kernels in one file, so that a program can be shipped with them. The file
 * is a head, an index sorted by key, and the kernels as they lie in the cache. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "cuda/cache.h"

#define FORMAT 1
#define MOST_KERNELS (1 << 20)
#define MOST_BYTES ((uint64_t)256 << 20)

typedef struct head {
    char magic[16];
    uint32_t format, count;
} head;

typedef struct entry {
    cup__key key;
    uint64_t offset, bytes;
} entry;

static const char magic[16] = "cupola pack\n";

typedef struct pack {
    cup__file file;
    entry *entries;
    uint32_t count;
} pack;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pack packs[2] = {{.file.handle = -1}, {.file.handle = -1}}; /* asked in this order */

static int by_key(const void *a, const void *b)
{
    const cup__key *x = a, *y = b;
    if (x->high != y->high)
        return x->high < y->high ? -1 : 1;
    return x->low < y->low ? -1 : x->low > y->low;
}

static cup_status read_index(cup__error *error, const char *path, pack *p)
{
    head h;
    CUP_TRY(cup__file_open(error, path, &p->file));
    uint64_t size = p->file.size;
    if (size < sizeof h)
        return cup__fail(error, CUP_FORMAT, "%s is too short for a pack of kernels", path);
    CUP_TRY(cup__file_read_at(error, &p->file, 0, &h, sizeof h));
    if (memcmp(h.magic, magic, sizeof magic) || h.format != FORMAT || h.count > MOST_KERNELS ||
        sizeof h + h.count * sizeof(entry) > size)
        return cup__fail(error, CUP_FORMAT, "%s is no pack of kernels of this version", path);
    entry *entries = p->entries = cup__calloc(h.count, sizeof *entries);
    if (!entries)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
    CUP_TRY(cup__file_read_at(error, &p->file, sizeof h, entries, h.count * sizeof *entries));
    for (uint32_t i = 0; i < h.count; i++)
        if (entries[i].offset > size || entries[i].bytes > size - entries[i].offset ||
            entries[i].bytes > MOST_BYTES || (i && by_key(&entries[i - 1], &entries[i]) >= 0))
            return cup__fail(error, CUP_FORMAT, "%s is damaged: kernel %u is out of place", path,
                             i);
    p->count = h.count;
    cup__log(CUP__INFO, "kernels: %u from %s", p->count, path);
    return CUP_OK;
}

cup_status cup__pack_check(cup__error *error, const char *path)
{
    pack p = {.file.handle = -1};
    cup_status status = read_index(error, path, &p);
    cup__file_close(&p.file);
    cup__free(p.entries);
    return status;
}

/* The pack that was installed with this library or program: in ../share/cupola beside its folder,
 * or one higher, where the library's folder is lib/x86_64-linux-gnu. */
static char *installed_path(void)
{
    Dl_info info;
    if (!dladdr((const void *)&once, &info) || !info.dli_fname)
        return NULL;
    /* Of the program itself the loader tells the name it was called by. */
    char *file = realpath(strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe", NULL);
    char *slash = file ? strrchr(file, '/') : NULL;
    if (slash)
        *slash = 0;
    char *path = slash ? cup__path_join(file, "../share/cupola/kernels.pack") : NULL;
    if (path && !cup__file_exists(path)) {
        cup__free(path);
        path = cup__path_join(file, "../../share/cupola/kernels.pack");
    }
    free(file);
    return path;
}

static void open_one(const char *path, bool wished, pack *p)
{
    cup__error error = {0};
    if (path && (wished || cup__file_exists(path)) && read_index(&error, path, p) != CUP_OK)
        cup__log(CUP__INFO, "%s", error.text);
}

static void open_packs(void)
{
    cup__error error = {0};
    const char *wish = cup__env_get(CUP__ENV_KERNEL_PACK);
    char *folder = NULL, *path = NULL, *installed = installed_path();
    if (*wish)
        path = cup__strdup(wish);
    else if (cup__cache_folder(&error, &folder) == CUP_OK && folder)
        path = cup__path_join(folder, "kernels.pack");
    open_one(path, *wish, &packs[0]);
    open_one(installed, false, &packs[1]);
    cup__free(folder);
    cup__free(path);
    cup__free(installed);
}

static bool read_from(const pack *p, const cup__code_name *name, cup__code *out)
{
    entry *found =
        p->count ? bsearch(&name->key, p->entries, p->count, sizeof *p->entries, by_key) : NULL;
    char *bytes = found ? cup__malloc((size_t)found->bytes) : NULL;
    if (!bytes)
        return false;
    bool good = cup__file_read_at(NULL, &p->file, found->offset, bytes, (size_t)found->bytes) ==
                    CUP_OK &&
                cup__code_decode(bytes, (size_t)found->bytes, &name->key, out);
    if (!good)
        cup__log(CUP__INFO, "%s: %s is damaged there", p->file.path, name->file);
    cup__free(bytes);
    return good;
}

bool cup__pack_read(const cup__code_name *name, cup__code *out)
{
    pthread_once(&once, open_packs);
    return read_from(&packs[0], name, out) || read_from(&packs[1], name, out);
}

typedef struct packed {
    entry entry; /* first: sorted by its key */
    const cup__text *bytes;
} packed;

static cup_status write_all(cup__error *error, cup__writer *writer, const packed *items,
                            uint32_t count)
{
    head h = {.format = FORMAT, .count = count};
    memcpy(h.magic, magic, sizeof magic);
    CUP_TRY(cup__writer_add(error, writer, &h, sizeof h));
    for (uint32_t i = 0; i < count; i++)
        CUP_TRY(cup__writer_add(error, writer, &items[i].entry, sizeof items[i].entry));
    for (uint32_t i = 0; i < count; i++)
        CUP_TRY(cup__writer_add(error, writer, items[i].bytes->bytes, items[i].bytes->length));
    return CUP_OK;
}

/* Sorts, drops equal keys and places the rest; gives how many there are. */
static uint32_t place(packed *items, size_t count)
{
    uint32_t kept = 0;
    if (count)
        qsort(items, count, sizeof *items, by_key);
    for (size_t i = 0; i < count; i++)
        if (!kept || by_key(&items[kept - 1], &items[i]))
            items[kept++] = items[i];
    uint64_t offset = sizeof(head) + kept * sizeof(entry);
    for (uint32_t i = 0; i < kept; i++) {
        items[i].entry.offset = offset;
        offset += items[i].entry.bytes;
    }
    return kept;
}

cup_status cup__pack_write(cup__error *error, const char *path, const cup__key *keys,
                           const cup__text *encoded, size_t count)
{
    if (count > MOST_KERNELS)
        return cup__fail(error, CUP_ARGUMENT, "%s: more than %d kernels", path, MOST_KERNELS);
    packed *items = cup__calloc(count, sizeof *items);
    if (!items)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
    for (size_t i = 0; i < count; i++)
        items[i] = (packed){{keys[i], 0, encoded[i].length}, &encoded[i]};
    uint32_t kept = place(items, count);
    cup__writer writer;
    cup_status status = cup__writer_open(error, path, &writer);
    if (status == CUP_OK) {
        status = write_all(error, &writer, items, kept);
        if (status == CUP_OK)
            status = cup__writer_commit(error, &writer);
        else
            cup__writer_abandon(&writer);
    }
    cup__free(items);
    return status;
}
