#include "cli/pages.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/exit.h"
#include "cli/help.h"

#define RELEASE_DATE "November 21, 2026"

#define PAGE_COLUMNS 78

/* One word, with what troff would take for a request or an escape protected. */
static void add_word(cup__text *page, const char *word, int length, bool first)
{
    if (first && (*word == '.' || *word == '\''))
        cup__text_add(page, "\\&");
    for (int i = 0; i < length; i++)
        if (word[i] == '\\')
            cup__text_add(page, "\\e");
        else if (word[i] == '-' && i + 1 < length && word[i + 1] == '-')
            cup__text_add(page, "\\-");
        else
            cup__text_add(page, "%c", word[i]);
}

/* Text for mdoc in short lines; each sentence begins a line, as manual pages have it. */
static void add_words(cup__text *page, const char *words)
{
    int column = 0;
    bool ended = false;
    while (*words) {
        int length = (int)strcspn(words, " \n");
        bool new_line = ended && isupper((unsigned char)*words);
        if (column && (new_line || column + 1 + length > PAGE_COLUMNS)) {
            cup__text_add(page, "\n");
            column = 0;
        }
        cup__text_add(page, "%s", column ? " " : "");
        add_word(page, words, length, !column);
        column += length + 1;
        ended = length && strchr(".?!:", words[length - 1]);
        words += length;
        if (words[0] == '\n' && words[1] == '\n') {
            cup__text_add(page, "\n.Pp\n");
            column = 0;
        }
        words += strspn(words, " \n");
    }
    cup__text_add(page, "\n");
}

/* A phrase of a table as a sentence. */
static void add_sentence(cup__text *page, const char *words)
{
    char text[1024];
    snprintf(text, sizeof text, "%s%s", words,
             *words && strchr(".?!", words[strlen(words) - 1]) ? "" : ".");
    text[0] = (char)toupper((unsigned char)text[0]);
    add_words(page, text);
}

static void add_head(cup__text *page, const char *name, const char *words)
{
    char upper[64];
    size_t n = 0;
    for (; name[n] && n < sizeof upper - 1; n++)
        upper[n] = (char)toupper((unsigned char)name[n]);
    upper[n] = 0;
    cup__text_add(page, ".\\\" Written by make gen from the tables in cli/.\n");
    cup__text_add(page, ".Dd %s\n.Dt %s 1\n.Os\n.Sh NAME\n.Nm %s\n.Nd %s\n", RELEASE_DATE, upper,
                  name, words);
}

static void add_options(cup__text *page, const cli_option *rows)
{
    bool open = false;
    for (; rows && !option_ends(rows); rows++) {
        if (rows->type == OPTION_GROUP) {
            cup__text_add(page, "%s.Ss %s\n.Bl -tag -width Ds\n", open ? ".El\n" : "", rows->words);
            open = true;
            continue;
        }
        if (!open)
            cup__text_add(page, ".Bl -tag -width Ds\n");
        open = true;
        char range[160];
        option_range(rows, range, sizeof range);
        cup__text_add(page, ".It Fl \\-%s%s%s%s\n", rows->name, rows->hint ? " Ar " : "",
                      rows->hint ? rows->hint : "", option_is_list(rows) ? " ..." : "");
        add_sentence(page, rows->words);
        if (range[0]) {
            range[0] = (char)toupper((unsigned char)range[0]);
            add_sentence(page, range);
        }
    }
    if (open)
        cup__text_add(page, ".El\n");
}

static void add_examples(cup__text *page, const char *examples)
{
    cup__text_add(page, ".Sh EXAMPLES\n");
    for (int line = 0; *examples; line++) {
        int length = (int)strcspn(examples, "\n");
        cup__text_add(page, "%s%s", line ? ".Pp\n" : "", line % 2 ? ".Dl " : "");
        add_word(page, examples, length, line % 2 == 0);
        cup__text_add(page, "\n");
        examples += length + (examples[length] == '\n');
    }
}

