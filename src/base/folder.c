/* The part of file.h about folders and paths. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

bool cup__folder_exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static cup_status make_one(cup__error *error, const char *path)
{
    if (mkdir(path, 0777) == 0)
        return cup__file_sync_folder(error, path);
    int number = errno == EEXIST ? ENOTDIR : errno;
    if (cup__folder_exists(path))
        return CUP_OK;
    return cup__file_fail(error, path, "made", number);
}

cup_status cup__folder_make(cup__error *error, const char *path)
{
    if (cup__folder_exists(path))
        return CUP_OK;
    char *part = cup__strdup(path);
    if (!part)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
    cup_status status = CUP_OK;
    for (char *slash = part + (*part == '/'); status == CUP_OK && (slash = strchr(slash, '/'));
         slash++) {
        *slash = 0;
        status = make_one(error, part);
        *slash = '/';
    }
    if (status == CUP_OK)
        status = make_one(error, path);
    cup__free(part);
    return status;
}

/* The folder itself, or the nearest one above it that is there, must be one to write in. */
cup_status cup__folder_check(cup__error *error, const char *path)
{
    char *part = cup__malloc(strlen(path) + 2), *slash;
    if (!part)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
    strcpy(part, path);
    struct stat there;
    while (stat(part, &there) && errno == ENOENT && strcmp(part, ".")) {
        slash = strrchr(part, '/');
        strcpy(slash ? slash : part, slash == part ? "/" : slash ? "" : ".");
    }
    int number = stat(part, &there)             ? errno
                 : !S_ISDIR(there.st_mode)      ? ENOTDIR
                 : access(part, W_OK | X_OK) < 0 ? errno
                                                 : 0;
    cup__free(part);
    return number ? cup__file_fail(error, path, "written", number) : CUP_OK;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool add_name(cup__names *names, const char *name)
{
    if (!cup__grow(&names->name, &names->capacity, names->count, sizeof *names->name))
        return false;
    char *copy = cup__strdup(name);
    if (copy)
        names->name[names->count++] = copy;
    return copy;
}

static cup_status list_open(cup__error *error, const char *path, DIR *folder, cup__names *out)
{
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(folder);
        if (!entry)
            return errno ? cup__file_fail(error, path, "listed", errno) : CUP_OK;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (!add_name(out, entry->d_name))
            return cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
    }
}

cup_status cup__folder_list(cup__error *error, const char *path, cup__names *out)
{
    *out = (cup__names){0};
    DIR *folder = opendir(path);
    if (!folder)
        return cup__file_fail(error, path, "listed", errno);
    cup_status status = list_open(error, path, folder, out);
    closedir(folder);
    if (status != CUP_OK)
        cup__names_free(out);
    else if (out->count)
        qsort(out->name, out->count, sizeof *out->name, by_bytes);
    return status;
}

void cup__names_free(cup__names *names)
{
    for (size_t i = 0; i < names->count; i++)
        cup__free(names->name[i]);
    cup__free(names->name);
    *names = (cup__names){0};
}

char *cup__path_join(const char *folder, const char *name)
{
    size_t first = *name == '/' ? 0 : strlen(folder), second = strlen(name);
    bool slash = first && folder[first - 1] != '/';
    char *path = cup__malloc(first + slash + second + 1);
    if (!path)
        return NULL;
    memcpy(path, folder, first);
    if (slash)
        path[first] = '/';
    memcpy(path + first + slash, name, second + 1);
    return path;
}

const char *cup__path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

cup_status cup__user_folder_find(cup__error *error, cup__user_folder which, char **out)
{
    static const struct {
        const char *variable, *below_home;
    } places[] = {
        [CUP__CACHE_FOLDER] = {"XDG_CACHE_HOME", ".cache/cupola"},
        [CUP__CONFIG_FOLDER] = {"XDG_CONFIG_HOME", ".config/cupola"},
        [CUP__STATE_FOLDER] = {"XDG_STATE_HOME", ".local/state/cupola"},
    };
    *out = NULL;
    const char *base = getenv(places[which].variable), *below = "cupola";
    /* The rules say that a relative path is to be ignored. */
    if (!base || *base != '/') {
        base = getenv("HOME");
        below = places[which].below_home;
    }
    if (!base || *base != '/')
        return CUP_OK;
    *out = cup__path_join(base, below);
    return *out ? CUP_OK : cup__fail(error, CUP_MEMORY, "%s: out of host memory", base);
}
