/* The man pages and completions, written from the tables of verbs and options. */
#ifndef CLI_PAGES_H
#define CLI_PAGES_H

#include <stdio.h>

/* Writes man/cupola.1, man/cupola-VERB.1, completion/cupola.bash, completion/_cupola and
 * GRADIENTS.md into a folder. Returns an exit code. */
int pages_write(const char *folder);

/* The two completions. */
void completion_bash(FILE *page);
void completion_zsh(FILE *page);

/* Which ops have gradients, and second derivatives. */
void gradients_page(FILE *page);

#endif
