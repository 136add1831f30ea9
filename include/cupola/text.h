/* cupola/text.h: words for people, as the library itself writes them. */
#ifndef CUPOLA_TEXT_H
#define CUPOLA_TEXT_H

#include "cupola/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Words from outside, as a file's name, as a terminal may show them: control characters, those that
 * turn the direction of writing, and bytes that are not UTF-8 become escapes such as \n and \x1b.
 * What `keep` holds stays as it is; NULL: nothing. Written into `text` of `bytes` bytes, which must
 * not be the words, cut where it is full but never within a character, and returned. Sentences of
 * errors and of the log are so already. */
CUP_API char *cup_text_visible(const char *words, const char *keep, char *text, size_t bytes);

/* "1.5 GiB", "12 KiB": a number of bytes, written into `text` of `bytes` bytes, of which 32 are
 * enough, and returned. */
CUP_API const char *cup_text_size(double size, char *text, size_t bytes);

/* The first character of a text of `bytes` bytes: how many of them it takes, 1 to 4; 0 when the
 * text ends inside it or is empty; -1 when it begins nothing that is valid UTF-8 (RFC 3629: no
 * overlong forms, no surrogates). `code` takes the code point, and may be NULL. */
CUP_API int cup_text_character(const char *text, size_t bytes, uint32_t *code);

#ifdef __cplusplus
}
#endif
#endif
