#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

cup_status cup__fail(cup__error *error, cup_status status, const char *format, ...)
{
    if (!error || error->status != CUP_OK)
        return status;
    error->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return status;
}

void cup__error_prefix(cup__error *error, const char *format, ...)
{
    if (!error || error->status == CUP_OK)
        return;
    char words[CUP__ERROR_TEXT];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(words, sizeof words, format, args);
    va_end(args);
    if (length < 0 || length >= CUP__ERROR_TEXT - 1)
        return;
    size_t room = sizeof error->text - 1 - (size_t)length;
    size_t kept = strlen(error->text);
    if (kept > room)
        kept = room;
    memmove(error->text + length, error->text, kept);
    memcpy(error->text, words, (size_t)length);
    error->text[(size_t)length + kept] = 0;
}

void cup__error_clear(cup__error *error)
{
    error->status = CUP_OK;
    error->text[0] = 0;
}
