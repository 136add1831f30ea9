/* The part of json.h that writes. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

static void add_line(cup__json_writer *writer)
{
    cup__text_append(&writer->text, "\n", 1);
    for (int i = 0; i < writer->depth; i++)
        cup__text_append(&writer->text, "  ", 2);
}

static void add_quoted(cup__text *text, const char *value, size_t length)
{
    static const char special[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    cup__text_append(text, "\"", 1);
    for (size_t i = 0; i < length;) {
        int bytes = cup__utf8_decode(value + i, length - i, NULL);
        char c = value[i];
        const char *found = c ? strchr(special, c) : NULL;
        if (bytes <= 0)
            cup__text_append(text, "\xef\xbf\xbd", 3);
        else if (found)
            cup__text_append(text, (char[]){'\\', names[found - special]}, 2);
        else if ((unsigned char)c < 0x20 || c == 0x7f)
            cup__text_add(text, "\\u%04x", (unsigned)c);
        else
            cup__text_append(text, value + i, (size_t)bytes);
        i += bytes > 0 ? (size_t)bytes : 1;
    }
    cup__text_append(text, "\"", 1);
}

/* What comes before every value: a comma, a new line, the key. */
static void begin_value(cup__json_writer *writer, const char *key)
{
    if (writer->filled)
        cup__text_append(&writer->text, ",", 1);
    if (writer->depth && writer->depth <= writer->lines)
        add_line(writer);
    else if (writer->filled)
        cup__text_append(&writer->text, " ", 1);
    if (key) {
        add_quoted(&writer->text, key, strlen(key));
        cup__text_append(&writer->text, ": ", 2);
    }
    writer->filled = true;
}

void cup__json_open(cup__json_writer *writer, const char *key, cup__json_kind kind)
{
    bool object = kind == CUP__JSON_OBJECT;
    begin_value(writer, key);
    if (writer->depth == (int)sizeof writer->closing) {
        writer->text.failed = true;
        return;
    }
    cup__text_append(&writer->text, object ? "{" : "[", 1);
    writer->closing[writer->depth++] = object ? '}' : ']';
    writer->filled = false;
}

void cup__json_close(cup__json_writer *writer)
{
    if (writer->depth == 0)
        return;
    bool line = writer->filled && writer->depth <= writer->lines;
    char closing = writer->closing[--writer->depth];
    if (line)
        add_line(writer);
    cup__text_append(&writer->text, &closing, 1);
    writer->filled = true;
    if (writer->depth == 0 && writer->lines)
        cup__text_append(&writer->text, "\n", 1);
}

void cup__json_add_null(cup__json_writer *writer, const char *key)
{
    begin_value(writer, key);
    cup__text_append(&writer->text, "null", 4);
}

void cup__json_add_boolean(cup__json_writer *writer, const char *key, bool value)
{
    begin_value(writer, key);
    cup__text_add(&writer->text, "%s", value ? "true" : "false");
}

void cup__json_add_integer(cup__json_writer *writer, const char *key, int64_t value)
{
    begin_value(writer, key);
    cup__text_add(&writer->text, "%" PRId64, value);
}

void cup__json_add_unsigned(cup__json_writer *writer, const char *key, uint64_t value)
{
    begin_value(writer, key);
    cup__text_add(&writer->text, "%" PRIu64, value);
}

void cup__json_add_number(cup__json_writer *writer, const char *key, double value)
{
    if (!isfinite(value)) {
        cup__json_add_null(writer, key);
        return;
    }
    begin_value(writer, key);
    cup__text_add_number(&writer->text, value);
}

void cup__json_add_string(cup__json_writer *writer, const char *key, const char *value)
{
    cup__json_add_bytes(writer, key, value, strlen(value));
}

void cup__json_add_bytes(cup__json_writer *writer, const char *key, const char *value,
                         size_t length)
{
    begin_value(writer, key);
    add_quoted(&writer->text, value, length);
}

static void add_number_node(cup__json_writer *writer, const char *key, const cup__json_node *node)
{
    if (!node->is_integer) {
        cup__json_add_number(writer, key, cup__json_number(node));
        return;
    }
    begin_value(writer, key);
    cup__text_add(&writer->text, "%s%" PRIu64, node->is_negative ? "-" : "", node->magnitude);
}

void cup__json_add_node(cup__json_writer *writer, const char *key, const cup__json_node *node)
{
    switch (node->kind) {
    case CUP__JSON_NULL:
        cup__json_add_null(writer, key);
        break;
    case CUP__JSON_BOOL:
        cup__json_add_boolean(writer, key, node->boolean);
        break;
    case CUP__JSON_NUMBER:
        add_number_node(writer, key, node);
        break;
    case CUP__JSON_STRING:
        cup__json_add_bytes(writer, key, node->string, node->count);
        break;
    case CUP__JSON_ARRAY:
    case CUP__JSON_OBJECT:
        cup__json_open(writer, key, node->kind);
        CUP__JSON_EACH(child, node)
        cup__json_add_node(writer, child->key, child);
        cup__json_close(writer);
        break;
    }
}
