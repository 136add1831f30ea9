#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* Of what a sentence is made of before it is cut to size: two of the longest paths. */
#define MOST_WHOLE 10240

const char *cup_status_text(cup_status status)
{
    switch (status) {
#define STATUS_TEXT(name, value, words)                                                            \
    case CUP_##name:                                                                               \
        return words;
        CUP_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

/* What the middle of a text that is too long is replaced by. */
#define CUT " ... "

/* A long path in front must not push the reason out: what does not fit goes from the middle. */
static void keep_both_ends(char *to, size_t size, const char *from)
{
    size_t length = strlen(from);
    if (length < size) {
        memcpy(to, from, length + 1);
        return;
    }
    size_t room = size - sizeof CUT, head = room / 2, tail = room - head;
    const char *rest = from + length - tail;
    while (head && ((unsigned char)from[head] & 0xc0) == 0x80)
        head--;
    while (((unsigned char)*rest & 0xc0) == 0x80)
        rest++;
    memcpy(to, from, head);
    memcpy(to + head, CUT, sizeof CUT - 1);
    strcpy(to + head + sizeof CUT - 1, rest);
}

cup_status cup__fail(cup__error *error, cup_status status, const char *format, ...)
{
    if (!error || error->status != CUP_OK)
        return status;
    error->status = status;
    char whole[MOST_WHOLE], visible[MOST_WHOLE];
    va_list args;
    va_start(args, format);
    vsnprintf(whole, sizeof whole, format, args);
    va_end(args);
    /* Names come from outside; a compiler's own words have lines. */
    cup_text_visible(whole, status == CUP_COMPILE ? "\n\t" : "", visible, sizeof visible);
    keep_both_ends(error->text, sizeof error->text, visible);
    return status;
}

void cup__error_prefix(cup__error *error, const char *format, ...)
{
    if (!error || error->status == CUP_OK)
        return;
    char words[CUP__ERROR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    char visible[CUP__ERROR_TEXT];
    size_t length = strlen(cup_text_visible(words, "", visible, sizeof visible));
    if (length >= CUP__ERROR_TEXT - 1)
        return;
    size_t room = sizeof error->text - 1 - length;
    size_t kept = strlen(error->text);
    if (kept > room)
        kept = room;
    memmove(error->text + length, error->text, kept);
    memcpy(error->text, visible, length);
    error->text[length + kept] = 0;
}

void cup__error_clear(cup__error *error)
{
    error->status = CUP_OK;
    error->text[0] = 0;
}

cup_status cup__no_memory(cup__error *error, const char *where)
{
    return cup__fail(error, CUP_MEMORY, "%s: out of host memory", where);
}
