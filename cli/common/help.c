#include "cli/common/help.h"

#include <inttypes.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/terminal.h"
#include "cupola/facts.h"

#define WORDS_COLUMN 28

#define VERB(name) extern const cli_verb verb_##name;
#include "cli/verbs.def"
#undef VERB

const cli_verb *const verbs[] = {
#define VERB(name) &verb_##name,
#include "cli/verbs.def"
#undef VERB
    NULL};

const cli_verb *verb_find(const char *name)
{
    for (int i = 0; verbs[i]; i++)
        if (!strcmp(verbs[i]->name, name))
            return verbs[i];
    return NULL;
}

const char *option_range(const cli_option *row, char *out, size_t size)
{
    char range[80] = "";
    if (row->type == OPTION_INTEGER && row->most == INT64_MAX)
        snprintf(range, sizeof range, "at least %" PRId64, row->least);
    else if (row->type == OPTION_INTEGER)
        snprintf(range, sizeof range, "%" PRId64 " to %" PRId64, row->least, row->most);
    else if (row->type == OPTION_REAL && row->most)
        snprintf(range, sizeof range, "%g to below %g", row->low, row->high);
    else if (row->type == OPTION_REAL)
        snprintf(range, sizeof range, "%g to %g", row->low, row->high);
    const char *is = option_may_be_bare(row) ? "alone " : "default ";
    snprintf(out, size, "%s%s%s%s", range, range[0] && row->standard ? "; " : "",
             row->standard ? is : "", row->standard ? row->standard : "");
    return out;
}

static int help_width(FILE *to)
{
    int width = terminal_width(to) - 1;
    return width < 60 ? 60 : width > 100 ? 100 : width;
}

void help_wrap(FILE *to, const char *words, int column)
{
    int width = help_width(to), at = column;
    while (*words) {
        int length = (int)strcspn(words, " \n");
        if (at > column && at + 1 + length > width) {
            fprintf(to, "\n%*s", column, "");
            at = column;
        }
        at += fprintf(to, "%s%.*s", at > column ? " " : "", length, words);
        words += length;
        words += strspn(words, " \n");
    }
    fputc('\n', to);
}

static void wrap_paragraphs(FILE *to, const char *text)
{
    char paragraph[2048];
    while (*text) {
        const char *end = strstr(text, "\n\n");
        size_t length = end ? (size_t)(end - text) : strlen(text);
        snprintf(paragraph, sizeof paragraph, "%.*s", (int)length, text);
        help_wrap(to, paragraph, 0);
        text += length + (end ? 2 : 0);
        if (*text)
            fputc('\n', to);
    }
}

void help_row(FILE *to, const char *name, const char *words)
{
    int used = fprintf(to, "  %s%s%s", color(to, COLOR_BOLD), name, color(to, COLOR_OFF));
    used -= (int)(strlen(color(to, COLOR_BOLD)) + strlen(color(to, COLOR_OFF)));
    if (used + 1 >= WORDS_COLUMN)
        used = fprintf(to, "\n") - 1;
    fprintf(to, "%*s", WORDS_COLUMN - used, "");
    help_wrap(to, words, WORDS_COLUMN);
}

static void list_options(FILE *to, const cli_option *rows)
{
    if (!rows || option_ends(rows))
        return;
    if (rows->type != OPTION_GROUP)
        fprintf(to, "\nOptions:\n");
    for (; !option_ends(rows); rows++) {
        if (rows->type == OPTION_GROUP) {
            fprintf(to, "\n%s:\n", rows->words);
            continue;
        }
        char name[160], range[160], words[600];
        bool bare = option_may_be_bare(rows);
        snprintf(name, sizeof name, "--%s%s%s%s%s", rows->name,
                 bare ? " [" : rows->hint ? " " : "", rows->hint ? rows->hint : "",
                 bare ? "]" : "", option_is_list(rows) ? "..." : "");
        option_range(rows, range, sizeof range);
        snprintf(words, sizeof words, "%s%s%s%s", rows->words, range[0] ? " (" : "", range,
                 range[0] ? ")" : "");
        help_row(to, name, words);
    }
}

static void list_examples(FILE *to, const char *examples)
{
    fprintf(to, "\nExamples:\n");
    for (bool sentence = true; *examples; sentence = !sentence) {
        size_t length = strcspn(examples, "\n");
        fprintf(to, sentence ? "  %.*s\n" : "      %.*s\n", (int)length, examples);
        examples += length + (examples[length] == '\n');
    }
}

void help_verb(const cli_verb *verb)
{
    FILE *to = stdout;
    fprintf(to, "Usage: cupola %s %s\n\n", verb->name, verb->synopsis);
    wrap_paragraphs(to, verb->text);
    list_options(to, verb->options);
    list_options(to, common_options);
    if (verb->examples)
        list_examples(to, verb->examples);
}

void help_all(FILE *to)
{
    fprintf(to, "Usage: cupola VERB [OPTION]...\n\n"
                "Trains and runs neural networks, on an NVIDIA GPU or on a CPU.\n\nVerbs:\n");
    for (int i = 0; verbs[i]; i++)
        help_row(to, verbs[i]->name, verbs[i]->words);
    help_row(to, "help [VERB]", "this, or what a verb does and takes");
    fprintf(to, "\nExit codes:\n");
#define HELP_EXIT(name, value, words) help_row(to, #value, words);
    CLI_EXIT_LIST(HELP_EXIT)
#undef HELP_EXIT
    help_row(to, "128+N", "Signal N ended it.");
    fprintf(to, "\nEnvironment:\n");
    cup_variable variable;
    for (int i = 0; cup_variable_at(i, &variable); i++)
        help_row(to, variable.name, variable.words);
}
