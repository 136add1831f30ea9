#include "base/text.h"

#include <locale.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

static bool reserve(cup__text *text, size_t more)
{
    if (text->failed || more > SIZE_MAX / 2 - text->length)
        return !(text->failed = true);
    size_t wanted = text->length + more + 1;
    if (wanted <= text->capacity)
        return true;
    size_t capacity = text->capacity ? text->capacity : 64;
    while (capacity < wanted)
        capacity *= 2;
    char *grown = cup__realloc(text->bytes, capacity, 1);
    if (!grown)
        return !(text->failed = true);
    text->bytes = grown;
    text->capacity = capacity;
    return true;
}

void cup__text_append(cup__text *text, const void *bytes, size_t count)
{
    if (!reserve(text, count))
        return;
    if (count)
        memcpy(text->bytes + text->length, bytes, count);
    text->length += count;
    text->bytes[text->length] = 0;
}

void cup__text_add(cup__text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int count = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (count >= 0 && reserve(text, (size_t)count)) {
        vsnprintf(text->bytes + text->length, (size_t)count + 1, format, again);
        text->length += (size_t)count;
    }
    va_end(again);
}

static locale_t c_locale;

static void make_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", NULL);
}

double cup__text_number(const char *from, char **end)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_locale);
    return c_locale ? strtod_l(from, end, c_locale) : strtod(from, end);
}

void cup__text_add_number(cup__text *text, double value)
{
    char digits[64];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    bool pointed = false;
    for (const char *at = digits; *at; at++) {
        bool plain = strchr("0123456789+-e", *at);
        if (plain || !pointed)
            cup__text_append(text, plain ? at : ".", 1);
        pointed |= !plain;
    }
}

void cup__text_free(cup__text *text)
{
    cup__free(text->bytes);
    *text = (cup__text){0};
}

const char *cup__text_string(const cup__text *text)
{
    return text->bytes ? text->bytes : "";
}

const char *cup__text_bytes(double bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 32, unit == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return out;
}

void cup__text_add_markup(cup__text *out, const char *words)
{
    size_t length = strlen(words);
    for (size_t i = 0; i < length;) {
        int bytes = cup__utf8_decode(words + i, length - i, NULL);
        unsigned char c = (unsigned char)words[i];
        if (bytes <= 0 || (c < 0x20 && c != '\t' && c != '\n'))
            cup__text_add(out, "\xef\xbf\xbd");
        else if (c == '&' || c == '<' || c == '>' || c == '"')
            cup__text_add(out, "&#%d;", c);
        else
            cup__text_append(out, words + i, (size_t)bytes);
        i += bytes > 0 ? (size_t)bytes : 1;
    }
}

/* Characters that a terminal acts upon, or by which a text reads other than it is. */
static bool is_hidden(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200e && code <= 0x200f) ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

/* One character at `from`, of at most `left` bytes, as it is to be seen; returns its bytes. */
static int show_one(const char *from, size_t left, const char *keep, char out[16])
{
    static const char letters[] = "\a\b\t\n\v\f\r", names[] = "abtnvfr";
    uint32_t code = 0;
    int bytes = cup__utf8_decode(from, left, &code);
    const char *found = bytes == 1 ? strchr(letters, *from) : NULL;
    if (bytes <= 0)
        snprintf(out, 16, "\\x%02x", (unsigned char)*from);
    else if (!is_hidden(code) || (bytes == 1 && strchr(keep, *from)))
        snprintf(out, 16, "%.*s", bytes, from);
    else if (found)
        snprintf(out, 16, "\\%c", names[found - letters]);
    else
        snprintf(out, 16, code < 0x80 ? "\\x%02x" : "\\u%04x", (unsigned)code);
    return bytes > 0 ? bytes : 1;
}

char *cup_text_visible(const char *words, const char *keep, char *text, size_t bytes)
{
    char one[16];
    size_t left = words ? strlen(words) : 0, used = 0;
    if (!text || !bytes)
        return text;
    while (left) {
        int taken = show_one(words, left, keep ? keep : "", one);
        size_t length = strlen(one);
        if (used + length >= bytes)
            break;
        memcpy(text + used, one, length);
        used += length;
        words += taken;
        left -= (size_t)taken;
    }
    text[used] = 0;
    return text;
}

const char *cup_text_size(double size, char *text, size_t bytes)
{
    char words[32];
    if (text && bytes)
        snprintf(text, bytes, "%s", cup__text_bytes(size, words));
    return text;
}
