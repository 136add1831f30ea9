/* tree FOLDER: the id git gives to a folder's files as they are now, with or without git: what was
 * checked is known by it. */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ID 20

typedef struct bytes {
    unsigned char *at;
    size_t count, capacity;
} bytes;

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "tree: %s: %s\n", path, what);
    exit(1);
}

static void add(bytes *b, const void *from, size_t count)
{
    if (b->count + count > b->capacity) {
        b->capacity = 2 * (b->count + count) + 256;
        b->at = realloc(b->at, b->capacity);
        if (!b->at)
            fail("out of memory", "");
    }
    memcpy(b->at + b->count, from, count);
    b->count += count;
}

static uint32_t turn(uint32_t x, int by)
{
    return x << by | x >> (32 - by);
}

static void sha1_block(uint32_t h[5], const unsigned char *block)
{
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 80; i++)
        w[i] = turn(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999u
                     : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1u
                     : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdcu
                              : (b ^ c ^ d) + 0xca62c1d6u;
        uint32_t next = turn(a, 5) + f + e + w[i];
        e = d, d = c, c = turn(b, 30), b = a, a = next;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

/* The id of an object: the SHA-1 of its kind, its size and its bytes. */
static void id_of(const char *kind, const bytes *content, unsigned char id[ID])
{
    uint32_t h[5] = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u, 0xc3d2e1f0u};
    static const unsigned char zeros[64] = {0x80};
    char head[64];
    bytes all = {0};
    int length = snprintf(head, sizeof head, "%s %zu", kind, content->count) + 1;
    add(&all, head, (size_t)length);
    add(&all, content->at, content->count);
    uint64_t bits = 8 * (uint64_t)all.count;
    add(&all, zeros, 1 + (119 - all.count % 64) % 64);
    for (int i = 56; i >= 0; i -= 8)
        add(&all, &(unsigned char){(unsigned char)(bits >> i)}, 1);
    for (size_t i = 0; i < all.count; i += 64)
        sha1_block(h, all.at + i);
    for (int i = 0; i < ID; i++)
        id[i] = (unsigned char)(h[i / 4] >> (24 - i % 4 * 8));
    free(all.at);
}

static void file_id(const char *path, unsigned char id[ID])
{
    FILE *file = fopen(path, "rb");
    char piece[1 << 16];
    bytes content = {0};
    if (!file)
        fail("cannot be read", path);
    for (size_t got; (got = fread(piece, 1, sizeof piece, file)) > 0;)
        add(&content, piece, got);
    if (ferror(file))
        fail("cannot be read", path);
    fclose(file);
    id_of("blob", &content, id);
    free(content.at);
}

typedef struct entry {
    char name[256];
    bool folder, program;
} entry;

/* git compares folders as if their names ended in a slash. */
static int by_name(const void *x, const void *y)
{
    const entry *a = x, *b = y;
    char one[258], two[258];
    snprintf(one, sizeof one, "%s%s", a->name, a->folder ? "/" : "");
    snprintf(two, sizeof two, "%s%s", b->name, b->folder ? "/" : "");
    return strcmp(one, two);
}

static size_t list(const char *path, entry **out)
{
    size_t count = 0, capacity = 0;
    DIR *folder = opendir(path);
    char below[4096];
    struct stat status;
    *out = NULL;
    if (!folder)
        fail("no folder that can be read", path);
    for (struct dirent *d; (d = readdir(folder));) {
        if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
            continue;
        if (count == capacity && !(*out = realloc(*out, (capacity += 256) * sizeof **out)))
            fail("out of memory", path);
        snprintf(below, sizeof below, "%s/%s", path, d->d_name);
        if (lstat(below, &status) || !(S_ISDIR(status.st_mode) || S_ISREG(status.st_mode)))
            fail("neither a file nor a folder", below);
        entry *e = &(*out)[count++];
        snprintf(e->name, sizeof e->name, "%s", d->d_name);
        e->folder = S_ISDIR(status.st_mode);
        e->program = status.st_mode & S_IXUSR;
    }
    closedir(folder);
    qsort(*out, count, sizeof **out, by_name);
    return count;
}

/* False for a folder without files, which git does not know. */
static bool folder_id(const char *path, unsigned char id[ID])
{
    entry *entries;
    bytes content = {0};
    size_t count = list(path, &entries);
    for (size_t i = 0; i < count; i++) {
        char below[4096], head[300];
        unsigned char own[ID];
        snprintf(below, sizeof below, "%s/%s", path, entries[i].name);
        if (entries[i].folder && !folder_id(below, own))
            continue;
        if (!entries[i].folder)
            file_id(below, own);
        int length = snprintf(head, sizeof head, "%s %s",
                              entries[i].folder    ? "40000"
                              : entries[i].program ? "100755"
                                                   : "100644",
                              entries[i].name);
        add(&content, head, (size_t)length + 1);
        add(&content, own, ID);
    }
    id_of("tree", &content, id);
    bool any = content.count > 0;
    free(entries);
    free(content.at);
    return any;
}

int main(int argc, char **argv)
{
    unsigned char id[ID];
    if (argc != 2) {
        fprintf(stderr, "usage: tree FOLDER\n");
        return 2;
    }
    folder_id(argv[1], id);
    for (int i = 0; i < ID; i++)
        printf("%02x", id[i]);
    printf("\n");
    return 0;
}
