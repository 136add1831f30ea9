#include "cli/common/pages.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/common/exit.h"
#include "cli/common/help.h"
#include "cupola/facts.h"

#define RELEASE_DATE "November 21, 2026"

#define PAGE_COLUMNS 78

/* One word, with what troff would take for a request or an escape protected. */
static void add_word(FILE *page, const char *word, int length, bool first)
{
    if (first && (*word == '.' || *word == '\''))
        fprintf(page, "\\&");
    for (int i = 0; i < length; i++)
        if (word[i] == '\\')
            fprintf(page, "\\e");
        else if (word[i] == '-' && i + 1 < length && word[i + 1] == '-')
            fprintf(page, "\\-");
        else
            fprintf(page, "%c", word[i]);
}

/* Text for mdoc in short lines; each sentence begins a line, as manual pages have it. */
static void add_words(FILE *page, const char *words)
{
    int column = 0;
    bool ended = false;
    while (*words) {
        int length = (int)strcspn(words, " \n");
        bool new_line = ended && isupper((unsigned char)*words);
        if (column && (new_line || column + 1 + length > PAGE_COLUMNS)) {
            fprintf(page, "\n");
            column = 0;
        }
        fprintf(page, "%s", column ? " " : "");
        add_word(page, words, length, !column);
        column += length + 1;
        ended = length && strchr(".?!:", words[length - 1]);
        words += length;
        if (words[0] == '\n' && words[1] == '\n') {
            fprintf(page, "\n.Pp\n");
            column = 0;
        }
        words += strspn(words, " \n");
    }
    fprintf(page, "\n");
}

/* A phrase of a table as a sentence. */
static void add_sentence(FILE *page, const char *words)
{
    char text[1024];
    snprintf(text, sizeof text, "%s%s", words,
             *words && strchr(".?!", words[strlen(words) - 1]) ? "" : ".");
    text[0] = (char)toupper((unsigned char)text[0]);
    add_words(page, text);
}

static void add_head(FILE *page, const char *name, const char *words)
{
    char upper[64];
    size_t n = 0;
    for (; name[n] && n < sizeof upper - 1; n++)
        upper[n] = (char)toupper((unsigned char)name[n]);
    upper[n] = 0;
    fprintf(page, ".\\\" Written by make gen from the tables in cli/.\n");
    fprintf(page, ".Dd %s\n.Dt %s 1\n.Os\n.Sh NAME\n.Nm %s\n.Nd %s\n", RELEASE_DATE, upper, name,
            words);
}

static void add_options(FILE *page, const cli_option *rows)
{
    bool open = false;
    for (; rows && !option_ends(rows); rows++) {
        if (rows->type == OPTION_GROUP) {
            fprintf(page, "%s.Ss %s\n.Bl -tag -width Ds\n", open ? ".El\n" : "", rows->words);
            open = true;
            continue;
        }
        if (!open)
            fprintf(page, ".Bl -tag -width Ds\n");
        open = true;
        char range[160];
        option_range(rows, range, sizeof range);
        bool bare = option_may_be_bare(rows);
        fprintf(page, ".It Fl \\-%s%s%s%s\n", rows->name,
                bare ? " Op Ar " : rows->hint ? " Ar " : "", rows->hint ? rows->hint : "",
                option_is_list(rows) ? " ..." : "");
        add_sentence(page, rows->words);
        if (range[0]) {
            range[0] = (char)toupper((unsigned char)range[0]);
            add_sentence(page, range);
        }
    }
    if (open)
        fprintf(page, ".El\n");
}

static void add_examples(FILE *page, const char *examples)
{
    fprintf(page, ".Sh EXAMPLES\n");
    for (int line = 0; *examples; line++) {
        int length = (int)strcspn(examples, "\n");
        fprintf(page, "%s%s", line ? ".Pp\n" : "", line % 2 ? ".Dl " : "");
        add_word(page, examples, length, line % 2 == 0);
        fprintf(page, "\n");
        examples += length + (examples[length] == '\n');
    }
}

