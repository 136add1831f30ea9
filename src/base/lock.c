#include "base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"

#define NAME ".cupola.lock"
#define HOLDER 160
#define WAIT_MS 10

/* Whether the path still leads to the open file; the last holder may have removed it meanwhile. */
static bool is_at(int handle, const char *path)
{
    struct stat open, there;
    return fstat(handle, &open) == 0 && lstat(path, &there) == 0 && open.st_dev == there.st_dev &&
           open.st_ino == there.st_ino;
}

/* Leaves in *handle the open lock file, locked; or -1 and in `holder` who has it. */
static cup_status try_lock(cup__error *error, const char *path, int *handle, char holder[HOLDER])
{
    for (;;) {
        *handle = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (*handle < 0 && errno == EINTR)
            continue;
        if (*handle < 0)
            return cup__file_fail(error, path, "written", errno);
        int result;
        do
            result = flock(*handle, LOCK_EX | LOCK_NB);
        while (result && errno == EINTR);
        if (result && errno == EWOULDBLOCK) {
            ssize_t count = pread(*handle, holder, HOLDER - 1, 0);
            holder[count > 0 ? count : 0] = 0;
            holder[strcspn(holder, "\n")] = 0;
            close(*handle);
            *handle = -1;
            return CUP_OK;
        }
        if (result || is_at(*handle, path))
            return CUP_OK;
        close(*handle);
    }
}

/* A lock without its holder's name is one all the same, so a full disk is no failure. */
static void write_holder(int handle)
{
    char host[100] = "", text[HOLDER];
    gethostname(host, sizeof host - 1);
    int length =
        snprintf(text, sizeof text, "%ld%s%s\n", (long)getpid(), *host ? " on " : "", host);
    if (ftruncate(handle, 0) == 0 && pwrite(handle, text, (size_t)length, 0) != length)
        (void)!ftruncate(handle, 0);
}

cup_status cup__lock_take(cup__error *error, const char *folder, double seconds, cup__lock *out)
{
    *out = (cup__lock){.handle = -1};
    char holder[HOLDER] = "";
    char *path = cup__path_join(folder, NAME);
    if (!path)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory", folder);
    cup_status status = try_lock(error, path, &out->handle, holder);
    for (double waited = 0; status == CUP_OK && out->handle < 0 && waited < seconds;
         waited += 1e-3 * WAIT_MS) {
        cup__sleep(WAIT_MS * 1e-3);
        status = try_lock(error, path, &out->handle, holder);
    }
    if (status == CUP_OK && out->handle >= 0) {
        write_holder(out->handle);
        out->path = path;
        return CUP_OK;
    }
    cup__free(path);
    if (status != CUP_OK)
        return status;
    return cup__fail(error, CUP_STATE,
                     "%s is in use by process %s; wait until it ends, or take another folder",
                     folder, *holder ? holder : "of an unknown number");
}

int64_t cup__lock_look(const char *folder)
{
    struct {
        char holder[HOLDER];
        uint64_t inode;
    } known = {{0}, 0};
    struct stat there;
    char *path = cup__path_join(folder, NAME);
    int handle = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    cup__free(path);
    if (handle < 0)
        return 0;
    bool good = pread(handle, known.holder, HOLDER - 1, 0) >= 0 && fstat(handle, &there) == 0;
    if (good)
        known.inode = (uint64_t)there.st_ino;
    close(handle);
    return good ? (int64_t)(cup__hash_bytes(&known, sizeof known) >> 1) : 0;
}

void cup__lock_drop(cup__lock *lock)
{
    if (lock->path) {
        unlink(lock->path);
        close(lock->handle);
    }
    cup__free(lock->path);
    *lock = (cup__lock){.handle = -1};
}
