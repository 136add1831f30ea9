#include <stdio.h>
#include <string.h>

#include "cli/help.h"
#include "cli/pages.h"

static void add_names(cup__text *page, const cli_option *rows)
{
    for (; rows && !option_ends(rows); rows++)
        if (rows->name)
            cup__text_add(page, " --%s", rows->name);
}

/* The words of "a|b|c", with spaces between them. */
static void add_choices(cup__text *page, const char *hint)
{
    for (; *hint; hint++)
        cup__text_add(page, "%c", *hint == '|' ? ' ' : *hint);
}

static void bash_choices(cup__text *page, const cli_verb *verb, const cli_option *rows)
{
    for (; rows && !option_ends(rows); rows++)
        if (rows->name && rows->type == OPTION_CHOICE) {
            cup__text_add(page, "    %s:--%s) words='", verb ? verb->name : "*", rows->name);
            add_choices(page, rows->hint);
            cup__text_add(page, "' ;;\n");
        }
}

void completion_bash(cup__text *page)
{
    cup__text_add(page,
                  "# bash completion for cupola, written by make gen from the tables in cli/\n"
                  "_cupola()\n{\n    local word=${COMP_WORDS[COMP_CWORD]} "
                  "before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} words=\n"
                  "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words='");
    for (int i = 0; verbs[i]; i++)
        cup__text_add(page, "%s ", verbs[i]->name);
    cup__text_add(page, "help --version'\n    else\n    case $verb:$before in\n");
    for (int i = 0; verbs[i]; i++)
        bash_choices(page, verbs[i], verbs[i]->options);
    bash_choices(page, NULL, common_options);
    cup__text_add(page, "    *) [[ $word == -* ]] && case $verb in\n");
    for (int i = 0; verbs[i]; i++) {
        cup__text_add(page, "        %s) words='", verbs[i]->name);
        add_names(page, verbs[i]->options);
        add_names(page, common_options);
        cup__text_add(page, "' ;;\n");
    }
    cup__text_add(page, "        esac ;;\n    esac\n    fi\n"
                        "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n}\n"
                        "complete -o default -F _cupola cupola\n");
}

/* Words inside '[...]' of an _arguments specification. */
static void add_zsh_words(cup__text *page, const char *words)
{
    for (; *words; words++) {
        if (*words == '\'')
            cup__text_add(page, "'\\''");
        else if (strchr("[]:\\", *words))
            cup__text_add(page, "\\%c", *words);
        else
            cup__text_add(page, "%c", *words);
    }
}

static void zsh_options(cup__text *page, const cli_option *rows)
{
    for (; rows && !option_ends(rows); rows++) {
        if (!rows->name)
            continue;
        cup__text_add(page, "            '%s--%s[", option_is_list(rows) ? "*" : "", rows->name);
        add_zsh_words(page, rows->words);
        cup__text_add(page, "]");
        if (rows->type == OPTION_CHOICE) {
            cup__text_add(page, ":value:(");
            add_choices(page, rows->hint);
            cup__text_add(page, ")");
        } else if (rows->type != OPTION_FLAG) {
            cup__text_add(page, ":");
            add_zsh_words(page, rows->hint);
            bool file = rows->type == OPTION_FILES || rows->type == OPTION_TEXT;
            cup__text_add(page, "%s", file ? ":_files" : ":");
        }
        cup__text_add(page, "' \\\n");
    }
}

void completion_zsh(cup__text *page)
{
    cup__text_add(page, "#compdef cupola\n"
                        "# zsh completion for cupola, written by make gen from the tables in cli/\n"
                        "if (( CURRENT == 2 )); then\n    local -a verbs=(\n");
    for (int i = 0; verbs[i]; i++) {
        cup__text_add(page, "        '%s:", verbs[i]->name);
        add_zsh_words(page, verbs[i]->words);
        cup__text_add(page, "'\n");
    }
    cup__text_add(page, "        'help:what a verb does and takes'\n    )\n"
                        "    _describe verb verbs\nelse\n    shift words\n    (( CURRENT-- ))\n"
                        "    case $words[1] in\n");
    for (int i = 0; verbs[i]; i++) {
        cup__text_add(page, "    %s)\n        _arguments \\\n", verbs[i]->name);
        zsh_options(page, verbs[i]->options);
        zsh_options(page, common_options);
        cup__text_add(page, "            '*:file:_files' ;;\n");
    }
    cup__text_add(page, "    esac\nfi\n");
}
