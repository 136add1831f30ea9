/* What stdout and stderr are, and whether they take colour. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

typedef enum color_name { COLOR_OFF, COLOR_BOLD, COLOR_DIM, COLOR_RED, COLOR_GREEN } color_name;

/* "always", "never", or "auto": on a terminal, unless NO_COLOR is set or TERM is dumb. */
void color_mode(const char *mode);

/* The sequence that switches the colour on; "" where the stream takes none. */
const char *color(FILE *stream, color_name name);

bool terminal_is(FILE *stream);

/* Whether lines can be drawn over: a terminal that is not dumb. */
bool terminal_redraws(FILE *stream);

/* Columns of the terminal: as it says, else COLUMNS, else 80. */
int terminal_width(FILE *stream);

#endif
