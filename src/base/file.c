#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"

static const struct {
    int number;
    const char *words;
} cures[] = {
    {ENOENT, "there is no such file or folder; check the path"},
    {ENOTDIR, "a part of the path is a file, not a folder; check the path"},
    {EISDIR, "it is a folder; name a file in it"},
    {EACCES, "permission denied; change its owner or mode, or run as a user who may"},
    {EPERM, "not permitted; change its owner or mode, or run as a user who may"},
    {EROFS, "the file system is read-only; choose another folder"},
    {ENOSPC, "the disk is full; free some space or choose another folder"},
    {EDQUOT, "the disk quota is used up; free some space or choose another folder"},
    {EFBIG, "the file would be larger than the limit (ulimit -f) or the file system allows"},
    {EMFILE, "too many files are open; raise the limit with ulimit -n"},
    {ENAMETOOLONG, "the path is too long"},
    {ELOOP, "too many symbolic links; check the path"},
    {EIO, "the disk reported an error; see the system's log"},
};

cup_status cup__file_fail(cup__error *error, const char *path, const char *doing, int number)
{
    if (!*path)
        path = "\"\"";
    for (size_t i = 0; i < sizeof cures / sizeof *cures; i++)
        if (cures[i].number == number)
            return cup__fail(error, CUP_IO, "%s cannot be %s: %s", path, doing, cures[i].words);
    char words[128];
    const char *text = strerror_r(number, words, sizeof words);
    return cup__fail(error, CUP_IO, "%s cannot be %s: %s", path, doing, text);
}

static int open_again(const char *path, int flags, mode_t mode)
{
    int handle;
    do
        handle = open(path, flags | O_CLOEXEC, mode);
    while (handle < 0 && errno == EINTR);
    return handle;
}

/* Opening a FIFO would wait for a writer: O_NONBLOCK, and only then the look at its kind. */
static cup_status open_regular(cup__error *error, const char *path, int *handle, uint64_t *size)
{
    *handle = open_again(path, O_RDONLY | O_NONBLOCK, 0);
    if (*handle < 0)
        return cup__file_fail(error, path, "opened", errno);
    struct stat status;
    int number = 0;
    if (fstat(*handle, &status))
        number = errno;
    else if (S_ISDIR(status.st_mode))
        number = EISDIR;
    if (!number && S_ISREG(status.st_mode)) {
        *size = (uint64_t)status.st_size;
        return CUP_OK;
    }
    close(*handle);
    *handle = -1;
    if (number)
        return cup__file_fail(error, path, "read", number);
    return cup__fail(error, CUP_IO, "%s cannot be read: it is not a regular file", path);
}

cup_status cup__file_open(cup__error *error, const char *path, cup__file *out)
{
    *out = (cup__file){.handle = -1};
    CUP_TRY(open_regular(error, path, &out->handle, &out->size));
    out->path = cup__strdup(path);
    if (out->path)
        return CUP_OK;
    close(out->handle);
    return cup__no_memory(error, path);
}

void cup__file_close(cup__file *file)
{
    if (file->path)
        close(file->handle);
    cup__free(file->path);
    *file = (cup__file){.handle = -1};
}

