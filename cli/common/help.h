/* What --help and the other uses of the tables share. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include <stdio.h>

#include "cli/common/options.h"

extern const cli_verb *const verbs[]; /* ends with NULL; in the order of verbs.def */

const cli_verb *verb_find(const char *name);

/* What --help shows for an option besides its words: "1 to 64; default 4", or "". */
const char *option_range(const cli_option *row, char *out, size_t size);

/* One line of a list: a name, then words beside it or, when it is long, below. */
void help_row(FILE *to, const char *name, const char *words);

/* Writes words from `column` on, where the cursor is, and the lines that follow under it. */
void help_wrap(FILE *to, const char *words, int column);

void help_verb(const cli_verb *verb);
void help_all(FILE *to);

#endif
