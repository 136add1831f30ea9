#include <stdio.h>
#include <string.h>

#include "cli/common/help.h"
#include "cli/common/pages.h"

static void add_names(FILE *page, const cli_option *rows)
{
    for (; rows && !option_ends(rows); rows++)
        if (rows->name)
            fprintf(page, " --%s", rows->name);
}

/* The words of "a|b|c", with spaces between them. */
static void add_choices(FILE *page, const char *hint)
{
    for (; *hint; hint++)
        fprintf(page, "%c", *hint == '|' ? ' ' : *hint);
}

static void bash_choices(FILE *page, const cli_verb *verb, const cli_option *rows)
{
    for (; rows && !option_ends(rows); rows++)
        if (rows->name && rows->type == OPTION_CHOICE) {
            fprintf(page, "    %s:--%s) words='", verb ? verb->name : "*", rows->name);
            add_choices(page, rows->hint);
            fprintf(page, "' ;;\n");
        }
}

void completion_bash(FILE *page)
{
    fprintf(page, "# bash completion for cupola, written by make gen from the tables in cli/\n"
                  "_cupola()\n{\n    local word=${COMP_WORDS[COMP_CWORD]} "
                  "before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} words=\n"
                  "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words='");
    for (int i = 0; verbs[i]; i++)
        fprintf(page, "%s ", verbs[i]->name);
    fprintf(page, "help --version'\n    else\n    case $verb:$before in\n");
    for (int i = 0; verbs[i]; i++)
        bash_choices(page, verbs[i], verbs[i]->options);
    bash_choices(page, NULL, common_options);
    fprintf(page, "    *) [[ $word == -* ]] && case $verb in\n");
    for (int i = 0; verbs[i]; i++) {
        fprintf(page, "        %s) words='", verbs[i]->name);
        add_names(page, verbs[i]->options);
        add_names(page, common_options);
        fprintf(page, "' ;;\n");
    }
    fprintf(page, "        esac ;;\n    esac\n    fi\n"
                  "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n}\n"
                  "complete -o default -F _cupola cupola\n");
}

/* Words inside '[...]' of an _arguments specification. */
static void add_zsh_words(FILE *page, const char *words)
{
    for (; *words; words++) {
        if (*words == '\'')
            fprintf(page, "'\\''");
        else if (strchr("[]:\\", *words))
            fprintf(page, "\\%c", *words);
        else
            fprintf(page, "%c", *words);
    }
}

static void zsh_options(FILE *page, const cli_option *rows)
{
    for (; rows && !option_ends(rows); rows++) {
        if (!rows->name)
            continue;
        fprintf(page, "            '%s--%s[", option_is_list(rows) ? "*" : "", rows->name);
        add_zsh_words(page, rows->words);
        fprintf(page, "]");
        if (rows->type == OPTION_CHOICE) {
            fprintf(page, option_may_be_bare(rows) ? "::value:(" : ":value:(");
            add_choices(page, rows->hint);
            fprintf(page, ")");
        } else if (rows->type != OPTION_FLAG) {
            fprintf(page, ":");
            add_zsh_words(page, rows->hint);
            bool file = rows->type == OPTION_FILES || rows->type == OPTION_TEXT;
            fprintf(page, "%s", file ? ":_files" : ":");
        }
        fprintf(page, "' \\\n");
    }
}

void completion_zsh(FILE *page)
{
    fprintf(page, "#compdef cupola\n"
                  "# zsh completion for cupola, written by make gen from the tables in cli/\n"
                  "if (( CURRENT == 2 )); then\n    local -a verbs=(\n");
    for (int i = 0; verbs[i]; i++) {
        fprintf(page, "        '%s:", verbs[i]->name);
        add_zsh_words(page, verbs[i]->words);
        fprintf(page, "'\n");
    }
    fprintf(page, "        'help:what a verb does and takes'\n    )\n"
                  "    _describe verb verbs\nelse\n    shift words\n    (( CURRENT-- ))\n"
                  "    case $words[1] in\n");
    for (int i = 0; verbs[i]; i++) {
        fprintf(page, "    %s)\n        _arguments \\\n", verbs[i]->name);
        zsh_options(page, verbs[i]->options);
        zsh_options(page, common_options);
        fprintf(page, "            '*:file:_files' ;;\n");
    }
    fprintf(page, "    esac\nfi\n");
}