cup_status cup__file_read_at(cup__error *error, const cup__file *file, uint64_t offset, void *out,
                             size_t count)
{
    if (offset > INT64_MAX || count > INT64_MAX - offset)
        return cup__fail(error, CUP_ARGUMENT, "%s: offset out of range", file->path);
    char *to = out;
    while (count) {
        ssize_t got = pread(file->handle, to, count, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cup__file_fail(error, file->path, "read", errno);
        if (got == 0)
            return cup__fail(error, CUP_IO,
                             "%s is shorter than expected: it ends at byte %llu; "
                             "was it changed meanwhile?",
                             file->path, (unsigned long long)offset);
        to += got;
        offset += (uint64_t)got;
        count -= (size_t)got;
    }
    return CUP_OK;
}

/* Files such as those of /proc say they have 0 bytes, and others may grow: read until the end. */
static cup_status read_all(cup__error *error, int handle, const char *path, uint64_t most,
                           uint64_t expected, char **out, size_t *size)
{
    size_t capacity = (size_t)(expected < most ? expected : most) + 2, used = 0;
    char *bytes = cup__malloc(capacity);
    if (!bytes)
        return cup__no_memory(error, path);
    for (;;) {
        ssize_t got = read(handle, bytes + used, capacity - 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            cup__free(bytes);
            return cup__file_fail(error, path, "read", errno);
        }
        used += (size_t)got;
        if (got == 0 || used > most)
            break;
        if (used == capacity - 1) {
            char *grown = cup__realloc(bytes, capacity, 2);
            if (!grown) {
                cup__free(bytes);
                return cup__no_memory(error, path);
            }
            bytes = grown;
            capacity *= 2;
        }
    }
    bytes[used] = 0;
    *out = bytes;
    *size = used;
    return CUP_OK;
}

cup_status cup__file_read(cup__error *error, const char *path, uint64_t most, char **out,
                          size_t *size)
{
    int handle;
    uint64_t expected;
    size_t got = 0;
    *out = NULL;
    if (most > SIZE_MAX / 4)
        most = SIZE_MAX / 4;
    CUP_TRY(open_regular(error, path, &handle, &expected));
    cup_status status = CUP_OK;
    if (expected <= most)
        status = read_all(error, handle, path, most, expected, out, &got);
    close(handle);
    if (status != CUP_OK)
        return status;
    if (expected > most || got > most) {
        cup__free(*out);
        *out = NULL;
        return cup__fail(error, CUP_IO, "%s is too large: it has more than %llu bytes", path,
                         (unsigned long long)most);
    }
    if (size)
        *size = got;
    return CUP_OK;
}

/* Some file systems cannot sync; that is no failure. */
static bool sync_handle(int handle)
{
    int result;
    if (cup__fault())
        return false;
    do
        result = fsync(handle);
    while (result && errno == EINTR);
    return !result || errno == EINVAL || errno == ENOTSUP;
}

cup_status cup__file_sync_folder(cup__error *error, const char *path)
{
    const char *name = cup__path_name(path);
    size_t length = (size_t)(name - path);
    char *folder = cup__malloc(length + 2);
    if (!folder)
        return cup__no_memory(error, path);
    memcpy(folder, path, length);
    memcpy(folder + length, length ? "" : ".", length ? 1 : 2);
    cup_status status = CUP_OK;
    int handle = open_again(folder, O_RDONLY | O_DIRECTORY, 0);
    /* A folder that may be written but not read cannot be synced; nor can some file systems. */
    if (handle >= 0) {
        if (!sync_handle(handle))
            status = cup__file_fail(error, folder, "synced", errno);
        close(handle);
    }
    cup__free(folder);
    return status;
}

/* "NAME.tmp.PROCESS.COUNT": what the writers below write into. */
static bool is_temporary_of(const char *name, const char *entry)
{
    size_t length = strlen(name);
    if (strncmp(entry, name, length) || strncmp(entry + length, ".tmp.", 5))
        return false;
    const char *rest = entry + length + 5;
    size_t process = strspn(rest, "0123456789");
    size_t count = rest[process] == '.' ? strspn(rest + process + 1, "0123456789") : 0;
    return process && count && !rest[process + 1 + count];
}

/* Removes what a writer of this path left behind that was killed. A living one holds a lock on
 * its file, in whatever namespace its process has a number; where locks are not to be had, nothing
 * is removed. */
static void remove_left_behind(const char *path)
{
    const char *name = cup__path_name(path);
    size_t length = (size_t)(name - path);
    char folder[PATH_MAX] = ".";
    if (!*name || length >= sizeof folder)
        return;
    if (length)
        snprintf(folder, sizeof folder, "%.*s", (int)length, path);
    DIR *open = opendir(folder);
    for (struct dirent *entry; open && (entry = readdir(open));) {
        if (!is_temporary_of(name, entry->d_name))
            continue;
        int handle = openat(dirfd(open), entry->d_name,
                            O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
        if (handle < 0)
            continue;
        struct stat there;
        if (!fstat(handle, &there) && S_ISREG(there.st_mode) && !flock(handle, LOCK_EX | LOCK_NB))
            unlinkat(dirfd(open), entry->d_name, 0);
        close(handle);
    }
    if (open)
        closedir(open);
}

/* Locks a temporary file. False when another writer took it for one left behind before it could
 * be locked: then it is not there any more. */
static bool lock_temporary(const char *temporary, int handle)
{
    struct stat named, opened;
    if (flock(handle, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return false;
    return stat(temporary, &named) == 0 && fstat(handle, &opened) == 0 &&
           named.st_ino == opened.st_ino;
}

/* Names that no other writer uses: process, then a count. The mode is left to the umask. */
static int open_temporary(const char *path, char *temporary, size_t size)
{
    static _Atomic unsigned count;
    for (int tries = 0; tries < 1000 && !cup__fault(); tries++) {
        snprintf(temporary, size, "%s.tmp.%ld.%u", path, (long)getpid(),
                 atomic_fetch_add(&count, 1));
        int handle = open_again(temporary, O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (handle < 0 && errno != EEXIST)
            return handle;
        if (handle >= 0 && lock_temporary(temporary, handle))
            return handle;
        if (handle >= 0)
            close(handle);
    }
    return -1;
}

cup_status cup__writer_open(cup__error *error, const char *path, cup__writer *out)
{
    *out = (cup__writer){.handle = -1};
    struct stat there;
    if (!*path)
        return cup__file_fail(error, path, "written", ENOENT);
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return cup__fail(error, CUP_IO, "%s cannot be written: it is %s; choose another name", path,
                         S_ISDIR(there.st_mode) ? "a folder" : "not a regular file");
    size_t size = strlen(path) + 64;
    out->path = cup__strdup(path);
    out->temporary = cup__malloc(size);
    if (!out->path || !out->temporary) {
        cup__writer_abandon(out);
        return cup__no_memory(error, path);
    }
    remove_left_behind(path);
    out->handle = open_temporary(path, out->temporary, size);
    if (out->handle >= 0)
        return CUP_OK;
    int number = errno;
    cup__writer_abandon(out);
    return cup__file_fail(error, path, "written", number);
}

cup_status cup__writer_add(cup__error *error, cup__writer *writer, const void *bytes, size_t count)
{
    const char *from = bytes;
    if (writer->hash)
        cup__hash_add(writer->hash, bytes, count);
    while (count) {
        ssize_t put = cup__fault() ? -1 : write(writer->handle, from, count);
        if (put < 0 && errno == EINTR)
            continue;
        if (put == 0) {
            put = -1;
            errno = ENOSPC;
        }
        if (put < 0)
            return cup__file_fail(error, writer->path, "written", errno);
        from += put;
        count -= (size_t)put;
        writer->written += (uint64_t)put;
    }
    return CUP_OK;
}

void cup__writer_abandon(cup__writer *writer)
{
    if (writer->path && writer->handle >= 0)
        close(writer->handle);
    if (writer->temporary && writer->handle >= 0)
        unlink(writer->temporary);
    cup__free(writer->path);
    cup__free(writer->temporary);
    *writer = (cup__writer){.handle = -1};
}

cup_status cup__writer_commit(cup__error *error, cup__writer *writer)
{
    cup_status status = CUP_OK;
    if (!sync_handle(writer->handle))
        status = cup__file_fail(error, writer->path, "written", errno);
    if (status == CUP_OK && (cup__fault() || rename(writer->temporary, writer->path)))
        status = cup__file_fail(error, writer->path, "replaced", errno);
    if (status == CUP_OK) {
        cup__free(writer->temporary);
        writer->temporary = NULL;
        status = cup__file_sync_folder(error, writer->path);
    }
    cup__writer_abandon(writer);
    return status;
}

cup_status cup__file_write(cup__error *error, const char *path, const void *bytes, size_t count)
{
    cup__writer writer;
    CUP_TRY(cup__writer_open(error, path, &writer));
    cup_status status = cup__writer_add(error, &writer, bytes, count);
    if (status == CUP_OK)
        return cup__writer_commit(error, &writer);
    cup__writer_abandon(&writer);
    return status;
}

cup_status cup__file_rename(cup__error *error, const char *from, const char *to)
{
    if (cup__fault() || rename(from, to))
        return cup__file_fail(error, from, "renamed", errno);
    return cup__file_sync_folder(error, to);
}

cup_status cup__file_remove(cup__error *error, const char *path)
{
    if (cup__fault() || (unlink(path) && errno != ENOENT))
        return cup__file_fail(error, path, "removed", errno);
    return CUP_OK;
}

bool cup__file_exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}
