#include "base/room.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

#define MOST_BYTES ((uint64_t)1 << 20)
#define LONGEST_PATH 4096

static const char *root = "";

void cup__room_root(const char *path)
{
    root = path ? path : "";
}

/* The text of a file, to be freed; NULL when it cannot be read. */
static char *read_text(const char *folder, const char *name)
{
    char path[LONGEST_PATH], *text;
    int length = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    if (length < 0 || length >= (int)sizeof path ||
        cup__file_read(NULL, path, MOST_BYTES, &text, NULL) != CUP_OK)
        return NULL;
    return text;
}

/* The number behind a key that begins a line, times `unit`; 0 when there is none. */
static int64_t number_after(const char *text, const char *key, int64_t unit)
{
    size_t length = strlen(key);
    for (const char *line = text; line && *line;) {
        if (strncmp(line, key, length) == 0)
            return (int64_t)strtoull(line + length, NULL, 10) * unit;
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return 0;
}

/* The number a file consists of; -1 where there is none, as "max" or a file that is not there. */
static int64_t number_in(const char *folder, const char *name)
{
    char *text = read_text(folder, name), *end;
    unsigned long long number = text ? strtoull(text, &end, 10) : 0;
    bool found = text && end != text && number < INT64_MAX;
    cup__free(text);
    return found ? (int64_t)number : -1;
}

static void take(cup__room *out, int64_t free, int64_t most, const char *what)
{
    free = free > 0 ? free : 0;
    if (free < out->free)
        *out = (cup__room){free, most, what};
}

/* The names of one kind of control group. Pages of files count as used but are given up at need. */
typedef struct group_names {
    const char *mount, *limit, *used, *cache, *active_cache, *swap_limit, *swap_used;
    bool swap_holds_both; /* the limit is of memory and swap together */
} group_names;

static const group_names v1 = {"/sys/fs/cgroup/memory",       "memory.limit_in_bytes",
                               "memory.usage_in_bytes",       "total_inactive_file ",
                               "total_active_file ",          "memory.memsw.limit_in_bytes",
                               "memory.memsw.usage_in_bytes", true},
                         v2 = {"/sys/fs/cgroup",      "memory.max",   "memory.current",
                               "inactive_file ",      "active_file ", "memory.swap.max",
                               "memory.swap.current", false};

/* Bytes of swap that the group may still fill. */
static int64_t swap_of(const group_names *names, const char *folder, int64_t room, int64_t swap)
{
    int64_t limit = number_in(folder, names->swap_limit);
    int64_t used = number_in(folder, names->swap_used);
    if (limit < 0 || used < 0)
        return swap;
    int64_t left = limit - used - (names->swap_holds_both ? room : 0);
    left = left > 0 ? left : 0;
    return left < swap ? left : swap;
}

static void look_at_group(const group_names *names, const char *folder, int64_t swap,
                          cup__room *out)
{
    int64_t limit = number_in(folder, names->limit), used = number_in(folder, names->used);
    if (limit < 0 || used < 0)
        return;
    char *stat = read_text(folder, "memory.stat");
    int64_t room = limit - used;
    int64_t cache =
        number_after(stat, names->cache, 1) + number_after(stat, names->active_cache, 1);
    cup__free(stat);
    room += swap_of(names, folder, room, swap) + (cache < used ? cache : used);
    take(out, room, limit, "the control group (container)");
}

/* The group at `path` and all above it. Inside a container the path may be that of the host, where
 * only the last of these, the root of what is mounted, is there. */
static void look_at_groups(const group_names *names, const char *path, size_t length, int64_t swap,
                           cup__room *out)
{
    char folder[LONGEST_PATH];
    int written = snprintf(folder, sizeof folder, "%s%.*s", names->mount, (int)length, path);
    if (written < 0 || written >= (int)sizeof folder)
        return;
    size_t least = strlen(names->mount);
    for (;;) {
        look_at_group(names, folder, swap, out);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < least)
            return;
        *slash = 0;
    }
}

/* Lines of "number:controllers:path"; those of v2 have no controllers. */
static void find_groups(int64_t swap, cup__room *out)
{
    char *text = read_text("/proc/self", "cgroup");
    for (const char *line = text; line && *line;) {
        const char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
        const char *end = line + strcspn(line, "\n");
        if (!second || second > end)
            break;
        size_t length = (size_t)(end - second - 1);
        char controllers[256];
        snprintf(controllers, sizeof controllers, ",%.*s,", (int)(second - first - 1), first + 1);
        if (second == first + 1)
            look_at_groups(&v2, second + 1, length, swap, out);
        else if (strstr(controllers, ",memory,"))
            look_at_groups(&v1, second + 1, length, swap, out);
        line = *end ? end + 1 : end;
    }
    cup__free(text);
}

static void look_at_limit(int which, int64_t used, const char *what, cup__room *out)
{
    struct rlimit limit;
    if (getrlimit(which, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < INT64_MAX)
        take(out, (int64_t)limit.rlim_cur - used, (int64_t)limit.rlim_cur, what);
}

void cup__room_find(cup__room *out)
{
    *out = (cup__room){INT64_MAX, INT64_MAX, "nothing that is known"};
    char *memory = read_text("/proc", "meminfo"), *status = read_text("/proc/self", "status");
    int64_t available = number_after(memory, "MemAvailable:", 1024);
    int64_t swap = number_after(memory, "SwapFree:", 1024);
    if (available > 0)
        take(out, available + swap, number_after(memory, "MemTotal:", 1024), "the machine");
    find_groups(swap, out);
    look_at_limit(RLIMIT_AS, number_after(status, "VmSize:", 1024), "ulimit -v", out);
    look_at_limit(RLIMIT_DATA, number_after(status, "VmData:", 1024), "ulimit -d", out);
    cup__free(memory);
    cup__free(status);
}
