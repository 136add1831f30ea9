/* A string that grows. Appending after a failed allocation does nothing; ask `failed` once. */
#ifndef CUP_BASE_TEXT_H
#define CUP_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "cupola/text.h"

typedef struct cup__text {
    char *bytes; /* always ends in 0, unless nothing was ever appended: then NULL */
    size_t length, capacity;
    bool failed;
} cup__text;

void cup__text_add(cup__text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cup__text_append(cup__text *text, const void *bytes, size_t count);
void cup__text_free(cup__text *text);

/* Words as XML and HTML hold them; what is not UTF-8 or not allowed there becomes U+FFFD. */
void cup__text_add_markup(cup__text *text, const char *words);

/* Numbers with a point, whatever the program's locale has instead. The shortest digits that give
 * the same double; and as strtod reads them, `end` set behind the number. */
void cup__text_add_number(cup__text *text, double value);
double cup__text_number(const char *from, char **end);

/* The string so far, "" when nothing was appended. */
const char *cup__text_string(const cup__text *text);

/* "1.5 GiB", "12 KiB": a size for people, written into `out` (of at least 32 bytes). */
const char *cup__text_bytes(double bytes, char out[32]);

#endif
