#include "base/env.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

static const struct {
    const char *name, *value, *takes, *words;
} rows[] = {
#define ENV(name, value, takes, words) {"CUP_" #name, value, takes, words},
#include "base/env.def"
#undef ENV
};

const char *cup__env_get(cup__env variable)
{
    const char *value = getenv(rows[variable].name);
    return value && *value ? value : rows[variable].value;
}

cup_status cup__env_integer(cup__error *error, cup__env variable, int64_t *out)
{
    const char *text = cup__env_get(variable);
    long long low = 0, high = 0;
    sscanf(rows[variable].takes, "%lld to %lld", &low, &high);
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high)
        return cup__fail(error, CUP_ARGUMENT, "%s=%.100s: give a whole number from %s",
                         rows[variable].name, text, rows[variable].takes);
    *out = value;
    return CUP_OK;
}

/* Whether the text is the word; an N at its end stands for a whole number. */
static bool is_word(const char *text, const char *word, size_t length)
{
    bool number = word[length - 1] == 'N';
    size_t plain = length - number;
    if (strncmp(text, word, plain))
        return false;
    const char *rest = text + plain;
    return number ? *rest && !rest[strspn(rest, "0123456789")] : !*rest;
}

static cup_status check_word(cup__error *error, cup__env variable)
{
    const char *text = cup__env_get(variable), *takes = rows[variable].takes;
    for (const char *word = takes; *word;) {
        size_t length = strcspn(word, "|");
        if (is_word(text, word, length))
            return CUP_OK;
        word += length + (word[length] == '|');
    }
    return cup__fail(error, CUP_ARGUMENT, "%s=%.100s: %s %s", rows[variable].name, text,
                     strchr(takes, '|') ? "choose one of" : "the only choice is", takes);
}

static cup_status check_path(cup__error *error, cup__env variable, bool folder)
{
    const char *path = cup__env_get(variable);
    bool there = folder ? cup__folder_exists(path) : cup__file_exists(path);
    if (there && !access(path, R_OK))
        return CUP_OK;
    return cup__fail(error, CUP_ARGUMENT, "%s=%.1000s: there is no such %s that may be read",
                     rows[variable].name, path, folder ? "folder" : "file");
}

/* A file that may come to be, in a folder that is there. */
static cup_status check_new_file(cup__error *error, cup__env variable)
{
    const char *path = cup__env_get(variable), *name = cup__path_name(path);
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", (int)(name - path), path);
    struct stat there;
    bool is_new = lstat(path, &there) && errno == ENOENT;
    if (*name && cup__folder_exists(name == path ? "." : folder) &&
        (is_new || (cup__file_exists(path) && !access(path, R_OK))))
        return CUP_OK;
    return cup__fail(error, CUP_ARGUMENT, "%s=%.1000s: there can be no such file to be read",
                     rows[variable].name, path);
}

/* Libraries without a path are looked for by the loader, which is not asked here. */
static cup_status check_named(cup__error *error, cup__env variable)
{
    const char *takes = rows[variable].takes, *value = cup__env_get(variable);
    if (strstr(takes, "|off") && !strcmp(value, "off"))
        return CUP_OK;
    if (!strncmp(takes, "NEWFILE", 7))
        return check_new_file(error, variable);
    if (!strncmp(takes, "LIBRARY", 7) && !strchr(value, '/'))
        return CUP_OK;
    return check_path(error, variable, !strcmp(takes, "FOLDER"));
}

cup_status cup__env_check(cup__error *error, cup__env variable)
{
    const char *takes = rows[variable].takes;
    int64_t number;
    if (!*takes || !strcmp(cup__env_get(variable), rows[variable].value))
        return CUP_OK;
    if (strstr(takes, " to "))
        return cup__env_integer(error, variable, &number);
    /* Kinds are in capitals, words are not. */
    return *takes >= 'A' && *takes <= 'Z' ? check_named(error, variable)
                                          : check_word(error, variable);
}

const char *cup__env_name(cup__env variable)
{
    return rows[variable].name;
}

const char *cup__env_default(cup__env variable)
{
    return rows[variable].value;
}

const char *cup__env_words(cup__env variable)
{
    return rows[variable].words;
}
