#include "base/utf8.h"

#include <string.h>

#include "cupola/text.h"

int cup__utf8_decode(const void *bytes, size_t count, uint32_t *code)
{
    const uint8_t *b = bytes;
    uint32_t ignored;
    code = code ? code : &ignored;
    if (count == 0)
        return 0;
    if (b[0] < 0x80) {
        *code = b[0];
        return 1;
    }
    if (b[0] < 0xc2 || b[0] > 0xf4)
        return -1;
    int length = b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
    /* The second byte's range rules out overlong forms, surrogates and what is too large. */
    uint8_t low = b[0] == 0xe0 ? 0xa0 : b[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t high = b[0] == 0xed ? 0x9f : b[0] == 0xf4 ? 0x8f : 0xbf;
    uint32_t value = b[0] & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if ((size_t)i == count)
            return 0;
        if (b[i] < low || b[i] > high)
            return -1;
        value = value << 6 | (b[i] & 0x3fu);
        low = 0x80;
        high = 0xbf;
    }
    *code = value;
    return length;
}

int cup_text_character(const char *text, size_t bytes, uint32_t *code)
{
    return cup__utf8_decode(text, text ? bytes : 0, code);
}

size_t cup__utf8_check(const void *bytes, size_t count)
{
    const uint8_t *b = bytes;
    size_t i = 0;
    while (i < count) {
        uint64_t eight;
        if (count - i >= 8 && (memcpy(&eight, b + i, 8), (eight & 0x8080808080808080u) == 0)) {
            i += 8;
            continue;
        }
        int length = cup__utf8_decode(b + i, count - i, NULL);
        if (length <= 0)
            return i;
        i += (size_t)length;
    }
    return count;
}

int cup__utf8_encode(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return 0;
    int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (char)((0xf0u << (4 - length)) | code);
    return length;
}
