/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef CUP_BASE_UTF8_H
#define CUP_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The first code point: the number of its bytes, 0 when `count` bytes end inside it (or are none),
 * -1 when they begin nothing valid. `code` may be NULL. */
int cup__utf8_decode(const void *bytes, size_t count, uint32_t *code);

/* The index of the first byte that begins no whole valid code point, `count` when all is valid. */
size_t cup__utf8_check(const void *bytes, size_t count);

/* Writes a code point and returns the number of its bytes, 0 when it is none. */
int cup__utf8_encode(uint32_t code, char out[4]);

#endif