static void verb_page(cup__text *page, const cli_verb *verb)
{
    char name[64];
    snprintf(name, sizeof name, "cupola-%s", verb->name);
    add_head(page, name, verb->words);
    cup__text_add(page, ".Sh SYNOPSIS\n.Nm cupola %s\n.Ar ", verb->name);
    add_words(page, verb->synopsis);
    cup__text_add(page, ".Sh DESCRIPTION\n");
    add_words(page, verb->text);
    cup__text_add(page, ".Sh OPTIONS\n");
    add_options(page, verb->options);
    add_options(page, common_options);
    cup__text_add(page, ".Sh EXIT STATUS\nThe codes are listed in\n.Xr cupola 1 .\n");
    if (verb->examples)
        add_examples(page, verb->examples);
    cup__text_add(page, ".Sh SEE ALSO\n.Xr cupola 1\n");
}

static void main_page(cup__text *page)
{
    add_head(page, "cupola", "train and run neural networks on a GPU or a CPU");
    cup__text_add(page, ".Sh SYNOPSIS\n.Nm\n.Ar verb\n.Op Ar option ...\n.Nm\n.Cm help\n"
                        ".Op Ar verb\n.Nm\n.Fl \\-version\n.Sh DESCRIPTION\n");
    add_words(page, "Cupola trains and runs neural networks on NVIDIA GPUs, and on a CPU where "
                    "there is none. Results are written to stdout, progress and messages to "
                    "stderr. The verbs are:");
    cup__text_add(page, ".Bl -tag -width Ds\n");
    for (int i = 0; verbs[i]; i++) {
        cup__text_add(page, ".It Xr cupola-%s 1\n", verbs[i]->name);
        add_sentence(page, verbs[i]->words);
    }
    cup__text_add(page, ".El\n.Sh ENVIRONMENT\n.Bl -tag -width Ds\n");
    for (int i = 0; i < CUP__ENV_COUNT; i++) {
        cup__text_add(page, ".It Ev %s\n", cup__env_name((cup__env)i));
        add_sentence(page, cup__env_words((cup__env)i));
    }
    cup__text_add(page, ".It Ev NO_COLOR\nWhen not empty, no colours.\n.El\n");
    cup__text_add(page, ".Sh EXIT STATUS\n.Bl -tag -width Ds\n");
#define PAGE_EXIT(name, value, words) cup__text_add(page, ".It " #value "\n" words "\n");
    CLI_EXIT_LIST(PAGE_EXIT)
#undef PAGE_EXIT
    cup__text_add(page, ".It 128+N\nSignal N ended it.\n.El\n");
}

static cup_status save(cup__error *error, const char *folder, const char *name, cup__text *page)
{
    if (page->failed)
        return cup__fail(error, CUP_MEMORY, "no host memory for %s", name);
    char *path = cup__path_join(folder, name);
    if (!path)
        return cup__fail(error, CUP_MEMORY, "no host memory for %s", name);
    cup_status status = cup__file_write(error, path, page->bytes, page->length);
    cup__free(path);
    cup__text_free(page);
    return status;
}

static cup_status write_all(cup__error *error, const char *folder)
{
    cup__text page = {0};
    main_page(&page);
    CUP_TRY(save(error, folder, "man/cupola.1", &page));
    for (int i = 0; verbs[i]; i++) {
        char name[80];
        snprintf(name, sizeof name, "man/cupola-%s.1", verbs[i]->name);
        verb_page(&page, verbs[i]);
        CUP_TRY(save(error, folder, name, &page));
    }
    completion_bash(&page);
    CUP_TRY(save(error, folder, "completion/cupola.bash", &page));
    completion_zsh(&page);
    CUP_TRY(save(error, folder, "completion/_cupola", &page));
    gradients_page(&page);
    return save(error, folder, "GRADIENTS.md", &page);
}

int pages_write(const char *folder)
{
    cup__error error = {0};
    char *man = cup__path_join(folder, "man"), *completion = cup__path_join(folder, "completion");
    cup_status status = !man || !completion
                            ? cup__fail(&error, CUP_MEMORY, "no host memory for the pages")
                            : cup__folder_make(&error, man);
    if (status == CUP_OK)
        status = cup__folder_make(&error, completion);
    if (status == CUP_OK)
        status = write_all(&error, folder);
    cup__free(man);
    cup__free(completion);
    return status == CUP_OK ? CLI_OK : cli_fail_status(status, NULL, error.text);
}
