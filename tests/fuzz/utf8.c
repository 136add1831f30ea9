/* A sequence is valid when it is what encoding its code point gives, and not otherwise. */
#include "fuzz.h"

#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at = 0;
    while (at < size) {
        uint32_t code;
        char bytes[4];
        int length = cup__utf8_decode(data + at, size - at, &code);
        if (length <= 0)
            break;
        MUST(cup__utf8_encode(code, bytes) == length);
        MUST(memcmp(bytes, data + at, (size_t)length) == 0);
        at += (size_t)length;
    }
    MUST(cup__utf8_check(data, size) == at);
    return 0;
}
