/* What README.md and docs/ name is there: files, verbs and their options, targets of make,
 * environment variables, ops, calls of the library. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/common/help.h"
#include "dispatch/op.h"
#include "test.h"

static const char *const pages[] = {"README.md", "docs/RULES.md", "docs/PERFORMANCE.md",
                                    "bench/NOTES.md"};

static char *read_page(const char *path)
{
    cup__error error = {0};
    char *text;
    if (cup__file_read(&error, path, 1 << 22, &text, NULL) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", error.text);
    return text;
}

/* Each text between backticks on one line, and each line that is indented as code. */
static void each_code(void (*look)(const char *page, const char *code))
{
    char code[512];
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        char *text = read_page(pages[i]), *rest = NULL;
        for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            if (!strncmp(line, "    ", 4) && strncmp(line, "     ", 5))
                look(pages[i], line + 4);
            for (char *at = strchr(line, '`'); at; at = strchr(at, '`')) {
                size_t length = strcspn(++at, "`");
                snprintf(code, sizeof code, "%.*s", (int)length, at);
                look(pages[i], code);
                at += length + (at[length] == '`');
            }
        }
        cup__free(text);
    }
}

/* A path with a folder of this tree at its front; NAME stands for any. */
static void look_for_path(const char *page, const char *code)
{
    static const char *const tops[] = {"src/",   "cli/",   "include/", "docs/", "tests/",
                                       "bench/", "tools/", "examples/"};
    char path[512];
    snprintf(path, sizeof path, "%.*s", (int)strcspn(code, " :;,"), code);
    if (strstr(path, "NAME") || strchr(path, '*'))
        return;
    for (size_t i = 0; i < sizeof tops / sizeof *tops; i++)
        if (!strncmp(path, tops[i], strlen(tops[i])) && !cup__file_exists(path) &&
            !cup__folder_exists(path))
            test_fail(__FILE__, __LINE__, "%s names %s, which is not there", page, path);
    /* Programs that are built: build/bench/X is of bench/X.c. */
    char source[600];
    snprintf(source, sizeof source, "%s.c", path + strlen("build/"));
    if (!strncmp(path, "build/bench/", 12) && !strchr(path, '.') && !cup__file_exists(source))
        test_fail(__FILE__, __LINE__, "%s names %s, which nothing makes", page, path);
}

TEST(docs_name_files_that_are_there)
{
    each_code(look_for_path);
}

static const cli_option *option_of(const cli_verb *verb, const char *name, size_t length)
{
    const cli_option *tables[] = {verb->options, common_options};
    for (int t = 0; t < 2; t++)
        for (const cli_option *row = tables[t]; row && !option_ends(row); row++)
            if (row->name && strlen(row->name) == length && !strncmp(row->name, name, length))
                return row;
    return NULL;
}

static void look_for_command(const char *page, const char *code)
{
    char name[64];
    if (strncmp(code, "cupola ", 7))
        return;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(code + 7, " ;|"), code + 7);
    if (!strcmp(name, "VERB") || !strcmp(name, "help") || name[0] == '-')
        return;
    const cli_verb *verb = verb_find(name);
    if (!verb)
        test_fail(__FILE__, __LINE__, "%s: %s: there is no verb %s", page, code, name);
    for (const char *at = strstr(code, " --"); at; at = strstr(at, " --")) {
        at += 3;
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789-");
        if (!length && *at == ' ') { /* another command follows */
            look_for_command(page, at + 1);
            return;
        }
        if (!option_of(verb, at, length))
            test_fail(__FILE__, __LINE__, "%s: %s: no option --%.*s", page, code, (int)length, at);
    }
}

TEST(docs_name_commands_that_are_there)
{
    each_code(look_for_command);
    /* The examples of --help too. */
    for (int i = 0; verbs[i]; i++) {
        char *lines = cup__strdup(verbs[i]->examples ? verbs[i]->examples : ""), *rest = NULL;
        for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            look_for_command("an example", line);
        cup__free(lines);
    }
}

static void look_for_target(const char *page, const char *code)
{
    static char *makefile;
    char target[64];
    if (strncmp(code, "make ", 5))
        return;
    if (!makefile)
        makefile = read_page("Makefile");
    snprintf(target, sizeof target, "\n%.*s:", (int)strcspn(code + 5, " ,;"), code + 5);
    if (!strstr(makefile, target))
        test_fail(__FILE__, __LINE__, "%s: %s: there is no such target", page, code);
}

TEST(docs_name_targets_that_are_there)
{
    each_code(look_for_target);
}

/* CUP_X of the environment, or a name of the public headers or of a header of the library. */
static void look_for_name(const char *page, const char *code)
{
    static char out[256];
    size_t length = strspn(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    if (strncmp(code, "CUP_", 4) && strncmp(code, "cup_", 4))
        return;
    for (int i = 0; i < CUP__ENV_COUNT; i++)
        if (strlen(cup__env_name((cup__env)i)) == length &&
            !strncmp(code, cup__env_name((cup__env)i), length))
            return;
    for (length = 0; isalnum((unsigned char)code[length]) || code[length] == '_';)
        length++;
    if (code[length - 1] == '_')
        return;
    if (test_command(out, sizeof out,
                     "grep -rqw --include='*.h' --include='*.cuh' '%.*s' include src", (int)length,
                     code))
        test_fail(__FILE__, __LINE__, "%s names %.*s, which no header declares", page, (int)length,
                  code);
}

TEST(docs_name_what_is_declared)
{
    each_code(look_for_name);
}

/* Every op has its row in docs/OPS.md, every verb its line in README.md and its page. */
TEST(docs_list_all_ops_and_verbs)
{
    char *ops = read_page("docs/OPS.md"), *readme = read_page("README.md"), words[100];
    for (const cup__row *row = cup__rows; row->name; row++) {
        snprintf(words, sizeof words, "\n| `%s` |", row->name);
        if (row->is_public)
            EXPECT_CONTAINS(ops, words);
    }
    for (int i = 0; verbs[i]; i++) {
        snprintf(words, sizeof words, "\n    cupola %s ", verbs[i]->name);
        EXPECT_CONTAINS(readme, words);
        snprintf(words, sizeof words, "docs/man/cupola-%s.1", verbs[i]->name);
        EXPECT(cup__file_exists(words));
    }
    cup__free(ops);
    cup__free(readme);
}
