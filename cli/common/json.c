#include "cli/common/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cupola/text.h"

#define SCHEMA 1
#define LINES 2 /* containers less deep than that put each value on a line */

static void put(cli_json *json, const char *words)
{
    if (json->text.to)
        fputs(words, json->text.to);
}

static void break_line(cli_json *json)
{
    if (json->text.to)
        fprintf(json->text.to, "\n%*s", 2 * json->depth, "");
}

/* One character of a string, of so many bytes, 0 or less for what is not UTF-8. */
static void put_character(FILE *to, const char *at, int bytes)
{
    unsigned char c = (unsigned char)*at;
    if (bytes <= 0)
        fputs("\xef\xbf\xbd", to);
    else if (c == '"' || c == '\\')
        fprintf(to, "\\%c", c);
    else if (c == '\n' || c == '\t' || c == '\r')
        fprintf(to, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
    else if (c < 0x20 || c == 0x7f)
        fprintf(to, "\\u%04x", c);
    else
        fwrite(at, 1, (size_t)bytes, to);
}

static void put_string(cli_json *json, const char *value, size_t length)
{
    put(json, "\"");
    for (size_t i = 0; json->text.to && i < length;) {
        int bytes = cup_text_character(value + i, length - i, NULL);
        put_character(json->text.to, value + i, bytes);
        i += bytes > 0 ? (size_t)bytes : 1;
    }
    put(json, "\"");
}

/* What comes before every value: a comma, a new line, the key. */
static void begin_value(cli_json *json, const char *key)
{
    put(json, json->filled ? "," : "");
    if (json->depth && json->depth <= LINES)
        break_line(json);
    else
        put(json, json->filled ? " " : "");
    if (key) {
        put_string(json, key, strlen(key));
        put(json, ": ");
    }
    json->filled = true;
}

static void open_container(cli_json *json, const char *key, const char *both)
{
    begin_value(json, key);
    put(json, (char[]){both[0], 0});
    if (json->depth < JSON_DEPTH)
        json->closing[json->depth] = both[1];
    json->depth++;
    json->filled = false;
}

void json_open_object(cli_json *json, const char *key)
{
    open_container(json, key, "{}");
}

void json_open_array(cli_json *json, const char *key)
{
    open_container(json, key, "[]");
}

void json_close(cli_json *json)
{
    bool line = json->filled && json->depth <= LINES;
    json->depth--;
    if (line)
        break_line(json);
    put(json, (char[]){json->closing[json->depth], 0});
    json->filled = true;
}

static void add(cli_json *json, const char *key, const char *words)
{
    begin_value(json, key);
    put(json, words);
}

void json_add_null(cli_json *json, const char *key)
{
    add(json, key, "null");
}

void json_add_boolean(cli_json *json, const char *key, bool value)
{
    add(json, key, value ? "true" : "false");
}

void json_add_integer(cli_json *json, const char *key, int64_t value)
{
    char words[32];
    snprintf(words, sizeof words, "%" PRId64, value);
    add(json, key, words);
}

void json_add_number(cli_json *json, const char *key, double value)
{
    char words[40];
    int digits = 15; /* of which trailing zeros are left out; so many are always exact */
    do
        snprintf(words, sizeof words, "%.*g", digits, value);
    while (digits++ < 17 && strtod(words, NULL) != value);
    add(json, key, isfinite(value) ? words : "null");
}

void json_add_bytes(cli_json *json, const char *key, const char *value, size_t length)
{
    begin_value(json, key);
    put_string(json, value, length);
}

void json_add_string(cli_json *json, const char *key, const char *value)
{
    json_add_bytes(json, key, value, strlen(value));
}

void json_begin(cli_json *json, const char *verb)
{
    *json = (cli_json){0};
    text_open(&json->text);
    json_open_object(json, NULL);
    json_add_integer(json, "schema", SCHEMA);
    json_add_string(json, "verb", verb);
}

int json_end(cli_json *json)
{
    int code = CLI_OK;
    json_close(json);
    put(json, "\n");
    if (text_close(&json->text))
        cli_write(json->text.bytes, json->text.length);
    else
        code = cli_fail(CLI_MEMORY, "no host memory for the document");
    text_free(&json->text);
    return code;
}

void json_drop(cli_json *json)
{
    text_free(&json->text);
}

void json_begin_line(cli_json *json)
{
    *json = (cli_json){.depth = LINES + 1};
    text_open(&json->text);
    json_open_object(json, NULL);
}

bool json_end_line(cli_json *json, FILE *to)
{
    json_close(json);
    put(json, "\n");
    bool whole = text_close(&json->text) && fputs(json->text.bytes, to) >= 0;
    text_free(&json->text);
    return whole && fflush(to) == 0;
}
