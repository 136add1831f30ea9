/* The one document a verb writes on stdout for --json. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include "base/json.h"

/* Opens the document: {"schema": 1, "verb": NAME, ... */
void json_begin(cup__json_writer *writer, const char *verb);

/* Closes and prints it. Returns an exit code. */
int json_end(cup__json_writer *writer);

#endif
