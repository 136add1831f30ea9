/* JSON Lines: an object a line, one of whose fields is the text. */
#ifndef CUP_DATA_LINES_H
#define CUP_DATA_LINES_H

#include "base/error.h"

#define CUP__TEXT_FIELD "text"
#define CUP__LONGEST_LINE ((size_t)64 << 20)

/* Whether a file is one of JSON Lines by its name, .gz or .zst left aside. */
bool cup__lines_named(const char *path);

/* Calls `text` with the text of each line; empty lines are passed over. `first` is the number of
 * the first line, for messages. */
typedef cup_status (*cup__line_text)(void *user, const char *text, size_t length);
cup_status cup__lines_each(cup__error *error, const char *path, int64_t first, const char *bytes,
                           size_t length, const char *field, cup__line_text text, void *user);

#endif
