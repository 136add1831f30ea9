#include "data/walk.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

#define MOST_DEPTH 64

typedef struct walk {
    cup__error *error;
    cup__visit visit;
    void *user;
    int64_t *skipped, taken;
} walk;

static cup_status visit_file(walk *w, const char *path, bool found)
{
    bool taken = true;
    CUP_TRY(w->visit(w->error, path, found, &taken, w->user));
    w->taken += taken;
    *w->skipped += !taken;
    return CUP_OK;
}

static bool is_build_folder(const char *name)
{
    static const char *const names[] = {"build",        "out",         "dist", "target",
                                        "node_modules", "__pycache__", "venv"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* A run whose folder lies among its own text must find the same text when it is resumed. */
static bool is_checkpoint(const char *path)
{
    char *state = cup__path_join(path, "state.json");
    bool found = state && access(state, F_OK) == 0;
    cup__free(state);
    return found;
}

static cup_status add_folder(walk *w, const char *path, int depth);

static cup_status add_entry(walk *w, const char *folder, const char *name, int depth)
{
    char *path = cup__path_join(folder, name);
    if (!path)
        return cup__no_memory(w->error, folder);
    struct stat there;
    cup_status status = CUP_OK;
    if (lstat(path, &there))
        status = errno == ENOENT ? CUP_OK : cup__file_fail(w->error, path, "read", errno);
    else if (S_ISDIR(there.st_mode) && !is_build_folder(name) && !is_checkpoint(path))
        status = add_folder(w, path, depth + 1);
    else if (S_ISREG(there.st_mode))
        status = visit_file(w, path, true);
    else
        (*w->skipped)++;
    cup__free(path);
    return status;
}

static cup_status add_folder(walk *w, const char *path, int depth)
{
    if (depth > MOST_DEPTH)
        return cup__fail(w->error, CUP_ARGUMENT, "%s: folders are nested deeper than %d levels",
                         path, MOST_DEPTH);
    cup__names names;
    CUP_TRY(cup__folder_list(w->error, path, &names));
    cup_status status = CUP_OK;
    for (size_t i = 0; i < names.count && status == CUP_OK; i++)
        if (names.name[i][0] == '.')
            (*w->skipped)++;
        else
            status = add_entry(w, path, names.name[i], depth);
    cup__names_free(&names);
    return status;
}

cup_status cup__walk(cup__error *error, const char *path, cup__visit visit, void *user,
                     int64_t *skipped)
{
    walk w = {error, visit, user, skipped, 0};
    if (!path || !*path)
        return cup__fail(error, CUP_ARGUMENT, "the path of a data file is empty");
    if (!cup__folder_exists(path))
        return visit_file(&w, path, false);
    CUP_TRY(add_folder(&w, path, 0));
    if (w.taken == 0)
        return cup__fail(error, CUP_FORMAT, "%s holds no text files; name another folder", path);
    return CUP_OK;
}
