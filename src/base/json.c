#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/utf8.h"

#define MOST_DEPTH 64
#define MOST_BYTES (UINT32_MAX - 1)
#define MOST_NODES ((size_t)1 << 26)

/* `at` reads the text while `to` writes decoded strings over what was read, which is never
 * shorter: a string's two quotes make room for its 0. */
typedef struct parser {
    cup__error *error;
    cup__json *json;
    char *at, *end, *to;
    int depth;
} parser;

static cup_status refuse(parser *p, const char *what)
{
    return cup__fail(p->error, CUP_FORMAT, "%s is not valid JSON: %s at byte %zu", p->json->name,
                     what, (size_t)(p->at - p->json->text));
}

static void skip_space(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t'))
        p->at++;
}

static bool take(parser *p, char wanted)
{
    skip_space(p);
    if (p->at == p->end || *p->at != wanted)
        return false;
    p->at++;
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Four hexadecimal digits, or a number above 0xffff. */
static uint32_t hex_four(const parser *p, const char *at)
{
    uint32_t value = 0;
    if (p->end - at < 4)
        return UINT32_MAX;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(at[i]);
        if (digit < 0)
            return UINT32_MAX;
        value = value << 4 | (uint32_t)digit;
    }
    return value;
}

/* Behind "\u": one code unit, or two that make one code point. */
static cup_status decode_unicode(parser *p)
{
    uint32_t code = hex_four(p, p->at);
    if (code > 0xffff)
        return refuse(p, "\\u without four hexadecimal digits");
    int used = 4;
    if (code >= 0xd800 && code < 0xdc00 && p->end - p->at >= 6 && p->at[4] == '\\' &&
        p->at[5] == 'u') {
        uint32_t low = hex_four(p, p->at + 6);
        if (low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            used = 10;
        }
    }
    char bytes[4];
    int length = cup__utf8_encode(code, bytes);
    if (length == 0)
        return refuse(p, "half of a surrogate pair");
    memcpy(p->to, bytes, (size_t)length);
    p->to += length;
    p->at += used;
    return CUP_OK;
}

static cup_status decode_escape(parser *p)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (p->at == p->end)
        return refuse(p, "a string without end");
    const char *found = *p->at ? strchr(names, *p->at) : NULL;
    if (!found && *p->at != 'u')
        return refuse(p, "an unknown escape");
    p->at++;
    if (!found)
        return decode_unicode(p);
    *p->to++ = values[found - names];
    return CUP_OK;
}

/* Behind the opening quote. */
static cup_status parse_string(parser *p, const char **out, uint32_t *length)
{
    char *begin = p->to;
    for (;;) {
        if (p->at == p->end)
            return refuse(p, "a string without end");
        char c = *p->at;
        if ((unsigned char)c < 0x20)
            return refuse(p, "a control character inside a string");
        p->at++;
        if (c == '"')
            break;
        if (c == '\\')
            CUP_TRY(decode_escape(p));
        else
            *p->to++ = c;
    }
    *out = begin;
    *length = (uint32_t)(p->to - begin);
    *p->to++ = 0;
    return CUP_OK;
}

static size_t count_digits(const parser *p, const char *at)
{
    const char *begin = at;
    while (at < p->end && *at >= '0' && *at <= '9')
        at++;
    return (size_t)(at - begin);
}

static bool whole_number(const char *digits, size_t count, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < count; i++)
        if (__builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, (uint64_t)(digits[i] - '0'), out))
            return false;
    return true;
}

static cup_status parse_number(parser *p, cup__json_node *node)
{
    char *begin = p->at, *at = p->at;
    node->kind = CUP__JSON_NUMBER;
    node->is_negative = *at == '-';
    at += node->is_negative;
    size_t digits = count_digits(p, at);
    if (digits == 0 || (digits > 1 && *at == '0'))
        return refuse(p, "a malformed number");
    uint64_t magnitude;
    node->is_integer = whole_number(at, digits, &magnitude);
    at += digits;
    if (at < p->end && *at == '.') {
        digits = count_digits(p, at + 1);
        if (digits == 0)
            return refuse(p, "a malformed number");
        at += 1 + digits;
        node->is_integer = false;
    }
    if (at < p->end && (*at == 'e' || *at == 'E')) {
        at++;
        at += at < p->end && (*at == '+' || *at == '-');
        digits = count_digits(p, at);
        if (digits == 0)
            return refuse(p, "a malformed number");
        at += digits;
        node->is_integer = false;
    }
    /* The text ends in a 0, which stops the conversion where no other byte does. */
    if (node->is_integer)
        node->magnitude = magnitude;
    else if (!isfinite(node->number = cup__text_number(begin, NULL)))
        return refuse(p, "a number out of range");
    p->at = at;
    return CUP_OK;
}

static cup_status parse_word(parser *p, cup__json_node *node)
{
    static const struct {
        const char *word;
        cup__json_kind kind;
        bool value;
    } words[] = {{"null", CUP__JSON_NULL, false},
                 {"true", CUP__JSON_BOOL, true},
                 {"false", CUP__JSON_BOOL, false}};
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(words[i].word);
        if ((size_t)(p->end - p->at) >= length && memcmp(p->at, words[i].word, length) == 0) {
            p->at += length;
            node->kind = words[i].kind;
            node->boolean = words[i].value;
            return CUP_OK;
        }
    }
    return refuse(p, p->at == p->end ? "an early end" : "an unexpected character");
}

static cup_status parse_value(parser *p, const char *key);

static cup_status parse_member(parser *p)
{
    const char *key;
    uint32_t length;
    if (!take(p, '"'))
        return refuse(p, "a key that is not a string");
    CUP_TRY(parse_string(p, &key, &length));
    if (strlen(key) != length)
        return refuse(p, "a key with a zero character");
    if (!take(p, ':'))
        return refuse(p, "a key without \":\"");
    return parse_value(p, key);
}

