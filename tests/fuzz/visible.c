/* What is shown of any bytes is valid UTF-8 without control characters, ends in a 0 within its
 * size, and stays as it is when it is shown again. */
#include "fuzz.h"

#include "base/text.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char out[300], again[300];
    if (size == 0)
        return 0;
    size_t room = 1 + data[0];
    char *words = strndup((const char *)data + 1, size - 1);
    MUST(words);
    memset(out, '#', sizeof out);
    MUST(cup_text_visible(words, "", out, room) == out);
    size_t length = strlen(out);
    MUST(length < room && out[room] == '#');
    MUST(cup__utf8_check(out, length) == length);
    for (size_t i = 0; i < length; i++)
        MUST((unsigned char)out[i] >= 0x20 && out[i] != 0x7f);
    MUST(!strcmp(cup_text_visible(out, "", again, sizeof again), out));
    free(words);
    return 0;
}
