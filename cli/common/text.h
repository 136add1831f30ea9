/* A text in memory that is written to as to a file. */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include <stdbool.h>
#include <stdio.h>

typedef struct cli_text {
    FILE *to;
    char *bytes; /* once it is closed: it ends in a 0 */
    size_t length;
} cli_text;

/* False when there is no memory for it; `to` is NULL then. */
bool text_open(cli_text *text);

/* Sets the bytes; false when there was no memory for all of them. */
bool text_close(cli_text *text);

/* Words as XML and HTML hold them; what is not UTF-8 or not allowed there becomes U+FFFD. */
void text_add_markup(FILE *to, const char *words);

/* Frees what is there, closed or not; all zero is allowed. */
void text_free(cli_text *text);

#endif