static void verb_page(FILE *page, const cli_verb *verb)
{
    char name[64];
    snprintf(name, sizeof name, "cupola-%s", verb->name);
    add_head(page, name, verb->words);
    fprintf(page, ".Sh SYNOPSIS\n.Nm cupola %s\n.Ar ", verb->name);
    add_words(page, verb->synopsis);
    fprintf(page, ".Sh DESCRIPTION\n");
    add_words(page, verb->text);
    fprintf(page, ".Sh OPTIONS\n");
    add_options(page, verb->options);
    add_options(page, common_options);
    fprintf(page, ".Sh EXIT STATUS\nThe codes are listed in\n.Xr cupola 1 .\n");
    if (verb->examples)
        add_examples(page, verb->examples);
    fprintf(page, ".Sh SEE ALSO\n.Xr cupola 1\n");
}

static void main_page(FILE *page)
{
    cup_variable variable;
    add_head(page, "cupola", "train and run neural networks on a GPU or a CPU");
    fprintf(page, ".Sh SYNOPSIS\n.Nm\n.Ar verb\n.Op Ar option ...\n.Nm\n.Cm help\n"
                  ".Op Ar verb\n.Nm\n.Fl \\-version\n.Sh DESCRIPTION\n");
    add_words(page, "Cupola trains and runs neural networks on NVIDIA GPUs, and on a CPU where "
                    "there is none. Results are written to stdout, progress and messages to "
                    "stderr. The verbs are:");
    fprintf(page, ".Bl -tag -width Ds\n");
    for (int i = 0; verbs[i]; i++) {
        fprintf(page, ".It Xr cupola-%s 1\n", verbs[i]->name);
        add_sentence(page, verbs[i]->words);
    }
    fprintf(page, ".El\n.Sh ENVIRONMENT\n.Bl -tag -width Ds\n");
    for (int i = 0; cup_variable_at(i, &variable); i++) {
        fprintf(page, ".It Ev %s\n", variable.name);
        add_sentence(page, variable.words);
    }
    fprintf(page, ".It Ev NO_COLOR\nWhen not empty, no colours.\n.El\n");
    fprintf(page, ".Sh EXIT STATUS\n.Bl -tag -width Ds\n");
#define PAGE_EXIT(name, value, words) fprintf(page, ".It " #value "\n" words "\n");
    CLI_EXIT_LIST(PAGE_EXIT)
#undef PAGE_EXIT
    fprintf(page, ".It 128+N\nSignal N ended it.\n.El\n");
}

/* One page, of a verb where it is of one. */
typedef struct page {
    const char *name;
    void (*write)(FILE *to);
    const cli_verb *verb;
} page;

static int write_page(const char *folder, const page *p)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%s%s", folder, p->name, p->verb ? p->verb->name : "",
             p->verb ? ".1" : "");
    FILE *to = fopen(path, "w");
    if (to && p->verb)
        verb_page(to, p->verb);
    else if (to)
        p->write(to);
    bool failed = !to || ferror(to);
    if (to && fclose(to))
        failed = true;
    return failed ? cli_fail(CLI_FILE, "%s cannot be written: %s", path, strerror(errno)) : CLI_OK;
}

int pages_write(const char *folder)
{
    static const char *const folders[] = {"", "/man", "/completion"};
    static const page pages[] = {{"man/cupola.1", main_page, NULL},
                                 {"completion/cupola.bash", completion_bash, NULL},
                                 {"completion/_cupola", completion_zsh, NULL},
                                 {"GRADIENTS.md", gradients_page, NULL}};
    int code = CLI_OK;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%s", folder, folders[i]);
        if (mkdir(path, 0777) && errno != EEXIST)
            return cli_fail(CLI_FILE, "%s cannot be made: %s", path, strerror(errno));
    }
    for (size_t i = 0; i < sizeof pages / sizeof *pages && !code; i++)
        code = write_page(folder, &pages[i]);
    for (int i = 0; verbs[i] && !code; i++)
        code = write_page(folder, &(page){"man/cupola-", NULL, verbs[i]});
    return code;
}