static int compare_keys(const void *a, const void *b)
{
    const cup__json_node *x = *(const cup__json_node *const *)a;
    const cup__json_node *y = *(const cup__json_node *const *)b;
    return strcmp(x->key, y->key);
}

static cup_status check_keys(parser *p, const cup__json_node *object)
{
    if (object->count < 2)
        return CUP_OK;
    const cup__json_node **sorted = cup__malloc(object->count * sizeof(*sorted));
    if (!sorted)
        return cup__fail(p->error, CUP_MEMORY, "%s: out of host memory", p->json->name);
    size_t count = 0;
    CUP__JSON_EACH(child, object)
    sorted[count++] = child;
    qsort(sorted, count, sizeof *sorted, compare_keys);
    cup_status status = CUP_OK;
    for (size_t i = 1; i < count && status == CUP_OK; i++)
        if (compare_keys(&sorted[i - 1], &sorted[i]) == 0)
            status =
                cup__fail(p->error, CUP_FORMAT, "%s has the key \"%.100s\" twice in one object",
                          p->json->name, sorted[i]->key);
    cup__free(sorted);
    return status;
}

/* Behind the opening bracket. */
static cup_status parse_children(parser *p, size_t parent, bool object)
{
    char close = object ? '}' : ']';
    uint32_t count = 0;
    if (++p->depth > MOST_DEPTH)
        return refuse(p, "nesting deeper than 64 levels");
    while (!take(p, close)) {
        if (count && !take(p, ','))
            return refuse(p, object ? "a missing \",\" or \"}\"" : "a missing \",\" or \"]\"");
        CUP_TRY(object ? parse_member(p) : parse_value(p, NULL));
        count++;
    }
    p->depth--;
    cup__json_node *node = &p->json->root[parent];
    node->kind = object ? CUP__JSON_OBJECT : CUP__JSON_ARRAY;
    node->count = count;
    node->span = (uint32_t)(p->json->count - parent);
    return object ? check_keys(p, node) : CUP_OK;
}

static cup_status parse_value(parser *p, const char *key)
{
    cup__json *json = p->json;
    if (json->count == json->capacity)
        return refuse(p, "an unexpected character");
    size_t index = json->count++;
    cup__json_node *node = &json->root[index];
    *node = (cup__json_node){.key = key, .span = 1};
    if (take(p, '{'))
        return parse_children(p, index, true);
    if (take(p, '['))
        return parse_children(p, index, false);
    if (take(p, '"')) {
        node->kind = CUP__JSON_STRING;
        return parse_string(p, &node->string, &node->count);
    }
    if (p->at < p->end && (*p->at == '-' || (*p->at >= '0' && *p->at <= '9')))
        return parse_number(p, node);
    return parse_word(p, node);
}

/* How many values the text can have at most: one, and one behind each comma and opening bracket
 * outside of strings. */
static size_t most_values(const char *text, size_t length)
{
    size_t count = 1;
    for (size_t i = 0; i < length; i++) {
        count += text[i] == ',' || text[i] == '[' || text[i] == '{';
        if (text[i] != '"')
            continue;
        for (i++; i < length && text[i] != '"'; i++)
            i += text[i] == '\\';
    }
    return count;
}

static cup_status allocate(cup__error *error, cup__json *json, size_t length)
{
    json->capacity = most_values(json->text, length);
    if (json->capacity > MOST_NODES)
        return cup__fail(error, CUP_FORMAT, "%s has more than %zu values", json->name, MOST_NODES);
    json->root = cup__malloc(json->capacity * sizeof *json->root);
    if (json->root)
        return CUP_OK;
    return cup__fail(error, CUP_MEMORY, "%s: out of host memory", json->name);
}

static cup_status parse_document(cup__error *error, cup__json *json, size_t length)
{
    parser p = {error, json, json->text, json->text + length, json->text, 0};
    size_t bad = cup__utf8_check(json->text, length);
    if (bad < length) {
        p.at += bad;
        return refuse(&p, "a byte that is not UTF-8");
    }
    CUP_TRY(allocate(error, json, length));
    CUP_TRY(parse_value(&p, NULL));
    skip_space(&p);
    return p.at == p.end ? CUP_OK : refuse(&p, "more than one value");
}

/* Parses a text that is the document's from now on, with a 0 behind it; NULL: no memory. */
static cup_status parse_own(cup__error *error, const char *name, char *text, size_t length,
                            cup__json *out)
{
    *out = (cup__json){.name = cup__strdup(name), .text = text};
    cup_status status = out->name && text
                            ? parse_document(error, out, length)
                            : cup__fail(error, CUP_MEMORY, "%s: out of host memory", name);
    if (status != CUP_OK)
        cup__json_free(out);
    return status;
}

cup_status cup__json_parse(cup__error *error, const char *name, const char *text, size_t length,
                           cup__json *out)
{
    *out = (cup__json){0};
    if (length > MOST_BYTES)
        return cup__fail(error, CUP_FORMAT, "%s is too large for a JSON document", name);
    char *copy = cup__malloc(length + 1);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = 0;
    }
    return parse_own(error, name, copy, length, out);
}

cup_status cup__json_read(cup__error *error, const char *path, uint64_t most, cup__json *out)
{
    char *text;
    size_t length;
    *out = (cup__json){0};
    CUP_TRY(cup__file_read(error, path, most < MOST_BYTES ? most : MOST_BYTES, &text, &length));
    return parse_own(error, path, text, length, out);
}

void cup__json_free(cup__json *json)
{
    cup__free(json->name);
    cup__free(json->text);
    cup__free(json->root);
    *json = (cup__json){0};
}
