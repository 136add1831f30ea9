/* The one document a verb writes on stdout for --json, piece by piece. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/common/text.h"

#define JSON_DEPTH 16

typedef struct cli_json {
    cli_text text; /* without `to` where there is no memory for it */
    int depth;
    bool filled;              /* the open container has a value */
    char closing[JSON_DEPTH]; /* of the open containers */
} cli_json;

/* Opens the document: {"schema": 1, "verb": NAME, ... */
void json_begin(cli_json *json, const char *verb);

/* Closes and prints it. Returns an exit code. */
int json_end(cli_json *json);

/* The same for an object that takes one line of a file, without schema and verb; false when it was
 * not written. */
void json_begin_line(cli_json *json);
bool json_end_line(cli_json *json, FILE *to);

/* Lets go of one that was not closed; harmless behind json_end, and where all is zero. */
void json_drop(cli_json *json);

/* Values of an object have a key, others NULL. */
void json_open_object(cli_json *json, const char *key);
void json_open_array(cli_json *json, const char *key);
void json_close(cli_json *json);
void json_add_null(cli_json *json, const char *key);
void json_add_boolean(cli_json *json, const char *key, bool value);
void json_add_integer(cli_json *json, const char *key, int64_t value);
/* The shortest digits that give the same double; null for what JSON has no number for. */
void json_add_number(cli_json *json, const char *key, double value);
/* Bytes that are not UTF-8 become U+FFFD. */
void json_add_string(cli_json *json, const char *key, const char *value);
void json_add_bytes(cli_json *json, const char *key, const char *value, size_t length);

#endif
