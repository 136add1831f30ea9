#include "cuda/sources.h"

#include <pthread.h>
#include <string.h>

#define LEAST 4 /* bytes of a repetition */

static size_t take_number(const unsigned char **from)
{
    size_t number = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char byte = *(*from)++;
        number |= (size_t)(byte & 127) << shift;
        if (byte < 128)
            return number;
    }
}

static void unpack(void)
{
    const unsigned char *from = cup__sources_packed;
    char *to = cup__sources_text, *end = to + cup__sources_size;
    for (;;) {
        size_t plain = take_number(&from);
        memcpy(to, from, plain);
        to += plain;
        from += plain;
        if (to == end)
            return;
        size_t length = take_number(&from) + LEAST;
        const char *before = to - (from[0] | from[1] << 8);
        from += 2;
        /* Byte by byte, as it may reach into what it writes. */
        while (length--)
            *to++ = *before++;
        if (to == end)
            return;
    }
}

const cup__source *cup__sources(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, unpack);
    return cup__sources_rows;
}
