/* Files and folders. Reads are bounded, writes replace a file as a whole or not at all, and every
 * failure names the path and what can be done. */
#ifndef CUP_BASE_FILE_H
#define CUP_BASE_FILE_H

#include "base/error.h"
#include "base/hash.h"

/* Reads a whole file. *out is the caller's, to be freed with cup__free, and has a 0 behind its
 * *size bytes; `size` may be NULL. A file of more than `most` bytes is refused unread. */
cup_status cup__file_read(cup__error *error, const char *path, uint64_t most, char **out,
                          size_t *size);

/* A file open for reading at any offset. Plain reads instead of a map, because a file that shrinks
 * or a disk that fails then gives a status and not a signal. */
typedef struct cup__file {
    int handle;
    uint64_t size;
    char *path;
} cup__file;

cup_status cup__file_open(cup__error *error, const char *path, cup__file *out);
cup_status cup__file_read_at(cup__error *error, const cup__file *file, uint64_t offset, void *out,
                             size_t count);
void cup__file_close(cup__file *file); /* also one that is all zero */

/* Writes a file so that at every instant either the old or the new one can be read: a temporary
 * file in the same folder, synced, renamed, the folder synced. */
typedef struct cup__writer {
    int handle;
    uint64_t written;
    char *path, *temporary; /* both NULL when closed */
    cup__hash *hash;        /* sees every byte; NULL, or set by the caller after opening */
} cup__writer;

cup_status cup__writer_open(cup__error *error, const char *path, cup__writer *out);
cup_status cup__writer_add(cup__error *error, cup__writer *writer, const void *bytes, size_t count);
/* Puts the file in place; the writer is closed either way, and a failure leaves the old file. */
cup_status cup__writer_commit(cup__error *error, cup__writer *writer);
/* Drops what was written. Does nothing to a closed or an all-zero writer. */
void cup__writer_abandon(cup__writer *writer);

cup_status cup__file_write(cup__error *error, const char *path, const void *bytes, size_t count);

/* Renames within a file system and syncs the folder of `to`. */
cup_status cup__file_rename(cup__error *error, const char *from, const char *to);
/* Removes a file; one that is not there is no failure. */
cup_status cup__file_remove(cup__error *error, const char *path);
/* Syncs the folder that a path lies in, so that a name in it outlives a loss of power. */
cup_status cup__file_sync_folder(cup__error *error, const char *path);
bool cup__file_exists(const char *path);
bool cup__folder_exists(const char *path);

/* Makes a folder and those above it; one that is there is no failure. */
cup_status cup__folder_make(cup__error *error, const char *path);

/* Whether files can be written in a folder, which need not be there yet. */
cup_status cup__folder_check(cup__error *error, const char *path);

/* The names in a folder, in the order of their bytes, without "." and "..". */
typedef struct cup__names {
    char **name;
    size_t count, capacity;
} cup__names;

cup_status cup__folder_list(cup__error *error, const char *path, cup__names *out);
void cup__names_free(cup__names *names);

/* folder + "/" + name, or just the name when it is absolute or the folder is "". To be freed with
 * cup__free; NULL when there is no memory. */
char *cup__path_join(const char *folder, const char *name);
/* What follows the last "/". */
const char *cup__path_name(const char *path);

/* The user's folders by the XDG rules, "cupola" appended; *out is to be freed with cup__free, and
 * is NULL when the environment names no place (no HOME). The folder is not made. */
typedef enum cup__user_folder {
    CUP__CACHE_FOLDER,
    CUP__CONFIG_FOLDER,
    CUP__STATE_FOLDER
} cup__user_folder;

cup_status cup__user_folder_find(cup__error *error, cup__user_folder which, char **out);

/* Records that `doing` ("opened", "written") a path failed with an errno, with its cure. */
cup_status cup__file_fail(cup__error *error, const char *path, const char *doing, int number);

#endif
